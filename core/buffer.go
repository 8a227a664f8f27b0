package core

import (
	"fmt"
	"sync"

	"gdrapi/core/backend"
	"gdrapi/core/internal/mmio"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// PinRequest says what to pin: Size bytes of GPU memory from Addr on, with any alignment. The
// other fields may be 0. Skip is a number of bytes at Addr that are not to be accessed.
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

// View shows a buffer's mapping to others than this package, who copy through it by
// themselves. Its methods are called one at a time.
type View interface {
	// Mapped shows the n bytes mapped at va. typ is a MappingType.
	Mapped(va uintptr, n uint64, typ uint32)
	// Unmapped ends what Mapped began.
	Unmapped()
	// Gone is the last call: the buffer is unpinned.
	Gone()
}

// Buffer is pinned GPU memory.
type Buffer struct {
	device *Device
	addr   uint64 // that the caller pinned

	mu      sync.Mutex // serialises the calls on pin
	pin     backend.Pin
	gone    bool     // unpinned
	mapping *Mapping // nil: not mapped
	view    View     // nil: nobody else copies; set once
}

// Pin pins GPU memory. The backend rounds the range to its pages. The memory may be of
// cudaMalloc, cuMemAlloc, VMM, a pool, or of Device.Alloc; not every backend takes each kind.
// Errors: EINVAL (this is no GPU memory of this process), ENOTSUP (not on this backend),
// ENOMEM, EMFILE.
func (d *Device) Pin(req PinRequest) (*Buffer, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
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
	log.Debugf("pinned %d bytes at %#x", req.Size, req.Addr)
	return b, nil
}

func checkPin(req PinRequest) error {
	switch {
	case req.Addr == 0 || req.Size == 0:
		return fmt.Errorf("pin of %d bytes at %#x: neither may be 0: %w", req.Size, req.Addr, unix.EINVAL)
	case req.Skip >= req.Size:
		return fmt.Errorf("pin of %d bytes at %#x: skip fewer than that, not %d: %w", req.Size, req.Addr, req.Skip, unix.EINVAL)
	case req.Addr+req.Size < req.Addr:
		return fmt.Errorf("pin of %d bytes at %#x: the range wraps: %w", req.Size, req.Addr, unix.EINVAL)
	}
	return nil
}

// Device is the device that has pinned the buffer. It works after Close, too.
func (b *Buffer) Device() *Device { return b.device }

// Show tells v of the buffer's mapping, now and later. It is called once.
func (b *Buffer) Show(v View) error {
	if err := b.lock(); err != nil {
		return err
	}
	defer b.unlock()
	b.view = v
	if b.mapping != nil {
		b.show()
	}
	return nil
}

// lock begins a call on a buffer that is pinned.
func (b *Buffer) lock() error {
	if err := b.device.enter(); err != nil {
		return err
	}
	b.mu.Lock()
	if b.gone {
		b.unlock()
		return fmt.Errorf("the buffer is unpinned: %w", ErrClosed)
	}
	return nil
}

func (b *Buffer) unlock() {
	b.mu.Unlock()
	b.device.leave()
}

// Close ends the buffer's mapping, if there is one, and unpins the buffer. It waits for
// ReadAt and WriteAt. After an error the buffer is gone, too.
func (b *Buffer) Close() error {
	if err := b.lock(); err != nil {
		return err
	}
	defer b.unlock()
	return b.unpin()
}

// unpin unpins b. The caller has locked b, and b is not gone. b is gone even when the driver
// fails, because a caller could do nothing with it. Where the mapping cannot be ended, the memory
// stays pinned.
func (b *Buffer) unpin() error {
	var err error
	if b.mapping != nil {
		err = b.unmap()
	}
	b.gone = true
	if b.mapping == nil {
		err = first(err, b.pin.Unpin())
	} else {
		b.hide()
		b.device.left.Store(true)
		err = fmt.Errorf("%#x stays pinned and mapped until the process ends: %w", b.addr, err)
	}
	b.device.buffers.remove(b)
	if b.view != nil {
		b.view.Gone()
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
	va, got, err := b.pin.Map(rounded, typ)
	if err != nil {
		return nil, err
	}
	b.mapping = &Mapping{buffer: b, va: va, gpu: info.VA, mapped: rounded, size: size, typ: got}
	mmio.Count(got, +1)
	b.show()
	log.Debugf("mapped %d bytes of %#x at %#x, mapping type %d", rounded, b.addr, va, got)
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

// show lets copies through b's mapping begin. The caller has locked b, and b is mapped.
func (b *Buffer) show() {
	m := b.mapping
	m.setEnded(false)
	if b.view != nil {
		b.view.Mapped(m.va, m.mapped, uint32(m.typ))
	}
}

// hide keeps them out. It waits for ReadAt and WriteAt, and for no copy of a View's.
func (b *Buffer) hide() {
	if b.view != nil {
		b.view.Unmapped()
	}
	b.mapping.setEnded(true)
}

// unmap ends b's mapping, which stays where munmap fails. The caller has locked b, and b is
// mapped.
func (b *Buffer) unmap() error {
	m := b.mapping
	b.hide()
	if err := sys.Munmap(m.va, uintptr(m.mapped)); err != nil {
		b.show()
		return fmt.Errorf("munmap of %d bytes at %#x: %w", m.mapped, m.va, err)
	}
	mmio.Count(m.typ, -1)
	b.mapping = nil
	return b.pin.Unmap()
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
