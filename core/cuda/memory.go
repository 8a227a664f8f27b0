package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MemoryInfo is the driver's description of the memory at an address.
type MemoryInfo struct {
	Ordinal int     // of the device
	Legacy  bool    // from cuMemAlloc: the one kind that has an IPC handle
	Context Context // that it was allocated in; 0 for VMM memory and for pools
	ID      uint64  // of the allocation, another one for each

	// Start and Size are the allocation's. For VMM memory they are the reserved
	// range's, which may hold several allocations.
	Start, Size uint64

	// Mapping and MappingSize are the range around the address that one memory object is
	// mapped to, or 0 where the driver does not say (before CUDA 11.7).
	Mapping, MappingSize uint64
}

// MappingEnd is the address after the mapping's last byte.
func (m MemoryInfo) MappingEnd() uint64 { return m.Mapping + m.MappingSize }

// End is the address after the allocation's last byte.
func (m MemoryInfo) End() uint64 { return m.Start + m.Size }

// pointerAttribute is a CUpointer_attribute.
type pointerAttribute int32

const (
	contextOf          pointerAttribute = 1
	memoryType         pointerAttribute = 2 // memoryTypeDevice for GPU memory
	syncMemops         pointerAttribute = 6
	bufferID           pointerAttribute = 7
	isManaged          pointerAttribute = 8
	deviceOrdinal      pointerAttribute = 9
	isLegacyIPCCapable pointerAttribute = 10
	rangeStartAddr     pointerAttribute = 11
	rangeSize          pointerAttribute = 12
	mappingSize        pointerAttribute = 18
	mappingBaseAddr    pointerAttribute = 19

	memoryTypeDevice = 2
)

// noMappings is true once the driver has turned out not to know the last two.
var noMappings atomic.Bool

// MemoryAt describes the GPU memory at addr. It returns EINVAL where there is none.
// Managed memory is not GPU memory here.
func (d *Driver) MemoryAt(addr uint64) (MemoryInfo, error) {
	const optional = 2 // at the end, which older drivers do not know
	var m MemoryInfo
	var kind, ordinal int32
	var managed, legacy uint32 // 4 bytes, as the driver writes bool attributes of this call
	all := [...]struct {
		name  pointerAttribute
		place unsafe.Pointer
	}{
		{memoryType, unsafe.Pointer(&kind)},
		{deviceOrdinal, unsafe.Pointer(&ordinal)},
		{isManaged, unsafe.Pointer(&managed)},
		{isLegacyIPCCapable, unsafe.Pointer(&legacy)},
		{rangeStartAddr, unsafe.Pointer(&m.Start)},
		{rangeSize, unsafe.Pointer(&m.Size)},
		{bufferID, unsafe.Pointer(&m.ID)},
		{contextOf, unsafe.Pointer(&m.Context)}, // after the ID, see KeepMemory
		{mappingBaseAddr, unsafe.Pointer(&m.Mapping)},
		{mappingSize, unsafe.Pointer(&m.MappingSize)},
	}
	var names [len(all)]pointerAttribute
	var places [len(all)]unsafe.Pointer
	for i, a := range all {
		names[i], places[i] = a.name, a.place
	}
	ask := func(n int) error {
		return d.call(symPointerGetAttributes, n, &names, &places, addr)
	}
	err := error(ErrInvalidValue)
	if !noMappings.Load() {
		err = ask(len(names))
	}
	if errors.Is(err, ErrInvalidValue) {
		if err = ask(len(names) - optional); err == nil {
			noMappings.Store(true)
		}
	}
	switch {
	case errors.Is(err, ErrNotInitialized):
		return MemoryInfo{}, notInitialized(addr, err)
	case err != nil:
		return MemoryInfo{}, err
	case managed != 0:
		return MemoryInfo{}, fmt.Errorf("%#x is managed memory, which moves between the CPU and the GPU; allocate with cudaMalloc: %w", addr, unix.EINVAL)
	case kind != memoryTypeDevice && kind != 0:
		return MemoryInfo{}, fmt.Errorf("%#x is host memory: %w", addr, unix.EINVAL)
	case kind == 0 || ordinal < 0:
		return MemoryInfo{}, fmt.Errorf("%#x is no CUDA device pointer: %w", addr, unix.EINVAL)
	}
	m.Ordinal, m.Legacy = int(ordinal), legacy != 0
	return m, nil
}

// OnMemory calls fn for the first memory of a range; at is its first address in the range. As with
// gdrdrv, a range may begin before an allocation, on the same GPU page: UCX and libfabric round
// addresses down to pages. It returns EINVAL where that page has no memory.
//
// Other memory of the page may be freed at any time. Where fn fails, and its memory has gone, OnMemory
// calls fn for the memory after that. So memory that stays is reached.
func (d *Driver) OnMemory(addr, size uint64, fn func(m MemoryInfo, at uint64) error) error {
	const gpuPage = 1 << 16
	end := min(addr+size, addr&^(gpuPage-1)+gpuPage)
	m, err := d.MemoryAt(addr)
	if errors.Is(err, ErrNotInitialized) || err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	at, found := addr, err == nil
	for next := addr + 1; ; next = max(m.End(), at+1) {
		if !found {
			m, at, found = d.nextMemory(next, end)
		}
		if !found {
			return err
		}
		if err = fn(m, at); err == nil || d.IsStill(m, at) {
			return err
		}
		err = fmt.Errorf("the memory at %#x was freed while it was being pinned: %w (%v)", at, unix.EINVAL, err)
		found = false
	}
}

