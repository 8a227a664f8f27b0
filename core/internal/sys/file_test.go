package sys

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fds counts the open descriptors of the process. The first file that package os writes takes
// two for its poller.
func fds(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}

// refuse makes the system call nr fail with errno, but for its first calls.
func refuse(t *testing.T, nr uintptr, first int, errno unix.Errno) {
	real := syscall6
	syscall6 = func(n, a, b, c, d, e, f uintptr) (uintptr, uintptr, unix.Errno) {
		if n == nr {
			if first--; first < 0 {
				return 0, 0, errno
			}
		}
		return real(n, a, b, c, d, e, f)
	}
	t.Cleanup(func() { syscall6 = real })
}

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(path, []byte("12345"), 0o600))
	before := fds(t)
	defer func() { require.Equal(t, before, fds(t)) }()
	b, err := ReadFile(path, 5)
	require.NoError(t, err)
	require.Equal(t, "12345", string(b))
	_, err = ReadFile(path, 4)
	require.ErrorIs(t, err, unix.EFBIG)
	_, err = ReadFile(path+"x", 4)
	require.ErrorIs(t, err, unix.ENOENT)
	_, err = ReadFile(filepath.Dir(path), 4)
	require.ErrorIs(t, err, unix.EISDIR)

	// Longer than what one call reads.
	long := make([]byte, 10000)
	for i := range long {
		long[i] = byte(i % 251)
	}
	require.NoError(t, os.WriteFile(path, long, 0o600))
	b, err = ReadFile(path, len(long))
	require.NoError(t, err)
	require.Equal(t, long, b)
	refuse(t, unix.SYS_READ, 1, unix.EIO)
	b, err = ReadFile(path, len(long))
	require.Equal(t, unix.EIO, err)
	require.Nil(t, b)
}

func TestReadDir(t *testing.T) {
	dir := t.TempDir()
	var want []string
	for _, name := range []string{"a", "b.json", "c"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		want = append(want, name)
	}
	before := fds(t)
	defer func() { require.Equal(t, before, fds(t)) }()
	names, err := ReadDir(dir)
	require.NoError(t, err)
	require.ElementsMatch(t, want, names)
	_, err = ReadDir(filepath.Join(dir, "a"))
	require.ErrorIs(t, err, unix.ENOTDIR)
	_, err = ReadDir(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, unix.ENOENT)

	// More names than one call gives.
	for i := range 400 {
		name := fmt.Sprintf("a-name-that-is-rather-long-%d", i)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		want = append(want, name)
	}
	names, err = ReadDir(dir)
	require.NoError(t, err)
	require.ElementsMatch(t, want, names)
	refuse(t, unix.SYS_GETDENTS64, 1, unix.EIO)
	_, err = ReadDir(dir)
	require.Equal(t, unix.EIO, err)
}
