package handle

import (
	"errors"
	"sync"
	"testing"

	"gdrapi/core"
	"gdrapi/core/cuda"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// memoryDriver knows one allocation without an end. With an error it knows none.
type memoryDriver struct{ err error }

func (d memoryDriver) BufferID(uint64) (uint64, error) { return 7, d.err }
func (d memoryDriver) AllocationRange(addr uint64) (uint64, uint64, error) {
	return addr, 1 << 20, d.err
}
func (d memoryDriver) PointerGetAttribute() uintptr { return 0x1234 }

const someAddr = 0x70000

func TestCache(t *testing.T) {
	l, f, g := open(t)
	c, err := l.CacheOpen(g, 1<<20)
	require.NoError(t, err)
	held, err := l.CacheGet(c, someAddr, 100, 1)
	require.NoError(t, err)
	require.EqualValues(t, 0x7000, held.VA)
	again, err := l.CacheGet(c, someAddr, 100, 2)
	require.NoError(t, err)
	require.Equal(t, held.Handle, again.Handle)
	inside, err := l.CacheGet(c, someAddr+40, 60, 3)
	require.NoError(t, err)
	require.Equal(t, held.Handle, inside.Handle)
	require.EqualValues(t, 0x7000+40, inside.VA, "of the byte asked for")
	i, err := l.Info(g, held.Handle)
	require.NoError(t, err)
	require.True(t, i.Mapped)
	require.NoError(t, l.CacheSettle(c))
	require.NoError(t, l.CacheFlush(c))
	require.Equal(t, 1, f.Live, "it is held")
	require.NoError(t, l.CacheClose(c))
	require.Zero(t, f.Live)
	require.Zero(t, named[*cache](l))
	require.NoError(t, l.Close(g))
	require.Equal(t, []string{"open", "pin", "info", "info", "map", "info", "unmap", "unpin", "close"}, f.Calls)
}

// Only the handle of an open cache is a cache's
func TestNoCache(t *testing.T) {
	l, f, g := open(t)
	closed, err := l.CacheOpen(g, 1)
	require.NoError(t, err)
	require.NoError(t, l.CacheClose(closed))
	h, err := l.Pin(g, request)
	require.NoError(t, err)
	other, err := l.Open(options(f))
	require.NoError(t, err)
	lost, err := l.CacheOpen(other, 1)
	require.NoError(t, err)
	require.NoError(t, l.Close(other))
	for _, c := range []Handle{0, g, h, closed, lost, closed + 1} {
		_, err := l.CacheGet(c, someAddr, 1, 1)
		require.Equal(t, unix.EINVAL, core.Errno(err))
		require.Equal(t, unix.EINVAL, core.Errno(l.CacheSettle(c)))
		require.Equal(t, unix.EINVAL, core.Errno(l.CacheFlush(c)))
		require.Equal(t, unix.EINVAL, core.Errno(l.CacheClose(c)))
	}
	_, err = l.CacheOpen(other, 1)
	require.Equal(t, unix.EINVAL, core.Errno(err))
	open, err := l.CacheOpen(g, 1)
	require.NoError(t, err)
	require.Equal(t, unix.EINVAL, core.Errno(l.Unpin(g, open)))
	require.Equal(t, unix.EINVAL, core.Errno(l.Close(open)))
}

// An error of CUDA becomes the same errno as everywhere in this library.
func TestCacheErrno(t *testing.T) {
	for _, c := range []struct {
		driver error // the driver's answer
		find   error // why there is no driver
		want   unix.Errno
	}{
		{cuda.ErrInvalidValue, nil, unix.EINVAL},
		{cuda.ErrNotInitialized, nil, unix.EINVAL},
		{cuda.ErrDeinitialized, nil, unix.ENODEV},
		{cuda.ErrInvalidContext, nil, unix.EINVAL},
		{cuda.ErrNotSupported, nil, unix.ENOTSUP},
		{cuda.Result(12345), nil, unix.EIO},
		{nil, unix.ENOTSUP, unix.ENOTSUP},
	} {
		l, f, _ := open(t)
		o := options(f)
		o.CacheDriver = func() (core.CacheDriver, error) { return memoryDriver{c.driver}, c.find }
		g, err := l.Open(o)
		require.NoError(t, err)
		h, err := l.CacheOpen(g, 1)
		require.NoError(t, err)
		_, err = l.CacheGet(h, someAddr, 1, 1)
		require.Equal(t, c.want, core.Errno(err), "%v", err)
		require.Zero(t, f.Live)
	}
}

// gdr_close ends the caches of the context, with their ranges, and no other caches.
func TestCloseEndsCaches(t *testing.T) {
	l, f, g := open(t)
	other, err := l.Open(options(f))
	require.NoError(t, err)
	stays, err := l.CacheOpen(other, 1<<20)
	require.NoError(t, err)
	before := freeSlots(t, l)
	for range 3 {
		own, err := l.Open(options(f))
		require.NoError(t, err)
		for range 2 {
			c, err := l.CacheOpen(own, 1<<20)
			require.NoError(t, err)
			_, err = l.CacheGet(c, someAddr, 100, 1)
			require.NoError(t, err)
		}
		require.Equal(t, 2, f.Live)
		require.NoError(t, l.Close(own))
		require.Zero(t, f.Live)
		require.Equal(t, 1, named[*cache](l))
	}
	require.Equal(t, before, freeSlots(t, l))
	require.NoError(t, l.CacheFlush(stays))
	require.NoError(t, l.Close(g))
}

// A close and calls on the context's caches at the same time.
func TestCloseAndGet(t *testing.T) {
	l, f, _ := open(t)
	for range 50 {
		own, err := l.Open(options(f))
		require.NoError(t, err)
		c, err := l.CacheOpen(own, 1<<20)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for {
					if _, err := l.CacheGet(c, someAddr+uint64(i)*65536, 100, 1); err != nil {
						if !errors.Is(err, unix.EINVAL) {
							t.Error(err)
						}
						return
					}
				}
			}()
		}
		require.NoError(t, l.Close(own))
		wg.Wait()
		require.Zero(t, f.Live)
	}
	require.Zero(t, named[*cache](l))
}
