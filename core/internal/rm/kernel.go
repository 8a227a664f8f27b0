package rm

import (
	"unsafe"

	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"

	"golang.org/x/sys/unix"
)

// kernel has the system calls that the backend makes. Tests put a simulated driver
// behind it. No method returns EINTR.
type kernel interface {
	open(path string) (fd int, err error)
	// ioctl takes the address of the structure of abi.go that code is for.
	ioctl(fd int, code uint32, arg unsafe.Pointer) error
	mmap(fd int, size uintptr) (va uintptr, err error)
	reserve(size uintptr) (va uintptr, err error)
	mmapInto(va uintptr, fd int, size uintptr) error
	munmap(va, size uintptr) error
	dontFork(va, size uintptr) error
	// own marks a file that open gave, and identifies it. identity differs between it and
	// another file that the host has opened under the same number since.
	own(fd int) (fileID, error)
	identity(fd int) (fileID, error)
	close(fd int) error
}

type fileID = sys.FileID

// driver has the calls of CUDA that the backend makes. It is the CUDA driver, or a
// simulated one in tests.
type driver interface {
	MemoryAt(addr uint64) (cuda.MemoryInfo, error)
	MemoryIn(addr, size uint64) (cuda.MemoryInfo, uint64, error)
	MemGetAddressRange(addr uint64) (base, size uint64, err error)
	MemRetainAllocationHandle(addr uint64) (cuda.MemHandle, error)
	MemExport(cuda.MemHandle) (int, error)
	MemRelease(cuda.MemHandle) error
	IPCHandle(addr uint64) ([16]uint32, error)
	ExportFunction() uintptr
	MemAlloc(size uint64) (addr uint64, err error)
	WriteOut(addr uint64, b []byte) error
	ReadBack(b []byte, addr uint64) error
	SetSyncMemops(m cuda.MemoryInfo, at, end uint64)

	Device(ordinal int) (cuda.Device, error)
	DeviceAttribute(cuda.DeviceAttribute, cuda.Device) (int, error)
	PCIAddress(cuda.Device) (cuda.PCIAddress, error)
	withMemory(m cuda.MemoryInfo, addr uint64, fn func(in driver) error) error
	exportable(ordinal int, size uint64) (addr uint64, err error)
}

// live is the CUDA driver itself.
type live struct{ *cuda.Driver }

func (l live) withMemory(m cuda.MemoryInfo, addr uint64, fn func(in driver) error) error {
	return l.WithMemory(m, addr, func(in *cuda.Driver) error { return fn(live{in}) })
}

// exportable allocates memory that can be exported as a file descriptor, for good.
func (live) exportable(ordinal int, size uint64) (addr uint64, err error) {
	a, err := cuda.Alloc(ordinal, size)
	if err != nil {
		return 0, err
	}
	return a.Ptr(), nil
}

// shown gives the GPUs that CUDA has in this process, or nil where CUDA is not initialised.
func (l live) shown() map[cuda.PCIAddress]bool {
	n, err := l.DeviceCount()
	if err != nil {
		return nil
	}
	gpus := map[cuda.PCIAddress]bool{}
	for i := range n {
		dev, err := l.Device(i)
		if err != nil {
			return nil
		}
		at, err := l.PCIAddress(dev)
		if err != nil {
			return nil
		}
		gpus[at] = true
	}
	return gpus
}

// linux is the kernel itself.
type linux struct{}

func (linux) open(path string) (int, error) { return sys.Open(path, unix.O_RDWR) }

func (linux) ioctl(fd int, code uint32, arg unsafe.Pointer) error { return sys.Ioctl(fd, code, arg) }

func (linux) mmap(fd int, size uintptr) (uintptr, error)      { return sys.Mmap(fd, 0, size) }
func (linux) reserve(size uintptr) (uintptr, error)           { return sys.Reserve(size) }
func (linux) mmapInto(va uintptr, fd int, size uintptr) error { return sys.MmapInto(va, fd, size) }
func (linux) munmap(va, size uintptr) error                   { return sys.Munmap(va, size) }
func (linux) dontFork(va, size uintptr) error                 { return sys.DontFork(va, size) }
func (linux) close(fd int) error                              { return sys.Close(fd) }

func (linux) own(fd int) (fileID, error)      { return sys.Own(fd) }
func (linux) identity(fd int) (fileID, error) { return sys.Identify(fd) }
