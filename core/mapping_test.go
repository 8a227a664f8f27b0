package core

import (
	"bytes"
	"io"
	"runtime/debug"
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/internal/mmio"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// mapAt is a mapping of n bytes of GPU memory at addr.
func (l *life) mapAt(addr, n uint64) *Mapping {
	l.Helper()
	m, err := l.d.Map(addr, n)
	require.NoError(l, err)
	return m
}

func TestReadAtAndWriteAt(t *testing.T) {
	l := withMemory(t)
	m := l.mapAt(0x10000+100, 1000)
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
		after, p := bytes.Clone(l.mem), bytes.Repeat([]byte{0xa5}, c.n)
		n, err := m.WriteAt(p, c.off)
		require.Equal(t, c.write, errno(err), "%+v: %v", c, err)
		if c.write == 0 {
			require.NoError(t, err)
			require.Equal(t, c.n, n)
			copy(after[100+c.off:], p)
		} else {
			require.Zero(t, n)
		}
		require.Equal(t, after, l.mem, "%+v", c)

		p = make([]byte, c.n)
		n, err = m.ReadAt(p, c.off)
		require.ErrorIs(t, err, c.read, "%+v", c)
		require.Equal(t, c.want, n, "%+v", c)
		if n > 0 {
			require.Equal(t, l.mem[100+c.off:][:n], p[:n])
		}
		require.Equal(t, make([]byte, c.n-n), p[n:], "the rest is left")
	}
	all, err := io.ReadAll(io.NewSectionReader(m, 0, m.Size()))
	require.NoError(t, err)
	require.Equal(t, l.mem[100:1100], all)
	p := make([]byte, 100)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _ = m.WriteAt(p, 3)
		_, _ = m.ReadAt(p, 3)
	}), "a copy allocates nothing")
}

// Map finds out once what the backend's page is.
func TestMapOfAnyAlignment(t *testing.T) {
	l := withMemory(t)
	l.f.Page = 1 << 16
	for i, pins := range []int{2, 3} {
		m := l.mapAt(0x30000+5000, 3)
		require.EqualValues(t, 0x30000, m.GPU())
		require.Equal(t, PinRequest{Addr: 0x30000, Size: 5003, Skip: 5000}, l.f.Asked)
		require.Equal(t, pins, l.f.count("pin"))
		_, err := m.WriteAt([]byte{1, 2, byte(i)}, 0)
		require.NoError(t, err)
		require.Equal(t, []byte{1, 2, byte(i)}, l.mem[5000:5003])
		require.NoError(t, m.Close())
		require.Zero(t, l.f.Live, "Close unpins, too")
	}
	require.NoError(t, l.pinned(l.d.PinBytes(0x30000+5000, 3, backend.PinForcePCIe)))
	require.Equal(t, PinRequest{Addr: 0x30000, Size: 5003, Skip: 5000, Flags: backend.PinForcePCIe}, l.f.Asked)
	require.NoError(t, failed(l.b.Map(5003, AnyType)))
	l.run("unpin")
	for _, r := range [][2]uint64{{0, 8}, {8, 0}, {^uint64(0), 2}} {
		require.Equal(t, unix.EINVAL, errno(failed(l.d.Map(r[0], r[1]))))
		require.Equal(t, unix.EINVAL, errno(failed(l.d.PinBytes(r[0], r[1], 0))))
	}
}

