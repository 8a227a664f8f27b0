package core

import (
	"errors"
	"testing"
	"time"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/cuda/cudatest"
	"gdrapi/core/internal/mmio"
	"gdrapi/core/internal/sys"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Where the driver fails to unmap the buffer is not mapped any more, and may be mapped anew.
func TestMapAfterAFailedUnmap(t *testing.T) {
	d, f := open(t)
	b, err := d.Pin(request)
	require.NoError(t, err)
	m, err := b.Map(4096, AnyType)
	require.NoError(t, err)
	f.Fail["unmap"] = unix.EDOM
	require.Equal(t, unix.EDOM, errno(m.Close()))
	delete(f.Fail, "unmap")
	i, err := b.Info()
	require.NoError(t, err)
	require.False(t, i.Mapped)
	require.ErrorIs(t, m.Close(), ErrClosed)
	m, err = b.Map(4096, AnyType)
	require.NoError(t, err)
	_, err = b.Map(4096, AnyType)
	require.Equal(t, unix.EAGAIN, errno(err))
	require.NoError(t, m.Close())
	require.NoError(t, b.Close())
}

// Writes have the full fence while mappings of several types are live, and only then.
func TestMappingsAreCounted(t *testing.T) {
	d, f := open(t)
	mapped := func(typ MappingType) *Mapping {
		f.Type = typ
		m, err := d.Map(request.Addr, 4096)
		require.NoError(t, err)
		return m
	}
	for range 3 {
		first, second := mapped(WriteCombined), mapped(WriteCombined)
		require.False(t, mmio.Mixed())
		third := mapped(Cached)
		require.True(t, mmio.Mixed())
		require.NoError(t, first.Close())
		require.True(t, mmio.Mixed())
		require.NoError(t, second.Close())
		require.False(t, mmio.Mixed())
		fourth := mapped(DeviceMemory)
		require.True(t, mmio.Mixed())
		f.Fail["unmap"] = unix.EIO
		require.Equal(t, unix.EIO, errno(third.Close()))
		require.False(t, mmio.Mixed(), "also where the driver fails")
		delete(f.Fail, "unmap")
		f.Fail["map"] = unix.EIO
		_, err := d.Map(request.Addr, 4096)
		require.Equal(t, unix.EIO, errno(err))
		require.False(t, mmio.Mixed(), "what was not mapped does not count")
		delete(f.Fail, "map")
		require.NoError(t, fourth.Close())
	}
}

// Two Closes at once: each lets the other go on.
func TestTwoCloses(t *testing.T) {
	d, f := open(t)
	for range 3 {
		_, err := d.Pin(request)
		require.NoError(t, err)
	}
	second := make(chan error)
	f.OnUnpin = func() {
		f.OnUnpin = nil
		go func() { second <- d.Close() }()
		time.Sleep(20 * time.Millisecond) // most of the time the second waits for this buffer
	}
	require.NoError(t, d.Close())
	require.ErrorIs(t, <-second, ErrClosed)
	require.ErrorContains(t, ErrClosed, "invalid argument")
	require.Equal(t, 3, count(f, "unpin"))
	require.Equal(t, 1, count(f, "close"))
}

// onMunmap has hook run in the next munmap, which fails with its error.
func onMunmap(t *testing.T, hook func() error) {
	t.Helper()
	was := sys.HostMemory()
	t.Cleanup(func() { sys.UseMemory(was) })
	sys.UseMemory(sys.Memory{Mmap: was.Mmap, Munmap: func(va, size uintptr) error {
		sys.UseMemory(was)
		if err := hook(); err != nil {
			return err
		}
		return was.Munmap(va, size)
	}})
}

// A host that hooks mmap and munmap may call any method there, also of the buffer that is mapped or
// unmapped, by itself or from a thread that it waits for. Nothing is lost, and nothing ends twice.
func TestCallsInMmapAndMunmap(t *testing.T) {
	set := func(_ any, err error) error { return err }
	for name, c := range map[string]struct {
		call func(d *Device, b *Buffer) error
		want unix.Errno
		ends bool // the buffer
	}{
		"info":            {func(_ *Device, b *Buffer) error { return set(b.Info()) }, 0, false},
		"flag":            {func(_ *Device, b *Buffer) error { return set(b.Revoked()) }, 0, false},
		"export":          {func(_ *Device, b *Buffer) error { return set(b.Export(0)) }, 0, false},
		"mapping":         {func(_ *Device, b *Buffer) error { return set(b.Mapping()) }, unix.EINVAL, false},
		"map":             {func(_ *Device, b *Buffer) error { return set(b.Map(4096, AnyType)) }, unix.EAGAIN, false},
		"another":         {func(d *Device, _ *Buffer) error { return set(d.Pin(request)) }, 0, false},
		"unpin":           {func(_ *Device, b *Buffer) error { return b.Close() }, 0, true},
		"unpin twice":     {func(_ *Device, b *Buffer) error { return first(b.Close(), b.Close()) }, unix.EINVAL, true},
		"close":           {func(d *Device, _ *Buffer) error { return d.Close() }, 0, true},
		"close and unpin": {func(d *Device, b *Buffer) error { return first(d.Close(), b.Close()) }, unix.EINVAL, true},
	} {
		for _, where := range []string{"mmap", "munmap", "a munmap that fails"} {
			t.Run(name+" in "+where, func(t *testing.T) {
				d, f := open(t)
				b, err := d.Pin(request)
				require.NoError(t, err)
				ran := 0
				call := func() {
					f.OnMap = nil
					ran++
					require.Equal(t, c.want, errno(c.call(d, b)))
				}
				unmaps, stays := 1, 0
				if where == "mmap" {
					f.OnMap = call
					_, err = b.Map(4096, AnyType)
					require.Equal(t, c.ends, errors.Is(err, ErrClosed))
				} else {
					m, err := b.Map(4096, AnyType)
					require.NoError(t, err)
					var fails error
					if where != "munmap" {
						fails, unmaps = unix.ENOMEM, 0
					}
					onMunmap(t, func() error { call(); return fails })
					require.ErrorIs(t, m.Close(), fails)
					require.Equal(t, fails != nil && !c.ends, m.IsOpen())
					if fails != nil && c.ends {
						stays = 1
					}
				}
				require.Equal(t, 1, ran)
				if c.ends {
					require.Equal(t, unmaps, count(f, "unmap"))
					require.Equal(t, stays, f.Live)
				}
				_ = d.Close()
				require.Equal(t, stays, f.Live)
				require.Equal(t, 1-stays, count(f, "close"))
			})
		}
	}
}

// Every call on what is closed is refused, and leaves nothing locked behind: the device can
// still be closed.
func TestCallsOnWhatIsClosed(t *testing.T) {
	use := func(d *Device, b *Buffer, m *Mapping) map[string]error {
		set := func(_ any, err error) error { return err }
		return map[string]error{
			"buffer":  b.Close(),
			"map":     set(b.Map(4096, AnyType)),
			"mapping": set(b.Mapping()),
			"info":    set(b.Info()),
			"revoked": set(b.Revoked()),
			"close":   m.Close(),
			"read":    set(m.ReadAt(make([]byte, 8), 0)),
			"write":   set(m.WriteAt(make([]byte, 8), 0)),
		}
	}
	d, f, _ := openMemory(t)
	b, err := d.Pin(request)
	require.NoError(t, err)
	m, err := b.Map(4096, AnyType)
	require.NoError(t, err)
	require.Same(t, d, b.Device())
	require.NoError(t, b.Close())
	for range 2 {
		for name, err := range use(d, b, m) {
			require.ErrorIs(t, err, ErrClosed, name)
			require.Equal(t, unix.EINVAL, errno(err), name)
		}
	}
	calls := f.Made()
	require.NoError(t, d.Close())
	for range 2 {
		of := use(d, b, m)
		_, of["pin"] = d.Pin(request)
		_, of["Map"] = d.Map(request.Addr, 8)
		_, of["alloc"] = d.Alloc(0, 8)
		_, of["attribute"] = d.Attribute(backend.AttrForcePCIe)
		_, _, of["version"] = d.Version()
		_, of["backend"] = d.Backend()
		of["device"] = d.Close()
		for name, err := range of {
			require.ErrorIs(t, err, ErrClosed, name)
		}
	}
	require.Equal(t, append(calls, "close"), f.Made(), "the backend is asked nothing any more")
}

// Buffers end before memory is freed.
func TestCloseTellsAnUnpinBeforeAFree(t *testing.T) {
	sim := cudatest.Need(t)
	d, f := open(t)
	_, err := d.Pin(request)
	require.NoError(t, err)
	_, err = d.Alloc(0, 4096)
	require.NoError(t, err)
	f.Fail["unpin"] = unix.EDOM
	sim.Fail("cuMemUnmap", int(cuda.ErrUnknown), 1)
	require.Equal(t, unix.EDOM, errno(d.Close()))
}

// Close of a Buffer, or a Mapping, tells what the driver said.
func TestErrorsOfTheDriver(t *testing.T) {
	for _, c := range []struct {
		fail map[string]error
		want unix.Errno
	}{
		{map[string]error{"unmap": unix.EDOM}, unix.EDOM},
		{map[string]error{"unpin": unix.EXDEV}, unix.EXDEV},
		{map[string]error{"unmap": unix.EDOM, "unpin": unix.EXDEV}, unix.EDOM},
	} {
		d, f := open(t)
		end := func(prepare func() func() error) {
			close := prepare()
			for what, err := range c.fail {
				f.Fail[what] = err
			}
			require.Equal(t, c.want, errno(close()))
			require.ErrorIs(t, close(), ErrClosed)
			require.Zero(t, f.Live)
			clear(f.Fail)
		}
		end(func() func() error {
			b, err := d.Pin(request)
			require.NoError(t, err)
			_, err = b.Map(4096, AnyType)
			require.NoError(t, err)
			return b.Close
		})
		end(func() func() error {
			m, err := d.Map(request.Addr, 100)
			require.NoError(t, err)
			return m.Close
		})
		require.NoError(t, d.Close(), "what has failed is not tried again")
	}
}

// A mapping that is closed does not close the buffer's next one.
func TestCloseOfAnOldMapping(t *testing.T) {
	d, f := open(t)
	b, err := d.Pin(request)
	require.NoError(t, err)
	old, err := b.Map(4096, AnyType)
	require.NoError(t, err)
	require.NoError(t, old.Close())
	m, err := b.Map(8192, AnyType)
	require.NoError(t, err)
	require.ErrorIs(t, old.Close(), ErrClosed)
	now, err := b.Mapping()
	require.NoError(t, err)
	require.Same(t, m, now)
	require.Equal(t, 1, count(f, "unmap"))
	require.Equal(t, 1, f.Live, "a mapping of Buffer.Map leaves the buffer pinned")
}

// All backends were tried in vain: each says why.
func TestReasons(t *testing.T) {
	var all []backend.Backend
	for _, name := range []string{"a", "b", "c"} {
		h := newHalf(name, false)
		h.Fail["open"] = unix.ENOTSUP
		all = append(all, h)
	}
	_, err := Open(Options{Backends: all})
	require.Equal(t, unix.ENODEV, Errno(err))
	reasons := NoBackend(err)
	require.Len(t, reasons, 3)
	for i, name := range []string{"a", "b", "c"} {
		require.ErrorContains(t, reasons[i], "the "+name+" backend does not open")
		require.ErrorContains(t, err, "the "+name+" backend does not open")
		require.ErrorIs(t, reasons[i], unix.ENOTSUP)
	}
	require.Nil(t, NoBackend(unix.ENODEV))
	require.Nil(t, NoBackend(nil))
	require.Equal(t, unix.ENODEV, errno(err), "and ENODEV is the errno of all")
}

// Each attribute has its own answer, and what is none has EINVAL.
func TestAttributes(t *testing.T) {
	d, f := open(t)
	next := backend.AttrPersistentMapping
	for ; next.IsKnown(); next++ {
		v, err := d.Attribute(next)
		require.NoError(t, err)
		require.EqualValues(t, next, v)
	}
	asked := len(f.Made())
	for _, a := range []backend.Attr{-1 << 31, -1, 0, next, 1 << 30} {
		_, err := d.Attribute(a)
		require.Equal(t, unix.EINVAL, errno(err))
	}
	require.Len(t, f.Made(), asked, "no backend is asked")
}

// A defect on the way to the driver loses no buffer: it is as before, and gone after Close.
func TestPanics(t *testing.T) {
	d, f := open(t)
	b, err := d.Pin(request)
	require.NoError(t, err)
	f.OnMap = func() { panic("in map") }
	_, err = b.Map(4096, AnyType)
	require.Equal(t, unix.EIO, errno(err))
	require.ErrorContains(t, err, "in map")
	f.OnMap = nil
	m, err := b.Map(4096, AnyType)
	require.NoError(t, err)
	onMunmap(t, func() error { panic("in munmap") })
	require.Equal(t, unix.EIO, errno(m.Close()))
	require.True(t, m.IsOpen())
	require.NoError(t, m.Close())
	f.OnMap = func() { panic(first(nil, b.Close())) }
	_, err = b.Map(4096, AnyType)
	require.Error(t, err)
	require.Zero(t, f.Live, "unpinned meanwhile")
	require.NoError(t, d.Close())
	require.Equal(t, 1, count(f, "close"))
}
