package dmabuf

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/cuda/cudatest"
	"gdrapi/core/internal/sys"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var _ backend.Tentative = (*session)(nil)

func driver(t *testing.T) *cuda.Driver {
	cu, err := cuda.Load()
	require.NoError(t, err)
	return cu
}

// CUDA 13.3 over an older kernel driver: attribute 152 is 0.
func TestDevicesThatDoNotMap(t *testing.T) {
	t.Run("no device", func(t *testing.T) {
		if !cudatest.InChild(t, "CUDA_SIM_DMABUF_MMAP=0") {
			return
		}
		sim := cudatest.Need(t)
		_, err := Backend{}.Open()
		require.ErrorIs(t, err, unix.ENOTSUP)
		require.ErrorContains(t, err, "none of the 3 CUDA devices")
		require.Zero(t, sim.Current())
	})
	t.Run("one device", func(t *testing.T) {
		if !cudatest.InChild(t, "CUDA_SIM_DMABUF_MMAP=0,1,1") {
			return
		}
		sim := cudatest.Need(t)
		s, err := Backend{}.Open()
		require.NoError(t, err, "device %d is able", coherent)
		unable, able, silent := sim.MemAlloc(plain, page), sim.MemAlloc(coherent, page), sim.MemAlloc(mute, page)
		fds := cudatest.FDs(t)
		for _, c := range []struct {
			addr uint64
			want error
			line string
		}{
			{able, nil, ""},
			{unable, unix.ENOTSUP, "older than CUDA 13.3"},
			{silent, unix.ENOTSUP, "cannot export"},
			{4096, unix.EINVAL, "no CUDA device pointer"},
		} {
			req := backend.PinRequest{Addr: c.addr, Size: 8}
			p, err := s.Pin(req)
			require.Equal(t, c.want != nil, errors.As(err, new(backend.NotServed)))
			if c.want == nil {
				require.NoError(t, err)
				require.NoError(t, p.Unpin())
				continue
			}
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.line)
			require.Equal(t, fds, cudatest.FDs(t))
		}
	})
}

// A driver that does not know attribute 152, or 124 for this GPU, answers INVALID_VALUE,
// which means no. Any other error is an error.
func TestAttributeThatIsNotKnown(t *testing.T) {
	sim := cudatest.Need(t)
	addr := sim.MemAlloc(plain, page)
	for call := 1; call <= 2; call++ { // asks for 124, and for 152
		for _, c := range []struct {
			result cuda.Result
			want   error
		}{
			{cuda.ErrInvalidValue, unix.ENOTSUP},
			{cuda.ErrNotPermitted, unix.EPERM},
			{cuda.ErrUnknown, unix.EIO},
		} {
			s := &session{cuda: driver(t)}
			sim.Fail("cuDeviceGetAttribute", int(c.result), call)
			_, err := s.Pin(backend.PinRequest{Addr: addr, Size: 8})
			require.ErrorIs(t, err, c.want, "%v", c.result)
			require.Equal(t, c.want == unix.ENOTSUP, errors.As(err, new(backend.NotServed)), "%v", c.result)
			sim.Heal("cuDeviceGetAttribute")
			p, err := s.Pin(backend.PinRequest{Addr: addr, Size: 8})
			if c.want == unix.ENOTSUP {
				require.ErrorIs(t, err, unix.ENOTSUP, "an answer is kept")
			} else {
				require.NoError(t, err, "an error is not")
				require.NoError(t, p.Unpin())
			}
		}
	}
}

// Before cuInit only the first pin shows it.
func TestUndecidedBeforeInit(t *testing.T) {
	if !cudatest.InChild(t) {
		return
	}
	early, err := Backend{}.Open()
	require.NoError(t, err)
	u := early.(backend.Tentative)
	require.True(t, u.Tentative())
	require.ErrorIs(t, u.ServesAny(), cuda.ErrNotInitialized)
	_, err = u.Pin(backend.PinRequest{Addr: 1 << 20, Size: 8})
	require.ErrorIs(t, err, unix.EINVAL)
	require.False(t, errors.As(err, new(backend.NotServed)))
	_, err = driver(t).DeviceCount()
	require.ErrorIs(t, err, cuda.ErrNotInitialized)

	sim := cudatest.Need(t)
	require.True(t, u.Tentative(), "as it was when the session was opened")
	require.NoError(t, u.ServesAny())
	p, err := u.Pin(backend.PinRequest{Addr: sim.MemAlloc(plain, page), Size: 8})
	require.NoError(t, err)
	require.NoError(t, p.Unpin())
	late, err := Backend{}.Open()
	require.NoError(t, err)
	require.False(t, late.(backend.Tentative).Tentative())
}

// memfd stands for a dma-buf of this many pages.
func memfd(t *testing.T, name string, pages uint64) int {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.Ftruncate(fd, int64(pages*page)))
	return fd
}

func mapped(t *testing.T, name string) bool {
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Contains(string(maps), name)
}

