package core

import (
	"fmt"
	"testing"
	"time"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/cuda/cudatest"
	"gdrapi/core/internal/mmio"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// view is a View that notes its calls.
type view struct {
	calls []string
	va    uintptr
	n     uint64
	typ   uint32
}

func (v *view) Mapped(va uintptr, n uint64, typ uint32) {
	v.calls = append(v.calls, "mapped")
	v.va, v.n, v.typ = va, n, typ
}

func (v *view) Unmapped() { v.calls = append(v.calls, "unmapped") }
func (v *view) Gone()     { v.calls = append(v.calls, "gone") }

// What a backend is asked for, and what a mapping is then.
func TestMapOfEachType(t *testing.T) {
	d, f := open(t)
	for _, want := range []MappingType{AnyType, WriteCombined, Cached, DeviceMemory} {
		for _, got := range []MappingType{WriteCombined, Cached, DeviceMemory} {
			f.Type = got
			g := new(view)
			b, err := d.Pin(request)
			require.NoError(t, err)
			require.NoError(t, b.Show(g))
			require.Same(t, g, b.View())
			m, err := b.Map(5000, want)
			require.NoError(t, err)
			require.EqualValues(t, 8192, f.Bytes, "whole pages of the host")
			require.Equal(t, want, f.Want)
			require.Equal(t, got, m.Type(), "what the backend gave")
			require.Equal(t, &view{calls: []string{"mapped"}, va: f.VA, n: 8192, typ: uint32(got)}, g)
			require.Equal(t, f.VA, m.VA())
			require.EqualValues(t, request.Addr, m.GPU())
			require.EqualValues(t, 8192, m.Mapped())
			require.EqualValues(t, 5000, m.Size())
			i, err := b.Info()
			require.NoError(t, err)
			require.Equal(t, Info{Info: backend.Info{VA: request.Addr, MappedSize: request.Size, PageSize: 4096}, Mapped: true, Type: got}, i)
			again, err := b.Mapping()
			require.NoError(t, err)
			require.Same(t, m, again)
			require.NoError(t, m.Close())
			i, err = b.Info()
			require.NoError(t, err)
			require.Equal(t, Info{Info: i.Info}, i, "it is not mapped any more")
			require.NoError(t, b.Close())
			require.Equal(t, []string{"mapped", "unmapped", "gone"}, g.calls)
			require.ErrorIs(t, b.Show(g), ErrClosed)
		}
	}
	b, err := d.Pin(request)
	require.NoError(t, err)
	for _, typ := range []MappingType{4, 5, 1 << 31, ^MappingType(0)} {
		_, err = b.Map(4096, typ)
		require.Equal(t, unix.EINVAL, errno(err))
	}
	require.NoError(t, d.Close())
}

// A buffer may be mapped up to the end of its last page of the host, and one that is pinned
// within a page not beyond it.
func TestHowMuchIsMapped(t *testing.T) {
	d, f := open(t)
	for size, most := range map[uint64]uint64{1: 4096, 4096: 4096, 4097: 8192, 3 * 4096: 3 * 4096} {
		b, err := d.Pin(PinRequest{Addr: request.Addr, Size: size})
		require.NoError(t, err)
		for _, n := range []uint64{0, most + 1, ^uint64(0), ^uint64(0) - 4095, ^uint64(0) - 4096} {
			_, err = b.Map(n, AnyType)
			require.Equal(t, unix.EINVAL, errno(err), "%d of %d", n, size)
			require.ErrorContains(t, err, fmt.Sprintf("map of %d bytes: the pinning allows 1 to %d:", n, most))
		}
		m, err := b.Map(most, AnyType)
		require.NoError(t, err, "%d of %d", most, size)
		require.Equal(t, most, f.Bytes)
		require.NoError(t, m.Close())
		require.NoError(t, b.Close())
	}
	b, err := d.Pin(request)
	require.NoError(t, err)
	f.Fail["info"] = unix.EIO
	_, err = b.Map(4096, AnyType)
	require.Equal(t, unix.EIO, errno(err), "nothing is mapped that the driver does not describe")
	require.Equal(t, 4, count(f, "map"))
}

// A range may end on the last byte of the address space but one, and not beyond it.
func TestWherePinsEnd(t *testing.T) {
	const last = ^uint64(0) - 4095
	d, f := open(t)
	b, err := d.Pin(PinRequest{Addr: last, Size: 4095})
	require.NoError(t, err)
	require.NoError(t, b.Close())
	for _, req := range []PinRequest{{Addr: last, Size: 4096}, {Addr: last, Size: 4097}, {Addr: 1, Size: ^uint64(0)}, {Size: 1}, {Addr: 1}, {Addr: 1, Size: 8, Skip: 8}} {
		_, err := d.Pin(req)
		require.Equal(t, unix.EINVAL, errno(err), "%+v", req)
		require.ErrorContains(t, err, fmt.Sprintf("pin of %d bytes at %#x", req.Size, req.Addr))
	}
	require.Equal(t, 1, count(f, "pin"))
}

// A backend pins whole pages. A buffer that begins within one is pinned, and not mapped.
func TestUnalignedBuffers(t *testing.T) {
	d, f := open(t)
	f.Page = 1 << 16
	for _, off := range []uint64{1, 4096, 1<<16 - 1} {
		b, err := d.Pin(PinRequest{Addr: request.Addr + off, Size: 4096})
		require.NoError(t, err)
		_, err = b.Map(4096, AnyType)
		require.Equal(t, unix.EINVAL, errno(err))
		require.ErrorContains(t, err, "pin from a multiple of 65536 bytes on")
		require.NoError(t, b.Close())
	}
	require.Zero(t, count(f, "map"))
}

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

// A View that comes after the mapping is told of it.
func TestShowAfterMap(t *testing.T) {
	d, f := open(t)
	b, err := d.Pin(request)
	require.NoError(t, err)
	_, err = b.Map(4096, AnyType)
	require.NoError(t, err)
	v := new(view)
	require.NoError(t, b.Show(v))
	require.Equal(t, &view{calls: []string{"mapped"}, va: f.VA, n: 4096, typ: uint32(f.Type)}, v)
	require.NoError(t, d.Close())
	require.Equal(t, []string{"mapped", "unmapped", "gone"}, v.calls)
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
		_, of["cache"] = d.OpenCache(8)
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

// Close goes on after an error, and answers the first one.
func TestCloseTellsTheFirstError(t *testing.T) {
	for _, once := range []string{"unmap", "unpin"} {
		d, f := open(t)
		for range 4 {
			b, err := d.Pin(request)
			require.NoError(t, err)
			_, err = b.Map(4096, AnyType)
			require.NoError(t, err)
		}
		f.Fail[once] = unix.EDOM
		f.OnUnpin = func() { f.Fail[once] = unix.EXDEV }
		require.Equal(t, unix.EDOM, errno(d.Close()))
		require.Zero(t, f.Live)
		require.Equal(t, 4, count(f, "unmap"))
		require.Equal(t, 1, count(f, "close"))
	}
	d, f := open(t)
	f.Fail["close"] = unix.EDOM
	require.Equal(t, unix.EDOM, errno(d.Close()))
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
	for _, a := range []backend.Attr{backend.AttrPersistentMapping, backend.AttrForcePCIe, backend.AttrDMABufMmap} {
		v, err := d.Attribute(a)
		require.NoError(t, err)
		require.EqualValues(t, a, v)
	}
	asked := len(f.Made())
	for _, a := range []backend.Attr{-1 << 31, -1, 0, 4, 1 << 30} {
		_, err := d.Attribute(a)
		require.Equal(t, unix.EINVAL, errno(err))
	}
	require.Len(t, f.Made(), asked, "no backend is asked")
}
