package handle

import (
	"testing"

	"gdrapi/core"

	"github.com/stretchr/testify/require"
)

// The last range has a place, too, and goes.
func TestAllSpans(t *testing.T) {
	l, _, _ := open(t)
	s, err := l.newHits()
	require.NoError(t, err)
	h, err := l.table.alloc()
	require.NoError(t, err)
	for i := range core.MaxRanges {
		s.Add(i, core.Shown{Start: uint64(i), View: view{l, h}})
	}
	require.EqualValues(t, core.MaxRanges-1, s.spans[core.MaxRanges-1].start.Load())
	s.Remove(1)
	require.EqualValues(t, core.MaxRanges-1, s.line.count.Load())
	require.EqualValues(t, core.MaxRanges-1, s.spans[core.MaxRanges-2].start.Load())
}
