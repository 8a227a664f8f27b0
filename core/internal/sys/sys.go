// Package sys makes the few system calls on memory that is not Go's: mappings of devices
// and of dma-bufs. It does not use x/sys/unix for them, which would keep a record of each
// mapping. No function returns EINTR: a host process may have a timer that interrupts any
// call.
package sys

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory says how mappings are made and unmapped. Inside a host process that is the C
// library's mmap and munmap. Hosts hook these to see mappings come and go (the memory
// hooks of UCX and of libfabric).
type Memory struct {
	Mmap   func(addr, size uintptr, prot, flags, fd int, offset uint64) (uintptr, error)
	Munmap func(va, size uintptr) error
}

// memory calls the kernel itself until UseMemory.
var memory = Memory{Mmap: mmap, Munmap: munmap}

// HostMemory is what UseMemory was given, for tests that wrap it.
func HostMemory() Memory { return memory }

// UseMemory is called once, before the first mapping.
func UseMemory(m Memory) { memory = m }

func mmap(addr, size uintptr, prot, flags, fd int, offset uint64) (uintptr, error) {
	return retry(unix.SYS_MMAP, addr, size, uintptr(prot), uintptr(flags), uintptr(fd), uintptr(offset))
}

func munmap(va, size uintptr) error {
	_, err := retry(unix.SYS_MUNMAP, va, size, 0, 0, 0, 0)
	return err
}

// syscall6 is a variable, so that tests can interrupt calls, and refuse them.
var syscall6 = unix.Syscall6

// retry makes a system call until no signal interrupts it. The directive keeps the Go
// objects that the arguments point to alive and in place until it returns.
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
	va, err := memory.Mmap(0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, fd, offset)
	if err == nil && va%uintptr(unix.Getpagesize()) != 0 {
		return 0, noMapping(va)
	}
	return va, err
}

// noMapping is the error of an address that mmap cannot have chosen. NVIDIA's drivers
// before 595 return their status, a small positive number, from mmap on a lost GPU. The
// kernel takes it for the address. Nothing is mapped there, so there is nothing to unmap.
func noMapping(va uintptr) error {
	return fmt.Errorf("mmap answered the address %#x, so the device is lost: %w", va, unix.ENODEV)
}

// Reserve reserves size bytes of address space without memory. An access to them faults.
func Reserve(size uintptr) (uintptr, error) {
	return memory.Mmap(0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, -1, 0)
}

// MmapInto is Mmap from offset 0 into a part of what Reserve returned.
func MmapInto(va uintptr, fd int, size uintptr) error {
	got, err := memory.Mmap(va, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED, fd, 0)
	if err == nil && got != va {
		return noMapping(got)
	}
	return err
}

// Munmap unmaps a mapping, or what Reserve returned.
func Munmap(va, size uintptr) error { return memory.Munmap(va, size) }

// Pointer is the pointer to va, an address that is not of Go's memory. go vet accepts an
// address that comes from no Go pointer only with this indirection.
func Pointer(va uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&va)) }

// Readable reports whether the 8 bytes at va can be read. It raises no fault. The kernel
// reads a signal set at va before it checks the other arguments, which are wrong on
// purpose. EFAULT means that the read failed. EINVAL means that it went well.
func Readable(va uintptr) bool {
	const noSuchWay, setBytes = ^uintptr(0), 8
	_, err := retry(unix.SYS_RT_SIGPROCMASK, noSuchWay, va, 0, setBytes, 0, 0)
	return !errors.Is(err, unix.EFAULT)
}

// DontFork keeps a mapping out of the children that the process forks.
func DontFork(va, size uintptr) error {
	_, err := retry(unix.SYS_MADVISE, va, size, unix.MADV_DONTFORK, 0, 0, 0)
	return err
}

// Ioctl passes the address of a structure to a driver. The caller makes sure that the
// structure is the one for code.
func Ioctl(fd int, code uint32, arg unsafe.Pointer) error {
	_, err := retry(unix.SYS_IOCTL, uintptr(fd), uintptr(code), uintptr(arg), 0, 0, 0)
	return err
}

// Close closes fd. It does not try again: on Linux the descriptor is closed after EINTR,
// too.
func Close(fd int) error {
	if _, _, errno := syscall6(unix.SYS_CLOSE, uintptr(fd), 0, 0, 0, 0, 0); errno != 0 && errno != unix.EINTR {
		return errno
	}
	return nil
}
