package rm

import (
	"errors"
	"fmt"
	"unsafe"

	"gdrapi/core/backend"
	"gdrapi/core/internal/sys"

	"golang.org/x/sys/unix"
)

// label says where in its objects a buffer is. Both go to another process in an open file of
// /dev/nvidiactl, which keeps the objects alive. The buffer begins at page offset of the first
// object, and at page 0 of each other one. Pages are of gpuPage bytes.
type label struct {
	magic, offset uint32
	va            uint64 // the GPU's address in the process that pinned it first
	runs          [6]run // the first one with a count of 0 ends them
}

// run is a number of objects in a row, with as many pages of the buffer in each.
type run struct{ count, pages uint32 }

const (
	labelMagic   = 'g'<<24 | 'd'<<16 | 'r'<<8 | 1 // the last byte is the version
	labelObjects = len(importObjects{}.objects)
)

// bytes are those of l, which have no padding.
func (l *label) bytes() *[exportMetadata]byte {
	return (*[unsafe.Sizeof(*l)]byte)(unsafe.Pointer(l))
}

// label describes the buffer. Errors: ENOTSUP (the layout does not fit).
func (p *pin) label() (label, error) {
	l := label{magic: labelMagic, offset: uint32(p.extents[0].offset / gpuPage), va: p.first}
	fits := len(p.extents) <= labelObjects && p.extents[0].offset>>48 == 0
	runs := l.runs[:0]
	for i, e := range p.extents {
		pages := uint32(e.length / gpuPage)
		fits = fits && (e.offset|e.length)%gpuPage == 0 && e.length>>48 == 0 && (i == 0 || e.offset == 0)
		if n := len(runs); n > 0 && runs[n-1].pages == pages {
			runs[n-1].count++
			continue
		}
		if fits = fits && len(runs) < len(l.runs); !fits {
			break
		}
		runs = append(runs, run{1, pages})
	}
	if !fits {
		return label{}, fmt.Errorf("the buffer's %d memory objects do not fit into a descriptor, which has room for %d, in %d runs of one size; pin and export it in parts: %w", len(p.extents), labelObjects, len(l.runs), unix.ENOTSUP)
	}
	return l, nil
}

// extents gives the extents of the buffer, without their objects. Anybody may have written l.
func (l *label) extents() (extents []extent, size uint64, err error) {
	offset := uint64(l.offset) * gpuPage
	ok := l.magic == labelMagic && l.va%gpuPage == 0 && l.runs[0].count > 0
	for _, r := range l.runs {
		if r.count == 0 {
			break
		}
		if ok = ok && r.pages > 0 && int(r.count) <= labelObjects-len(extents); !ok {
			break
		}
		for range r.count {
			e := extent{offset: offset, length: uint64(r.pages) * gpuPage}
			extents = append(extents, e)
			size += e.length
			offset = 0
		}
	}
	if !ok || l.va+size < l.va {
		return nil, 0, fmt.Errorf("the descriptor has memory that gdr_export_fd of this version did not put there; cuMemImportFromShareableHandle takes CUDA's: %w", unix.EINVAL)
	}
	return extents, size, nil
}

// Export puts the buffer's objects into a new file of the driver's.
func (p *pin) Export(flags uint32) (fd int, err error) {
	l, err := p.label()
	if err != nil {
		return -1, err
	}
	if flags&backend.ExportWhole != 0 {
		if err := p.checkWhole(); err != nil {
			return -1, err
		}
	}
	if fd, err = sys.Open(controlPath, unix.O_RDWR); err != nil {
		return -1, explainOpen(controlPath, err)
	}
	n := uint16(len(p.extents))
	args := &exportObjects{fd: int32(fd), device: p.gpu.device, most: n, metadata: *l.bytes(), n: n}
	for i, e := range p.extents {
		args.objects[i] = e.object
	}
	c := p.gpu.client
	if err := control(c, "EXPORT_OBJECTS_TO_FD", c.root, controlExportObjects, args); err != nil {
		return -1, errors.Join(err, sys.Close(fd))
	}
	return fd, nil
}

// checkWhole returns EPERM where an object of the buffer has bytes outside of it.
func (p *pin) checkWhole() error {
	for _, e := range p.extents {
		more, err := p.gpu.has(e.object, e.offset+e.length, hostPage)
		if err != nil {
			return err
		}
		if more || e.offset != 0 {
			return fmt.Errorf("the memory object around %#x is larger than the buffer, so the descriptor would give away other memory of this process; allocate with cuMemCreate, or pin all of the object: %w", p.first, unix.EPERM)
		}
	}
	return nil
}

