package sys

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// clock has the clock of rests stand still; the function moves it.
func clock(t *testing.T) (move func(time.Duration)) {
	when := time.Now()
	now = func() time.Time { return when }
	t.Cleanup(func() { now = time.Now; FreeAll() })
	return func(d time.Duration) { when = when.Add(d) }
}

func resting() (n int, bytes uintptr) {
	rests.mu.Lock()
	defer rests.mu.Unlock()
	return len(rests.of), rests.bytes
}

// An unmapped range is private memory for a second: what is written there reaches no file,
// what is read is 0. Then it is gone.
func TestRetire(t *testing.T) {
	FreeAll()
	move := clock(t)
	page := uintptr(os.Getpagesize())
	for _, size := range []uintptr{page, 3 * page, 1 << 20} {
		fd := memfd(t, int(size/page))
		va, err := Mmap(fd, 0, size)
		require.NoError(t, err)
		bytesAt(va, size)[5] = 77
		require.NoError(t, Retire(va, size))
		require.True(t, Readable(va) && Readable(va+size-8))
		require.Zero(t, bytesAt(va, size)[5], "a read is 0")
		bytesAt(va, size)[6] = 88
		got := make([]byte, 2)
		_, err = unix.Pread(fd, got, 5)
		require.NoError(t, err)
		require.Equal(t, []byte{77, 0}, got, "a write reaches nobody")
		n, bytes := resting()
		require.Equal(t, 1, n)
		require.Equal(t, size, bytes)
		move(restTime - 1)
		FreeOld()
		require.True(t, Readable(va))
		move(1)
		FreeOld()
		require.False(t, Readable(va))
		n, bytes = resting()
		require.Zero(t, n)
		require.Zero(t, bytes)
	}
}

// No more ranges rest than may: the oldest goes. A child does not inherit them.
func TestRestLimits(t *testing.T) {
	FreeAll()
	clock(t)
	page := uintptr(os.Getpagesize())
	fd := memfd(t, 1)
	for i := range restsMost + 10 {
		va, err := Mmap(fd, 0, page)
		require.NoError(t, err)
		require.NoError(t, Retire(va, page))
		if i == 0 {
			flags, err := os.ReadFile("/proc/self/smaps")
			require.NoError(t, err)
			require.Contains(t, string(flags), " dc ", "MADV_DONTFORK")
		}
	}
	n, bytes := resting()
	require.LessOrEqual(t, n, restsMost)
	require.LessOrEqual(t, bytes, uintptr(restsMost)*page)
	require.True(t, FreeAll())
	require.False(t, FreeAll())
}

// Where no memory can be made the range is unmapped. Where it cannot be moved the range
// counts as gone.
func TestRetireThatFails(t *testing.T) {
	saved := memory
	t.Cleanup(func() { memory = saved })
	FreeAll()
	clock(t)
	size := uintptr(1 << 20)
	fd := memfd(t, int(size)/os.Getpagesize())
	va, err := Mmap(fd, 0, size)
	require.NoError(t, err)
	memory.Mmap = func(uintptr, uintptr, int, int, int, uint64) (uintptr, error) { return 0, unix.ENOMEM }
	require.NoError(t, Retire(va, size))
	require.False(t, Readable(va))
	memory = saved
	va, err = Mmap(fd, 0, size)
	require.NoError(t, err)
	memory.Mremap = func(uintptr, uintptr, uintptr) error { return unix.EDOM }
	require.ErrorIs(t, Retire(va, size), unix.EDOM)
	n, _ := resting()
	require.Zero(t, n)
	memory = saved
	require.NoError(t, Munmap(va, size))
}
