package core

import (
	"bytes"
	"errors"
	"io"
	"runtime/debug"
	"testing"
	"unsafe"

	"gdrapi/core/backend"
	"gdrapi/core/backend/backendtest"
	"gdrapi/core/internal/mmio"
	"gdrapi/core/internal/sys"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// openMemory opens a device on a fake whose mappings are of 64 KiB of memory.
func openMemory(t *testing.T) (*Device, *backendtest.Fake, []byte) {
	t.Helper()
	d, f := open(t)
	mem, err := unix.Mmap(-1, 0, 1<<16+4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(mem)) })
	require.NoError(t, unix.Mprotect(mem[1<<16:], unix.PROT_NONE), "what lies behind it is nobody's")
	f.VA = uintptr(unsafe.Pointer(&mem[0]))
	return d, f, mem[:1<<16]
}

// errno is what a Go program makes of an error.
func errno(err error) unix.Errno {
	var e unix.Errno
	errors.As(err, &e)
	return e
}

func TestReadAtAndWriteAt(t *testing.T) {
	d, f, mem := openMemory(t)
	m, err := d.Map(0x10000+100, 1000)
	require.NoError(t, err)
	require.EqualValues(t, 1000, m.Size())
	require.EqualValues(t, 0x10000, m.GPU())
	for _, c := range []struct {
		off     int64
		n, want int
		read    error // of ReadAt
		write   unix.Errno
	}{
		{0, 1000, 1000, nil, 0},
		{0, 0, 0, nil, 0},
		{1, 8, 8, nil, 0},
		{999, 1, 1, nil, 0},
		{990, 11, 10, io.EOF, unix.EINVAL},
		{1000, 0, 0, io.EOF, 0},
		{1000, 1, 0, io.EOF, unix.EINVAL},
		{1 << 62, 1, 0, io.EOF, unix.EINVAL},
		{-1, 1, 0, unix.EINVAL, unix.EINVAL},
		{-1 << 63, 1, 0, unix.EINVAL, unix.EINVAL},
	} {
		before := bytes.Clone(mem)
		p := bytes.Repeat([]byte{0xa5}, c.n)
		n, err := m.WriteAt(p, c.off)
		require.Equal(t, c.write, errno(err), "%+v: %v", c, err)
		if c.write == 0 {
			require.NoError(t, err)
			require.Equal(t, c.n, n)
			copy(before[100+c.off:], p)
		} else {
			require.Zero(t, n)
		}
		require.Equal(t, before, mem, "%+v", c)

		p = make([]byte, c.n)
		n, err = m.ReadAt(p, c.off)
		require.ErrorIs(t, err, c.read, "%+v", c)
		require.Equal(t, c.want, n, "%+v", c)
		if n > 0 {
			require.Equal(t, mem[100+c.off:][:n], p[:n])
		}
		require.Equal(t, make([]byte, c.n-n), p[n:], "the rest is left")
	}
	all, err := io.ReadAll(io.NewSectionReader(m, 0, m.Size()))
	require.NoError(t, err)
	require.Equal(t, mem[100:1100], all)

	require.NoError(t, m.Close())
	require.Zero(t, f.Live, "Close unpins, too")
	for _, err := range []error{
		m.Close(),
		func() error { _, err := m.ReadAt(make([]byte, 1), 0); return err }(),
		func() error { _, err := m.WriteAt(make([]byte, 1), 0); return err }(),
	} {
		require.ErrorIs(t, err, ErrClosed)
		require.Equal(t, unix.EINVAL, errno(err))
	}
}

