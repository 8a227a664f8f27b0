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

var hostPage = uint64(unix.Getpagesize())

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
	s := &session{cuda: cu}
	if err := s.ServesAny(); err != nil && !errors.Is(err, cuda.ErrNotInitialized) {
		return nil, err
	}
	return s, nil
}

// ServesAny fails where no device has dma-bufs that can be mapped, and before CUDA is initialised.
func (s *session) ServesAny() error {
	n, err := s.cuda.DeviceCount()
	if err != nil {
		return err
	}
	for i := range n {
		dev, err := lookUp(s.cuda, i)
		if err != nil {
			return err
		}
		if dev.check(i) == nil {
			return nil
		}
	}
	return fmt.Errorf("none of the %d CUDA devices has dma-bufs that can be mapped: %w", n, unix.ENOTSUP)
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
		return fmt.Errorf("the kernel's NVIDIA driver cannot map the dma-bufs of CUDA device %d, because it is older than CUDA 13.3's; unset GDRCOPY_BACKEND and GDRCOPY_USE_DMABUF_MMAP: %w", ordinal, unix.ENOTSUP)
	}
	return nil
}

// lookUp asks the driver. One that does not know an attribute, or not for this device (124 on
// GB10), answers INVALID_VALUE: no.
func lookUp(cu *cuda.Driver, ordinal int) (d device, err error) {
	for _, a := range []struct {
		attribute cuda.DeviceAttribute
		is        *bool
	}{
		{cuda.DMABufSupported, &d.exports}, {cuda.DMABufMmapSupported, &d.maps}, {cuda.HostPageTables, &d.coherent},
	} {
		v, err := cu.DeviceAttribute(a.attribute, ordinal)
		if err != nil && !errors.Is(err, cuda.ErrInvalidValue) {
			return device{}, err
		}
		*a.is = err == nil && v != 0
	}
	return d, nil
}

type session struct {
	cuda    *cuda.Driver
	devices sync.Map // device by ordinal, filled on first use
}

func (s *session) device(ordinal int) (device, error) {
	if dev, ok := s.devices.Load(ordinal); ok {
		return dev.(device), nil
	}
	dev, err := lookUp(s.cuda, ordinal)
	if err == nil {
		s.devices.Store(ordinal, dev)
	}
	return dev, err
}

