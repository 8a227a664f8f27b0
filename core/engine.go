package core

import (
	"sync/atomic"

	"gdrapi/core/cuda"
	"gdrapi/core/log"
)

// LongCopies says from how many bytes on the GPU's copy engine makes a copy through
// write-combined memory. 0 is never. The engine writes from page-locked host memory alone.
// It serves what is pinned while a size is set.
type LongCopies struct{ Read, Write uint64 }

// AutoCopies are the sizes from which the engine is faster than a core (H200:
// docs/measurements.md).
var AutoCopies = LongCopies{Read: 16 << 10, Write: 1 << 20}

// engineUse has the sizes of a device's LongCopies.
type engineUse struct{ read, write atomic.Uint64 }

// SetLongCopies sets the sizes, in bytes, for copies from now on.
func (d *Device) SetLongCopies(l LongCopies) {
	d.engine.read.Store(l.Read)
	d.engine.write.Store(l.Write)
}

// prepare finds the memories that a pin has, and the copy engine for them. After a failure
// the CPU makes all copies.
func (u *engineUse) prepare(req PinRequest) (*cuda.Engine, []cuda.Extent) {
	if u.read.Load() == 0 && u.write.Load() == 0 {
		return nil, nil
	}
	d, err := cuda.Loaded()
	if err != nil {
		return nil, nil
	}
	e, memories, err := d.EngineFor(req.Addr, req.Size)
	if err != nil {
		log.Warnf("no copies of %#x by the GPU's copy engine: %v", req.Addr, err)
	}
	return e, memories
}

// isLong reports whether the engine is asked to make a copy of n bytes.
func (m *Mapping) isLong(n int, write bool) bool {
	least := &m.buffer.device.engine.read
	if write {
		least = &m.buffer.device.engine.write
	}
	l := least.Load()
	return l != 0 && uint64(n) >= l
}

// LongCopy is what became of a copy that the engine was asked for.
type LongCopy = cuda.Answer

// The engine has copied; the CPU may copy; the engine makes no such copy of pageable memory.
const (
	Copied    = cuda.Copied
	NotCopied = cuda.NotCopied
	Pageable  = cuda.Pageable
)

// byEngine has the engine copy n bytes from byte at of the mapping on, to or from host: a *byte
// of Go's, or an address of the host's. The caller holds copies.
func (m *Mapping) byEngine(at uint64, host any, n uint64, write, locked bool) LongCopy {
	b := m.buffer
	if b.engine == nil || m.typ != WriteCombined {
		return NotCopied
	}
	return b.engine.Copy(b.memories, m.gpu+at, host, n, write, locked)
}

// CopyLong has the engine copy n bytes of the mapping, from byte at on, to or from the host's
// address. libgdrapi.so, which makes its other copies in C, calls it. With locked the engine
// copies from or to page-locked memory alone. An unmap waits for the engine.
func (b *Buffer) CopyLong(at uint64, host uintptr, n uint64, write, locked bool) LongCopy {
	m, err := b.Mapping()
	if err != nil {
		return NotCopied
	}
	m.copies.RLock()
	defer m.copies.RUnlock()
	if m.ended || at > m.mapped || n > m.mapped-at {
		return NotCopied
	}
	return m.byEngine(at, host, n, write, locked)
}
