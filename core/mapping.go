package core

import (
	"cmp"
	"fmt"
	"io"
	"runtime/debug"
	"sync"

	"gdrapi/core/internal/mmio"

	"golang.org/x/sys/unix"
)

// Mapping is an address range through which the CPU reads and writes GPU memory. It is an
// io.ReaderAt and an io.WriterAt. Offset 0 is the byte at the address that Map was given.
//
// ReadAt and WriteAt may run at the same time, also on the same bytes. What a read then has
// of a write is not defined, but for the words of up to 8 aligned bytes, which are whole.
type Mapping struct {
	buffer *Buffer
	va     uintptr // of the first page
	gpu    uint64  // the GPU's address of that
	mapped uint64  // bytes, a multiple of the host page
	skip   uint64  // bytes of it before offset 0
	size   uint64  // bytes that Map was asked for
	typ    MappingType
	owner  bool // Close unpins the buffer, too

	copies sync.RWMutex // a copy holds it for reading
	ended  bool         // no copy may begin
}

var (
	_ io.ReaderAt = (*Mapping)(nil)
	_ io.WriterAt = (*Mapping)(nil)
)

// Map pins the n bytes of GPU memory at addr and maps them, with any alignment. Close of the
// mapping unpins them. Errors: those of Pin and of Buffer.Map.
func (d *Device) Map(addr, n uint64) (*Mapping, error) {
	b, err := d.PinBytes(addr, n, 0)
	if err != nil {
		return nil, err
	}
	skip := addr - b.addr
	m, err := b.Map(skip+n, AnyType)
	if err != nil {
		return nil, cmp.Or(err, b.Close())
	}
	m.skip, m.size, m.owner = skip, n, true
	return m, nil
}

// PageSize is the backend's page in bytes, as far as PinBytes has found it out; else the host's.
func (d *Device) PageSize() uint64 { return max(d.page.Load(), hostPage) }

// VA is the CPU's address of the mapping's first page, which has the GPU's address GPU.
func (m *Mapping) VA() uintptr { return m.va }

// GPU is the GPU's address of the first page.
func (m *Mapping) GPU() uint64 { return m.gpu }

// Mapped is the number of bytes from VA on.
func (m *Mapping) Mapped() uint64 { return m.mapped }

// Size is the number of bytes from offset 0 on.
func (m *Mapping) Size() int64 { return int64(m.size) }

// Type is the memory type of the mapping.
func (m *Mapping) Type() MappingType { return m.typ }

// Close ends the mapping. It waits for ReadAt and WriteAt. If Device.Map has made the
// mapping, Close unpins its memory; else, where munmap fails, the mapping stays, and may be
// closed again.
func (m *Mapping) Close() error {
	b, next := m.buffer, busy
	if m.owner {
		next = ended
	}
	if _, err := b.begin(toUnmap, m, next); err != nil {
		return err
	}
	err := b.unmap()
	if b.settle() {
		err = b.end(err)
	}
	return err
}

// Buffer is what is mapped.
func (m *Mapping) Buffer() *Buffer { return m.buffer }

// IsOpen reports whether copies may begin through the mapping.
func (m *Mapping) IsOpen() bool {
	m.copies.RLock()
	defer m.copies.RUnlock()
	return !m.ended
}

// setEnded says whether new copies are kept out. It waits for those that run.
func (m *Mapping) setEnded(ended bool) {
	m.copies.Lock()
	defer m.copies.Unlock()
	m.ended = ended
}

// ReadAt reads len(p) bytes from offset off on. At the end of the mapping it reads what
// there is, and returns io.EOF. Errors: EINVAL (off is negative), ErrClosed, EIO (the driver
// has taken the pages back).
func (m *Mapping) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fmt.Errorf("read at offset %d: %w", off, unix.EINVAL)
	}
	if uint64(off) >= m.size {
		return 0, io.EOF
	}
	if left := m.size - uint64(off); uint64(len(p)) > left {
		p = p[:left]
		defer func() {
			if err == nil {
				err = io.EOF
			}
		}()
	}
	return m.copy(m.skip+uint64(off), p, func(at uint64) {
		mmio.Read(p, m.va+uintptr(at), m.typ)
	})
}

// WriteAt writes p from offset off on. Errors: EINVAL (the bytes do not lie in the mapping;
// none is written), ErrClosed, EIO (the driver has taken the pages back).
func (m *Mapping) WriteAt(p []byte, off int64) (n int, err error) {
	if uint64(off) > m.size || uint64(len(p)) > m.size-uint64(off) { // a negative off is larger, too
		return 0, fmt.Errorf("write of %d bytes at offset %d: the mapping has %d: %w", len(p), off, m.size, unix.EINVAL)
	}
	return m.copy(m.skip+uint64(off), p, func(at uint64) {
		mmio.Write(m.va+uintptr(at), p, m.typ)
	})
}

// copy calls do to copy all of p from or to byte at of the mapping on, unless the mapping has
// ended. Where do faults on the mapping, copy returns EIO.
func (m *Mapping) copy(at uint64, p []byte, do func(at uint64)) (n int, err error) {
	m.copies.RLock()
	defer m.copies.RUnlock()
	if m.ended {
		return 0, errUnmapped
	}
	// An access to pages that the driver has taken back faults.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			at, ok := fault.(interface{ Addr() uintptr })
			if !ok || uint64(at.Addr()-m.va) >= m.mapped {
				panic(fault)
			}
			n, err = 0, fmt.Errorf("the driver has taken the pages of the mapping back (%v): %w", fault, unix.EIO)
		}
	}()
	do(at)
	return len(p), nil
}
