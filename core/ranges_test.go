package core

import (
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/backend/backendtest"
	"gdrapi/core/cuda"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// numbers is a driver that gives the memory at any address the number that a test says, and does
// not know where allocations end.
type numbers struct{ id func() (uint64, error) }

func (n numbers) BufferID(uint64) (uint64, error) { return n.id() }
func (n numbers) AllocationRange(uint64) (uint64, uint64, error) {
	return 0, 0, cuda.ErrInvalidValue
}
func (n numbers) PointerGetAttribute() uintptr { return 0x1234 }

// openCache opens a cache of a fake backend, over a driver that numbers memory.
func openCache(t *testing.T, most uint64, id func(f *backendtest.Fake) (uint64, error)) (*Cache, *backendtest.Fake) {
	t.Helper()
	f := backendtest.New()
	driver := numbers{func() (uint64, error) { return id(f) }}
	d, err := Open(Options{Backends: []backend.Backend{f}, CacheDriver: func() (CacheDriver, error) { return driver, nil }})
	require.NoError(t, err)
	c, err := d.OpenCache(most)
	require.NoError(t, err)
	return c, f
}

// A pinning is not handed out if its memory may be gone, or other memory may be there.
func TestMemoryThatGoesInThePin(t *testing.T) {
	for _, after := range []struct {
		id  uint64
		err error
	}{{0, cuda.ErrInvalidValue}, {8, nil}} {
		c, f := openCache(t, 1<<30, func(f *backendtest.Fake) (uint64, error) {
			if count(f, "pin") == 0 {
				return 7, nil
			}
			return after.id, after.err
		})
		_, err := c.Get(0x10000, 64)
		require.Equal(t, unix.EINVAL, errno(err))
		require.Zero(t, f.Live)
	}
}

// Memory that has no ID cannot be told from other memory.
func TestNoID(t *testing.T) {
	c, f := openCache(t, 1<<30, func(*backendtest.Fake) (uint64, error) { return 0, nil })
	_, err := c.Get(0x10000, 8)
	require.ErrorIs(t, err, unix.ENOTSUP)
	require.ErrorContains(t, err, "use gdr_pin_buffer")
	require.Zero(t, count(f, "pin"))
}

func one(*backendtest.Fake) (uint64, error) { return 1, nil }

// A step of a Get fails: nothing is pinned, and the next Get works.
func TestAGetThatFails(t *testing.T) {
	for what, want := range map[string]unix.Errno{"pin": unix.ENOTSUP, "info": unix.EIO, "map": unix.EDOM} {
		c, f := openCache(t, 1<<30, one)
		f.Fail[what] = want
		_, err := c.Get(0x10000, 8)
		require.Equal(t, want, errno(err), what)
		require.Zero(t, f.Live)
		delete(f.Fail, what)
		_, err = c.Get(0x10000, 8)
		require.NoError(t, err)
	}
}

func TestUnpinThatFails(t *testing.T) {
	c, f := openCache(t, 1<<30, one)
	r, err := c.Get(0x10000, 64)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	f.Fail["unpin"] = unix.EIO
	require.NoError(t, c.Flush(), "the buffer is gone all the same")
	require.Zero(t, f.Live)
}

// A range that is given back while another one is pinned makes room after the pin.
func TestRoomAfterThePin(t *testing.T) {
	var held *Range
	c, f := openCache(t, 4096, func(f *backendtest.Fake) (uint64, error) {
		if count(f, "map") == 2 && held != nil {
			held.in.holds.Drop() // as C gives one back
			held = nil
		}
		return 1, nil
	})
	r, err := c.Get(0x10000, 64)
	require.NoError(t, err)
	held = r
	_, err = c.Get(0x20000, 64)
	require.NoError(t, err)
	require.Nil(t, held)
	require.Equal(t, 1, f.Live)
}

// If a cache has all the ranges it can, one is unpinned. If all are held, Get fails with
// ENOMEM.
func TestNoPlaceLeft(t *testing.T) {
	c, f := openCache(t, 1<<40, one)
	held := make([]*Range, MaxRanges)
	for i := range held {
		r, err := c.Get(uint64(i+1)*8192, 16)
		require.NoError(t, err)
		held[i] = r
	}
	const other = 1 << 40
	_, err := c.Get(other, 1)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.NoError(t, held[7].Close())
	_, err = c.Get(other, 1)
	require.NoError(t, err)
	require.Equal(t, MaxRanges, f.Live)
	require.False(t, held[7].in.mapping.isOpen())
	_, err = c.Get(other+8192, 1)
	require.ErrorIs(t, err, unix.ENOMEM)
}

// Without a driver Get fails. The next Get looks for a driver again.
func TestNoDriver(t *testing.T) {
	c, _ := openCache(t, 1<<30, one)
	find := c.Device().cacheDriver
	c.Device().cacheDriver = func() (CacheDriver, error) { return nil, unix.ENOTSUP }
	_, err := c.Get(0x10000, 1)
	require.ErrorIs(t, err, unix.ENOTSUP)
	c.Device().cacheDriver = find
	_, err = c.Get(0x10000, 1)
	require.NoError(t, err)
}
