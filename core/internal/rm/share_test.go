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
		"five runs":                         {extentsOf(1, 2, 3, 4, 5, 5, 5), true},
		"six":                               {extentsOf(1, 2, 3, 4, 5, 6), false},
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
		got, va, err := l.extents()
		require.NoError(t, err, what)
		require.Equal(t, c.extents, got, what)
		require.Equal(t, p.first, va, what)
		if len(c.extents) == 1 {
			cuda, ours := (&label{First: labelCUDA}).encode(), l.encode()
			require.Equal(t, cuda[:40], ours[:40], what)
			require.Equal(t, l, decodeLabel(ours), what)
		} else {
			require.Greater(t, l.First, uint32(1<<16), what) // CUDA's are small numbers
		}
	}
}

// Anybody may have written a label.
func TestLabelOfAnother(t *testing.T) {
	one := label{First: labelCUDA, Runs: [5]run{4: {1, 2}}, Magic: labelMagic, Offset: 3, VA: 7 << 32}
	two := one
	two.First, two.Runs[3] = labelMagic, run{1, 3}
	for what, c := range map[string]struct {
		of    label
		spoil func(l *label)
		want  error
	}{
		"another version":              {one, func(l *label) { l.Magic++ }, unix.EINVAL},
		"the label before":             {label{}, func(l *label) { l.First = labelMagic - 1 }, unix.EINVAL},
		"another first word of CUDA's": {label{}, func(l *label) { l.First = 6 }, unix.EINVAL},
		"no object":                    {one, func(l *label) { l.Runs[4].Count = 0 }, unix.EINVAL},
		"an object of no bytes":        {one, func(l *label) { l.Runs[4].Pages = 0 }, unix.EINVAL},
		"one object that CUDA refuses": {one, func(l *label) { l.First = labelMagic }, unix.EINVAL},
		"two objects for CUDA":         {two, func(l *label) { l.First = labelCUDA }, unix.EINVAL},
		"too many":                     {two, func(l *label) { l.Runs[3].Count = uint32(labelObjects) }, unix.EINVAL},
		"very many":                    {two, func(l *label) { l.Runs[3].Count = 1<<32 - 1 }, unix.EINVAL},
		"inside of a page":             {one, func(l *label) { l.VA++ }, unix.EINVAL},
		"an address that wraps":        {one, func(l *label) { l.VA = 1<<64 - gpuPage }, unix.EINVAL},
	} {
		l := c.of
		c.spoil(&l)
		_, _, err := l.extents()
		require.ErrorIs(t, err, c.want, what)
	}
	require.Zero(t, (&gpu{coherent: true}).spaceOf(importSystem+1), "memory of a kind that is not known")
	extents, _, err := two.extents()
	require.NoError(t, err)
	require.Equal(t, []extent{{offset: 3 * gpuPage, length: 3 * gpuPage}, {length: 2 * gpuPage}}, extents)
}
