package gdrdrv

import (
	"unsafe"

	"gdrapi/core/internal/sys"

	"golang.org/x/sys/unix"
)

// kernel has the system calls that the backend makes. Tests put a simulated driver
// behind it. No method returns EINTR.
type kernel interface {
	open(path string) (fd int, err error)
	// ioctl takes the address of the structure that code is for.
	ioctl(fd int, code uint32, arg unsafe.Pointer) error
	mmap(fd int, offset uint64, size uintptr) (va uintptr, err error)
	munmap(va, size uintptr) error
	// own marks a file that open gave, and identifies it. identity differs between it and
	// another file that the host has opened under the same number since.
	own(fd int) (sys.FileID, error)
	identity(fd int) (sys.FileID, error)
	close(fd int) error
}

// linux is the kernel itself.
type linux struct{}

func (linux) open(path string) (int, error) { return sys.Open(path, unix.O_RDWR) }

func (linux) ioctl(fd int, code uint32, arg unsafe.Pointer) error { return sys.Ioctl(fd, code, arg) }

func (linux) mmap(fd int, offset uint64, size uintptr) (uintptr, error) {
	return sys.Mmap(fd, offset, size)
}

func (linux) munmap(va, size uintptr) error       { return sys.Munmap(va, size) }
func (linux) own(fd int) (sys.FileID, error)      { return sys.Own(fd) }
func (linux) identity(fd int) (sys.FileID, error) { return sys.Identify(fd) }

func (linux) close(fd int) error { return sys.Close(fd) }
