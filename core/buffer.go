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
// other fields may be 0: then all the bytes are the caller's own. Other threads must not free
// memory of those during the pin. If the request only fills pages with the first or the last
// bytes, Skip and Tail are their numbers.
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

	pin backend.Pin

	// A thread that calls the host's mmap or munmap does not hold mu: b is busy meanwhile.
	mu      sync.Mutex
	busy    bool     // a thread maps or unmaps b. Where b is gone, that thread unpins it then
	gone    bool     // unpinned
	mapping *Mapping // nil: not mapped
	view    View     // nil: nobody else copies; set once
}

// Pin pins GPU memory. The backend rounds the range to its pages. The memory may be of
// cudaMalloc, cuMemAlloc, VMM, a pool, or of Device.Alloc; not every backend takes each kind.
// On the caller's own bytes Pin sets CUDA's attribute SYNC_MEMOPS, if their memory has it.
// Errors: EINVAL (this is no GPU memory of this process), ENOTSUP (not on this backend),
// ENOMEM, EMFILE.
func (d *Device) Pin(req PinRequest) (*Buffer, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	err := checkPin(req)
	var pin backend.Pin
	if err == nil {
		req.Flags &= backend.PinForcePCIe // the reference ignores the other bits
		pin, err = d.session.Pin(req)
	}
	if err != nil {
		d.leave()
		return nil, err
	}
	log.Debugf("pinned %d bytes at %#x", req.Size, req.Addr)
	return d.addBuffer(pin, req.Addr)
}

// PinBytes pins the pages of the n bytes of GPU memory at addr, so that they can be mapped: the
// buffer begins on the backend's page below addr. All n bytes are the caller's own; what else lies
// on the pages need not be. flags are 0 or backend.PinForcePCIe. Errors: those of Pin.
func (d *Device) PinBytes(addr, n uint64, flags uint32) (*Buffer, error) {
	if err := checkPin(PinRequest{Addr: addr, Size: n}); err != nil {
		return nil, err
	}
	for {
		page := d.PageSize()
		skip := addr % page
		b, err := d.Pin(PinRequest{Addr: addr - skip, Size: skip + n, Skip: skip, Flags: flags})
		if err != nil {
			return nil, err
		}
		i, err := b.Info()
		if err != nil {
			return nil, first(err, b.Close())
		}
		needs := uint64(i.PageSize)
		if needs <= page {
			return b, nil
		}
		d.page.Store(needs)
		if b.addr%needs == 0 {
			return b, nil
		}
		if err := b.Close(); err != nil {
			return nil, err
		}
	}
}

// addBuffer makes the buffer of a pin, which takes over the caller's use of the session.
func (d *Device) addBuffer(pin backend.Pin, addr uint64) (*Buffer, error) {
	b := &Buffer{device: d, pin: pin, addr: addr}
	if err := d.unlessClosed(func() { d.buffers.add(b) }); err != nil {
		b.gone = true
		return nil, first(b.end(nil), err)
	}
	return b, nil
}

func checkPin(req PinRequest) error {
	switch {
	case req.Addr == 0 || req.Size == 0:
		return fmt.Errorf("pin of %d bytes at %#x: neither may be 0: %w", req.Size, req.Addr, unix.EINVAL)
	case req.Skip > req.Size || req.Tail > req.Size-req.Skip:
		return fmt.Errorf("pin of %d bytes at %#x: the first %d and the last %d are more than that: %w", req.Size, req.Addr, req.Skip, req.Tail, unix.EINVAL)
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
	defer b.mu.Unlock()
	b.view = v
	if b.mapping != nil {
		b.show()
	}
	return nil
}

// lock begins a call on a buffer that is pinned.
func (b *Buffer) lock() error {
	b.mu.Lock()
	if b.gone {
		b.mu.Unlock()
		return errUnpinned()
	}
	return nil
}

func errUnpinned() error { return fmt.Errorf("the buffer is unpinned; use its handle only before: %w", ErrClosed) }

// outside calls do, which maps or unmaps b, without the lock. The caller has locked b. A panic of do's
// is an error: b is what it was before.
func (b *Buffer) outside(do func() error) (err error) {
	b.busy = true
	b.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a defect in this library, please report it: %v: %w", p, unix.EIO)
		}
		b.mu.Lock()
		b.busy = false
	}()
	return do()
}

