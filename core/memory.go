package core

import (
	"cmp"
	"fmt"
	"sync"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// Memory is GPU memory that a Device has allocated. Every backend can pin it.
type Memory struct {
	device *Device
	alloc  *cuda.Allocation

	mu      sync.Mutex // not held while CUDA is called, which may wait for the host
	exports int        // that go on
	freed   bool       // the last of them, or Close, frees the allocation
}

// Alloc allocates GPU memory on the CUDA device with that ordinal. size is in bytes, and is
// rounded up to the driver's unit. Alloc initialises CUDA. Where there is no context for the memory,
// Alloc makes the GPU's primary context, which stays until the Device's Close. Errors: EINVAL (0
// bytes), ENODEV, ENOMEM.
func (d *Device) Alloc(ordinal int, size uint64) (*Memory, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	a, err := cuda.Alloc(ordinal, size)
	if err != nil {
		return nil, err
	}
	return d.addMemory(a)
}

// addMemory frees a where d is closed.
func (d *Device) addMemory(a *cuda.Allocation) (*Memory, error) {
	context := a.TakeContext()
	m := &Memory{device: d, alloc: a}
	err := d.unlessClosed(func() {
		d.memories.add(m)
		if context != nil {
			d.contexts.add(context)
		}
	})
	if err != nil {
		defer context.Release()
		return nil, cmp.Or(m.Close(), err)
	}
	return m, nil
}

// Device is the device that has allocated the memory.
func (m *Memory) Device() *Device { return m.device }

// Addr is the GPU's address of the memory.
func (m *Memory) Addr() uint64 { return m.alloc.Ptr() }

// Size is the size in bytes.
func (m *Memory) Size() uint64 { return m.alloc.Size() }

// Close frees the memory. Buffers that are pinned in it behave as after a program has freed
// its own memory. While another thread exports it, Close leaves that to the thread.
func (m *Memory) Close() error {
	m.mu.Lock()
	freed, exports := m.freed, m.exports
	m.freed = true
	m.mu.Unlock()
	if freed {
		return fmt.Errorf("the allocation is freed; use it before you free it: %w", ErrClosed)
	}
	m.device.memories.remove(m)
	if exports > 0 {
		return nil
	}
	return m.alloc.Free()
}

// Export exports the memory as a dma-buf. The caller closes the descriptor. flags is 0 or
// backend.PinForcePCIe. Errors: EINVAL (other flags), ENOTSUP (the GPU exports no dma-bufs),
// EMFILE.
func (m *Memory) Export(flags uint32) (fd int, err error) {
	if flags&^backend.PinForcePCIe != 0 {
		return -1, fmt.Errorf("export flags %#x; pass 0 or GDR_PIN_FLAG_FORCE_PCIE: %w", flags, unix.EINVAL)
	}
	m.mu.Lock()
	freed := m.freed
	if !freed {
		m.exports++
	}
	m.mu.Unlock()
	if freed {
		return -1, fmt.Errorf("the allocation is freed; use it before you free it: %w", ErrClosed)
	}
	defer m.exported()
	return m.alloc.Export(flags&backend.PinForcePCIe != 0)
}

// exported ends an export. It frees the memory if Close came meanwhile.
func (m *Memory) exported() {
	m.mu.Lock()
	m.exports--
	ends := m.freed && m.exports == 0
	m.mu.Unlock()
	if !ends {
		return
	}
	if err := m.alloc.Free(); err != nil {
		log.Warnf("the allocation at %#x, which was freed during its export, is not freed: %v", m.Addr(), err)
	}
}