// Map finds out once what the backend's page is.
func TestMapOfAnyAlignment(t *testing.T) {
	d, f, mem := openMemory(t)
	f.Page = 1 << 16
	for i, pins := range []int{2, 1} {
		f.Calls = nil
		m, err := d.Map(0x30000+5000, 3)
		require.NoError(t, err)
		require.EqualValues(t, 0x30000, m.GPU())
		require.Equal(t, PinRequest{Addr: 0x30000, Size: 5003, Skip: 5000}, f.Asked)
		n := 0
		for _, c := range f.Made() {
			if c == "pin" {
				n++
			}
		}
		require.Equal(t, pins, n)
		_, err = m.WriteAt([]byte{1, 2, byte(i)}, 0)
		require.NoError(t, err)
		require.Equal(t, []byte{1, 2, byte(i)}, mem[5000:5003])
		require.NoError(t, m.Close())
		require.Zero(t, f.Live)
	}
	b, err := d.PinBytes(0x30000+5000, 3, backend.PinForcePCIe)
	require.NoError(t, err)
	require.Equal(t, PinRequest{Addr: 0x30000, Size: 5003, Skip: 5000, Flags: backend.PinForcePCIe}, f.Asked)
	_, err = b.Map(5003, AnyType)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	for what, want := range map[string]unix.Errno{"pin": unix.ENOTSUP, "info": unix.EIO, "map": unix.ENOMEM} {
		f.Fail[what] = want
		_, err := d.Map(0x30000, 8)
		require.Equal(t, want, errno(err))
		require.Zero(t, f.Live)
		delete(f.Fail, what)
	}
	for _, r := range [][2]uint64{{0, 8}, {8, 0}, {^uint64(0), 2}} {
		_, err := d.Map(r[0], r[1])
		require.Equal(t, unix.EINVAL, errno(err))
		_, err = d.PinBytes(r[0], r[1], 0)
		require.Equal(t, unix.EINVAL, errno(err))
	}
}

// Which bytes of a request are the caller's own, and which requests there are.
func TestOwnBytes(t *testing.T) {
	d, _ := open(t)
	for _, c := range []struct {
		size, skip, tail uint64
		own              uint64
		want             unix.Errno
	}{
		{100, 0, 0, 100, 0},
		{100, 30, 20, 50, 0},
		{100, 100, 0, 0, 0},
		{100, 40, 60, 0, 0},
		{100, 41, 60, 0, unix.EINVAL},
		{100, 101, 0, 0, unix.EINVAL},
		{100, 0, 101, 0, unix.EINVAL},
		{100, 50, ^uint64(0) - 20, 0, unix.EINVAL},
		{100, ^uint64(0) - 20, 50, 0, unix.EINVAL},
	} {
		r := PinRequest{Addr: 0x10000, Size: c.size, Skip: c.skip, Tail: c.tail}
		b, err := d.Pin(r)
		require.Equal(t, c.want, errno(err), "%+v", c)
		if err != nil {
			continue
		}
		require.NoError(t, b.Close())
		addr, size := r.Own()
		require.Equal(t, [2]uint64{0x10000 + c.skip, c.own}, [2]uint64{addr, size})
		if addr, size = r.Sought(); c.own == 0 {
			require.Equal(t, [2]uint64{0x10000, c.size}, [2]uint64{addr, size})
		} else {
			require.Equal(t, [2]uint64{0x10000 + c.skip, c.own}, [2]uint64{addr, size})
		}
	}
}

// Whatever ends a mapping waits for the copies that run. Later ones are refused.
func TestCloseWaitsForCopies(t *testing.T) {
	for name, end := range map[string]func(d *Device, b *Buffer, m *Mapping) error{
		"mapping": func(_ *Device, _ *Buffer, m *Mapping) error { return m.Close() },
		"buffer":  func(_ *Device, b *Buffer, _ *Mapping) error { return b.Close() },
		"device":  func(d *Device, _ *Buffer, _ *Mapping) error { return d.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			d, f, _ := openMemory(t)
			b, err := d.Pin(request)
			require.NoError(t, err)
			m, err := b.Map(4096, AnyType)
			require.NoError(t, err)
			ended := make(chan error)
			copied := 0
			_, err = m.copy(0, make([]byte, 8), func(uint64) {
				go func() { ended <- end(d, b, m) }()
				for m.copies.TryRLock() { // false once the end waits
					m.copies.RUnlock()
				}
				require.NotContains(t, f.Made(), "unmap")
				copied++
			})
			require.NoError(t, err)
			require.NoError(t, <-ended)
			require.Equal(t, 1, copied)
			require.Contains(t, f.Made(), "unmap")
			_, err = m.WriteAt([]byte{1}, 0)
			require.ErrorIs(t, err, ErrClosed)
		})
	}
}

