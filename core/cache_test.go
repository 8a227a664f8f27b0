package core

import (
	"testing"
	"time"

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

// knows has the caches of d ask a driver.
func (d *Device) knows(driver CacheDriver) {
	d.cacheDriver = func() (CacheDriver, error) { return driver, nil }
}

// A range is pinned from a page of the backend's on, and mapped as the backend chooses.
func TestWhatACachePins(t *testing.T) {
	for page, pins := range map[uint32]int{4096: 2, 1 << 16: 3} {
		d, f, _ := openMemory(t)
		f.Page = page
		d.knows(chunks{unix.ENOTSUP})
		c, err := d.OpenCache(1 << 20)
		require.NoError(t, err)
		for range 2 { // by the first pin the cache learns the page
			r, err := c.Get(0x30000+5000, 100)
			require.NoError(t, err)
			require.EqualValues(t, 0x30000+5000&^(uint64(page)-1), f.Asked.Addr)
			require.EqualValues(t, 0x30000+5000, f.Asked.Addr+f.Asked.Skip, "the rest of the page may be anybody's")
			require.Equal(t, AnyType, f.Want)
			require.EqualValues(t, uint64(f.VA)+0x30000+5000-f.Asked.Addr, r.VA())
			require.NoError(t, r.Close())
			require.NoError(t, c.Flush())
		}
		require.Equal(t, pins, count(f, "pin"))
		require.NoError(t, c.Close())
		require.Zero(t, f.Live)
	}
}

// refusing are Hits that have no View for any buffer.
type refusing struct{ noHits }

func (refusing) View(*Buffer) (View, error) { return nil, unix.EAGAIN }

// A step of a Get fails: no pin is left, and no buffer.
func TestAGetThatFails(t *testing.T) {
	d, f, _ := openMemory(t)
	d.knows(chunks{})
	c, err := d.OpenCache(1 << 20)
	require.NoError(t, err)
	other, err := d.OpenShownCache(1<<20, refusing{})
	require.NoError(t, err)
	_, err = other.Get(0x30000, 8)
	require.Equal(t, unix.EAGAIN, errno(err))
	require.Equal(t, []string{"open", "pin", "info", "info", "map", "unmap", "unpin"}, f.Made())
	for what, want := range map[string]unix.Errno{"pin": unix.ENOTSUP, "info": unix.EIO, "map": unix.EDOM} {
		f.Fail[what] = want
		_, err := c.Get(0x30000, 8)
		require.Equal(t, want, errno(err), what)
		require.Zero(t, f.Live)
		require.Empty(t, d.buffers.all())
		require.Empty(t, c.live)
		require.Zero(t, c.pinned)
		delete(f.Fail, what)
	}
	for _, bad := range [][2]uint64{{0, 8}, {0x30000, 0}, {^uint64(0) - 6, 8}} {
		_, err := c.Get(bad[0], bad[1])
		require.Equal(t, unix.EINVAL, errno(err))
	}
	require.Equal(t, 4, count(f, "pin"), "of bad arguments nothing is pinned")
}

// The range that was used longest ago goes first. A hit is a use.
func TestTheOldestRangeGoes(t *testing.T) {
	d, f, _ := openMemory(t)
	d.knows(chunks{})
	c, err := d.OpenCache(2 << 16)
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
	d, f, _ := openMemory(t)
	d.knows(chunks{})
	for range 3 {
		b, err := d.Pin(request)
		require.NoError(t, err)
		c, err := d.OpenCache(1 << 20)
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
	_, err := d.OpenCache(1 << 20)
	require.NoError(t, err)
	require.NoError(t, d.Close())
	require.Empty(t, d.caches.all())
	require.Empty(t, d.buffers.all())
	require.Equal(t, 1, count(f, "close"))
}
