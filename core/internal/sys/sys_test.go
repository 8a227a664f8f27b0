package sys

import (
	"os"
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
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&va)), size)
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
}

func TestErrorsComeThrough(t *testing.T) {
	_, err := Mmap(-1, 0, 4096)
	require.Equal(t, unix.EBADF, err)
	require.Equal(t, unix.EINVAL, Munmap(1, 4096))
	var arg uint64
	require.Equal(t, unix.ENOTTY, Ioctl(memfd(t, 1), 0xC008DAFF, unsafe.Pointer(&arg)))
	require.Equal(t, unix.EBADF, Close(-1))
}