// Pin exports the host pages that the buffer touches. As the reference it ignores Token
// and VASpace, which a dma-buf does not need.
//
// It asks CUDA about one byte: the caller's first, or that of the range. What else lies in the pages may
// be freed by others meanwhile. So CUDA refuses a small allocation whose page begins in free space.
func (s *session) Pin(req backend.PinRequest) (backend.Pin, error) {
	at, _ := req.Sought()
	m, err := s.cuda.MemoryAt(at)
	if errors.Is(err, unix.EINVAL) && !errors.Is(err, cuda.ErrNotInitialized) {
		return nil, backend.NotServed{Reason: fmt.Errorf("CUDA exports no dma-buf of a page that begins in free space; set GDRCOPY_BACKEND=rm, or load gdrdrv: %w", err)}
	}
	if err != nil {
		return nil, err
	}
	dev, err := s.device(m.Ordinal)
	if err != nil {
		return nil, err
	}
	if err := dev.check(m.Ordinal); err != nil {
		return nil, backend.NotServed{Reason: err}
	}
	first, length, ok := wholePages(req.Addr, req.Size)
	if !ok {
		return nil, fmt.Errorf("%d bytes at %#x pass the end of the address space: %w", req.Size, req.Addr, unix.EINVAL)
	}
	p := &pin{first: first, size: length, mappingType: backend.WC}
	pcie := req.Flags&backend.PinForcePCIe != 0
	if dev.coherent && !pcie {
		p.mappingType = backend.Caching
	}
	p.context, err = s.cuda.KeepMemory(m, at, func(in *cuda.Driver) error {
		if err := p.export(in, m, pcie); err != nil {
			return errors.Join(err, p.Unpin())
		}
		in.SyncMemops(req.Own())
		return nil
	})
	if errors.Is(err, cuda.ErrInvalidValue) || errors.Is(err, cuda.ErrNotSupported) {
		return nil, backend.NotServed{Reason: fmt.Errorf("CUDA exports no dma-buf of %d bytes at %#x (a pool's memory, or a page that begins in free space); set GDRCOPY_BACKEND=rm, or load gdrdrv: %w", length, first, err)}
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// export makes the dma-bufs of the pin's pages, of which m is the first memory.
func (p *pin) export(in *cuda.Driver, m cuda.MemoryInfo, pcie bool) error {
	for from, end := p.first, p.first+p.size; from < end; {
		n := allocation(in, m, from, end)
		fd, err := in.MemExportRange(from, n, pcie)
		if err != nil {
			return err
		}
		file, err := sys.Shared(fd)
		p.parts = append(p.parts, part{fd: fd, file: file, size: n})
		if err != nil {
			return fmt.Errorf("fstat of the dma-buf: %w", err)
		}
		from += n
	}
	return nil
}

// allocation is the size of the part of [at, end) that lies in the allocation at at. A
// driver maps only the first allocation of a dma-buf of several, and says that it has
// mapped all. Where CUDA does not say where the allocation ends, or it ends inside of a
// page, the part is all of the range.
func allocation(in *cuda.Driver, m cuda.MemoryInfo, at, end uint64) uint64 {
	if m.Legacy {
		return end - at
	}
	base, size, err := in.MemGetAddressRange(at)
	if next := base + size; err == nil && next > at && next < end && next%hostPage == 0 {
		return next - at
	}
	return end - at
}

// wholePages gives the range of whole pages around size bytes at addr. ok is false where
// the range does not fit into 64 bits.
func wholePages(addr, size uint64) (first, length uint64, ok bool) {
	first = addr &^ (hostPage - 1)
	length = (addr - first + size + hostPage - 1) &^ (hostPage - 1)
	return first, length, length >= size && first+length >= first
}

func (s *session) Attribute(a backend.Attr) (int, error) {
	switch a {
	case backend.AttrPersistentMapping, backend.AttrForcePCIe, backend.AttrDMABufMmap:
		return 1, nil
	}
	return 0, nil
}

func (s *session) Name() string { return Backend{}.Name() }

func (s *session) Version() (int, int) { return backend.Major, backend.Minor }

func (s *session) Close() error { return nil }

// part is a dma-buf of a part of a pin, in bytes: whole pages.
type part struct {
	fd   int
	file sys.FileID
	size uint64
}

// check sees that the descriptor is the dma-buf's still.
func (p part) check() error {
	if !p.file.IsStill(p.fd) {
		return fmt.Errorf("the host closed descriptor %d, which was the buffer's dma-buf; unpin it, and pin it again: %w", p.fd, unix.EBADF)
	}
	return nil
}

// pin has one dma-buf for each allocation.
type pin struct {
	first, size uint64 // whole pages; first is 0 where it was imported
	parts       []part
	mappingType backend.MappingType
	context     *cuda.Primary // nil: somebody else keeps a context of the memory
}

// Export gives another descriptor of the dma-buf. It has the pages of the buffer alone.
func (p *pin) Export(uint32) (int, error) {
	if len(p.parts) > 1 {
		return -1, fmt.Errorf("the buffer lies in %d allocations, and a dma-buf has only one; pin and export each: %w", len(p.parts), unix.ENOTSUP)
	}
	if err := p.parts[0].check(); err != nil {
		return -1, err
	}
	fd, err := unix.FcntlInt(uintptr(p.parts[0].fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, sys.ExplainFDs(err)
	}
	return fd, nil
}

// Object refuses: CUDA imports no dma-buf as memory.
func (p *pin) Object() (backend.Object, error) {
	return backend.Object{}, fmt.Errorf("a dma-buf is no memory object of CUDA's; open with GDRCOPY_BACKEND=rm: %w", unix.ENOTSUP)
}

// Import pins what a dma-buf of the driver's has. It asks CUDA for nothing. Whether the CPU may
// cache the memory is not known: copies as of write-combined memory are right for that, too.
func (s *session) Import(fd int) (backend.Pin, error) {
	by, size, err := sys.DMABuf(fd)
	if errors.Is(err, unix.EMFILE) {
		return nil, err
	}
	if by == "" {
		return nil, backend.NotServed{Reason: fmt.Errorf("descriptor %d is no dma-buf, and the dmabuf backend pins no other; open with GDRCOPY_BACKEND=rm for one of rm's: %w", fd, unix.EINVAL)}
	}
	if by != "nv_dmabuf" || size == 0 || size%hostPage != 0 {
		return nil, fmt.Errorf("descriptor %d is a dma-buf of %d bytes of %s's, not of NVIDIA's driver: %w", fd, size, by, unix.EINVAL)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, sys.ExplainFDs(err)
	}
	file, _ := sys.Shared(own)
	p := &pin{size: size, mappingType: backend.WC, parts: []part{{fd: own, file: file, size: size}}}
	va, err := mmap(p.parts, uintptr(hostPage)) // whether it can be mapped at all
	if err == nil {
		err = sys.Munmap(va, uintptr(hostPage))
	}
	if err != nil {
		return nil, errors.Join(err, p.Unpin())
	}
	return p, nil
}

// Info gives the host pages that are pinned, as gdrdrv gives GPU pages.
func (p *pin) Info() (backend.Info, error) {
	return backend.Info{VA: p.first, MappedSize: p.size, PageSize: uint32(hostPage)}, nil
}

func (p *pin) Map(size uint64, want backend.MappingType) (uintptr, backend.MappingType, error) {
	if want != backend.None && want != p.mappingType {
		return 0, backend.None, fmt.Errorf("mapping type %d was asked for, the CUDA driver gave this buffer type %d: %w", want, p.mappingType, unix.EINVAL)
	}
	for _, part := range p.parts {
		if err := part.check(); err != nil {
			return 0, backend.None, err
		}
	}
	va, err := mmap(p.parts, uintptr(size))
	if err != nil {
		return 0, backend.None, err
	}
	return va, p.mappingType, nil
}

// Unmap has nothing to end.
func (p *pin) Unmap() error { return nil }

// CallbackFlag is always 0: no one revokes a dma-buf.
func (p *pin) CallbackFlag() (int, error) { return 0, nil }

// Unpin closes the dma-bufs.
func (p *pin) Unpin() error {
	var err error
	for _, part := range p.parts {
		if e := sys.CloseOwn(part.fd, part.file); e != nil {
			err = errors.Join(err, fmt.Errorf("close of the dma-buf: %w", e))
		}
	}
	p.context.Release()
	return err
}

// mmap maps the first size bytes of dma-bufs, several side by side. Children that the
// process forks do not inherit the mapping. On an error nothing stays mapped.
func mmap(parts []part, size uintptr) (va uintptr, err error) {
	several := size > uintptr(parts[0].size)
	if several {
		if va, err = sys.Reserve(size); err != nil {
			return 0, fmt.Errorf("no %d bytes of address space are left: %w", size, err)
		}
	}
	defer func() {
		if err != nil && va != 0 {
			_ = sys.Munmap(va, size)
			va = 0
		}
	}()
	for done := uintptr(0); done < size; parts = parts[1:] {
		n := min(uintptr(parts[0].size), size-done)
		if several {
			err = sys.MmapInto(va+done, parts[0].fd, n)
		} else {
			va, err = sys.Mmap(parts[0].fd, 0, n)
		}
		switch {
		case err == kernelENOTSUPP:
			return va, fmt.Errorf("this NVIDIA driver cannot mmap its dma-bufs; unset GDRCOPY_BACKEND and GDRCOPY_USE_DMABUF_MMAP: %w", unix.ENOTSUP)
		case err != nil:
			return va, fmt.Errorf("mmap of the dma-buf: %w", err)
		case !sys.Readable(va + done + n - 8):
			return va, fmt.Errorf("the NVIDIA driver mapped less than %d bytes of the dma-buf; pin each allocation by itself: %w", n, unix.ENOTSUP)
		}
		done += n
	}
	if err := sys.DontFork(va, size); err != nil {
		return va, fmt.Errorf("madvise(MADV_DONTFORK) on the dma-buf's mapping: %w", err)
	}
	return va, nil
}

// kernelENOTSUPP is the kernel's ENOTSUPP, which is no errno of user space. A driver
// that cannot mmap dma-bufs answers it.
const kernelENOTSUPP unix.Errno = 524