// A driver may map less of a dma-buf than the library wants.
func TestLastByteIsMissing(t *testing.T) {
	fd := memfd(t, "short_dmabuf", 2)
	for pages := uint64(1); pages <= 4; pages++ {
		va, err := mmap([]part{{fd: fd, size: pages * page}}, uintptr(pages*page))
		if pages <= 2 {
			require.NoError(t, err)
			require.NoError(t, sys.Munmap(va, uintptr(pages*page)))
			continue
		}
		require.ErrorIs(t, err, unix.ENOTSUP, "%d pages", pages)
		require.ErrorContains(t, err, "pin each allocation on its own")
		require.False(t, mapped(t, "short_dmabuf"), "the mapping is taken down")
	}
	for _, sizes := range [][]uint64{{2, 3}, {3, 2}, {2, 2, 3}} { // one is short, among others
		var parts []part
		whole := uint64(0)
		for _, n := range sizes {
			parts = append(parts, part{fd: fd, size: n * page})
			whole += n * page
		}
		_, err := mmap(parts, uintptr(whole))
		require.ErrorIs(t, err, unix.ENOTSUP)
		require.False(t, mapped(t, "short_dmabuf"))
	}
	va, err := mmap([]part{{fd: fd, size: 2 * page}, {fd: fd, size: 2 * page}}, uintptr(3*page))
	require.NoError(t, err)
	require.Contains(t, vmFlags(t, va), "dc", "not for forked children")
	require.Contains(t, vmFlags(t, va+uintptr(2*page)), "dc", "nor the second part")
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	require.Contains(t, string(maps), fmt.Sprintf("%x-%x ", va, va+uintptr(2*page)))
	require.Contains(t, string(maps), fmt.Sprintf("%x-%x ", va+uintptr(2*page), va+uintptr(3*page)), "no page more than was asked for")
	require.NoError(t, sys.Munmap(va, uintptr(3*page)))
	require.False(t, mapped(t, "short_dmabuf"), "nor behind it")
	_, err = mmap([]part{{fd: fd, size: 2 * page}, {fd: -1, size: 2 * page}}, uintptr(4*page))
	require.ErrorIs(t, err, unix.EBADF)
	require.False(t, mapped(t, "short_dmabuf"))
	file, err := sys.Own(fd)
	require.NoError(t, err)
	p := &pin{first: page, size: 4 * page, parts: []part{{fd, file, 4 * page}}, mappingType: backend.WC}
	_, _, err = p.Map(4*page, backend.None)
	require.ErrorIs(t, err, unix.ENOTSUP)
	va, got, err := p.Map(2*page, backend.None)
	require.NoError(t, err, "what is there can be mapped")
	require.Equal(t, backend.WC, got)
	require.False(t, faults(va+uintptr(2*page)-8))
	require.NoError(t, sys.Munmap(va, uintptr(2*page)))
	require.NoError(t, p.Unmap())
}

// The errors of mmap and madvise.
func TestMmapFails(t *testing.T) {
	if !cudatest.InChild(t) { // the functions for mappings belong to the process
		return
	}
	fd := memfd(t, "refused_dmabuf", 1)
	var answer error
	var va uintptr
	taken := 0
	sys.UseMemory(sys.Memory{
		Mmap:   func(uintptr, uintptr, int, int, int, uint64) (uintptr, error) { return va, answer },
		Munmap: func(uintptr, uintptr) error { taken++; return nil },
	})
	answer = unix.Errno(524)
	parts := []part{{fd: fd, size: page}}
	_, err := mmap(parts, uintptr(page))
	require.ErrorIs(t, err, unix.ENOTSUP)
	require.ErrorContains(t, err, "cannot mmap its dma-bufs")
	answer = unix.EMLINK
	_, err = mmap(parts, uintptr(page))
	require.ErrorIs(t, err, unix.EMLINK)
	_, err = mmap([]part{{fd: fd, size: page}, {fd: fd, size: page}}, uintptr(2*page))
	require.ErrorIs(t, err, unix.EMLINK)
	require.ErrorContains(t, err, fmt.Sprintf("no %d bytes of address space", 2*page))
	require.Zero(t, taken, "nothing was mapped")

	// A mapping with a hole at its start.
	hole, err := unix.Mmap(-1, 0, int(2*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	answer, va = nil, cudatest.Address(&hole[0])
	_, _, errno := unix.Syscall(unix.SYS_MUNMAP, va, uintptr(page), 0)
	require.Zero(t, errno)
	_, err = mmap([]part{{fd: fd, size: 2 * page}}, uintptr(2*page))
	require.ErrorIs(t, err, unix.ENOMEM)
	require.ErrorContains(t, err, "MADV_DONTFORK")
	require.Equal(t, 1, taken)
}

// What the driver does not export, as memory of a pool, another backend may pin.
func TestWhatIsNotExported(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	addr := sim.MemAlloc(plain, page)
	fds := cudatest.FDs(t)
	for _, c := range []struct {
		result    cuda.Result
		elsewhere bool
	}{
		{cuda.ErrInvalidValue, true},
		{cuda.ErrNotSupported, true},
		{cuda.ErrOutOfMemory, false},
		{cuda.ErrUnknown, false},
	} {
		sim.Fail("cuMemGetHandleForAddressRange", int(c.result), 1)
		_, err := s.Pin(backend.PinRequest{Addr: addr, Size: page})
		require.ErrorIs(t, err, c.result)
		require.Equal(t, c.elsewhere, errors.As(err, new(backend.NotServed)), "%v", c.result)
		require.Equal(t, fds, cudatest.FDs(t))
	}
}

// faults says whether a read at va raises SIGSEGV or SIGBUS.
func faults(va uintptr) (faulted bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { faulted = recover() != nil }()
	// An atomic load is one that the compiler keeps.
	atomic.LoadUint32((*uint32)(sys.Pointer(va)))
	return false
}

// vmFlags are the kernel's two-letter flags of the mapping that va begins.
func vmFlags(t testing.TB, va uintptr) []string {
	f, err := os.Open("/proc/self/smaps")
	require.NoError(t, err)
	defer f.Close()
	ours := false
	for scan := bufio.NewScanner(f); scan.Scan(); {
		line := scan.Text()
		var first, end uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &first, &end); n == 2 {
			ours = va >= first && va < end
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && ours {
			return strings.Fields(flags)
		}
	}
	require.Failf(t, "no mapping", "%#x", va)
	return nil
}