// Close ends the buffer's mapping, if there is one, and unpins the buffer. It waits for
// ReadAt and WriteAt. While another thread maps or unmaps the buffer, Close leaves the unpin to
// that thread. After an error the buffer is gone, too.
func (b *Buffer) Close() error {
	if err := b.lock(); err != nil {
		return err
	}
	return b.unpin()
}

// unpin unpins b and unlocks it. The caller has locked b, and b is not gone. b is gone even when
// the driver fails, because a caller could do nothing with it. Where the mapping cannot be ended,
// the memory stays pinned.
func (b *Buffer) unpin() error {
	if b.mapping != nil {
		b.hide()
	}
	b.gone = true
	if b.view != nil {
		b.view.Gone()
	}
	if b.mapping != nil {
		return b.munmap()
	}
	return b.done(nil)
}

// done ends a call that may have made b gone, or found it so, with its error. It unlocks b.
func (b *Buffer) done(err error) error {
	ends := b.gone && !b.busy
	b.mu.Unlock()
	if ends {
		return b.end(err)
	}
	return err
}

// end unpins a buffer that is gone, once. err is that of its munmap.
func (b *Buffer) end(err error) error {
	b.device.buffers.remove(b)
	if b.mapping != nil {
		return fmt.Errorf("%#x stays pinned and mapped until the process ends: %w", b.addr, err)
	}
	log.Debugf("unpinned what was pinned at %#x", b.addr)
	err = first(err, b.pin.Unpin())
	return first(err, b.device.release())
}

// Map gives the CPU a mapping of the first size bytes of the buffer, in whole pages of the
// host. A buffer has one mapping at a time. Errors: EINVAL (there are fewer bytes, or the
// buffer does not begin on a page of the backend's), EAGAIN (it is mapped, or another thread maps
// or unmaps it), ENOTSUP (no mapping of that type), ENOMEM, EIO.
func (b *Buffer) Map(size uint64, typ MappingType) (*Mapping, error) {
	if err := b.lock(); err != nil {
		return nil, err
	}
	m, err := b.checkMap(size, typ)
	if err == nil {
		err = b.outside(func() (err error) {
			m.va, m.typ, err = b.pin.Map(m.mapped, typ)
			return err
		})
	}
	if err != nil {
		return nil, b.done(err)
	}
	b.mapping = m
	mmio.Count(m.typ, +1)
	if b.gone {
		return nil, first(b.munmap(), errUnpinned())
	}
	b.show()
	log.Debugf("mapped %d bytes of %#x at %#x, mapping type %d", m.mapped, b.addr, m.va, m.typ)
	return m, b.done(nil)
}

// checkMap describes a mapping that b may get.
func (b *Buffer) checkMap(size uint64, typ MappingType) (*Mapping, error) {
	if typ > backend.Device {
		return nil, fmt.Errorf("map: unknown flags %#x: %w", int32(typ), unix.EINVAL)
	}
	if b.mapping != nil || b.busy {
		return nil, fmt.Errorf("map: the buffer is mapped already, or another thread maps or unmaps it; pin it again for a second mapping: %w", unix.EAGAIN)
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
	return &Mapping{buffer: b, gpu: info.VA, mapped: rounded, size: size}, nil
}

// Mapping is the buffer's mapping. Errors: EINVAL (it is not mapped).
func (b *Buffer) Mapping() (*Mapping, error) {
	if err := b.lock(); err != nil {
		return nil, err
	}
	defer b.mu.Unlock()
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

// unmap ends b's mapping and unlocks b. The caller has locked b, and b is mapped.
func (b *Buffer) unmap() error {
	b.hide()
	return b.munmap()
}

// munmap is unmap of a mapping that is hidden. The mapping stays where munmap fails.
func (b *Buffer) munmap() error {
	m := b.mapping
	b.mapping = nil
	err := b.outside(func() error { return sys.Munmap(m.va, uintptr(m.mapped)) })
	if err == nil {
		mmio.Count(m.typ, -1)
		return b.done(b.pin.Unmap())
	}
	b.mapping = m
	if !b.gone {
		b.show()
	}
	return b.done(fmt.Errorf("munmap of %d bytes at %#x: %w", m.mapped, m.va, err))
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
	defer b.mu.Unlock()
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
	defer b.mu.Unlock()
	return b.pin.CallbackFlag()
}
