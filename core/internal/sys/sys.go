// Package sys makes the few system calls on memory that is not Go's: mappings
// of devices and of dma-bufs. It makes them itself, for x/sys/unix would keep
// a record of each mapping. No function returns EINTR: a host process may have
// a timer that interrupts any call.
package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// syscall6 is what tests put interruptions into.
var syscall6 = unix.Syscall6

// retry makes a system call until no signal interrupts it. Go objects that the
// arguments point to stay where they are, and alive, until it returns: that is
// what the directive is for.
//
//go:uintptrescapes
func retry(nr, a, b, c, d, e, f uintptr) (uintptr, error) {
	for {
		r, _, errno := syscall6(nr, a, b, c, d, e, f)
		switch errno {
		case 0:
			return r, nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// Mmap maps size bytes of fd, shared and for reading and writing.
func Mmap(fd int, offset uint64, size uintptr) (uintptr, error) {
	return retry(unix.SYS_MMAP, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, uintptr(fd), uintptr(offset))
}

// Munmap takes down a mapping.
func Munmap(va, size uintptr) error {
	_, err := retry(unix.SYS_MUNMAP, va, size, 0, 0, 0, 0)
	return err
}

// DontFork keeps a mapping out of the children that the process forks.
func DontFork(va, size uintptr) error {
	_, err := retry(unix.SYS_MADVISE, va, size, unix.MADV_DONTFORK, 0, 0, 0)
	return err
}

// Ioctl passes the address of a structure to a driver. The caller sees to it
// that the structure is the one that code is for.
func Ioctl(fd int, code uint32, arg unsafe.Pointer) error {
	_, err := retry(unix.SYS_IOCTL, uintptr(fd), uintptr(code), uintptr(arg), 0, 0, 0)
	return err
}

// Close closes fd. It does not try again: on Linux the descriptor is gone
// after EINTR too.
func Close(fd int) error {
	if err := unix.Close(fd); err != unix.EINTR {
		return err
	}
	return nil
}
