// Package dmabuf is the backend that maps dma-bufs of the CUDA driver. It needs no
// kernel module. It needs a driver of CUDA 13.3 or later.
//
// A pinned buffer holds one file descriptor. Pinned memory stays alive after the program
// has freed it, and its mappings stay valid.
package dmabuf

import (
	"errors"
	"fmt"
	"sync"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"

	"golang.org/x/sys/unix"
)

// minDriver is the first driver whose dma-bufs can be mapped.
const minDriver = 13030

// The answer of Session.Version: the version of this library. There is no gdrdrv.
const major, minor = 2, 6

// Backend is the dma-buf backend.
type Backend struct{}

func (Backend) Name() string { return "dmabuf" }

// Open checks the driver's version and, if the process has initialised CUDA,
// that a GPU can export dma-bufs. It does not initialise CUDA itself.
func (Backend) Open() (backend.Session, error) {
	cu, err := cuda.Load()
	if err != nil {
		return nil, err
	}
	v, err := cu.Version()
	if err != nil {
		return nil, err
	}
	if v < minDriver {
		return nil, fmt.Errorf("the CUDA driver is %d.%d, and 13.3 is the first whose dma-bufs can be mapped: %w", v/1000, v%1000/10, unix.ENOTSUP)
	}
	known, err := anyDevice(cu)
	if err != nil {
		return nil, err
	}
	return &session{cuda: cu, undecided: !known, devices: make(map[int]device)}, nil
}

// anyDevice fails when CUDA is initialised and no device has dma-bufs that can be
// mapped. Then Open fails, and the next backend is tried. known is false when CUDA is
// not initialised; then Pin checks the device.
func anyDevice(cu *cuda.Driver) (known bool, err error) {
	n, err := cu.DeviceCount()
	if errors.Is(err, cuda.ErrNotInitialized) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for i := range n {
		dev, err := lookUp(cu, i)
		if err != nil {
			return false, err
		}
		if dev.check(i) == nil {
			return true, nil
		}
	}
	return false, fmt.Errorf("none of the %d CUDA devices has dma-bufs that can be mapped: %w", n, unix.ENOTSUP)
}

// device is the driver's description of a device. It does not change.
type device struct {
	exports  bool // DMA_BUF_SUPPORTED
	maps     bool // DMA_BUF_MMAP_SUPPORTED
	coherent bool // the CPU may cache the GPU's memory
}

// check says why the backend cannot serve the device.
func (d device) check(ordinal int) error {
	switch {
	case !d.exports:
		return fmt.Errorf("CUDA device %d cannot export dma-bufs; unset GDRCOPY_BACKEND and GDRCOPY_USE_DMABUF_MMAP: %w", ordinal, unix.ENOTSUP)
	case !d.maps:
		return fmt.Errorf("the kernel's NVIDIA driver cannot map the dma-bufs of CUDA device %d, for it is older than CUDA 13.3's; unset GDRCOPY_BACKEND and GDRCOPY_USE_DMABUF_MMAP: %w", ordinal, unix.ENOTSUP)
	}
	return nil
}

func lookUp(cu *cuda.Driver, ordinal int) (device, error) {
	dev, err := cu.Device(ordinal)
	if err != nil {
		return device{}, err
	}
	exports, err := cu.DeviceAttribute(cuda.DMABufSupported, dev)
	if err != nil {
		return device{}, err
	}
	maps, err := cu.DeviceAttribute(cuda.DMABufMmapSupported, dev)
	if errors.Is(err, cuda.ErrInvalidValue) {
		maps, err = 0, nil // a driver that does not know the attribute
	}
	if err != nil {
		return device{}, err
	}
	coherent, err := cu.DeviceAttribute(cuda.HostPageTables, dev)
	if err != nil {
		return device{}, err
	}
	return device{exports: exports != 0, maps: maps != 0, coherent: coherent != 0}, nil
}

type session struct {
	cuda      *cuda.Driver
	undecided bool // at Open, whether any device is able

	mu      sync.Mutex
	devices map[int]device // by ordinal, filled on first use
}

func (s *session) device(ordinal int) (device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if dev, ok := s.devices[ordinal]; ok {
		return dev, nil
	}
	dev, err := lookUp(s.cuda, ordinal)
	if err == nil {
		s.devices[ordinal] = dev
	}
	return dev, err
}

// Undecided is true where CUDA was not initialised when the session was opened.
func (s *session) Undecided() bool { return s.undecided }

// Able is what Open finds where CUDA is initialised.
func (s *session) Able() error {
	known, err := anyDevice(s.cuda)
	if err == nil && !known {
		return cuda.ErrNotInitialized
	}
	return err
}

// Serves returns nil where the request's memory is on a device whose dma-bufs can be
// mapped.
func (s *session) Serves(req backend.PinRequest) error {
	m, _, err := s.cuda.MemoryIn(req.Addr, req.Size)
	if err != nil {
		return err
	}
	dev, err := s.device(m.Ordinal)
	if err != nil {
		return err
	}
	return dev.check(m.Ordinal)
}

