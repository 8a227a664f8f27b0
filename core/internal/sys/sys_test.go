package sys

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

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
	pipe := [2]int{}
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	interrupt(t, 2)
	n, err := Write(pipe[1], []byte("a line"))
	require.NoError(t, err)
	require.Equal(t, 6, n)
	require.NoError(t, errors.Join(unix.Close(pipe[0]), unix.Close(pipe[1])))

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

func TestReserve(t *testing.T) {
	page := uintptr(os.Getpagesize())
	va, err := Reserve(page)
	require.NoError(t, err)
	require.False(t, Readable(va), "an access faults")
	require.NoError(t, Munmap(va, page))
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
