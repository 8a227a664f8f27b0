package rm

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func extentsOf(pages ...uint64) (all []extent) {
	for _, n := range pages {
		all = append(all, extent{length: n * gpuPage})
	}
	return all
}

func TestLabel(t *testing.T) {
	many := extentsOf(make([]uint64, labelObjects)...)
	for i := range many {
		many[i].length = 320 * gpuPage
	}
	inside := extentsOf(3, 32, 32, 5)
	inside[0].offset = 29 * gpuPage
	gap := extentsOf(3, 32)
	gap[1].offset = gpuPage
	small := extentsOf(1)
	small[0].length = 4096
	for what, c := range map[string]struct {
		extents []extent
		fits    bool
	}{
		"one object":                        {extentsOf(1), true},
		"a part of the first and the last":  {inside, true},
		"as many as fit":                    {many, true},
		"one more":                          {append(many, many[0]), false},
		"six runs":                          {extentsOf(1, 2, 3, 4, 5, 6, 6, 6), true},
		"seven":                             {extentsOf(1, 2, 3, 4, 5, 6, 7), false},
		"the second begins inside":          {gap, false},
		"pieces of no GPU page":             {small, false},
		"an object of more than the number": {[]extent{{length: 1 << 48}}, false},
	} {
		p := &pin{first: 7 << 32, extents: c.extents}
		l, err := p.label()
		if !c.fits {
			require.ErrorIs(t, err, unix.ENOTSUP, what)
			continue
		}
		require.NoError(t, err, what)
		got, size, err := l.extents()
		require.NoError(t, err, what)
		require.Equal(t, c.extents, got, what)
		var want uint64
		for _, e := range c.extents {
			want += e.length
		}
		require.Equal(t, want, size, what)
		require.Equal(t, p.first, l.va, what)
	}
}

// Anybody may have written a label.
func TestLabelOfAnother(t *testing.T) {
	good := label{magic: labelMagic, va: 7 << 32, runs: [6]run{{1, 2}, {1, 3}}}
	for what, spoil := range map[string]func(l *label){
		"all zeros":             func(l *label) { *l = label{} },
		"another version":       func(l *label) { l.magic++ },
		"no object":             func(l *label) { l.runs[0].count = 0 },
		"an object of no bytes": func(l *label) { l.runs[1].pages = 0 },
		"too many":              func(l *label) { l.runs[1].count = uint32(labelObjects) },
		"very many":             func(l *label) { l.runs[1].count = 1<<32 - 1 },
		"inside of a page":      func(l *label) { l.va++ },
		"an address that wraps": func(l *label) { l.va = 1<<64 - gpuPage },
	} {
		l := good
		spoil(&l)
		_, _, err := l.extents()
		require.ErrorIs(t, err, unix.EINVAL, what)
	}
	_, size, err := good.extents()
	require.NoError(t, err)
	require.EqualValues(t, 5*gpuPage, size)
}
