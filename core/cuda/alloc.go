package cuda

import (
	"errors"
	"fmt"

	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// location is a CUmemLocation.
type location struct {
	kind int32 // locationDevice for GPU memory
	id   int32 // device ordinal
}

// locationDevice is the kind of a location that is a device.
const locationDevice = 1

const (
	allocationPinned   = 1 // CU_MEM_ALLOCATION_TYPE_PINNED
	accessReadWrite    = 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	granularityMinimum = 0 // CU_MEM_ALLOC_GRANULARITY_MINIMUM
	maxAllocation      = 1 << 47
)

// allocationProp is a CUmemAllocationProp, 32 bytes.
type allocationProp struct {
	kind                 int32
	handleTypes          int32
	location             location
	_                    uintptr // win32HandleMetaData
	_                    uint8   // compressionType
	gpuDirectRDMACapable uint8
	_                    uint16 // usage
	_                    [4]uint8
}

// accessDesc is a CUmemAccessDesc, 12 bytes.
type accessDesc struct {
	location location
	flags    int32
}

// Allocation is GPU memory that every backend can pin: VMM memory that can be
// exported as a POSIX file descriptor and, where the GPU can, is capable of
// GPUDirect RDMA.
type Allocation struct {
	driver *Driver
	device int // ordinal
	handle MemHandle
	addr   uint64
	size   uint64
	mapped bool // at addr

	context *Primary // nil: somebody else keeps a context of the memory
}

// Alloc allocates at least size bytes on a device, which it names by ordinal. It
// initialises CUDA. Every byte of the result's Size may be used. Errors: EINVAL (size 0
// or absurd), ENODEV (no such device), ENOTSUP (a device or a driver without virtual
// memory management), ENOMEM.
func Alloc(device int, size uint64) (*Allocation, error) {
	if size == 0 || size > maxAllocation {
		return nil, fmt.Errorf("cannot allocate %d bytes: %w", size, unix.EINVAL)
	}
	d, err := Load()
	if err != nil {
		return nil, err
	}
	if err := d.Init(); err != nil {
		return nil, err
	}
	prop, err := d.exportableProp(device)
	if err != nil {
		return nil, err
	}
	var unit uint64
	if err := d.call(symMemGetAllocationGranularity, &unit, &prop, granularityMinimum); err != nil {
		return nil, err
	}
	if unit == 0 {
		return nil, fmt.Errorf("the CUDA driver gave an allocation granularity of 0: %w", unix.EIO)
	}
	a := &Allocation{driver: d, device: device, size: (size + unit - 1) / unit * unit}
	if err := a.build(&prop); err != nil {
		if err := a.Free(); err != nil {
			log.Warnf("GPU memory is lost: %v", err)
		}
		return nil, err
	}
	return a, nil
}

// build makes the memory and an address range, and maps the memory into the range. Then it sees that
// there is a context for the memory. Free frees what it has made before an error.
func (a *Allocation) build(prop *allocationProp) (err error) {
	d := a.driver
	const none = 0 // flags, alignment, a wish for an address
	if err := d.call(symMemCreate, &a.handle, a.size, prop, none); err != nil {
		return err
	}
	if err := d.call(symMemAddressReserve, &a.addr, a.size, none, none, none); err != nil {
		return err
	}
	if err := d.call(symMemMap, a.addr, a.size, none, a.handle, none); err != nil {
		return err
	}
	a.mapped = true
	access := accessDesc{location: prop.location, flags: accessReadWrite}
	if err := d.call(symMemSetAccess, a.addr, a.size, &access, 1); err != nil {
		return err
	}
	a.context, err = d.KeepMemory(MemoryInfo{Ordinal: a.device}, a.addr, func(*Driver) error { return nil })
	return err
}

// TakeContext gives the caller the reference to the primary context that Alloc has made, which Free
// would release. It is nil where Alloc has made none.
func (a *Allocation) TakeContext() *Primary {
	context := a.context
	a.context = nil
	return context
}

// Ptr is the device pointer, aligned to 64 KiB at least.
func (a *Allocation) Ptr() uint64 { return a.addr }

// Size is the size in bytes: that of Alloc, rounded up to the driver's unit.
func (a *Allocation) Size() uint64 { return a.size }

// Export exports the memory as a dma-buf, which keeps the memory alive. The caller
// closes the descriptor, which is close-on-exec. With pcie other devices use the memory
// over PCIe, even where the CPU has a coherent link to the GPU. Errors: ENOTSUP (the GPU
// exports no dma-bufs).
func (a *Allocation) Export(pcie bool) (fd int, err error) {
	d := a.driver
	exports, err := d.DeviceAttribute(DMABufSupported, a.device)
	if err != nil {
		return -1, err
	}
	if exports == 0 {
		return -1, fmt.Errorf("CUDA device %d exports no dma-bufs; NVIDIA's open kernel modules do: %w", a.device, unix.ENOTSUP)
	}
	err = d.WithMemory(MemoryInfo{Ordinal: a.device}, a.addr, func(d *Driver) (err error) {
		fd, err = d.MemExportRange(a.addr, a.size, pcie)
		return err
	})
	return fd, err
}

// Free frees the memory. It is called once. A buffer that is pinned in the memory keeps
// the memory alive until it is unpinned, but not the device pointer.
func (a *Allocation) Free() (err error) {
	d := a.driver
	if a.mapped {
		err = d.call(symMemUnmap, a.addr, a.size)
	}
	if a.addr != 0 {
		err = errors.Join(err, d.call(symMemAddressFree, a.addr, a.size))
	}
	if a.handle != 0 {
		err = errors.Join(err, d.MemRelease(a.handle))
	}
	a.context.Release()
	return err
}

// exportableProp gives the properties of an Allocation on the device.
func (d *Driver) exportableProp(ordinal int) (allocationProp, error) {
	var prop allocationProp
	for _, need := range []struct {
		attr DeviceAttribute
		what string
	}{
		{VMMSupported, "virtual memory management"},
		{PosixFDSupported, "memory that is exported as a file descriptor"},
	} {
		v, err := d.DeviceAttribute(need.attr, ordinal)
		if err != nil {
			return prop, fmt.Errorf("CUDA device %d: %w", ordinal, err)
		}
		if v == 0 {
			return prop, fmt.Errorf("CUDA device %d has no %s: %w", ordinal, need.what, unix.ENOTSUP)
		}
	}
	rdma, err := d.DeviceAttribute(RDMAWithVMMSupported, ordinal)
	if err != nil {
		return prop, err
	}
	prop = allocationProp{
		kind:        allocationPinned,
		handleTypes: handleTypePosixFD,
		location:    location{kind: locationDevice, id: int32(ordinal)},
	}
	if rdma != 0 {
		prop.gpuDirectRDMACapable = 1
	}
	return prop, nil
}