// Pages that the driver takes back fault. The program lives.
func TestRevokedPages(t *testing.T) {
	d, _, mem := openMemory(t)
	m, err := d.Map(0x10000, 1<<16)
	require.NoError(t, err)
	require.NoError(t, unix.Mprotect(mem[4096:], unix.PROT_NONE))
	for _, n := range []int{8, 5000} {
		for _, copy := range []func([]byte, int64) (int, error){m.ReadAt, m.WriteAt} {
			done, err := copy(make([]byte, n), 4096-4)
			require.Equal(t, unix.EIO, errno(err), "%v", err)
			require.Zero(t, done)
			done, err = copy(make([]byte, 8), 0)
			require.NoError(t, err)
			require.Equal(t, 8, done)
		}
	}
	// The end of the mapping does not hide it, and a program's own faults stay what they were.
	_, err = m.ReadAt(make([]byte, 5000), 1<<16-100)
	require.Equal(t, unix.EIO, errno(err), "%v", err)
	for _, panics := range []bool{true, false} {
		debug.SetPanicOnFault(panics)
		_, err = m.ReadAt(make([]byte, 8), 4096)
		require.Equal(t, unix.EIO, errno(err))
		require.Equal(t, panics, debug.SetPanicOnFault(panics))
	}
	// A fault of the program's own stays its own.
	require.NoError(t, unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE))
	other, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer unix.Munmap(other)
	require.Panics(t, func() { _, _ = m.WriteAt(other[:8], 0) })
	require.PanicsWithValue(t, "mine", func() { _, _ = m.copy(0, nil, func(uint64) { panic("mine") }) })
	after := func(at uint64) { mmio.Write(m.va+uintptr(at)+1<<16, make([]byte, 8), WriteCombined) }
	require.Panics(t, func() { _, _ = m.copy(0, nil, after) }, "the first byte after the mapping is not its own")
	require.NoError(t, m.Close(), "a panic has left nothing locked")

	// Of a mapping that begins inside of a page the last bytes are its own, too.
	m, err = d.Map(0x10000+3000, 4096)
	require.NoError(t, err)
	require.NoError(t, unix.Mprotect(mem[4096:], unix.PROT_NONE))
	_, err = m.ReadAt(make([]byte, 8), 4096-8)
	require.Equal(t, unix.EIO, errno(err), "%v", err)
	require.NoError(t, unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE))
	require.NoError(t, m.Close())
}

// Where munmap fails the mapping stays, and a later Close may end it. What was to be unpinned, too,
// stays pinned, and the session open.
func TestMunmapFails(t *testing.T) {
	d, f, mem := openMemory(t)
	b, err := d.Pin(request)
	require.NoError(t, err)
	m, err := b.Map(4096, AnyType)
	require.NoError(t, err)
	works := sys.HostMemory()
	fails := works
	fails.Munmap = func(uintptr, uintptr) error { return unix.EPERM }
	sys.UseMemory(fails)
	t.Cleanup(func() { sys.UseMemory(works) })
	require.Equal(t, unix.EPERM, errno(m.Close()))
	_, err = m.WriteAt([]byte("here"), 0)
	require.NoError(t, err)
	require.Equal(t, "here", string(mem[:4]))
	sys.UseMemory(works)
	require.NoError(t, m.Close())

	m, err = b.Map(4096, AnyType)
	require.NoError(t, err)
	sys.UseMemory(fails)
	require.Equal(t, unix.EPERM, errno(b.Close()))
	_, err = m.WriteAt([]byte("here"), 0)
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, m.Close(), ErrClosed)
	require.NoError(t, d.Close())
	require.Zero(t, count(f, "unpin")+count(f, "close"))
	mmio.Count(m.typ, -1) // other tests count the live ones
}

// A copy allocates nothing.
func TestCopiesDoNotAllocate(t *testing.T) {
	d, _, _ := openMemory(t)
	m, err := d.Map(0x10000, 4096)
	require.NoError(t, err)
	p := make([]byte, 100)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _ = m.WriteAt(p, 3)
		_, _ = m.ReadAt(p, 3)
	}))
}
