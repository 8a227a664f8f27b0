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

// span is a part of a buffer. It lies in one object without a gap.
type span struct {
	place
	first, end uint64 // device addresses
}

// extent is a span whose object our client has. A mapped extent has windows, which the
// driver knows by these numbers.
type extent struct {
	object         handle
	space          uint32 // of an import: spaceVideo or spaceSystem
	offset, length uint64
	windows        []uint64
}

// spans finds the objects that the buffer lies in, in the order of addresses.
func (f *finder) spans(b buffer) ([]span, error) {
	page := b.asked &^ (hostPage - 1)
	p, err := f.find(page, b.memory)
	if err != nil {
		return nil, err
	}
	p, ok := p.plus(int64(b.first) - int64(page))
	if !ok {
		return nil, fmt.Errorf("%#x lies before the memory that %#x is in: %w", b.first, b.asked, unix.EINVAL)
	}
	if b.memory.Legacy {
		// checkEnd asks the driver where the object ends.
		return []span{{place: p, first: b.first, end: b.end}}, nil
	}
	if b.memory.MappingSize == 0 {
		return nil, fmt.Errorf("the CUDA driver does not say where the memory object at %#x ends; install a driver of 535 or later: %w", b.asked, unix.ENOTSUP)
	}
	return f.mappings(p, b)
}

// mappings finds the spans of a buffer that begins at a place, by what the driver says of
// the objects' bounds.
func (f *finder) mappings(p place, b buffer) ([]span, error) {
	end := b.memory.MappingEnd()
	spans := []span{{place: p, first: b.first, end: min(end, b.end)}}
	for end <= b.last {
		m, err := f.cuda.MemoryAt(end)
		if err != nil {
			return nil, err
		}
		if p, err = f.find(end, m); err != nil {
			return nil, err
		}
		next := m.MappingEnd()
		if next <= end {
			return nil, fmt.Errorf("the CUDA driver maps %d bytes at %#x to the address %#x: %w", m.MappingSize, m.Mapping, end, unix.EIO)
		}
		spans = join(spans, []span{{place: p, first: end, end: min(next, b.end)}})
		end = next
	}
	return spans, nil
}

// join makes one list of two neighbouring lists. Two spans that touch in one object
// become one span.
func join(left, right []span) []span {
	l, r := &left[len(left)-1], right[0]
	if p, _ := l.plus(int64(r.first - l.first)); p == r.place {
		l.end = r.end
		right = right[1:]
	}
	return append(left, right...)
}

// extents gives our client the objects of the buffer. On an error it returns the extents
// that it has made, and the caller frees them.
func (f *finder) extents(b buffer) ([]extent, error) {
	spans, err := f.spans(b)
	if errors.Is(err, errNotWatched) && !b.memory.Legacy {
		return f.imported(b)
	}
	if err != nil {
		return nil, notFound(err)
	}
	var extents []extent
	for _, span := range spans {
		object, err := f.gpu.duplicate(span.place)
		if err != nil {
			return extents, err
		}
		f.source = span.client
		extents = append(extents, extent{object: object, offset: span.offset, length: span.end - span.first})
	}
	// Where the buffer ends past the allocation's last GPU page, only the driver knows whether
	// its object has those bytes.
	if b.memory.Legacy && b.end > (b.memory.End()+gpuPage-1)&^(gpuPage-1) {
		return extents, f.gpu.checkEnd(extents[len(extents)-1], b)
	}
	return extents, nil
}

// notFound adds to err what the user can do about objects that cannot be found.
func notFound(err error) error {
	if errors.Is(err, errNotWatched) {
		return fmt.Errorf("%w, and CUDA gives no IPC handle, as in the guest of a vGPU; load gdrdrv: %w", err, unix.ENOTSUP)
	}
	return err
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

// part is a part of an extent that takes one window.
type part struct {
	extent         *extent
	offset, length uint64 // in the extent's object
}

// parts cuts the first size bytes into parts. None crosses a multiple of unit in its
// object. unit gives 0 for an object that needs no cut.
func (p *pin) parts(size uint64, unit func(object handle) uint64) []part {
	var parts []part
	for i := 0; size > 0; i++ {
		extent := &p.extents[i]
		cut := unit(extent.object)
		at, end := extent.offset, extent.offset+min(extent.length, size)
		size -= end - at
		for at < end {
			next := end
			if cut != 0 {
				next = min(end, at&^(cut-1)+cut)
			}
			parts = append(parts, part{extent: extent, offset: at, length: next - at})
			at = next
		}
	}
	return parts
}

// mapPieces maps the first size bytes. On an error nothing stays mapped.
func (p *pin) mapPieces(size uintptr) (va uintptr, got backend.MappingType, err error) {
	whole := p.parts(uint64(size), func(handle) uint64 { return 0 })
	va, got, err = p.mapParts(size, whole)
	unit := p.gpu.unit(err)
	if unit == nil {
		return va, got, err
	}
	parts := p.parts(uint64(size), unit)
	if len(parts) == len(whole) {
		return va, got, err
	}
	if few := mapsLeft(len(parts)); few != nil {
		return 0, backend.None, errors.Join(few, err)
	}
	log.Debugf("the buffer is mapped in %d parts: %v", len(parts), err)
	return p.mapParts(size, parts)
}

// unit says into which parts a buffer is cut that the driver did not map at once for err.
// It is nil where parts do not help:
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

// mapParts maps parts, several side by side into one reserved range of size bytes. On an
// error nothing stays mapped.
func (p *pin) mapParts(size uintptr, parts []part) (va uintptr, got backend.MappingType, err error) {
	if len(parts) > 1 {
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
	for i, part := range parts {
		at, kind, err := p.mapPart(part, va, done)
		if err != nil {
			return va, backend.None, err
		}
		if i > 0 && kind != got {
			return va, backend.None, fmt.Errorf("the driver maps parts of the buffer as type %d and as type %d; pin each on its own: %w", got, kind, unix.ENOTSUP)
		}
		va, got = at, kind
		done += uintptr(part.length)
	}
	// madvise fails on some mappings of the driver that children do not inherit anyway.
	if err := sys.DontFork(va, size); err != nil {
		log.Debugf("madvise(MADV_DONTFORK) on a mapping of the GPU's: %v", err)
	}
	return va, got, nil
}

// mapPart maps a part at va+done, where va is the start of the range. For va 0 the kernel
// chooses the address. mapPart gives the start of the range.
func (p *pin) mapPart(part part, va, done uintptr) (uintptr, backend.MappingType, error) {
	w, err := p.gpu.openWindow(part.extent, part.offset, part.length)
	if err != nil {
		return 0, backend.None, err
	}
	part.extent.windows = append(part.extent.windows, w.linear)
	defer sys.Close(w.fd)
	kind, err := p.gpu.kind(part.extent.object, w.answer)
	if err != nil {
		return 0, backend.None, err
	}
	if va != 0 {
		err = sys.MmapInto(va+done, w.fd, uintptr(part.length))
	} else {
		va, err = sys.Mmap(w.fd, 0, uintptr(part.length))
	}
	if err != nil {
		return 0, backend.None, fmt.Errorf("mmap of GPU memory: %w", err)
	}
	return va, kind, nil
}

// closeWindows closes the windows of all extents. The CPU's mapping must be gone.
func (p *pin) closeWindows() error {
	var err error
	for i := range p.extents {
		extent := &p.extents[i]
		for _, linear := range extent.windows {
			err = errors.Join(err, p.gpu.closeWindow(extent.object, linear))
		}
		extent.windows = nil
	}
	return err
}
