package handle

import (
	"sync"
	"testing"

	"gdrapi/core"
	"gdrapi/core/backend"
	"gdrapi/core/backend/backendtest"
	"gdrapi/core/log"
	"gdrapi/core/log/logtest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// open makes a Library whose only backend is a fake, with one device in it.
func open(t *testing.T) (*Library, *backendtest.Fake, Handle) {
	t.Helper()
	f := backendtest.New()
	l, err := New(1, new(Shared))
	require.NoError(t, err)
	g, err := l.Open(options(f))
	require.NoError(t, err)
	return l, f, g
}

// options have f as the only backend.
func options(f backend.Backend) core.Options {
	return core.Options{Backends: []backend.Backend{f}}
}

var request = backend.PinRequest{Addr: 0x10000, Size: 3 * 4096}

func TestOpenFails(t *testing.T) {
	l, f, _ := open(t)
	f.Fail["open"] = unix.ENOENT
	o := options(f)
	o.Backends = append(o.Backends, f)
	reason := "ERR:  gdr_open: the fake backend does not open: no such file or directory\n"
	require.Equal(t, reason+reason, logtest.Lines(t, log.Error, func() {
		_, err := l.Open(o)
		require.Equal(t, unix.ENODEV, core.Errno(err))
	}), "each backend's")
	o.Backend = "another"
	require.Empty(t, logtest.Lines(t, log.Error, func() {
		_, err := l.Open(o)
		require.Equal(t, unix.EINVAL, core.Errno(err))
	}), "none was tried")
	require.Equal(t, 1, named[*core.Device](l))
}

// Of whole GPU pages no byte is certainly the caller's. Of any other request, and of PinBytes, all are.
func TestWholePages(t *testing.T) {
	l, f, g := open(t)
	for _, c := range []struct{ addr, size, skip uint64 }{
		{0x10000, 0x10000, 0x10000},
		{0x10000, 0x30000, 0x30000},
		{0x10000, 0x1000, 0},
		{0x11000, 0x10000, 0},
		{0x10000, 0x30001, 0},
	} {
		h, err := l.Pin(g, backend.PinRequest{Addr: c.addr, Size: c.size})
		require.NoError(t, err)
		require.Equal(t, backend.PinRequest{Addr: c.addr, Size: c.size, Skip: c.skip}, f.Asked)
		require.NoError(t, l.Unpin(g, h))
		h, err = l.PinBytes(g, c.addr, c.size, 0)
		require.NoError(t, err)
		require.Equal(t, backend.PinRequest{Addr: c.addr, Size: c.size}, f.Asked)
		require.NoError(t, l.Unpin(g, h))
	}
}

// Threads race on the same handles. The fake panics if the core lets two of them through.
func TestRaces(t *testing.T) {
	l, f, g := open(t)
	for range 50 {
		h, err := l.Pin(g, request)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				_, _ = l.Map(g, h, 4096, 0)
			}()
			wg.Add(1)
			go func() {
				defer wg.Done()
				_ = l.Unmap(g, h, 0x7000, 4096)
			}()
			wg.Add(1)
			go func() {
				defer wg.Done()
				if b, err := l.Buffer(g, h); err == nil {
					_, _ = b.Info()
				}
			}()
			wg.Add(1)
			go func() {
				defer wg.Done()
				_ = l.Unpin(g, h)
			}()
		}
		wg.Wait()
	}
	require.Zero(t, f.Live)
	require.Zero(t, named[*core.Buffer](l), "no handle is left")
}

// A gdr_t may be closed between the making of an object and its handle: that ends at once.
func TestHandleOfAClosedDevice(t *testing.T) {
	l, _, g := open(t)
	d, err := l.Device(g)
	require.NoError(t, err)
	b, err := d.Pin(request)
	require.NoError(t, err)
	h, err := l.table.alloc()
	require.NoError(t, err)
	require.NoError(t, l.Close(g))
	require.ErrorIs(t, l.add(h, b), core.ErrClosed)
	require.Nil(t, l.table.get(h))
	next, err := l.table.alloc()
	require.NoError(t, err)
	require.Equal(t, h.index(), next.index(), "the handle's place is free")
	l.table.release(next)
	_, err = l.giveHandle(b)
	require.ErrorIs(t, err, core.ErrClosed)
	require.Zero(t, named[*core.Buffer](l))
	again, err := l.table.alloc()
	require.NoError(t, err)
	require.Equal(t, h.index(), again.index(), "so is a buffer's")
}

// named counts the objects of a kind that have a handle.
func named[T any](l *Library) int {
	return len(l.table.handlesWhere(func(object any) bool { _, ok := object.(T); return ok }))
}
