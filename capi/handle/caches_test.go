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
