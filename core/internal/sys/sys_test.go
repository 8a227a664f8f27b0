package sys

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// interrupt makes the first n system calls fail with EINTR.
func interrupt(t *testing.T, n int) *int {
	calls := 0
	real := syscall6
	syscall6 = func(nr, a, b, c, d, e, f uintptr) (uintptr, uintptr, unix.Errno) {
		calls++
		if calls <= n {
			return 0, 0, unix.EINTR
		}
		return real(nr, a, b, c, d, e, f)
	}
	t.Cleanup(func() { syscall6 = real })
	return &calls
}

func memfd(t *testing.T, pages int) int {
	fd, err := unix.MemfdCreate("sys_test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.Ftruncate(fd, int64(pages*os.Getpagesize())))
	return fd
}

// bytesAt is size bytes of a mapping.
func bytesAt(va, size uintptr) []byte {
	return unsafe.Slice((*byte)(Pointer(va)), size)
}

func TestMappingIsShared(t *testing.T) {
	page := os.Getpagesize()
	fd := memfd(t, 3)
	va, err := Mmap(fd, uint64(page), uintptr(2*page))
	require.NoError(t, err)
	require.NoError(t, DontFork(va, uintptr(2*page)))
	bytesAt(va, uintptr(2*page))[5] = 77
	got := make([]byte, 1)
	_, err = unix.Pread(fd, got, int64(page+5))
	require.NoError(t, err)
	require.Equal(t, byte(77), got[0])
	require.NoError(t, Munmap(va, uintptr(2*page)))
	require.ErrorIs(t, DontFork(va, uintptr(2*page)), unix.ENOMEM, "nothing is mapped there any more")
}

func TestInterruptedCallsAreMadeAgain(t *testing.T) {
	size := uintptr(os.Getpagesize())
	fd := memfd(t, 1)
	calls := interrupt(t, 3)
	va, err := Mmap(fd, 0, size)
	require.NoError(t, err)
	require.Equal(t, 4, *calls)
	calls = interrupt(t, 2)
	require.NoError(t, DontFork(va, size))
	require.Equal(t, 3, *calls)
	calls = interrupt(t, 1)
	require.NoError(t, Munmap(va, size))
	require.Equal(t, 2, *calls)
	calls = interrupt(t, 2)
	other, err := Open("/dev/zero", unix.O_RDONLY)
	require.NoError(t, err)
	require.Equal(t, 3, *calls)
	calls = interrupt(t, 2)
	require.Equal(t, unix.ENOTTY, Ioctl(other, 0xC008DAFF, nil))
	require.Equal(t, 3, *calls)

	// But for a close: by then the number may be another thread's.
	calls = interrupt(t, 1)
	require.NoError(t, Close(other))
	require.Equal(t, 1, *calls)
	require.NoError(t, Close(other), "the simulated interrupt has closed nothing")

	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(path, []byte("text"), 0o600))
	for n := 1; n < 6; n++ { // the open's call, and those that read
		interrupt(t, n)
		b, err := ReadFile(path, 100)
		require.NoError(t, err)
		require.Equal(t, "text", string(b))
		interrupt(t, n)
		names, err := ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Equal(t, []string{"f"}, names)
	}
}

func TestErrorsComeThrough(t *testing.T) {
	_, err := Mmap(-1, 0, 4096)
	require.Equal(t, unix.EBADF, err)
	require.Equal(t, unix.EINVAL, Munmap(1, 4096))
	var arg uint64
	require.Equal(t, unix.ENOTTY, Ioctl(memfd(t, 1), 0xC008DAFF, unsafe.Pointer(&arg)))
	require.Equal(t, unix.EBADF, Close(-1))
}

