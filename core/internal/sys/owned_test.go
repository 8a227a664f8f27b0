package sys

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What has the number after the host has closed a descriptor, and whether CloseOwn closes it.
func TestOwn(t *testing.T) {
	open := func() int {
		fd, err := Open("/dev/null", unix.O_RDWR)
		require.NoError(t, err)
		return fd
	}
	for _, c := range []struct {
		what string
		then func(fd int)
		lost bool
	}{
		{"the file itself", func(int) {}, false},
		{"nothing", func(fd int) { require.NoError(t, unix.Close(fd)) }, true},
		{"another device", func(fd int) {
			other, err := Open("/dev/zero", unix.O_RDWR)
			require.NoError(t, err)
			require.NoError(t, unix.Dup3(other, fd, unix.O_CLOEXEC))
			require.NoError(t, unix.Close(other))
		}, true},
		{"another open of the device", func(fd int) {
			require.NoError(t, unix.Close(fd))
			require.Equal(t, fd, open())
		}, true},
		{"an open of another process's", func(fd int) {
			require.NoError(t, unix.Close(fd))
			require.Equal(t, fd, open())
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETSIG, signal)
			require.NoError(t, err)
		}, true},
		{"an open whose owner is this process", func(fd int) {
			require.NoError(t, unix.Close(fd))
			require.Equal(t, fd, open())
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETOWN, unix.Getpid())
			require.NoError(t, err)
		}, true},
		{"another file that is marked alike", func(fd int) {
			other, err := unix.MemfdCreate("other", unix.MFD_CLOEXEC)
			require.NoError(t, err)
			require.NoError(t, unix.Dup3(other, fd, unix.O_CLOEXEC))
			require.NoError(t, unix.Close(other))
			_, err = Own(fd)
			require.NoError(t, err)
		}, true},
		{"another copy's open of the device", func(fd int) {
			require.NoError(t, unix.Close(fd))
			require.Equal(t, fd, open())
			defer func(n int) { signal = n }(signal)
			signal = signal%64 + 1
			_, err := Own(fd)
			require.NoError(t, err)
		}, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			fd := open()
			id, err := Own(fd)
			require.NoError(t, err)
			c.then(fd)
			now, err := Identify(fd)
			require.Equal(t, c.lost, err != nil || now != id)
			left := err == nil && c.lost
			require.NoError(t, CloseOwn(fd, id))
			_, err = Identify(fd)
			require.Equal(t, left, err == nil)
			if left {
				require.NoError(t, unix.Close(fd))
			}
		})
	}
}

// The caller learns that the file did not close.
func TestCloseOwnThatFails(t *testing.T) {
	fd, err := Open("/dev/null", unix.O_RDWR)
	require.NoError(t, err)
	id, err := Own(fd)
	require.NoError(t, err)
	refuse(t, unix.SYS_CLOSE, 0, unix.EIO)
	require.Equal(t, unix.EIO, CloseOwn(fd, id))
	require.NoError(t, unix.Close(fd))
}

// The marks are a signal that the kernel takes.
func TestSignalIsOne(t *testing.T) {
	require.GreaterOrEqual(t, signal, 1)
	require.LessOrEqual(t, signal, 64)
}
