package rm

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Windows cross no unit, and together are what was asked for. Past the last object there is an errno.
func TestCut(t *testing.T) {
	p := &pin{first: 7 << 32, extents: []extent{{object: 1, offset: 3 << 12, length: 5 << 12}, {object: 2, length: 5000}}}
	for what, c := range map[string]struct {
		size, unit uint64
		want       []uint64
	}{
		"a part of the first":                  {4096, 0, []uint64{4096}},
		"both":                                 {5<<12 + 5000, 0, []uint64{5 << 12, 5000}},
		"units":                                {5<<12 + 4096, 4 << 12, []uint64{4096, 4 << 12, 4096}},
		"the second one ends inside of a page": {7 << 12, 0, nil},
		"the same, cut":                        {7 << 12, 4096, nil},
	} {
		got, err := p.cut(c.size, func(handle) uint64 { return c.unit })
		if c.want == nil {
			require.ErrorIs(t, err, unix.EINVAL, what)
			continue
		}
		require.NoError(t, err, what)
		var lengths []uint64
		for _, e := range got {
			lengths = append(lengths, e.length)
		}
		require.Equal(t, c.want, lengths, what)
	}
	_, _, err := p.mapFirst(7 << 12)
	require.ErrorIs(t, err, unix.EINVAL)
}