func TestReserve(t *testing.T) {
	page := uintptr(os.Getpagesize())
	fd := memfd(t, 2)
	va, err := Reserve(4 * page)
	require.NoError(t, err)
	require.False(t, Readable(va), "an access faults")
	require.NoError(t, MmapInto(va+page, fd, 2*page))
	require.False(t, Readable(va))
	require.True(t, Readable(va+page))
	require.True(t, Readable(va+3*page-8))
	require.False(t, Readable(va+3*page))
	bytesAt(va+page, page)[9] = 99
	got := make([]byte, 1)
	_, err = unix.Pread(fd, got, 9)
	require.NoError(t, err)
	require.Equal(t, byte(99), got[0])
	require.Equal(t, unix.EBADF, MmapInto(va, -1, page))
	require.NoError(t, Munmap(va, 4*page), "one call takes all down")
	require.False(t, Readable(va+page))
}

// Memory that cannot be read is reported, and raises no signal.
func TestReadable(t *testing.T) {
	page := uintptr(os.Getpagesize())
	fd := memfd(t, 3)
	va, err := Mmap(fd, 0, 3*page)
	require.NoError(t, err)
	require.True(t, Readable(va+3*page-8))
	require.NoError(t, unix.Ftruncate(fd, int64(page)))
	require.True(t, Readable(va+page-8))
	require.False(t, Readable(va+page-4), "half of it is past the file's end")
	require.False(t, Readable(va+3*page-8), "past the file's end")
	calls := interrupt(t, 2)
	require.True(t, Readable(va))
	require.Equal(t, 3, *calls)
	require.NoError(t, Munmap(va, 3*page))
	require.False(t, Readable(va))
	require.False(t, Readable(8))
}

// A host's functions see every mapping made and unmapped. Their errors are returned.
func TestUseMemory(t *testing.T) {
	saved := memory
	t.Cleanup(func() { memory = saved })
	type call struct {
		addr, size      uintptr
		prot, flags, fd int
		offset          uint64
	}
	const va = 0x7f0000000000
	var calls []call
	var fails error
	UseMemory(Memory{
		Mmap: func(addr, size uintptr, prot, flags, fd int, offset uint64) (uintptr, error) {
			calls = append(calls, call{addr, size, prot, flags, fd, offset})
			return max(va, addr), fails
		},
		Munmap: func(va, size uintptr) error {
			calls = append(calls, call{addr: va, size: size})
			return fails
		},
	})
	const readWrite, shared = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED
	got, err := Mmap(7, 8192, 4096)
	require.NoError(t, err)
	require.Equal(t, uintptr(va), got)
	got, err = Reserve(12288)
	require.NoError(t, err)
	require.Equal(t, uintptr(va), got)
	require.NoError(t, MmapInto(va+4096, 9, 4096))
	require.NoError(t, Munmap(va, 12288))
	require.Equal(t, []call{
		{0, 4096, readWrite, shared, 7, 8192},
		{0, 12288, unix.PROT_NONE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE, -1, 0},
		{va + 4096, 4096, readWrite, shared | unix.MAP_FIXED, 9, 0},
		{addr: va, size: 12288},
	}, calls)

	fails = unix.ENOMEM
	_, err = Mmap(7, 0, 4096)
	require.Equal(t, unix.ENOMEM, err)
	_, err = Reserve(4096)
	require.Equal(t, unix.ENOMEM, err)
	require.Equal(t, unix.ENOMEM, MmapInto(va, 7, 4096))
	require.Equal(t, unix.ENOMEM, Munmap(va, 4096))
}

// A driver that answers a status from mmap makes it the address of a mapping that is not
// there.
func TestMmapThatAnswersAStatus(t *testing.T) {
	saved := memory
	t.Cleanup(func() { memory = saved })
	UseMemory(Memory{
		Mmap:   func(_, _ uintptr, _, _, _ int, _ uint64) (uintptr, error) { return 0xF, nil },
		Munmap: func(uintptr, uintptr) error { t.Error("munmap"); return nil },
	})
	va, err := Mmap(7, 0, 4096)
	require.ErrorIs(t, err, unix.ENODEV)
	require.ErrorContains(t, err, "0xf")
	require.Zero(t, va)
	require.ErrorIs(t, MmapInto(0x7f0000000000, 7, 4096), unix.ENODEV)
}
