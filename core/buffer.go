package core

import (
	"errors"
	"fmt"
	"sync"

	"gdrapi/core/backend"
	"gdrapi/core/internal/mmio"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// PinRequest says what to pin. Addr is an address of GPU memory, Size is in bytes. The other
// fields may be 0. Skip is a number of bytes at Addr that are not to be accessed.
type PinRequest = backend.PinRequest

// MappingType is the memory type of a mapping.
type MappingType = backend.MappingType

// The types of mappings. With AnyType the backend chooses.
const (
	AnyType       = backend.None
	WriteCombined = backend.WC
	Cached        = backend.Caching
	DeviceMemory  = backend.Device
)

// Gate stands before a mapping through which others than this package copy. Its methods are
// called one at a time.
type Gate interface {
	// Open lets copies begin through the n bytes mapped at va. typ is a MappingType.
	Open(va uintptr, n uint64, typ uint32)
	// Shut keeps new copies out. It returns false while copies run. It is called again
	// then, and may be called again after that.
	Shut() bool
	// Gone is the last call: the buffer is unpinned.
	Gone()
}

// ErrCopies is what a call that ends mappings returns while a Gate's copies run through one.
// The caller makes the call again. Meanwhile no new copy begins. A program that uses this
// package alone does not meet it: Close waits for ReadAt and WriteAt.
var ErrCopies = errors.New("copies still run through the mapping")

// Buffer is pinned GPU memory.
type Buffer struct {
	device *Device
	addr   uint64 // that the caller pinned

	mu      sync.Mutex // serialises the calls on pin
	pin     backend.Pin
	gone    bool     // unpinned
	mapping *Mapping // nil: not mapped
	gate    Gate     // nil: nobody else copies; set once
}

// Pin pins GPU memory. It takes whole pages of the backend's. The memory may be of
// cudaMalloc, cuMemAlloc, VMM, a pool, or of Device.Alloc; not every backend takes each kind.
// Errors: EINVAL (this is no GPU memory of this process), ENOTSUP (not on this backend),
// ENOMEM, EMFILE.
func (d *Device) Pin(req PinRequest) (*Buffer, error) {
	return d.PinShown(req, noHits{}.Gate)
}

// PinShown is Pin of a buffer through whose mappings others copy, too. gate makes the buffer's
// Gate. Close of the device waits for it.
func (d *Device) PinShown(req PinRequest, gate func(*Buffer) (Gate, error)) (*Buffer, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	b, err := d.pin(req, gate)
	if err != nil {
		return nil, err
	}
	b.mu.Unlock()
	return b, nil
}

// pin is PinShown in a device that is entered. The buffer is locked.
func (d *Device) pin(req PinRequest, gate func(*Buffer) (Gate, error)) (*Buffer, error) {
	if err := checkPin(req); err != nil {
		return nil, err
	}
	req.Flags &= backend.PinForcePCIe // the reference ignores the other bits
	pin, err := d.session.Pin(req)
	if err != nil {
		return nil, err
	}
	b := &Buffer{device: d, pin: pin, addr: req.Addr}
	d.buffers.add(b)
	b.mu.Lock()
	if b.gate, err = gate(b); err != nil {
		defer b.mu.Unlock()
		return nil, first(err, b.unpin())
	}
	log.Debugf("pinned %d bytes at %#x", req.Size, req.Addr)
	return b, nil
}

func checkPin(req PinRequest) error {
	switch {
	case req.Addr == 0 || req.Size == 0:
		return fmt.Errorf("pin of %d bytes at %#x: neither may be 0: %w", req.Size, req.Addr, unix.EINVAL)
	case req.Skip >= req.Size:
		return fmt.Errorf("pin of %d bytes at %#x: %d of them may not be skipped: %w", req.Size, req.Addr, req.Skip, unix.EINVAL)
	case req.Addr+req.Size < req.Addr:
		return fmt.Errorf("pin of %d bytes at %#x: the range wraps: %w", req.Size, req.Addr, unix.EINVAL)
	}
	return nil
}

// Device is the device that has pinned the buffer.
func (b *Buffer) Device() *Device { return b.device }

// Gate is what others copy through the buffer's mappings by; nil: nobody does.
func (b *Buffer) Gate() Gate { return b.gate }

// lock begins a call on a buffer that is pinned.
func (b *Buffer) lock() error {
	if err := b.device.enter(); err != nil {
		return err
	}
	if err := b.hold(); err != nil {
		b.device.leave()
		return err
	}
	return nil
}

func (b *Buffer) unlock() {
	b.mu.Unlock()
	b.device.leave()
}

// hold is lock in a device that is entered. It takes mu.
func (b *Buffer) hold() error {
	b.mu.Lock()
	if b.gone {
		b.mu.Unlock()
		return fmt.Errorf("the buffer is unpinned: %w", ErrClosed)
	}
	return nil
}

// Close ends the buffer's mapping, if there is one, and unpins the buffer. It waits for
// ReadAt and WriteAt. After an error of the driver's the buffer is gone, too.
func (b *Buffer) Close() error {
	if err := b.device.enter(); err != nil {
		return err
	}
	defer b.device.leave()
	return b.end()
}

// end is Close in a device that is entered.
func (b *Buffer) end() error {
	if err := b.hold(); err != nil {
		return err
	}
	defer b.mu.Unlock()
	return b.unpin()
}

// unpin unpins b. The caller has locked b, and b is not gone; Device.Close calls unpin after
// the last call on the device has left. b is gone even when the driver fails, because a
// caller could do nothing with it.
func (b *Buffer) unpin() error {
	var err error
	if b.mapping != nil {
		if err = b.unmap(); err == ErrCopies {
			return err
		}
	}
	b.gone = true
	err = first(err, b.pin.Unpin())
	b.device.buffers.remove(b)
	if b.gate != nil {
		b.gate.Gone()
	}
	log.Debugf("unpinned what was pinned at %#x", b.addr)
	return err
}

// Map gives the CPU a mapping of the first size bytes of the buffer, in whole pages of the
// host. A buffer has one mapping at a time. Errors: EINVAL (there are fewer bytes, or the
// buffer does not begin on a page of the backend's), EAGAIN (it is mapped), ENOTSUP (no
// mapping of that type), ENOMEM, EIO.
func (b *Buffer) Map(size uint64, typ MappingType) (*Mapping, error) {
	if err := b.lock(); err != nil {
		return nil, err
	}
	defer b.unlock()
	return b.mapLocked(size, typ)
}

func (b *Buffer) mapLocked(size uint64, typ MappingType) (*Mapping, error) {
	if typ > backend.Device {
		return nil, fmt.Errorf("map: unknown flags %#x: %w", int32(typ), unix.EINVAL)
	}
	if b.mapping != nil {
		return nil, fmt.Errorf("map: the buffer is mapped already; pin it again for a second mapping: %w", unix.EAGAIN)
	}
	info, err := b.pin.Info()
	if err != nil {
		return nil, err
	}
	rounded, ok := roundToPage(size)
	limit, _ := roundToPage(info.MappedSize)
	if !ok || size == 0 || rounded > limit {
		return nil, fmt.Errorf("map of %d bytes: the pinning allows 1 to %d: %w", size, limit, unix.EINVAL)
	}
	// A driver may say anything of its page, 0 too.
	if page := max(uint64(info.PageSize), hostPage); b.addr%page != 0 {
		return nil, fmt.Errorf("cannot map %#x, which is not aligned to the backend's pages: pin from a multiple of %d bytes on: %w", b.addr, page, unix.EINVAL)
	}
	va, typ, err := b.pin.Map(rounded, typ)
	if err != nil {
		return nil, err
	}
	b.mapping = &Mapping{buffer: b, va: va, gpu: info.VA, mapped: rounded, size: size, typ: typ}
	mmio.Count(typ, +1)
	if b.gate != nil {
		b.gate.Open(va, rounded, uint32(typ))
	}
	log.Debugf("mapped %d bytes of %#x at %#x, mapping type %d", rounded, b.addr, va, typ)
	return b.mapping, nil
}

// Mapping is the buffer's mapping. Errors: EINVAL (it is not mapped).
func (b *Buffer) Mapping() (*Mapping, error) {
	if err := b.lock(); err != nil {
		return nil, err
	}
	defer b.unlock()
	if b.mapping == nil {
		return nil, fmt.Errorf("the buffer is not mapped: %w", unix.EINVAL)
	}
	return b.mapping, nil
}

// unmap unmaps b, once no copy runs through it. The caller has locked b, and b is mapped.
func (b *Buffer) unmap() error {
	if !b.retract() {
		return ErrCopies
	}
	mmio.Count(b.mapping.typ, -1)
	b.mapping = nil
	return b.pin.Unmap()
}

// retract keeps new copies out of b's mapping. It returns false while copies run through
// it.
func (b *Buffer) retract() bool {
	b.mapping.end()
	return b.gate == nil || b.gate.Shut()
}

// retractAll begins to end all mappings. It returns false while copies run through one.
func retractAll(buffers []*Buffer) bool {
	done := true
	for _, b := range buffers {
		b.mu.Lock()
		if b.mapping != nil {
			done = b.retract() && done
		}
		b.mu.Unlock()
	}
	return done
}

var hostPage = uint64(unix.Getpagesize())

// roundToPage rounds up to host pages. It reports false where the sum wraps.
func roundToPage(n uint64) (uint64, bool) {
	r := (n + hostPage - 1) &^ (hostPage - 1)
	return r, r >= n
}

// Info describes a buffer.
type Info struct {
	backend.Info
	Mapped bool
	Type   MappingType
}

// Info describes the buffer.
func (b *Buffer) Info() (Info, error) {
	if err := b.lock(); err != nil {
		return Info{}, err
	}
	defer b.unlock()
	i, err := b.pin.Info()
	info := Info{Info: i}
	if b.mapping != nil {
		info.Mapped, info.Type = true, b.mapping.typ
	}
	return info, err
}

// Revoked is 1 once the driver has taken the buffer's pages back, as gdrdrv does with memory
// that is freed while it is pinned.
func (b *Buffer) Revoked() (int, error) {
	if err := b.lock(); err != nil {
		return 0, err
	}
	defer b.unlock()
	return b.pin.CallbackFlag()
}