// has reports whether an object has n bytes at offset. The driver opens no window past the end
// of one.
func (g *gpu) has(object handle, offset, n uint64) (bool, error) {
	w, err := g.openWindow(object, offset, n)
	if errors.Is(err, statusInvalidLimit) || errors.Is(err, statusInvalidBase) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, errors.Join(sys.Close(w.fd), g.closeWindow(object, w.linear))
}

// Import pins the buffer that a file of Export has. It asks CUDA for nothing.
func (s *session) Import(fd int) (backend.Pin, error) {
	g, l, err := s.importer(fd)
	if err != nil {
		return nil, err
	}
	extents, size, err := l.extents()
	if err != nil {
		return nil, err
	}
	c := g.client
	args := &importObjects{fd: int32(fd), parent: g.device, n: uint16(len(extents))}
	if err := control(c, "IMPORT_OBJECTS_FROM_FD", c.root, controlImportObjects, args); err != nil {
		return nil, err
	}
	p := &pin{gpu: g, first: l.va, size: size}
	good := true
	for i, e := range extents {
		if args.kinds[i] == importNone {
			good = false
			continue
		}
		e.object = args.objects[i]
		p.extents = append(p.extents, e)
		// Where BAR1 is full the map says so.
		inside, err := g.has(e.object, e.offset+e.length-gpuPage, gpuPage)
		good = good && args.kinds[i] <= importSystem && (inside || err != nil)
	}
	if !good {
		err := fmt.Errorf("descriptor %d has other memory than its label says: %w", fd, unix.EINVAL)
		return nil, errors.Join(err, p.Unpin())
	}
	return p, nil
}

// importer gives our device object of the GPU that the memory in a file is of, and the label.
func (s *session) importer(fd int) (*gpu, label, error) {
	process.mu.Lock()
	defer process.mu.Unlock()
	c, err := s.hold()
	if err != nil {
		return nil, label{}, err
	}
	info, err := c.exportInfo(fd)
	if err != nil {
		return nil, label{}, err
	}
	var l label
	*l.bytes() = info.metadata
	if info.mig != noInstance {
		return nil, l, errMIG("of the descriptor")
	}
	if g := c.imports[info.deviceInstance]; g != nil {
		return g, l, nil
	}
	cards, err := c.cards()
	if err != nil {
		return nil, l, err
	}
	for _, card := range cards {
		id := gpuIDInfo{gpuID: card.gpuID}
		err := control(c, "GET_ID_INFO", c.root, controlGPUIDInfo, &id)
		if errors.Is(err, statusInvalidArgument) || err == nil && id.deviceInstance != info.deviceInstance {
			continue // no process has that GPU open; or it is another
		}
		if err != nil {
			return nil, l, err
		}
		g, err := c.attach(card)
		switch {
		case err == nil:
			c.imports[info.deviceInstance] = g
		case errors.Is(err, unix.ENOENT):
			err = fmt.Errorf("%w (%v)", unix.ENODEV, err)
		}
		return g, l, err
	}
	return nil, l, fmt.Errorf("the GPU whose memory descriptor %d has is not there; ask for it in this container, too: %w", fd, unix.ENODEV)
}

// exportInfo asks what a descriptor has. Any descriptor may be asked for.
func (c *client) exportInfo(fd int) (*exportInfo, error) {
	info := &exportInfo{fd: int32(fd), mig: noInstance}
	err := control(c, "GET_EXPORT_OBJECT_INFO", c.root, controlExportInfo, info)
	if errors.Is(err, statusInvalidParamStruct) || errors.Is(err, statusInvalidArgument) {
		old := &exportInfo535{fd: int32(fd)}
		err = control(c, "GET_EXPORT_OBJECT_INFO", c.root, controlExportInfo, old)
		info.deviceInstance, info.metadata = old.deviceInstance, old.metadata
	}
	var st status // without one a sandbox (gVisor) does not know the descriptor
	if err == nil || errors.As(err, &st) && st != statusInvalidParameter {
		return info, err
	}
	if exporter, _, _ := sys.DMABuf(fd); exporter != "" {
		return nil, fmt.Errorf("descriptor %d is a dma-buf, which the rm backend does not pin; open with GDRCOPY_BACKEND=dmabuf: %w", fd, unix.ENOTSUP)
	}
	return nil, fmt.Errorf("descriptor %d has no GPU memory in it; pass one of gdr_export_fd: %w (%v)", fd, unix.EINVAL, err)
}
