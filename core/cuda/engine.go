package cuda

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

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

// Engine is a GPU's copy engine: a stream of its own, in the GPU's primary context. It is
// never freed, as a copy may be using it.
type Engine struct {
	driver  *Driver
	context Context // primary, and retained
	stream  uintptr
	mark    uintptr // a page-locked page: a reset of the GPU ends that, and the stream
	rests   atomic.Int32
	failed  atomic.Bool
}

// enginePiece is what is given to the engine at once. Before each piece the memory's IDs are
// compared: it may have been freed since. With less, copies of pageable memory take up to a
// fifth longer (H200).
const enginePiece = 4 << 20

// engineRest is how many copies the CPU makes after the engine has failed.
const engineRest = 1000

// engines has the engine of each GPU, by ordinal.
var engines struct {
	mu sync.Mutex
	of map[int]*Engine
}

// EngineFor finds the memories in a range, and the copy engine of the GPU that has them. It
// makes one where there is none, and another one where somebody has reset the GPU. It
// returns nil where the range has no GPU memory.
func (d *Driver) EngineFor(addr, size uint64) (e *Engine, memories []Extent, err error) {
	err = d.Relaxed(func(d *Driver) error {
		var ordinal int
		if ordinal, memories = d.MemoriesIn(addr, size); len(memories) == 0 {
			return nil
		}
		engines.mu.Lock()
		old := engines.of[ordinal]
		engines.mu.Unlock()
		if e, err = d.engineOf(ordinal, old); err != nil || e == old {
			return err
		}
		engines.mu.Lock()
		defer engines.mu.Unlock()
		if engines.of == nil {
			engines.of = map[int]*Engine{}
		}
		engines.of[ordinal] = e
		return nil
	})
	return e, memories, err
}

// engineOf gives the engine of a GPU: old, unless that is nil or was ended by a reset.
func (d *Driver) engineOf(ordinal int, old *Engine) (e *Engine, err error) {
	dev, err := d.device(ordinal)
	if err != nil {
		return nil, err
	}
	primary, err := d.primaryCtxRetain(dev)
	if err != nil {
		return nil, err
	}
	// A context that the program has destroyed may be current: libcuda faults in some calls then.
	err = d.lend(primary, func(d *Driver) error {
		if old != nil && d.isPageLocked(old.mark) {
			e = old
			return nil
		}
		e, err = d.newEngine(primary)
		return err
	})
	if err == nil && e != old {
		return e, nil
	}
	return e, errors.Join(err, d.primaryCtxRelease(dev))
}

// isPageLocked asks about the first byte. Asked for several attributes, the driver answers 0
// for memory that it does not know. Asked for one, it fails, which debuggers of CUDA report.
func (d *Driver) isPageLocked(addr any) bool {
	const memoryTypeHost = 1
	kind, err := d.attributeOf(MemoryType, addr)
	return err == nil && kind == memoryTypeHost
}

// attributeOf asks by the call for several attributes, for one.
func (d *Driver) attributeOf(name PointerAttribute, addr any) (uint64, error) {
	var answer uint64 // a type has 4 bytes, the low ones
	place := &answer
	err := d.call(symPointerGetAttributes, 1, &name, &place, addr)
	return answer, err
}

// newEngine makes an Engine in the current context.
func (d *Driver) newEngine(c Context) (_ *Engine, err error) {
	e := &Engine{driver: &Driver{fn: d.fn}, context: c}
	if err = d.call(symStreamCreate, &e.stream, streamNonBlocking); err != nil {
		return nil, err
	}
	size := uintptr(unix.Getpagesize())
	if e.mark, err = sys.Anonymous(size); err == nil {
		const noFlags = 0
		if err = d.call(symMemHostRegister, e.mark, size, noFlags); err != nil {
			_ = sys.Munmap(e.mark, size)
		}
	}
	if err != nil {
		return nil, errors.Join(err, d.call(symStreamDestroy, e.stream))
	}
	return e, nil
}

// Answer is what became of a Copy.
type Answer int

const (
	Copied    Answer = iota // all of it
	NotCopied               // the CPU may make it
	Pageable                // nothing, for the host's memory is not page-locked
)

// Copy copies n bytes at the GPU's address gpu to or from host: a *byte of Go's, or an
// address. memories are those that the bytes had when they were pinned. Nothing lands after
// it. It needs no current context. With locked, and in each write, the host's memory must be
// page-locked.
func (e *Engine) Copy(memories []Extent, gpu uint64, host any, n uint64, write, locked bool) Answer {
	if e.rests.Load() > 0 {
		e.rests.Add(-1)
		return NotCopied
	}
	err := e.driver.Relaxed(func(d *Driver) error {
		return d.lend(e.context, func(d *Driver) error {
			if !d.isPageLocked(e.mark) {
				return errEngine
			}
			if (write || locked) && !(d.isPageLocked(hostAt(host, 0)) && d.isPageLocked(hostAt(host, n-1))) {
				return errPageable
			}
			return e.copy(d, memories, gpu, host, n, write)
		})
	})
	switch err {
	case nil:
		return Copied
	case errPageable:
		return Pageable
	case errEngine:
	default:
		e.rests.Store(engineRest)
		if !e.failed.Swap(true) {
			log.Warnf("the GPU's copy engine failed, the CPU copies: %v", err)
		}
	}
	return NotCopied
}

// These say that the CPU makes the copy, and that nothing is wrong.
var (
	errEngine   = errors.New("the CPU makes the copy")
	errPageable = errors.New("the host's memory is not page-locked")
)

// copy gives the pieces to the engine, and waits for them. After an error it waits, too.
func (e *Engine) copy(d *Driver, memories []Extent, gpu uint64, host any, n uint64, write bool) (err error) {
	for done := uint64(0); done < n && err == nil; {
		piece := min(n-done, enginePiece)
		if !d.isSame(memories, gpu+done, piece) {
			err = errEngine
			break
		}
		at := hostAt(host, done)
		if write {
			err = d.call(symMemcpyHtoDAsync, gpu+done, at, piece, e.stream)
		} else {
			err = d.call(symMemcpyDtoHAsync, at, gpu+done, piece, e.stream)
		}
		done += piece
	}
	if end := d.call(symStreamSynchronize, e.stream); end != nil {
		return fmt.Errorf("a copy of %d bytes: %w", n, end)
	}
	return err
}

// isSame reports whether the n bytes at addr are still of the memories.
func (d *Driver) isSame(memories []Extent, addr, n uint64) bool {
	end := addr + n
	for _, m := range memories {
		if addr < m.Start || addr >= m.End {
			continue
		}
		last := min(end, m.End) - 1
		if !d.hasID(addr, m.ID) || !d.hasID(last, m.ID) {
			return false
		}
		if addr = last + 1; addr == end {
			return true
		}
	}
	return false
}

func (d *Driver) hasID(addr, id uint64) bool {
	got, err := d.attributeOf(bufferID, addr)
	return err == nil && got == id
}

// hostAt is byte number off of host, as an argument of call.
func hostAt(host any, off uint64) any {
	if p, ok := host.(*byte); ok {
		return (*byte)(unsafe.Add(unsafe.Pointer(p), off))
	}
	return host.(uintptr) + uintptr(off)
}
