package core

import (
	"fmt"
	"sync"
	"testing"

	"gdrapi/core/backend"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fake is a backend in memory. Tests can make its calls fail.
type fake struct {
	mu    sync.Mutex
	fail  map[string]error
	calls []string
	live  int                // pins that are not unpinned yet
	asked backend.PinRequest // of the last pin
	flag  int                // of each pin
	page  uint32

	onUnmap, onUnpin, onClose func() // called in Unmap, Unpin and Close; nil: nothing
}

func (f *fake) call(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, name)
	return f.fail[name]
}

func (f *fake) Name() string                          { return "fake" }
func (f *fake) Open() (backend.Session, error)        { return f, f.call("open") }
func (f *fake) Attribute(a backend.Attr) (int, error) { return int(a), f.call("attribute") }
func (f *fake) Version() (int, int)                   { return 2, 6 }
func (f *fake) Close() error {
	if f.onClose != nil {
		f.onClose()
	}
	return f.call("close")
}
func (f *fake) Pin(r backend.PinRequest) (backend.Pin, error) {
	if err := f.call("pin"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live++
	f.asked = r
	return &fakePin{f: f, r: r}, nil
}

type fakePin struct {
	f      *fake
	r      backend.PinRequest
	mapped bool
}

func (p *fakePin) Info() (backend.Info, error) {
	return backend.Info{VA: p.r.Addr, MappedSize: p.r.Size, PageSize: p.f.page}, p.f.call("info")
}

func (p *fakePin) Map(size uint64, want backend.MappingType) (uintptr, backend.MappingType, error) {
	if p.mapped {
		panic("mapped twice")
	}
	if err := p.f.call("map"); err != nil {
		return 0, 0, err
	}
	p.mapped = true
	return 0x7000, backend.WC, nil
}

func (p *fakePin) Unmap() error {
	if !p.mapped {
		panic("unmapped twice")
	}
	p.mapped = false
	if p.f.onUnmap != nil {
		p.f.onUnmap()
	}
	return p.f.call("unmap")
}

func (p *fakePin) CallbackFlag() (int, error) { return p.f.flag, p.f.call("flag") }

func (p *fakePin) Unpin() error {
	if p.mapped {
		panic("unpinned while mapped")
	}
	p.f.mu.Lock()
	p.f.live--
	p.f.mu.Unlock()
	err := p.f.call("unpin")
	if p.f.onUnpin != nil {
		p.f.onUnpin()
	}
	return err
}

// open makes a Library whose only backend is a fake, with one context in it.
func open(t *testing.T) (*Library, *fake, Handle) {
	t.Helper()
	f := &fake{fail: map[string]error{}, page: 4096}
	saved := backends
	backends = func(Options) []entry { return []entry{{Backend: f}} }
	t.Cleanup(func() { backends = saved })
	l, err := New(1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.table.Close()) })
	g, err := l.Open(Options{})
	require.NoError(t, err)
	return l, f, g
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
	f.page = 1 << 16
	h, err := l.Pin(g, backend.PinRequest{Addr: request.Addr + 4096, Size: 4096})
	require.NoError(t, err)
	_, err = l.Map(g, h, 4096, 0)
	require.ErrorContains(t, err, "pin from a multiple of 65536 bytes on")
	require.NotContains(t, f.calls, "map")
	f.page = 0
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
		require.Equal(t, backend.PinRequest{Addr: request.Addr, Size: 4096, Token: 5, VASpace: 6, Flags: want}, f.asked)
	}
}

func TestWholeLife(t *testing.T) {
	l, f, g := open(t)
	h, err := l.Pin(g, request)
	require.NoError(t, err)
	m, err := l.Map(g, h, 5000, 0)
	require.NoError(t, err)
	i, err := l.Info(g, h)
	require.NoError(t, err)
	require.True(t, i.Mapped)
	require.Equal(t, backend.WC, i.Type)
	require.NoError(t, l.Unmap(g, h, m.VA, 8192), "size counts in host pages")
	require.NoError(t, l.Unpin(g, h))
	require.NoError(t, l.Close(g))
	require.Equal(t, []string{"open", "pin", "info", "map", "info", "unmap", "unpin", "close"}, f.calls)
	require.Zero(t, f.live)
}

