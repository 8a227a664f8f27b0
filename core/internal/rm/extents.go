package rm

import (
	"errors"
	"fmt"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// extent is a part of an object, without a gap. An object is memory that a client of the driver
// names by a handle. A buffer lies in one extent or more.
type extent struct {
	client         handle // CUDA's: it has the object, or the one that ours is a duplicate of
	object         handle
	from           handle // where object is ours: CUDA's, that it is a duplicate of
	offset, length uint64 // in the object, in bytes; of one that find gives, length is 0
	space          uint32 // heard, or of an import: spaceVideo or spaceSystem
}

// shifted is e from n bytes further on; n may be negative. It is false where the object has no
// such offset.
func (e extent) shifted(n int64) (extent, bool) {
	offset := int64(e.offset) + n
	e.offset = uint64(offset)
	return e, offset >= 0
}

// findAll finds the extents of the buffer in CUDA's objects, in the order of addresses.
func (f *finder) findAll(b buffer) ([]extent, error) {
	page := b.asked &^ (hostPage - 1)
	e, err := f.find(page, b.memory)
	if err != nil {
		return nil, err
	}
	e, ok := e.shifted(int64(b.first) - int64(page))
	if !ok {
		return nil, fmt.Errorf("%#x lies before the memory that %#x is in: %w", b.first, b.asked, unix.EINVAL)
	}
	end := b.memory.MappingEnd()
	if b.memory.Legacy {
		end = b.end // checkEnd asks the driver where the object ends
	} else if b.memory.MappingSize == 0 {
		return nil, fmt.Errorf("the CUDA driver does not say where the memory object at %#x ends; install a driver of 535 or later: %w", b.asked, unix.ENOTSUP)
	}
	e.length = min(end, b.end) - b.first
	all := []extent{e}
	for end <= b.last {
		m, err := f.cuda.MemoryAt(end)
		if err != nil {
			return nil, err
		}
		if e, err = f.find(end, m); err != nil {
			return nil, err
		}
		next := m.MappingEnd()
		if next <= end {
			return nil, fmt.Errorf("the CUDA driver maps %d bytes at %#x to the address %#x: %w", m.MappingSize, m.Mapping, end, unix.EIO)
		}
		e.length = min(next, b.end) - end
		last := &all[len(all)-1]
		if e.client == last.client && e.object == last.object && e.offset == last.offset+last.length {
			last.length += e.length
		} else {
			all = append(all, e)
		}
		end = next
	}
	return all, nil
}

// extents gives our client the objects of the buffer. On an error it returns the extents
// that it has made, and the caller frees them.
func (f *finder) extents(b buffer) (extents []extent, err error) {
	found, err := f.findAll(b)
	if errors.Is(err, errNotWatched) && !b.memory.Legacy {
		return f.imported(b)
	}
	if errors.Is(err, errNotWatched) {
		err = fmt.Errorf("%w, and CUDA gives no IPC handle, as in the guest of a vGPU; load gdrdrv: %w", err, unix.ENOTSUP)
	}
	if err != nil {
		return nil, err
	}
	for _, e := range found {
		e.from = e.object
		if e.object, err = f.gpu.duplicate(e); err != nil {
			return extents, err
		}
		extents = append(extents, e)
	}
	// Where the buffer ends past the allocation's last GPU page, only the driver knows whether
	// its object has those bytes.
	if b.memory.Legacy && b.end > (b.memory.End()+gpuPage-1)&^(gpuPage-1) {
		return extents, f.gpu.checkEnd(extents[len(extents)-1], b)
	}
	return extents, nil
}

// imported gives our client VMM memory by its file descriptors, one allocation at a
// time. It needs no watched export. The memory must be exportable as a file descriptor.
func (f *finder) imported(b buffer) ([]extent, error) {
	var extents []extent
	for at := b.first; at < b.end; {
		base, length, err := f.cuda.MemGetAddressRange(at)
		if err != nil {
			return extents, err
		}
		object, err := f.importAt(at)
		if err != nil {
			return extents, err
		}
		end := min(base+length, b.end)
		extents = append(extents, extent{object: object, offset: at - base, length: end - at})
		at = end
	}
	return extents, nil
}

// importAt imports the VMM allocation that is mapped at an address.
func (f *finder) importAt(at uint64) (handle, error) {
	h, err := f.cuda.MemRetainAllocationHandle(at)
	if err != nil {
		return 0, fmt.Errorf("%w, and the memory at %#x has no allocation handle; load gdrdrv: %w (%v)", errNotWatched, at, unix.ENOTSUP, err)
	}
	defer func() {
		if err := f.cuda.MemRelease(h); err != nil {
			log.Warnf("a reference to the GPU memory at %#x is lost: %v", at, err)
		}
	}()
	fd, err := f.cuda.MemExport(h)
	if errors.Is(err, cuda.ErrInvalidValue) {
		err = fmt.Errorf("%w (%v)", unix.ENOTSUP, err)
	}
	if err != nil {
		return 0, fmt.Errorf("%w, and the memory at %#x cannot be exported; create it with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, or load gdrdrv: %w", errNotWatched, at, err)
	}
	object, err := f.gpu.importMemory(fd)
	return object, errors.Join(err, sys.Close(fd))
}

// checkEnd checks that the buffer ends inside of its object.
func (g *gpu) checkEnd(last extent, b buffer) error {
	size, err := g.sizeOf(last.object)
	if err == nil && size < last.offset+last.length {
		err = fmt.Errorf("%d bytes at %#x end past the memory there (%d bytes at %#x): %w", b.end-b.first, b.first, b.memory.Size, b.memory.Start, unix.EINVAL)
	}
	return err
}

// cut gives the extents of the first size bytes, one for each window. None crosses a multiple
// of unit in its object. unit gives 0 for an object that needs no cut. Errors: EINVAL (the objects have
// fewer bytes: one ends inside of a page).
func (p *pin) cut(size uint64, unit func(object handle) uint64) (extents []extent, err error) {
	for i := 0; size > 0; i++ {
		if i == len(p.extents) {
			return nil, fmt.Errorf("the memory at %#x ends %d bytes before its last page does; map fewer bytes: %w", p.first, size, unix.EINVAL)
		}
		e := p.extents[i]
		step := unit(e.object)
		left := min(e.length, size)
		size -= left
		for ; left > 0; left -= e.length {
			e.length = left
			if step != 0 {
				e.length = min(left, step-e.offset%step)
			}
			extents = append(extents, e)
			e.offset += e.length
		}
	}
	return extents, nil
}

// mapFirst maps the first size bytes. On an error nothing stays mapped.
func (p *pin) mapFirst(size uintptr) (va uintptr, got backend.MappingType, err error) {
	whole, err := p.cut(uint64(size), func(handle) uint64 { return 0 })
	if err != nil {
		return 0, backend.None, err
	}
	va, got, err = p.mapExtents(size, whole)
	unit := p.gpu.unit(err)
	if unit == nil {
		return va, got, err
	}
	small, few := p.cut(uint64(size), unit)
	if few != nil || len(small) == len(whole) {
		return va, got, err
	}
	if few = mapsLeft(len(small)); few != nil {
		return 0, backend.None, errors.Join(few, err)
	}
	log.Debugf("the buffer is mapped in %d parts: %v", len(small), err)
	return p.mapExtents(size, small)
}

// unit says how large a window may be of a buffer that the driver did not map at once for err.
// It is nil where smaller ones do not help:
//
//   - On a coherent GPU the driver takes an object's pages for neighbours, and may find
//     that the last ones lie past the GPU's memory. It maps each page.
//   - Drivers before 565 need one range of BAR1 for a window, and BAR1 may be in pieces.
func (g *gpu) unit(err error) func(object handle) uint64 {
	const large = 2 << 20
	switch {
	case err == nil:
	case g.coherent && (errors.Is(err, statusObjectNotFound) || errors.Is(err, statusInvalidArgument)):
		return g.pageSize
	case g.oneRange && (errors.Is(err, statusInsufficient) || errors.Is(err, statusNoMemory)):
		return func(handle) uint64 { return large }
	}
	return nil
}

// mapExtents maps extents, several side by side into one reserved range of size bytes. On an
// error nothing stays mapped.
func (p *pin) mapExtents(size uintptr, extents []extent) (va uintptr, got backend.MappingType, err error) {
	if len(extents) > 1 {
		if va, err = sys.Reserve(size); err != nil {
			return 0, backend.None, fmt.Errorf("no %d bytes of address space are left: %w", size, err)
		}
	}
	defer func() {
		if err == nil {
			return
		}
		if va != 0 {
			err = errors.Join(err, sys.Munmap(va, size))
		}
		err = errors.Join(err, p.closeWindows())
	}()
	var done uintptr
	for i, e := range extents {
		at, kind, err := p.mapExtent(e, va, done)
		if err != nil {
			return va, backend.None, err
		}
		if i > 0 && kind != got {
			return va, backend.None, fmt.Errorf("the driver maps parts of the buffer as type %d and as type %d; pin each on its own: %w", got, kind, unix.ENOTSUP)
		}
		va, got = at, kind
		done += uintptr(e.length)
	}
	// madvise fails on some mappings of the driver that children do not inherit anyway.
	if err := sys.DontFork(va, size); err != nil {
		log.Debugf("madvise(MADV_DONTFORK) on a mapping of the GPU's: %v", err)
	}
	return va, got, nil
}

// mapExtent maps an extent at va+done, where va is the start of the range. For va 0 the kernel
// chooses the address. mapExtent gives the start of the range.
func (p *pin) mapExtent(e extent, va, done uintptr) (uintptr, backend.MappingType, error) {
	w, fd, err := p.gpu.openWindow(e)
	if err != nil {
		return 0, backend.None, err
	}
	defer sys.Close(fd)
	p.windows = append(p.windows, w)
	kind, err := p.gpu.kind(w)
	if err != nil {
		return 0, backend.None, err
	}
	if va != 0 {
		err = sys.MmapInto(va+done, fd, uintptr(e.length))
	} else {
		va, err = sys.Mmap(fd, 0, uintptr(e.length))
	}
	if err != nil {
		return 0, backend.None, fmt.Errorf("mmap of GPU memory: %w", err)
	}
	return va, kind, nil
}

// closeWindows closes all windows. The CPU's mapping must be gone.
func (p *pin) closeWindows() error {
	var err error
	for _, w := range p.windows {
		err = errors.Join(err, p.gpu.closeWindow(w))
	}
	p.windows = nil
	return err
}
