package core

import (
	"bytes"
	"testing"

	"gdrapi/core/backend"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestLane(t *testing.T) {
	d, f, mem := openMemory(t)
	// The fake's mappings all show the same memory, each from its page on.
	l, err := d.OpenLane([]Span{{0x10000, 100}, {0x10000 + 200, 50}}, []Span{{0x10000 + 400, 100}, {0x10000 + 600, 50}})
	require.NoError(t, err)
	a, b := bytes.Repeat([]byte{1}, 100), bytes.Repeat([]byte{2}, 50)
	for set, at := range []int{0, 400} {
		want := bytes.Clone(mem)
		copy(want[at:], a)
		copy(want[at+200:], b[:20])
		require.NoError(t, l.Write(set, a, b[:20]))
		require.Equal(t, want, mem)
	}
	want := bytes.Clone(mem)
	require.NoError(t, l.Write(0, nil, nil))
	for _, c := range []struct {
		set    int
		arrays [][]byte
	}{{-1, [][]byte{a, b}}, {2, [][]byte{a, b}}, {0, [][]byte{a}}, {0, [][]byte{b, b, b}}, {0, [][]byte{b, a}}} {
		require.Equal(t, unix.EINVAL, errno(l.Write(c.set, c.arrays...)))
	}
	require.Equal(t, want, mem, "nothing is written")
	require.Zero(t, testing.AllocsPerRun(100, func() { require.NoError(t, l.Write(1, a, b)) }))
	require.NoError(t, l.Close())
	require.ErrorIs(t, l.Write(0, a, b), ErrClosed)
	require.Zero(t, f.Live)
}

func TestNoLane(t *testing.T) {
	d, f, _ := openMemory(t)
	for _, sets := range [][][]Span{{{}}, {{{0x10000, 100}}, {}}, {{{0x10000, 100}, {0x20000, 0}}}} {
		_, err := d.OpenLane(sets...)
		require.Equal(t, unix.EINVAL, errno(err))
	}
	f.Type = backend.Caching
	_, err := d.OpenLane([]Span{{0x10000, 100}})
	require.Equal(t, unix.ENOTSUP, errno(err))
	require.Zero(t, f.Live)
}
