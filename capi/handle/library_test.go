package handle

import (
	"fmt"
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

// options have f as the only backend. Caches know all memory.
func options(f backend.Backend) core.Options {
	return core.Options{
		Backends:    []backend.Backend{f},
		CacheDriver: func() (core.CacheDriver, error) { return memoryDriver{}, nil },
	}
}

var request = backend.PinRequest{Addr: 0x10000, Size: 3 * 4096}

// As in the reference a buffer that begins within a page is pinned, and not mapped.
func TestUnalignedBufferPinsAndDoesNotMap(t *testing.T) {
	l, f, g := open(t)
	for _, into := range []uint64{1, 256, 4095} {
		h, err := l.Pin(g, backend.PinRequest{Addr: request.Addr + into, Size: 4096})
		require.NoError(t, err)
		_, err = l.Map(g, h, 4096, 0)
		require.ErrorIs(t, err, unix.EINVAL)
		require.ErrorContains(t, err, "pin from a multiple of 4096 bytes on")
		require.NoError(t, l.Unpin(g, h))
	}
	f.Page = 1 << 16
	h, err := l.Pin(g, backend.PinRequest{Addr: request.Addr + 4096, Size: 4096})
	require.NoError(t, err)
	_, err = l.Map(g, h, 4096, 0)
	require.ErrorContains(t, err, "pin from a multiple of 65536 bytes on")
	require.NotContains(t, f.Calls, "map")
	f.Page = 0
	h, err = l.Pin(g, request)
	require.NoError(t, err)
	_, err = l.Map(g, h, 4096, 0)
	require.NoError(t, err)
}

// The bits of gdr_pin_buffer_v2 that mean nothing reach no backend.
func TestFlagsOfAPin(t *testing.T) {
	l, f, g := open(t)
	for flags, want := range map[uint32]uint32{0: 0, 1: 1, 2: 0, 0xfffffffe: 0, 0xffffffff: 1} {
		_, err := l.Pin(g, backend.PinRequest{Addr: request.Addr, Size: 4096, Token: 5, VASpace: 6, Flags: flags})
		require.NoError(t, err)
		require.Equal(t, backend.PinRequest{Addr: request.Addr, Size: 4096, Token: 5, VASpace: 6, Flags: want}, f.Asked)
	}
}

func TestWholeLife(t *testing.T) {
	l, f, g := open(t)
	h, err := l.Pin(g, request)
	require.NoError(t, err)
	m, err := l.Map(g, h, 5000, 0)
	require.NoError(t, err)
	require.EqualValues(t, 8192, m.Mapped())
	i, err := l.Info(g, h)
	require.NoError(t, err)
	require.True(t, i.Mapped)
	require.Equal(t, backend.WC, i.Type)
	require.NoError(t, l.Unmap(g, h, m.VA(), 8192), "size counts in host pages")
	require.NoError(t, l.Unpin(g, h))
	require.NoError(t, l.Close(g))
	require.Equal(t, []string{"open", "pin", "info", "map", "info", "unmap", "unpin", "close"}, f.Calls)
	require.Zero(t, f.Live)
}

// Each function refuses a gdr_t that is none, and a handle that is none of its kind or of
// another gdr_t.
func TestHandlesOfNothing(t *testing.T) {
	l, f, g := open(t)
	other, err := l.Open(options(f))
	require.NoError(t, err)
	h, err := l.Pin(g, request)
	require.NoError(t, err)
	_, err = l.Map(g, h, 4096, 0)
	require.NoError(t, err)
	theirs, err := l.Pin(other, request)
	require.NoError(t, err)
	closed, err := l.Open(options(f))
	require.NoError(t, err)
	ended, err := l.Pin(closed, request)
	require.NoError(t, err)
	require.NoError(t, l.Close(closed))
	calls := len(f.Calls)
	last := func(_ any, err error) error { return err }
	ofDevice := map[string]func(g Handle) error{
		"close":     l.Close,
		"pin":       func(g Handle) error { return last(l.Pin(g, request)) },
		"attribute": func(g Handle) error { return last(l.Attribute(g, backend.AttrForcePCIe)) },
		"version":   func(g Handle) error { _, _, err := l.DriverVersion(g); return err },
		"backend":   func(g Handle) error { return last(l.BackendName(g)) },
		"alloc":     func(g Handle) error { return last(l.MemAlloc(g, 0, 1)) },
		"cache":     func(g Handle) error { return last(l.CacheOpen(g, 1)) },
	}
	ofBuffer := map[string]func(g, h Handle) error{
		"unpin": l.Unpin,
		"map":   func(g, h Handle) error { return last(l.Map(g, h, 4096, 0)) },
		"unmap": func(g, h Handle) error { return l.Unmap(g, h, 0x7000, 4096) },
		"info":  func(g, h Handle) error { return last(l.Info(g, h)) },
		"flag":  func(g, h Handle) error { return last(l.CallbackFlag(g, h)) },
	}
	ofMemory := map[string]func(g, h Handle) error{
		"free":    l.MemFree,
		"pointer": func(g, h Handle) error { _, _, err := l.MemPtr(g, h); return err },
		"export":  func(g, h Handle) error { return last(l.MemExport(g, h, 0)) },
	}
	refused := func(err error, text, what string, h Handle) {
		t.Helper()
		require.Equal(t, unix.EINVAL, core.Errno(err), "%s of %#x: %v", what, h, err)
		require.ErrorContains(t, err, fmt.Sprintf(text, uint64(h)), what)
	}
	for _, bad := range []Handle{0, h, closed, g + 1<<20, g + 1} {
		for what, call := range ofDevice {
			refused(call(bad), "no open gdr_t is %#x", what, bad)
		}
		for what, call := range ofBuffer {
			refused(call(bad, h), "no open gdr_t is %#x", what, bad)
		}
		for what, call := range ofMemory {
			refused(call(bad, h), "no open gdr_t is %#x", what, bad)
		}
	}
	for _, bad := range []Handle{0, g, theirs, ended, h + 1<<20} {
		for what, call := range ofBuffer {
			refused(call(g, bad), "no buffer pinned through this gdr_t has the handle %#x", what, bad)
		}
	}
	for _, bad := range []Handle{0, g, h} {
		for what, call := range ofMemory {
			refused(call(g, bad), "no allocation made through this gdr_t has the handle %#x", what, bad)
		}
	}
	require.Len(t, f.Calls, calls, "the backend is asked nothing")
}

func TestBadArguments(t *testing.T) {
	l, _, g := open(t)
	h, err := l.Pin(g, request)
	require.NoError(t, err)
	pin := func(change func(*backend.PinRequest)) error {
		r := request
		change(&r)
		_, err := l.Pin(g, r)
		return err
	}
	mapped := func(size uint64, flags int) error {
		_, err := l.Map(g, h, size, flags)
		return err
	}
	for name, err := range map[string]error{
		"pin size 0":        pin(func(r *backend.PinRequest) { r.Size = 0 }),
		"pin address 0":     pin(func(r *backend.PinRequest) { r.Addr = 0 }),
		"pin wraps":         pin(func(r *backend.PinRequest) { r.Size = ^uint64(0) }),
		"map size 0":        mapped(0, 0),
		"map past the end":  mapped(3*4096+1, 0),
		"map huge":          mapped(^uint64(0), 0),
		"map unknown flag":  mapped(4096, 4),
		"map negative flag": mapped(4096, -1),
		"unmap not mapped":  l.Unmap(g, h, 0x7000, 4096),
		"empty allocation":  func() error { _, err := l.MemAlloc(g, 0, 0); return err }(),
		"unknown attribute": func() error { _, err := l.Attribute(g, 4); return err }(),
		"attribute 0":       func() error { _, err := l.Attribute(g, 0); return err }(),
	} {
		require.Equal(t, unix.EINVAL, core.Errno(err), "%s: %v", name, err)
	}
	m, err := l.Map(g, h, 4096, 0)
	require.NoError(t, err)
	_, err = l.Map(g, h, 4096, 0)
	require.Equal(t, unix.EAGAIN, core.Errno(err))
	for _, off := range []uintptr{1, 8, 2048} {
		err = l.Unmap(g, h, m.VA()+off, 4096)
		require.Equal(t, unix.EINVAL, core.Errno(err), "%d bytes into a page", off)
		require.ErrorContains(t, err, fmt.Sprintf("unmap at %#x, which is not on a host page; the mapping is at 0x7000", m.VA()+off))
	}
	require.Equal(t, unix.EINVAL, core.Errno(l.Unmap(g, h, m.VA(), 0)))
	require.Equal(t, unix.EINVAL, core.Errno(l.Unmap(g, h, m.VA(), 1<<16+1)))
	require.Equal(t, unix.EINVAL, core.Errno(l.Unmap(g, h, m.VA(), ^uint64(0))))
	require.Contains(t, logtest.Lines(t, log.Warn, func() {
		require.NoError(t, l.Unmap(g, h, m.VA()+0x10000, 4096), "the handle names the mapping")
	}), fmt.Sprintf("WARN: gdr_unmap: the mapping of %#x is at 0x7000, not at 0x17000", uint64(h)))
	require.Equal(t, unix.EINVAL, core.Errno(l.Unmap(g, h, m.VA(), 4096)), "it is unmapped")
	for _, size := range []uint64{1, 4096, 8192, 1 << 16} {
		m, err = l.Map(g, h, 8192, 0)
		require.NoError(t, err)
		require.Empty(t, logtest.Lines(t, log.Warn, func() {
			require.NoError(t, l.Unmap(g, h, m.VA(), size), "%d bytes of 8192: all goes", size)
		}))
		require.Equal(t, unix.EINVAL, core.Errno(l.Unmap(g, h, m.VA(), size)))
	}
	_, err = l.Map(g, h, 4096, 0)
	require.NoError(t, err)
	require.NoError(t, l.Unpin(g, h), "unpin takes a live mapping down")
	require.Equal(t, unix.EINVAL, core.Errno(l.Unpin(g, h)))
	h, err = l.Pin(g, backend.PinRequest{Addr: request.Addr, Size: 1 << 17})
	require.NoError(t, err)
	m, err = l.Map(g, h, 1<<16, 0)
	require.NoError(t, err)
	require.Equal(t, unix.EINVAL, core.Errno(l.Unmap(g, h, m.VA(), 1<<16+1)), "more than whole pages of the GPU")
	require.NoError(t, l.Unmap(g, h, m.VA(), 1<<16))
	require.NoError(t, l.Close(g))
	require.Equal(t, unix.EINVAL, core.Errno(l.Close(g)))
}

func TestCloseTakesEverythingDown(t *testing.T) {
	l, f, g := open(t)
	for i := range 10 {
		h, err := l.Pin(g, request)
		require.NoError(t, err)
		if i%2 == 0 {
			_, err = l.Map(g, h, 4096, 0)
			require.NoError(t, err)
		}
	}
	f.Fail["unpin"] = unix.EIO
	require.Equal(t, unix.EIO, core.Errno(l.Close(g)), "the first error is the answer")
	require.Zero(t, f.Live, "and the rest still goes")
	require.Zero(t, named[*core.Buffer](l))
	require.Zero(t, named[*core.Device](l))
}

func TestFailuresLoseNothing(t *testing.T) {
	l, f, g := open(t)
	f.Fail["pin"] = fmt.Errorf("driver: %w", unix.ENOMEM)
	_, err := l.Pin(g, request)
	require.Equal(t, unix.ENOMEM, core.Errno(err))
	delete(f.Fail, "pin")

	h, err := l.Pin(g, request)
	require.NoError(t, err)
	f.Fail["map"] = unix.ENOTSUP
	_, err = l.Map(g, h, 4096, 1)
	require.Equal(t, unix.ENOTSUP, core.Errno(err))
	delete(f.Fail, "map")
	_, err = l.Map(g, h, 4096, 1)
	require.NoError(t, err, "a failed map may be tried again")
	f.Fail["info"] = unix.EIO
	_, err = l.Info(g, h)
	require.Equal(t, unix.EIO, core.Errno(err))
	require.NoError(t, l.Close(g))
}

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
				_, _ = l.Info(g, h)
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
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				h, err := l.Pin(g, request)
				if err != nil {
					return
				}
				_, _ = l.Map(g, h, 4096, 0)
			}
		}()
	}
	wg.Add(1)
	go func() {
		defer wg.Done()
		_ = l.Close(g)
	}()
	wg.Wait()
	require.Zero(t, f.Live, "nothing is pinned behind a Close")
	require.Zero(t, named[*core.Buffer](l), "no handle is left of it")
}

// named counts the objects of a kind that have a handle.
func named[T any](l *Library) int {
	return len(l.table.those(func(object any) bool { _, ok := object.(T); return ok }))
}
