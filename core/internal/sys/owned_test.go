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
	// again is what the host has opened at the number.
	again := func(mark func(fd int) error) func(fd int) {
		return func(fd int) {
			require.NoError(t, unix.Close(fd))
			require.Equal(t, fd, open())
			require.NoError(t, mark(fd))
		}
	}
	own := func(fd int) error { _, err := Own(fd); return err }
	for _, c := range []struct {
		what string
		then func(fd int)
		lost bool
	}{
		{"the file itself", func(int) {}, false},
		{"nothing", func(fd int) { require.NoError(t, unix.Close(fd)) }, true},
		{"another open of the device", again(func(int) error { return nil }), true},
		{"an open of another process's", again(func(fd int) error {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETSIG, signal)
			return err
		}), true},
		{"an open whose owner is this process", again(func(fd int) error {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETOWN, unix.Getpid())
			return err
		}), true},
		{"another copy's open of the device", again(func(fd int) error {
			defer func(n int) { signal = n }(signal)
			signal = signal%64 + 1
			return own(fd)
		}), true},
		{"another file that is marked alike", func(fd int) {
			other, err := unix.MemfdCreate("other", unix.MFD_CLOEXEC)
			require.NoError(t, err)
			require.NoError(t, unix.Dup3(other, fd, unix.O_CLOEXEC))
			require.NoError(t, unix.Close(other))
			require.NoError(t, own(fd))
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
