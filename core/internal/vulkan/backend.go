// Package vulkan is the backend that maps GPU memory through the Vulkan driver. It needs
// neither a kernel module nor a recent CUDA. It serves only one kind of memory: that of
// cuMemCreate with a POSIX file descriptor among its handle types.
//
// Each pin imports the CUDA allocation into Vulkan once more. So each pinned buffer has a
// mapping of its own, and keeps the memory alive.
package vulkan

import (
	"errors"
	"fmt"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// waysOut is what a user can do whose memory cannot be imported.
const waysOut = "allocate with gdr_mem_alloc, or with cuMemCreate and CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, or load gdrdrv, or use a driver of CUDA 13.3 or later"

// Backend is the vulkan backend.
type Backend struct {
	// DriverFiles is the host's VK_DRIVER_FILES, by which the loader finds
	// drivers in place of the usual folders; "" where it is not set.
	DriverFiles string
}

func (Backend) Name() string { return "vulkan" }

// Open loads CUDA and Vulkan, and checks that an NVIDIA Vulkan driver is installed. It
// calls neither driver: a driver that a process has called fails in the process's
// children (H200, driver 580.159.04). So only a pin calls them. The first pin of a
// process makes the Vulkan instance, which takes half a second.
func (b Backend) Open() (backend.Session, error) {
	cu, err := cuda.Load()
	if err != nil {
		return nil, err
	}
	if _, err := loadAPI(); err != nil {
		return nil, err
	}
	if err := lookForDriver(b.DriverFiles); err != nil {
		return nil, err
	}
	return &session{cuda: cu}, nil
}

type session struct{ cuda *cuda.Driver }

// Pin imports the allocation that the buffer lies in. FORCE_PCIE changes nothing,
// because every mapping goes through the BAR. Pin ignores Token and VASpace.
func (s *session) Pin(req backend.PinRequest) (backend.Pin, error) {
	ordinal, err := s.cuda.DeviceOf(req.Addr)
	if err != nil {
		return nil, err
	}
	var p *pin
	err = s.cuda.WithMemory(cuda.MemoryInfo{Ordinal: ordinal}, req.Addr, func(in *cuda.Driver) (err error) {
		p, err = s.pin(in, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// pin does the work of Pin on a thread with a current context. The memory has no
// SYNC_MEMOPS: it is of cuMemCreate.
func (s *session) pin(in *cuda.Driver, req backend.PinRequest) (_ *pin, err error) {
	h, err := in.MemRetainAllocationHandle(req.Addr)
	if err != nil {
		return nil, s.explain(req.Addr, err)
	}
	defer func() {
		if err == nil {
			return // the pin keeps it
		}
		if err := in.MemRelease(h); err != nil {
			log.Warnf("a reference to the GPU memory at %#x is lost: %v", req.Addr, err)
		}
	}()
	g, err := s.gpuOf(h, req.Addr)
	if err != nil {
		return nil, err
	}
	base, length, err := in.MemGetAddressRange(req.Addr)
	if err != nil {
		return nil, err
	}
	page := uint64(unix.Getpagesize())
	size := (req.Addr%page + req.Size + page - 1) &^ (page - 1)
	offset := req.Addr - base
	if req.Addr < base || offset > length || req.Size > length-offset {
		if _, err := s.cuda.DeviceOf(req.Addr + req.Size - 1); err != nil {
			return nil, fmt.Errorf("%d bytes at %#x end past their allocation (%d bytes at %#x): %w", req.Size, req.Addr, length, base, err)
		}
		return nil, fmt.Errorf("%d bytes at %#x do not lie in one allocation (that is %d bytes at %#x), and vulkan pins no more than one; pin each on its own: %w", req.Size, req.Addr, length, base, unix.ENOTSUP)
	}
	dev, err := g.open()
	if err != nil {
		return nil, err
	}
	p := &pin{
		cuda: s.cuda, allocation: h, length: length, gpu: g, device: dev,
		addr: req.Addr, offset: offset, size: size, page: page,
	}
	if err := p.importAllocation(); err != nil {
		return nil, err
	}
	return p, nil
}

// explain is for an address that has no allocation handle. Its error says whether plain
// CUDA memory is there, or no GPU memory.
func (s *session) explain(addr uint64, err error) error {
	if !errors.Is(err, cuda.ErrInvalidValue) && !errors.Is(err, cuda.ErrNotSupported) {
		return err
	}
	kind, kindErr := s.cuda.PointerAttribute(cuda.MemoryType, addr)
	if kindErr == nil && kind != cuda.MemoryTypeDevice {
		return fmt.Errorf("%#x is host memory: %w (%v)", addr, unix.EINVAL, err)
	}
	return fmt.Errorf("the memory at %#x cannot be exported from CUDA, as plain cuMemAlloc or cudaMalloc memory cannot; %s: %w (%v)", addr, waysOut, unix.ENOTSUP, err)
}

// gpuOf finds Vulkan's device for the GPU of the allocation. It fails for an allocation
// that cannot be exported.
func (s *session) gpuOf(h cuda.MemHandle, addr uint64) (*gpu, error) {
	prop, err := s.cuda.MemGetAllocationProperties(h)
	if err != nil {
		return nil, err
	}
	if prop.RequestedHandleTypes&cuda.HandleTypePosixFD == 0 || prop.Location.Type != cuda.LocationDevice {
		return nil, fmt.Errorf("the memory at %#x was not created on a GPU with a POSIX file descriptor among its handle types; %s: %w", addr, waysOut, unix.ENOTSUP)
	}
	dev, err := s.cuda.Device(int(prop.Location.ID))
	if err != nil {
		return nil, err
	}
	uuid, err := s.cuda.DeviceUUID(dev)
	if err != nil {
		return nil, err
	}
	i, err := processInstance()
	if err != nil {
		return nil, err
	}
	return i.find(uuid)
}

func (s *session) Attribute(a backend.Attr) (int, error) {
	switch a {
	case backend.AttrPersistentMapping, backend.AttrForcePCIe:
		return 1, nil
	case backend.AttrDMABufMmap:
		return 0, nil
	}
	return 0, fmt.Errorf("attribute %d: %w", a, unix.EINVAL)
}

func (s *session) Version() (int, int) { return backend.Major, backend.Minor }

// Close leaves the instance, and the devices, to later sessions.
func (s *session) Close() error { return nil }

// pin is one pinned buffer. It holds a reference to the CUDA allocation, and a Vulkan
// memory object of the whole allocation. From an Unmap until the next Map, memory is 0.
// While the buffer is mapped, va is not 0.
type pin struct {
	cuda       *cuda.Driver
	allocation cuda.MemHandle
	length     uint64 // of the allocation
	gpu        *gpu
	device     deviceHandle
	memory     memoryHandle

	addr, offset, size, page uint64 // size is that of the whole pages that are touched
	va                       uintptr
}

// importAllocation makes the Vulkan memory object, if there is none.
func (p *pin) importAllocation() error {
	if p.memory != 0 {
		return nil
	}
	fd, err := p.cuda.MemExport(p.allocation)
	if err != nil {
		return err
	}
	p.memory, err = p.gpu.api.importMemory(p.device, fd, p.length, p.gpu.memoryType)
	if err != nil {
		// The check comes before fd is closed, which would free a descriptor.
		err = sys.ExplainFDs(fmt.Errorf("importing %d bytes of CUDA memory into Vulkan: %w", p.length, err))
		_ = sys.Close(fd)
		return err
	}
	return nil
}

func (p *pin) dropImport() {
	if p.memory != 0 {
		p.gpu.api.freeMemory(p.device, p.memory)
		p.memory = 0
	}
}

// Info gives the host pages that are pinned, as gdrdrv gives GPU pages.
func (p *pin) Info() (backend.Info, error) {
	return backend.Info{VA: p.addr &^ (p.page - 1), MappedSize: p.size, PageSize: uint32(p.page)}, nil
}

func (p *pin) Map(size uint64, want backend.MappingType) (uintptr, backend.MappingType, error) {
	if want != backend.None && want != backend.WC {
		return 0, backend.None, fmt.Errorf("mapping type %d was asked for, and vulkan has write-combined mappings (%d) alone: %w", want, backend.WC, unix.EINVAL)
	}
	if size == 0 || size > p.size || p.va != 0 {
		return 0, backend.None, unix.EINVAL
	}
	if err := p.importAllocation(); err != nil {
		return 0, backend.None, err
	}
	va, err := p.gpu.api.mapMemory(p.device, p.memory, p.offset, size)
	if err != nil {
		return 0, backend.None, err
	}
	if uint64(va)%p.page != 0 {
		p.gpu.api.unmapMemory(p.device, p.memory)
		return 0, backend.None, fmt.Errorf("vkMapMemory gave %#x, which is not aligned to a page: %w", va, unix.EIO)
	}
	// Children must not inherit the mapping. Some drivers have ensured that
	// already, and madvise fails.
	if err := sys.DontFork(va, uintptr(size)); err != nil {
		log.Debugf("madvise(MADV_DONTFORK) on a Vulkan mapping: %v", err)
	}
	p.va = va
	return va, backend.WC, nil
}

// Unmap ends the mapping and frees the memory object. After vkUnmapMemory alone the pages
// stay accessible (H200, driver 580.159.04).
func (p *pin) Unmap() error {
	if p.va == 0 {
		return unix.EINVAL
	}
	p.gpu.api.unmapMemory(p.device, p.memory)
	p.va = 0
	p.dropImport()
	return nil
}

// CallbackFlag is always 0: no one revokes imported memory.
func (p *pin) CallbackFlag() (int, error) { return 0, nil }

func (p *pin) Unpin() error {
	p.dropImport()
	return p.cuda.MemRelease(p.allocation)
}