// IsStill reports whether the memory at addr is the one that m describes.
func (d *Driver) IsStill(m MemoryInfo, addr uint64) bool {
	id, err := d.BufferID(addr)
	return err == nil && id == m.ID
}

// nextMemory is MemoryAt for the first allocation that begins in [from, end). at is its address.
//
// Each allocation begins on a multiple of 512 bytes: what cuMemAlloc gives needs no offset as a
// texture (cuTexRefSetAddress), and textures are aligned to that.
func (d *Driver) nextMemory(from, end uint64) (m MemoryInfo, at uint64, found bool) {
	const step = 512
	_ = d.Relaxed(func(d *Driver) (err error) {
		for at = (from + step - 1) &^ (step - 1); at < end && !found; at += step {
			m, err = d.MemoryAt(at)
			found = err == nil
		}
		return nil
	})
	return m, at - step, found
}

// PCIAddress names a GPU the way the kernel does.
type PCIAddress struct {
	Domain    uint32
	Bus, Slot uint8
}

func (p PCIAddress) String() string { return fmt.Sprintf("%04x:%02x:%02x.0", p.Domain, p.Bus, p.Slot) }

// PCIAddress gives the PCI address of the device with the ordinal.
func (d *Driver) PCIAddress(ordinal int) (p PCIAddress, err error) {
	dev, err := d.device(ordinal)
	if err != nil {
		return p, err
	}
	var b [32]byte
	if err := d.call(symDeviceGetPCIBusID, &b, len(b), dev); err != nil {
		return p, err
	}
	text, _, _ := strings.Cut(string(b[:]), "\x00")
	if _, err := fmt.Sscanf(text, "%x:%x:%x", &p.Domain, &p.Bus, &p.Slot); err != nil {
		return PCIAddress{}, fmt.Errorf("cuDeviceGetPCIBusId gave %q: %w", text, unix.EIO)
	}
	return p, nil
}

// ExportFunction is the address of cuMemGetHandleForAddressRange. It is 0 in a driver
// before CUDA 11.7.
func (d *Driver) ExportFunction() uintptr { return d.fn[symMemGetHandleForAddressRange] }

// OwnExport takes over the result and the descriptor of a call of ExportFunction that
// C made. It sets FD_CLOEXEC on the descriptor, and turns the result into an error.
func OwnExport(result, fd int32) (int, error) {
	if result == 0 {
		return ownFD(fd, nil)
	}
	return ownFD(-1, fmt.Errorf("%s: %w", names[symMemGetHandleForAddressRange], Result(result)))
}

// IPCHandle is the 64 bytes of cuIpcGetMemHandle, as words. Only memory of
// cuMemAlloc has one.
func (d *Driver) IPCHandle(addr uint64) ([16]uint32, error) {
	var raw [64]byte
	var words [16]uint32
	if err := d.call(symIPCGetMemHandle, &raw, addr); err != nil {
		return words, err
	}
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(raw[4*i:])
	}
	return words, nil
}

// streamNonBlocking is CU_STREAM_NON_BLOCKING: the stream does not synchronise with the
// default one.
const streamNonBlocking = 1

// WriteOut writes b to GPU memory by a copy of the GPU's. It waits for no other work of the GPU, and a
// kernel that never ends does not stop it. It needs a current context.
func (d *Driver) WriteOut(addr uint64, b []byte) error {
	return d.copyAndWait(symMemcpyHtoDAsync, addr, unsafe.SliceData(b), len(b))
}

// copyAndWait copies n bytes on a stream of its own. The GPU may use the host's bytes until the
// stream is synchronised, so this function keeps the object that they are in until then.
func (d *Driver) copyAndWait(how symbol, to, from any, n int) (err error) {
	defer runtime.KeepAlive(to)
	defer runtime.KeepAlive(from)
	var stream uintptr
	if err := d.call(symStreamCreate, &stream, streamNonBlocking); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.call(symStreamDestroy, stream)) }()
	if err := d.call(how, to, from, n, stream); err != nil {
		return err
	}
	return d.call(symStreamSynchronize, stream)
}

// MemAlloc allocates GPU memory in the current context, for good: it ends with the context.
// To free memory may wait for a kernel that never ends.
func (d *Driver) MemAlloc(size uint64) (addr uint64, err error) {
	err = d.call(symMemAlloc, &addr, size)
	return addr, err
}

func notInitialized(addr uint64, err error) error {
	return fmt.Errorf("CUDA is not initialised in this process, so %#x is no device pointer; allocate GPU memory first, and after a fork do so in the child (%w)", addr, err)
}