// Pin exports the host pages that the buffer touches. As the reference it ignores Token
// and VASpace, which a dma-buf does not need.
func (s *session) Pin(req backend.PinRequest) (backend.Pin, error) {
	m, at, err := s.cuda.MemoryIn(req.Addr, req.Size)
	if err != nil {
		return nil, err
	}
	ordinal := m.Ordinal
	dev, err := s.device(ordinal)
	if err != nil {
		return nil, err
	}
	if err := dev.check(ordinal); err != nil {
		return nil, err
	}
	page := uint64(unix.Getpagesize())
	first, length, ok := wholePages(req.Addr, req.Size, page)
	if !ok {
		return nil, fmt.Errorf("%d bytes at %#x pass the end of the address space: %w", req.Size, req.Addr, unix.EINVAL)
	}
	p := &pin{first: first, size: length, page: page, fd: -1, mappingType: backend.WC}
	pcie := req.Flags&backend.PinForcePCIe != 0
	if dev.coherent && !pcie {
		p.mappingType = backend.Caching
	}
	err = s.cuda.WithDevice(ordinal, func() (err error) {
		p.fd, err = s.cuda.MemExportRange(first, length, pcie)
		if err == nil {
			s.cuda.SetSyncMemops(at)
		}
		return err
	})
	if errors.Is(err, cuda.ErrInvalidValue) && first < m.Start {
		return nil, fmt.Errorf("CUDA exports no page that begins in free space, as at %#x; set GDRCOPY_BACKEND=rm: %w", first, err)
	}
	if err != nil {
		return nil, err
	}
	if p.file, err = sys.Own(p.fd); err != nil {
		return nil, errors.Join(fmt.Errorf("fstat of the dma-buf: %w", err), p.Unpin())
	}
	return p, nil
}

func roundUp(n, page uint64) uint64 { return (n + page - 1) &^ (page - 1) }

// wholePages gives the range of whole pages around size bytes at addr. ok is false where
// the range does not fit into 64 bits.
func wholePages(addr, size, page uint64) (first, length uint64, ok bool) {
	first = addr &^ (page - 1)
	length = roundUp(addr-first+size, page)
	return first, length, length >= size && first+length >= first
}

func (s *session) Attribute(a backend.Attr) (int, error) {
	switch a {
	case backend.AttrPersistentMapping, backend.AttrForcePCIe, backend.AttrDMABufMmap:
		return 1, nil
	}
	return 0, fmt.Errorf("attribute %d: %w", a, unix.EINVAL)
}

func (s *session) Version() (int, int) { return major, minor }

func (s *session) Close() error { return nil }

// pin is one dma-buf. While it is mapped, va is not 0.
type pin struct {
	first, size uint64 // whole pages
	page        uint64
	fd          int
	file        sys.FileID
	mappingType backend.MappingType
	va, mapped  uintptr
}

// Info gives the host pages that are pinned, as gdrdrv gives GPU pages.
func (p *pin) Info() (backend.Info, error) {
	return backend.Info{VA: p.first, MappedSize: p.size, PageSize: uint32(p.page)}, nil
}

func (p *pin) Map(size uint64, want backend.MappingType) (uintptr, backend.MappingType, error) {
	if want != backend.None && want != p.mappingType {
		return 0, backend.None, fmt.Errorf("mapping type %d was asked for, the CUDA driver gave this buffer type %d: %w", want, p.mappingType, unix.EINVAL)
	}
	if size == 0 || size > p.size || p.va != 0 {
		return 0, backend.None, unix.EINVAL
	}
	if now, err := sys.Identify(p.fd); err != nil || now != p.file {
		return 0, backend.None, fmt.Errorf("the host closed descriptor %d, which was the buffer's dma-buf; unpin it, and pin it again: %w", p.fd, unix.EBADF)
	}
	va, err := mmap(p.fd, uintptr(size))
	if err != nil {
		return 0, backend.None, err
	}
	p.va, p.mapped = va, uintptr(size)
	return va, p.mappingType, nil
}

func (p *pin) Unmap() error {
	if p.va == 0 {
		return unix.EINVAL
	}
	if err := sys.Munmap(p.va, p.mapped); err != nil {
		return fmt.Errorf("munmap of the dma-buf: %w", err)
	}
	p.va, p.mapped = 0, 0
	return nil
}

// CallbackFlag is always 0: no one revokes a dma-buf.
func (p *pin) CallbackFlag() (int, error) { return 0, nil }

func (p *pin) Unpin() error {
	fd := p.fd
	if fd < 0 {
		return unix.EINVAL
	}
	p.fd = -1
	if err := sys.CloseOwn(fd, p.file); err != nil {
		return fmt.Errorf("close of the dma-buf: %w", err)
	}
	return nil
}

// mmap maps the first size bytes of the dma-buf. Children that the process forks do not
// inherit the mapping.
func mmap(fd int, size uintptr) (uintptr, error) {
	va, err := sys.Mmap(fd, 0, size)
	if err == kernelENOTSUPP {
		return 0, fmt.Errorf("this NVIDIA driver cannot mmap its dma-bufs; unset GDRCOPY_BACKEND and GDRCOPY_USE_DMABUF_MMAP: %w", unix.ENOTSUP)
	}
	if err != nil {
		return 0, fmt.Errorf("mmap of the dma-buf: %w", err)
	}
	if !sys.Readable(va + size - 8) {
		// A driver may map only the first allocation of a dma-buf of several.
		_ = sys.Munmap(va, size)
		return 0, fmt.Errorf("the NVIDIA driver mapped less than %d bytes of the dma-buf; pin each allocation on its own: %w", size, unix.ENOTSUP)
	}
	if err := sys.DontFork(va, size); err != nil {
		_ = sys.Munmap(va, size)
		return 0, fmt.Errorf("madvise(MADV_DONTFORK) on the dma-buf's mapping: %w", err)
	}
	return va, nil
}

// kernelENOTSUPP is the kernel's ENOTSUPP, which is no errno of user space. A driver
// that cannot mmap dma-bufs answers it.
const kernelENOTSUPP unix.Errno = 524
