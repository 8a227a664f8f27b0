package rm

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"
	"gdrapi/core/nvml"

	"golang.org/x/sys/unix"
)

// window is an extent that the CPU may map, or has mapped. The driver knows it by its object and
// linear.
type window struct {
	object handle
	linear uint64
	answer answer
}

// openWindow makes an extent of our client ready to be mapped. The fd serves one mmap of all of
// it, from offset 0.
func (g *gpu) openWindow(e extent) (w window, fd int, err error) {
	c := g.client
	path, err := g.node(e)
	if err != nil {
		return w, -1, err
	}
	if fd, err = sys.Open(path, unix.O_RDWR); err != nil {
		return w, -1, explainOpen(path, err)
	}
	args := mapArgs{
		client: c.root, device: g.device, memory: e.object,
		offset: e.offset, length: e.length, fd: int32(fd),
	}
	err = do(c, "MAP_MEMORY", nrMapMemory, &args, &args.status)
	if err != nil {
		_ = sys.Close(fd)
		if errors.Is(err, statusInsufficient) {
			err = &bar1Full{err, g.at}
		}
		return w, -1, err
	}
	return window{object: e.object, linear: args.linear, answer: args.answer()}, fd, nil
}

// bar1Full is the error of a window that BAR1 has no room for. Its text says how full BAR1
// is. To ask takes milliseconds, and starts NVML. So NVML is asked when the text is wanted, for
// the log, and once a second at most: a cache that makes room gets many of these errors.
type bar1Full struct {
	err error
	at  cuda.PCIAddress
}

func (e *bar1Full) Unwrap() error { return e.err }

func (e *bar1Full) Error() string {
	use := askNVIDIASMI
	now := time.Now().UnixNano()
	if last := bar1Asked.Load(); now-last >= int64(time.Second) && bar1Asked.CompareAndSwap(last, now) {
		use = bar1Use(e.at)
	}
	return fmt.Sprintf("%v (%s)", e.err, use)
}

var bar1Asked atomic.Int64 // when, in nanoseconds

const askNVIDIASMI = "run nvidia-smi -q -d MEMORY to see how much of BAR1 is in use"

// bar1Use says how much of a GPU's BAR1 is in use. It needs NVML.
func bar1Use(at cuda.PCIAddress) string {
	var bar nvml.BAR1
	err := nvml.At(at.String(), func(gpu nvml.Device) (err error) {
		bar, err = gpu.BAR1()
		return err
	})
	if err != nil {
		return askNVIDIASMI
	}
	return fmt.Sprintf("of %d MiB of BAR1 %d MiB are free", bar.Total>>20, bar.Free>>20)
}

// closeWindow removes a window from the BAR. The CPU's mapping of it must be gone.
func (g *gpu) closeWindow(w window) error {
	args := unmapArgs{client: g.client.root, device: g.device, memory: w.object, linear: w.linear}
	return do(g.client, "UNMAP_MEMORY", nrUnmapMemory, &args, &args.status)
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
