package core

import (
	"testing"
	"time"

	"gdrapi/core/cache"
	"gdrapi/core/handle"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// chunks knows an allocation of 64 KiB at each multiple of that; with silent it does not say
// where they end.
type chunks struct{ silent error }

func (c chunks) BufferID(addr uint64) (uint64, error) { return addr >> 16, nil }
func (c chunks) AllocationRange(addr uint64) (uint64, uint64, error) {
	return addr &^ 0xffff, 1 << 16, c.silent
}
func (c chunks) PointerGetAttribute() uintptr { return 0x1234 }

// newCaches have a table of their own.
func newCaches(t *testing.T) *Caches {
	t.Helper()
	table, err := handle.New(1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, table.Close()) })
	return &Caches{Table: table, Buffers: handle.NewObjects[*Buffer](table), Driver: func() (cache.Driver, error) { return chunks{}, nil }}
}

// A range is pinned from a page of the backend's on, and mapped as the backend chooses.
func TestWhatACachePins(t *testing.T) {
	for _, page := range []uint32{4096, 1 << 16} {
		d, f, _ := openMemory(t)
		f.Page = page
		in := newCaches(t)
		in.Driver = func() (cache.Driver, error) { return chunks{unix.ENOTSUP}, nil }
		c, err := in.Open(d, 1<<20)
		require.NoError(t, err)
		for range 2 { // by the first pin the cache learns the page
			held, err := c.Hold(0x30000+5000, 100, 1)
			require.NoError(t, err)
			require.EqualValues(t, 0x30000+5000&^(uint64(page)-1), f.Asked.Addr)
			require.Equal(t, AnyType, f.Want)
			require.EqualValues(t, uint64(f.VA)+0x30000+5000-f.Asked.Addr, held.VA)
			require.NoError(t, c.cache.Put(held.Handle))
			require.NoError(t, c.Flush())
		}
		require.NoError(t, c.Close())
		require.Zero(t, f.Live)
	}
}

// A step of a Get fails: no pin is left, and no handle.
func TestAGetThatFails(t *testing.T) {
	in := newCaches(t)
	d, f, _ := openMemory(t)
	c, err := in.Open(d, 1<<20)
	require.NoError(t, err)
	next := func() handle.Handle {
		h, err := in.Table.Alloc()
		require.NoError(t, err)
		in.Table.Free(h)
		return h & (handle.SlotCount - 1)
	}
	before := next()
	for what, want := range map[string]unix.Errno{"pin": unix.ENOTSUP, "info": unix.EIO, "map": unix.EDOM} {
		f.Fail[what] = want
		_, err := c.Get(0x30000, 8)
		require.Equal(t, want, errno(err), what)
		require.Zero(t, f.Live)
		require.Zero(t, in.Buffers.Len())
		require.Equal(t, before, next(), "the handle is free again")
		delete(f.Fail, what)
	}
	for _, bad := range [][2]uint64{{0, 8}, {0x30000, 0}, {^uint64(0) - 6, 8}} {
		_, err := c.Get(bad[0], bad[1])
		require.Equal(t, unix.EINVAL, errno(err))
	}
	require.Equal(t, 3, count(f, "pin"), "of bad arguments nothing is pinned")
}

// The range that was used longest ago goes first. A hit is a use.
func TestTheOldestRangeGoes(t *testing.T) {
	d, f, _ := openMemory(t)
	c, err := newCaches(t).Open(d, 2<<16)
	require.NoError(t, err)
	f.Page = 1 << 16
	use := func(addr uint64) (pinned bool) {
		for now := time.Now(); time.Since(now) == 0; { // a clock may be coarse
		}
		before := count(f, "pin")
		r, err := c.Get(addr, 1<<16)
		require.NoError(t, err)
		require.NoError(t, r.Close())
		return count(f, "pin") > before
	}
	const a, b, other = 0x10000, 0x20000, 0x30000
	require.True(t, use(a))
	require.True(t, use(b))
	require.False(t, use(a))
	require.True(t, use(other), "b goes")
	require.False(t, use(a))
	require.True(t, use(b), "other goes")
	require.False(t, use(a))
	require.Equal(t, 2, f.Live)
}

// A device knows what it has made, until that is closed: nothing is closed twice, and
// nothing is kept.
func TestWhatADeviceKnows(t *testing.T) {
	in := newCaches(t)
	d, f, _ := openMemory(t)
	for range 3 {
		b, err := d.Pin(request)
		require.NoError(t, err)
		c, err := in.Open(d, 1<<20)
		require.NoError(t, err)
		require.Same(t, d, c.Device())
		_, err = c.Get(0x30000, 8)
		require.NoError(t, err)
		require.Len(t, d.buffers.all(), 2)
		require.Equal(t, []*Cache{c}, d.caches.all())
		require.NoError(t, b.Close())
		require.NoError(t, c.Close())
		require.ErrorIs(t, c.Close(), ErrClosed)
		require.ErrorIs(t, c.Flush(), ErrClosed)
		require.ErrorIs(t, c.Settle(), ErrClosed)
		require.Empty(t, d.buffers.all())
		require.Empty(t, d.caches.all())
	}
	_, err := in.Open(d, 1<<20)
	require.NoError(t, err)
	require.NoError(t, d.Close())
	require.Empty(t, d.caches.all())
	require.Zero(t, in.Buffers.Len())
	require.Equal(t, 1, count(f, "close"))
}

// A cache may find a buffer just before another thread unpins it.
func TestABufferThatGoes(t *testing.T) {
	in := newCaches(t)
	d, _, _ := openMemory(t)
	p := cachePins{d, in}
	h, err := in.Table.Alloc()
	require.NoError(t, err)
	for _, known := range []bool{false, true} {
		if known {
			b, err := d.Pin(request)
			require.NoError(t, err)
			require.NoError(t, b.Close())
			in.Buffers.Put(h, b)
		}
		for range 2 {
			_, _, err = p.Info(h)
			require.ErrorIs(t, err, ErrClosed)
			_, err = p.Map(h, 4096)
			require.ErrorIs(t, err, ErrClosed)
			require.ErrorIs(t, p.Unpin(h), ErrClosed)
		}
	}
}
