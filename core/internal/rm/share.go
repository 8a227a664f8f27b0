package rm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"gdrapi/core/backend"
	"gdrapi/core/internal/sys"

	"golang.org/x/sys/unix"
)

// label says where in its objects a buffer is. Both go to another process in an open file of
// /dev/nvidiactl, which keeps the objects alive. The buffer begins at page offset of the first
// object, and at page 0 of each other one. Pages are of gpuPage bytes.
//
// CUDA imports the file by the first word alone (580.159.04). Its own labels have zeros behind it.
// So what is ours lies as far back as it can.
type label struct {
	First  uint32 // labelCUDA where the buffer is in one object; else labelMagic, which CUDA refuses
	_      uint32
	Runs   [5]run // those of a count of 0 mean nothing; one object is in the last
	Magic  uint32
	Offset uint32
	VA     uint64 // the GPU's address in the process that pinned it first
}

// run is a number of objects in a row, with as many pages of the buffer in each.
type run struct{ Count, Pages uint32 }

const (
	labelMagic   = 'g'<<24 | 'd'<<16 | 'r'<<8 | 2 // the last byte is the version
	labelObjects = len(importObjects{}.objects)

	// First words of CUDA's. Other exporters leave 0.
	labelCUDA = 4 // of cuMemExportToShareableHandle
	labelPool = 5 // of cuMemPoolExportToShareableHandle
)

// encode gives the label's bytes.
func (l *label) encode() (b [exportMetadata]byte) {
	_, _ = binary.Encode(b[:], binary.NativeEndian, l)
	return b
}

// decodeLabel is the label of some bytes.
func decodeLabel(b [exportMetadata]byte) (l label) {
	_, _ = binary.Decode(b[:], binary.NativeEndian, &l)
	return l
}

// label describes the buffer. Errors: ENOTSUP (the layout does not fit).
func (p *pin) label() (label, error) {
	l := label{First: labelMagic, Magic: labelMagic, Offset: uint32(p.extents[0].offset / gpuPage), VA: p.first}
	if len(p.extents) == 1 {
		l.First = labelCUDA
	}
	fits := len(p.extents) <= labelObjects && p.extents[0].offset>>48 == 0
	var runs []run
	for i, e := range p.extents {
		pages := uint32(e.length / gpuPage)
		fits = fits && (e.offset|e.length)%gpuPage == 0 && e.length>>48 == 0 && (i == 0 || e.offset == 0)
		if n := len(runs); n > 0 && runs[n-1].Pages == pages {
			runs[n-1].Count++
			continue
		}
		if fits = fits && len(runs) < len(l.Runs); !fits {
			break
		}
		runs = append(runs, run{1, pages})
	}
	if !fits {
		return label{}, fmt.Errorf("the buffer's %d memory objects do not fit into a descriptor, which has room for %d, in %d runs of one size; pin and export it in parts: %w", len(p.extents), labelObjects, len(l.Runs), unix.ENOTSUP)
	}
	copy(l.Runs[len(l.Runs)-len(runs):], runs)
	return l, nil
}

// ofCUDA reports whether CUDA wrote l.
func (l *label) ofCUDA() bool {
	return l.Magic>>8 != labelMagic>>8 && (l.First == 0 || l.First == labelCUDA)
}

// extents gives the extents of the buffer, without their objects. For a label of CUDA's that is
// one extent of length 0, which stands for a whole object. Anybody may have written l.
func (l *label) extents() (extents []extent, va uint64, err error) {
	switch {
	case l.Magic == labelMagic:
	case l.ofCUDA():
		return []extent{{}}, 0, nil
	case l.First == labelPool:
		return nil, 0, fmt.Errorf("the descriptor has a memory pool of cuMemPoolExportToShareableHandle, of which no part is a buffer; pin memory of the pool in the process that has it, and pass it by gdr_export_fd: %w", unix.ENOTSUP)
	default:
		return nil, 0, fmt.Errorf("the descriptor has memory that neither gdr_export_fd of this version nor cuMemExportToShareableHandle put there; use one version of this library on both sides: %w", unix.EINVAL)
	}
	offset, end := uint64(l.Offset)*gpuPage, l.VA
	good := l.VA%gpuPage == 0
	for _, r := range l.Runs {
		good = good && (r.Count == 0 || r.Pages > 0 && int(r.Count) <= labelObjects-len(extents))
		for i := uint32(0); good && i < r.Count; i++ {
			e := extent{offset: offset, length: uint64(r.Pages) * gpuPage}
			extents = append(extents, e)
			end += e.length
			offset = 0
		}
	}
	if !good || len(extents) == 0 || (len(extents) == 1) != (l.First == labelCUDA) || end < l.VA {
		return nil, 0, fmt.Errorf("the descriptor's label is damaged: export the buffer anew: %w", unix.EINVAL)
	}
	return extents, l.VA, nil
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
	args := &exportObjects{fd: int32(fd), device: p.gpu.device, most: n, metadata: l.encode(), n: n}
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
		size, err := p.gpu.sizeOf(e.object)
		if err != nil {
			return err
		}
		if e.offset != 0 || e.length < size {
			return fmt.Errorf("the memory object around %#x is larger than the buffer, so the descriptor would give away other memory of this process; allocate with cuMemCreate, or pin all of the object: %w", p.first, unix.EPERM)
		}
	}
	return nil
}

// Object says where in its objects the buffer is.
func (p *pin) Object() (backend.Object, error) {
	e := p.extents[0]
	size, err := p.gpu.sizeOf(e.object)
	return backend.Object{Offset: e.offset, Length: size, Count: len(p.extents)}, err
}