// Which bytes of a request are the caller's own, and which requests there are.
func TestOwnBytes(t *testing.T) {
	l := live(t, newHalf("fake", false))
	for _, c := range []struct {
		skip, tail, own uint64 // of 100 bytes
		want            unix.Errno
	}{
		{0, 0, 100, 0}, {30, 20, 50, 0}, {100, 0, 0, 0}, {40, 60, 0, 0}, {41, 60, 0, unix.EINVAL}, {101, 0, 0, unix.EINVAL},
		{0, 101, 0, unix.EINVAL}, {50, ^uint64(0) - 20, 0, unix.EINVAL}, {^uint64(0) - 20, 50, 0, unix.EINVAL},
	} {
		r := PinRequest{Addr: 0x10000, Size: 100, Skip: c.skip, Tail: c.tail}
		require.Equal(t, c.want, errno(l.pinned(l.d.Pin(r))), "%+v", c)
		if c.want != 0 {
			continue
		}
		l.run("unpin")
		own := [2]uint64{0x10000 + c.skip, c.own}
		addr, size := r.Own()
		require.Equal(t, own, [2]uint64{addr, size})
		if c.own == 0 {
			own = [2]uint64{0x10000, 100}
		}
		addr, size = r.Sought()
		require.Equal(t, own, [2]uint64{addr, size})
	}
}

// Whatever ends a mapping waits for the copies that run. Later ones are refused.
func TestCloseWaitsForCopies(t *testing.T) {
	for _, end := range []string{"unmap", "unpin", "close"} {
		l := withMemory(t)
		l.run("pin map")
		ended := make(chan error)
		_, err := l.m.copy(0, make([]byte, 8), func(uint64) {
			go func() { ended <- calls[end](l) }()
			for l.m.copies.TryRLock() { // false once the end waits
				l.m.copies.RUnlock()
			}
			require.NotContains(t, l.f.Made(), "unmap")
		})
		require.NoError(t, err)
		require.NoError(t, <-ended)
		require.Contains(t, l.f.Made(), "unmap")
		l.run("write=ESHUTDOWN")
	}
}

// Pages that the driver takes back fault, to the last byte. The program lives, and its own faults stay its own.
func TestRevokedPages(t *testing.T) {
	protect := func(b []byte, prot int) { require.NoError(t, unix.Mprotect(b, prot)) }
	l := withMemory(t)
	m := l.mapAt(0x10000, 1<<16)
	protect(l.mem[4096:], unix.PROT_NONE)
	for _, panics := range []bool{true, false} {
		debug.SetPanicOnFault(panics)
		for _, copy := range []func([]byte, int64) (int, error){m.ReadAt, m.WriteAt} {
			for _, c := range []struct {
				n   int
				off int64
			}{{8, 4096 - 4}, {5000, 4096 - 4}, {8, 4096}, {8, 1<<16 - 8}} {
				n, err := copy(make([]byte, c.n), c.off)
				require.Equal(t, unix.EIO, errno(err), "%v", err)
				require.Zero(t, n)
			}
			n, err := copy(make([]byte, 8), 0)
			require.NoError(t, err)
			require.Equal(t, 8, n)
		}
		require.Equal(t, panics, debug.SetPanicOnFault(panics))
	}
	// The end of the mapping does not hide it.
	require.Equal(t, unix.EIO, errno(failed(m.ReadAt(make([]byte, 5000), 1<<16-100))))
	protect(l.mem, unix.PROT_READ|unix.PROT_WRITE)
	other, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer unix.Munmap(other)
	require.Panics(t, func() { _, _ = m.WriteAt(other[:8], 0) })
	require.PanicsWithValue(t, "mine", func() { _, _ = m.copy(0, nil, func(uint64) { panic("mine") }) })
	after := func(at uint64) { mmio.Write(m.va+uintptr(at)+1<<16, make([]byte, 8), WriteCombined) }
	require.Panics(t, func() { _, _ = m.copy(0, nil, after) }, "the first byte after the mapping is not its own")
	require.NoError(t, m.Close(), "a panic has left nothing locked")

	// Of a mapping that begins inside of a page the last bytes are its own, too.
	m = l.mapAt(0x10000+3000, 4096)
	protect(l.mem[4096:], unix.PROT_NONE)
	require.Equal(t, unix.EIO, errno(failed(m.ReadAt(make([]byte, 8), 4096-8))))
	protect(l.mem, unix.PROT_READ|unix.PROT_WRITE)
	require.NoError(t, m.Close())
}
