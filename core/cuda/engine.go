package cuda

import (
	"errors"
	"sync/atomic"

	"gdrapi/core/internal/sys"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// Extent is one memory in a range of GPU addresses. An address means what lies there today:
// memory that was freed, and allocated anew at the same address, is another one. It has
// another ID.
type Extent struct {
	Start, End uint64
	ID         uint64
}

const (
	// A memory of this size or more has a multiple of it.
	extentStep = 4096
	// A pin may have a GPU page, 64 KiB, of free space at each end.
	freeStepsMax = 64
	extentsMax   = 4096
)

// MemoriesIn finds the memories in a range, by address, and the ordinal of the GPU that has
// the first one. It may miss memories of less than 4 KiB. It needs no current context.
func (d *Driver) MemoriesIn(addr, size uint64) (ordinal int, memories []Extent) {
	end := addr + size
	for free := 0; addr < end && free < freeStepsMax && len(memories) < extentsMax; {
		m, err := d.MemoryAt(addr)
		x := m.extent()
		if err != nil || m.ID == 0 || addr < x.Start || addr >= x.End {
			addr = (addr | (extentStep - 1)) + 1
			free++
			continue
		}
		if memories == nil {
			ordinal = m.Ordinal
		}
		memories = append(memories, x)
		addr = x.End
	}
	return ordinal, memories
}

// extent is the memory that has one ID. The range is a whole reservation where memory is
// mapped by cuMemMap, and the mapping is the block that memory of cuMemAlloc is a part of.
func (m MemoryInfo) extent() Extent {
	x := Extent{m.Start, m.End(), m.ID}
	if m.MappingSize != 0 {
		x.Start, x.End = max(x.Start, m.Mapping), min(x.End, m.MappingEnd())
	}
	return x
}

// Engine is a GPU's copy engine, for C: a stream, and page-locked memory of the host's that
// the GPU knows. It is never freed, as a copy may look at it. A reset of the GPU ends the
// stream and the page lock.
type Engine struct {
	Context     Context // primary, and retained
	Stream      uintptr
	Staging     uintptr // the page-locked memory
	StagingAt   uint64  // its address for the GPU
	WritesWords bool    // the stream can write a word that the CPU sees
}

// Staging is what an Engine page-locks: Size bytes, with a word at the offset Word that an
// Engine writes to once.
type Staging struct{ Size, Word uintptr }

// EngineOf gives the copy engine of a GPU: old, if nobody has reset the GPU since, else a new
// one. old may be nil.
func (d *Driver) EngineOf(ordinal int, old *Engine, s Staging) (e *Engine, err error) {
	err = d.Relaxed(func(d *Driver) error {
		dev, err := d.Device(ordinal)
		if err != nil {
			return err
		}
		primary, err := d.primaryCtxRetain(dev)
		if err != nil {
			return err
		}
		err = d.lend(primary, func(d *Driver) error {
			if old != nil && d.isPageLocked(old.Staging) {
				e = old
				return nil
			}
			e, err = d.newEngine(primary, s)
			return err
		})
		if err == nil && e != old {
			return nil
		}
		return errors.Join(err, d.primaryCtxRelease(dev))
	})
	return e, err
}

// isPageLocked asks about the first byte. Asked for several attributes, the driver answers 0
// for memory that it does not know. Asked for one, it fails, which debuggers of CUDA report.
func (d *Driver) isPageLocked(addr uintptr) bool {
	const memoryTypeHost = 1
	name, kind := MemoryType, int32(0)
	place := &kind
	err := d.call(symPointerGetAttributes, 1, &name, &place, addr)
	return err == nil && kind == memoryTypeHost
}

// newEngine makes an Engine in the current context.
func (d *Driver) newEngine(c Context, s Staging) (_ *Engine, err error) {
	e := &Engine{Context: c}
	var undo []func() error
	defer func() {
		for i := len(undo) - 1; err != nil && i >= 0; i-- {
			if err := undo[i](); err != nil {
				log.Warnf("a stream, or page-locked memory, is lost: %v", err)
			}
		}
	}()
	if err = d.call(symStreamCreate, &e.Stream, streamNonBlocking); err != nil {
		return nil, err
	}
	undo = append(undo, func() error { return d.call(symStreamDestroy, e.Stream) })
	if e.Staging, err = stagingMemory(s.Size); err != nil {
		return nil, err
	}
	undo = append(undo, func() error { return unmap(e.Staging, s.Size) })
	const deviceMap = 2 // CU_MEMHOSTREGISTER_DEVICEMAP
	if err = d.call(symMemHostRegister, e.Staging, s.Size, deviceMap); err != nil {
		return nil, err
	}
	undo = append(undo, func() error { return d.call(symMemHostUnregister, e.Staging) })
	if err = d.call(symMemHostGetDevicePointer, &e.StagingAt, e.Staging, 0); err != nil {
		return nil, err
	}
	e.WritesWords = d.writesWord(e, s.Word)
	return e, nil
}

// writesWord says whether the stream can write a word, and the CPU sees it.
func (d *Driver) writesWord(e *Engine, off uintptr) bool {
	const value = 1
	return d.call(symStreamWriteValue32, e.Stream, uintptr(e.StagingAt)+off, value, 0) == nil &&
		d.call(symStreamSynchronize, e.Stream) == nil &&
		loadWord(e.Staging+off) == value
}

// loadWord reads host memory that is not Go's.
func loadWord(addr uintptr) uint32 { return atomic.LoadUint32((*uint32)(sys.Pointer(addr))) }

// stagingMemory maps memory that no child inherits.
func stagingMemory(size uintptr) (uintptr, error) {
	addr, _, errno := unix.RawSyscall6(unix.SYS_MMAP, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0), 0)
	if errno != 0 {
		return 0, errno
	}
	_ = sys.DontFork(addr, size)
	return addr, nil
}

func unmap(addr, size uintptr) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_MUNMAP, addr, size, 0); errno != 0 {
		return errno
	}
	return nil
}