// Import pins the buffer that a file of Export has, or the memory in one of CUDA's. It asks CUDA
// for nothing.
func (s *session) Import(fd int) (backend.Pin, error) {
	g, info, err := s.importer(fd)
	if err != nil {
		return nil, err
	}
	l := decodeLabel(info.metadata)
	extents, va, err := l.extents()
	if err != nil {
		return nil, err
	}
	c := g.client
	// One more than the label says, which the file must not have. CUDA puts the memory first; on GPUs with
	// NVSwitch the name that the fabric has for it follows, which no device object can be the parent of.
	n := min(len(extents)+1, int(info.most), labelObjects)
	if l.ofCUDA() {
		n = 1
	}
	args := &importObjects{fd: int32(fd), parent: g.device, n: uint16(n)}
	if err := control(c, "IMPORT_OBJECTS_FROM_FD", c.root, controlImportObjects, args); err != nil {
		return nil, err
	}
	p := &pin{gpu: g, first: va}
	for i, kind := range args.kinds[:n] {
		if kind != importNone {
			p.extents = append(p.extents, extent{object: args.objects[i], space: g.spaceOf(kind)})
		}
	}
	if err := p.complete(extents); err != nil {
		return nil, errors.Join(err, p.Unpin())
	}
	return p, nil
}

// spaceOf is where memory of an import is, or 0 where the CPU cannot map such memory as this GPU's.
func (g *gpu) spaceOf(kind uint8) uint32 {
	switch {
	case kind == importVideo:
		return spaceVideo
	case kind == importSystem && (g.coherent || g.soc):
		return spaceSystem
	}
	return 0
}

// complete gives the objects of an import the offsets and lengths that its label says.
func (p *pin) complete(label []extent) error {
	if len(p.extents) != len(label) {
		return fmt.Errorf("the descriptor's label says %d memory objects, and it has others; export the buffer anew: %w", len(label), unix.EINVAL)
	}
	for i := range p.extents {
		e := &p.extents[i]
		size, err := p.gpu.sizeOf(e.object)
		if err != nil {
			return err
		}
		e.offset, e.length = label[i].offset, label[i].length
		if e.length == 0 {
			e.length = size
		}
		switch {
		case e.space == 0:
			return fmt.Errorf("the descriptor has memory of the host's or of another node's, not the GPU's; share that by other means: %w", unix.EINVAL)
		case size == 0 || e.offset > size || e.length > size-e.offset:
			return fmt.Errorf("the descriptor's label says %#x bytes at %#x of a memory object of %#x; export the buffer anew: %w", e.length, e.offset, size, unix.EINVAL)
		}
		p.size += e.length
	}
	return nil
}

// importer gives our device object of the GPU that the memory in a file is of, and what the
// driver says of the file.
func (s *session) importer(fd int) (*gpu, *exportInfo, error) {
	c, err := s.hold()
	if err != nil {
		return nil, nil, err
	}
	c.attach.Lock()
	defer c.attach.Unlock()
	info, err := c.exportInfo(fd)
	if err != nil {
		return nil, nil, err
	}
	if info.mig != noInstance {
		return nil, nil, errMIG("of the descriptor")
	}
	if g, ok := c.gpus.Load(info.deviceInstance); ok {
		return g.(*gpu), info, nil
	}
	cards, err := c.cards()
	if err != nil {
		return nil, nil, err
	}
	for _, card := range cards {
		id, err := c.idInfo(card.gpuID)
		if errors.Is(err, statusInvalidArgument) || err == nil && id.deviceInstance != info.deviceInstance {
			continue // no process has that GPU open; or it is another
		}
		if err != nil {
			return nil, nil, err
		}
		g, err := c.newGPU(card)
		switch {
		case err == nil:
			c.gpus.Store(info.deviceInstance, g)
		case errors.Is(err, unix.ENOENT):
			err = fmt.Errorf("%w (%v)", unix.ENODEV, err)
		}
		return g, info, err
	}
	return nil, nil, fmt.Errorf("the GPU whose memory descriptor %d has is not there; ask for it in this container, too: %w", fd, unix.ENODEV)
}

// exportInfo asks what a descriptor has. Any descriptor may be asked for.
func (c *client) exportInfo(fd int) (*exportInfo, error) {
	info := &exportInfo{fd: int32(fd), mig: noInstance}
	err := control(c, "GET_EXPORT_OBJECT_INFO", c.root, controlExportInfo, info)
	if errors.Is(err, statusInvalidParamStruct) || errors.Is(err, statusInvalidArgument) {
		old := &exportInfo535{fd: int32(fd)}
		err = control(c, "GET_EXPORT_OBJECT_INFO", c.root, controlExportInfo, old)
		info.deviceInstance, info.most, info.metadata = old.deviceInstance, old.most, old.metadata
	}
	var st status // without one a sandbox (gVisor) does not know the descriptor
	if err == nil || errors.As(err, &st) && st != statusInvalidParameter {
		return info, err
	}
	if exporter, _, _ := sys.DMABuf(fd); exporter != "" {
		return nil, fmt.Errorf("descriptor %d is a dma-buf, which the rm backend does not pin; open with GDRCOPY_BACKEND=dmabuf: %w", fd, unix.ENOTSUP)
	}
	return nil, fmt.Errorf("descriptor %d has no GPU memory in it; pass one of gdr_export_fd, or of cuMemExportToShareableHandle: %w (%v)", fd, unix.EINVAL, err)
}
