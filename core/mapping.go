package core

import "fmt"

// Mapping is an address range through which the CPU reads and writes GPU memory.
type Mapping struct {
	buffer *Buffer
	va     uintptr // of the first page
	gpu    uint64  // the GPU's address of that
	mapped uint64  // bytes, a multiple of the host page
	typ    MappingType
}

// VA is the CPU's address of the mapping's first page, which has the GPU's address GPU.
func (m *Mapping) VA() uintptr { return m.va }

// GPU is the GPU's address of the first page.
func (m *Mapping) GPU() uint64 { return m.gpu }

// Mapped is the number of bytes from VA on.
func (m *Mapping) Mapped() uint64 { return m.mapped }

// Type is the memory type of the mapping.
func (m *Mapping) Type() MappingType { return m.typ }

// Close ends the mapping.
func (m *Mapping) Close() error {
	b := m.buffer
	if err := b.lock(); err != nil {
		return err
	}
	defer b.unlock()
	if b.mapping != m {
		return fmt.Errorf("the mapping is unmapped: %w", ErrClosed)
	}
	return b.unmap()
}