func TestBadArguments(t *testing.T) {
	l, _, g := open(t)
	g2, err := l.Open(Options{})
	require.NoError(t, err)
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
		"pin size 0":          pin(func(r *backend.PinRequest) { r.Size = 0 }),
		"pin address 0":       pin(func(r *backend.PinRequest) { r.Addr = 0 }),
		"pin wraps":           pin(func(r *backend.PinRequest) { r.Size = ^uint64(0) }),
		"map size 0":          mapped(0, 0),
		"map past the end":    mapped(3*4096+1, 0),
		"map huge":            mapped(^uint64(0), 0),
		"map unknown flag":    mapped(4096, 4),
		"map negative flag":   mapped(4096, -1),
		"unmap not mapped":    l.Unmap(g, h, 0x7000, 4096),
		"close of a buffer":   l.Close(h),
		"unpin of a context":  l.Unpin(g, g),
		"unpin of another's":  l.Unpin(g2, h),
		"unpin of nothing":    l.Unpin(g, 0),
		"unpin forged":        l.Unpin(g, h+1<<20),
		"free of a buffer":    l.MemFree(g, h),
		"empty allocation":    func() error { _, err := l.MemAlloc(g, 0, 0); return err }(),
		"unknown attribute":   func() error { _, err := l.Attribute(g, 4); return err }(),
		"attribute 0":         func() error { _, err := l.Attribute(g, 0); return err }(),
		"version of nothing":  func() error { _, _, err := l.DriverVersion(0); return err }(),
		"memory of a context": func() error { _, _, err := l.MemPtr(g, g); return err }(),
		"export of a buffer":  func() error { _, err := l.MemExport(g, h, 0); return err }(),
	} {
		require.Equal(t, unix.EINVAL, Errno(err), "%s: %v", name, err)
	}
	m, err := l.Map(g, h, 4096, 0)
	require.NoError(t, err)
	_, err = l.Map(g, h, 4096, 0)
	require.Equal(t, unix.EAGAIN, Errno(err))
	for _, off := range []uintptr{1, 8, 2048} {
		require.Equal(t, unix.EINVAL, Errno(l.Unmap(g, h, m.VA+off, 4096)), "%d bytes into a page", off)
	}
	require.Equal(t, unix.EINVAL, Errno(l.Unmap(g, h, m.VA, 0)))
	require.Equal(t, unix.EINVAL, Errno(l.Unmap(g, h, m.VA, 1<<16+1)))
	require.Equal(t, unix.EINVAL, Errno(l.Unmap(g, h, m.VA, ^uint64(0))))
	require.NoError(t, l.Unmap(g, h, m.VA+0x10000, 4096), "the handle names the mapping")
	require.Equal(t, unix.EINVAL, Errno(l.Unmap(g, h, m.VA, 4096)), "it is unmapped")
	for _, size := range []uint64{1, 4096, 8192, 1 << 16} {
		m, err = l.Map(g, h, 8192, 0)
		require.NoError(t, err)
		require.NoError(t, l.Unmap(g, h, m.VA, size), "%d bytes of 8192: all goes", size)
		require.Equal(t, unix.EINVAL, Errno(l.Unmap(g, h, m.VA, size)))
	}
	_, err = l.Map(g, h, 4096, 0)
	require.NoError(t, err)
	require.NoError(t, l.Unpin(g, h), "unpin takes a live mapping down")
	require.Equal(t, unix.EINVAL, Errno(l.Unpin(g, h)))
	h, err = l.Pin(g, backend.PinRequest{Addr: request.Addr, Size: 1 << 17})
	require.NoError(t, err)
	m, err = l.Map(g, h, 1<<16, 0)
	require.NoError(t, err)
	require.Equal(t, unix.EINVAL, Errno(l.Unmap(g, h, m.VA, 1<<16+1)), "more than whole pages of the GPU")
	require.NoError(t, l.Unmap(g, h, m.VA, 1<<16))
	require.NoError(t, l.Close(g))
	require.Equal(t, unix.EINVAL, Errno(l.Close(g)))
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
	f.fail["unpin"] = unix.EIO
	require.Equal(t, unix.EIO, Errno(l.Close(g)), "the first error is the answer")
	require.Zero(t, f.live, "and the rest still goes")
	require.Empty(t, l.buffers)
	require.Empty(t, l.contexts)
}

func TestFailuresLoseNothing(t *testing.T) {
	l, f, g := open(t)
	f.fail["pin"] = fmt.Errorf("driver: %w", unix.ENOMEM)
	_, err := l.Pin(g, request)
	require.Equal(t, unix.ENOMEM, Errno(err))
	delete(f.fail, "pin")

	h, err := l.Pin(g, request)
	require.NoError(t, err)
	f.fail["map"] = unix.ENOTSUP
	_, err = l.Map(g, h, 4096, 1)
	require.Equal(t, unix.ENOTSUP, Errno(err))
	delete(f.fail, "map")
	_, err = l.Map(g, h, 4096, 1)
	require.NoError(t, err, "a failed map may be tried again")
	f.fail["info"] = unix.EIO
	_, err = l.Info(g, h)
	require.Equal(t, unix.EIO, Errno(err))
	require.NoError(t, l.Close(g))
}

func TestOpenFails(t *testing.T) {
	l, f, _ := open(t)
	f.fail["open"] = unix.ENOENT
	_, err := l.Open(Options{})
	require.Equal(t, unix.ENODEV, Errno(err))
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
	require.Zero(t, f.live)
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
	require.Zero(t, f.live, "nothing is pinned behind a Close")
}
