package core

import (
	"cmp"
	"fmt"
	"runtime/debug"
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
	pin    backend.Pin

	mu    sync.Mutex // not held in the host's mmap and munmap
	state state
	view  View // nil: nobody else copies; set once

	// Set where b is mapped, and read there. Else it belongs to the thread that has made b busy or ended.
	mapping *Mapping
}

// state is what a call finds of a buffer, and may refuse the call for.
type state int

const (
	pinned state = iota
	mapped
	busy  // a thread maps or unmaps it, which then makes it mapped or pinned
	ended // unpinned. Where that thread finds its buffer ended, it unpins it
)

// refusals of a call say why each state refuses it; nil: it does not.
type refusals [ended + 1]error

var (
	toAsk   = refusals{ended: errUnpinned} // also to show, to export, and to end
	toMap   = refusals{ended: errUnpinned, busy: errMapped, mapped: errMapped}
	toFind  = refusals{ended: errUnpinned, busy: errNotMapped, pinned: errNotMapped} // the mapping
	toUnmap = refusals{ended: errUnpinned, busy: errUnmapped, pinned: errUnmapped}
)

var (
	errMapped    = fmt.Errorf("map: the buffer is mapped already, or another thread maps or unmaps it; pin it again for a second mapping: %w", unix.EAGAIN)
	errNotMapped = fmt.Errorf("the buffer is not mapped: %w", unix.EINVAL)
	errUnmapped  = fmt.Errorf("the mapping is unmapped; use it before you unmap it: %w", ErrClosed)
	errUnpinned  = fmt.Errorf("the buffer is unpinned; use it before you unpin it: %w", ErrClosed)
)

// Pin pins GPU memory. The backend rounds the range to its pages. The memory may be of
// cudaMalloc, cuMemAlloc, VMM, a pool, or of Device.Alloc; not every backend takes each kind.
// On the caller's own bytes Pin sets CUDA's attribute SYNC_MEMOPS, if their memory has it.
// Errors: EINVAL (this is no GPU memory of this process), ENOTSUP (not on this backend),
// ENOMEM, EMFILE.
func (d *Device) Pin(req PinRequest) (*Buffer, error) {
	if err := checkPin(req); err != nil {
		return nil, err
	}
	if err := d.enter(); err != nil {
		return nil, err
	}
	req.Flags &= backend.PinForcePCIe // the reference ignores the other bits
	pin, err := d.session.Pin(req)
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
			return nil, cmp.Or(err, b.Close())
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
		b.state = ended
		return nil, cmp.Or(b.end(nil), err)
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
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.may(toAsk); err != nil {
		return err
	}
	b.view = v
	if b.state == mapped {
		b.show()
	}
	return nil
}

// may is an error where b's state refuses a call. The caller holds mu.
func (b *Buffer) may(call refusals) error { return call[b.state] }

// begin makes b busy or ended for a call, which is on the mapping m or on all of b (nil). It keeps new
// copies out, and waits for ReadAt and WriteAt, but for no copy of a View's.
func (b *Buffer) begin(call refusals, m *Mapping, next state) (was state, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was, err = b.state, b.may(call)
	if err == nil && m != nil && m != b.mapping {
		err = errUnmapped
	}
	if err != nil {
		return was, err
	}
	if was == mapped {
		if b.view != nil {
			b.view.Unmapped()
		}
		b.mapping.setEnded(true)
	}
	b.state = next
	if next == ended && b.view != nil {
		b.view.Gone()
	}
	return was, nil
}

// settle makes a busy buffer mapped or pinned. It reports whether another thread has ended b: then the
// caller unpins it.
func (b *Buffer) settle() (isEnded bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.state == ended:
		return true
	case b.mapping != nil:
		b.state = mapped
		b.show()
	default:
		b.state = pinned
	}
	return false
}

// show lets copies through b's mapping begin. The caller holds mu.
func (b *Buffer) show() {
	m := b.mapping
	m.setEnded(false)
	if b.view != nil {
		b.view.Mapped(m.va, m.mapped, uint32(m.typ))
	}
}

// Close ends the buffer's mapping, if there is one, and unpins the buffer. It waits for
// ReadAt and WriteAt. While another thread maps or unmaps the buffer, Close leaves the unpin to
// that thread. After an error the buffer is gone, too: a caller could do nothing with it. Where the
// mapping cannot be ended, the memory stays pinned.
func (b *Buffer) Close() error {
	was, err := b.begin(toAsk, nil, ended)
	if err != nil || was == busy {
		return err
	}
	return b.end(b.unmap())
}

// unmap ends the mapping, if there is one, of a buffer that is busy or ended. Where munmap fails the
// mapping stays.
func (b *Buffer) unmap() error {
	m := b.mapping
	if m == nil {
		return nil
	}
	if err := guard(func() error { return sys.Munmap(m.va, uintptr(m.mapped)) }); err != nil {
		return fmt.Errorf("munmap of %d bytes at %#x: %w", m.mapped, m.va, err)
	}
	b.mapping = nil
	mmio.Count(m.typ, -1)
	return guard(b.pin.Unmap)
}

// end unpins a buffer that is ended, once. err is that of its unmap.
func (b *Buffer) end(err error) error {
	b.device.buffers.remove(b)
	if b.mapping != nil {
		return fmt.Errorf("%#x stays pinned and mapped until the process ends: %w", b.addr, err)
	}
	log.Debugf("unpinned what was pinned at %#x", b.addr)
	err = cmp.Or(err, b.pin.Unpin())
	return cmp.Or(err, b.device.release())
}

// guard calls do, in which the host's mmap or munmap may run. A panic there is an error: no buffer is lost.
func guard(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Errorf("internal error, please report it: %v\n%s", p, debug.Stack())
			err = fmt.Errorf("a defect in this library, please report it: %v: %w", p, unix.EIO)
		}
	}()
	return do()
}

// Map gives the CPU a mapping of the first size bytes of the buffer, in whole pages of the
// host. A buffer has one mapping at a time. Errors: EINVAL (there are fewer bytes, or the
// buffer does not begin on a page of the backend's), EAGAIN (it is mapped, or another thread maps
// or unmaps it), ENOTSUP (no mapping of that type), ENOMEM, EIO.
func (b *Buffer) Map(size uint64, typ MappingType) (*Mapping, error) {
	if typ > backend.Device {
		return nil, fmt.Errorf("map: unknown flags %#x: %w", int32(typ), unix.EINVAL)
	}
	if _, err := b.begin(toMap, nil, busy); err != nil {
		return nil, err
	}
	m := &Mapping{buffer: b, size: size}
	err := guard(func() (err error) {
		if err = m.plan(); err == nil {
			m.va, m.typ, err = b.pin.Map(m.mapped, typ)
		}
		return err
	})
	if err == nil {
		mmio.Count(m.typ, +1)
		b.mapping = m
	}
	if b.settle() {
		return nil, cmp.Or(b.end(cmp.Or(err, b.unmap())), errUnpinned)
	}
	if err != nil {
		return nil, err
	}
	log.Debugf("mapped %d bytes of %#x at %#x, mapping type %d", m.mapped, b.addr, m.va, m.typ)
	return m, nil
}

// plan says what of the buffer m will map.
func (m *Mapping) plan() error {
	b := m.buffer
	info, err := b.pin.Info()
	if err != nil {
		return err
	}
	rounded, ok := roundToPage(m.size)
	limit, _ := roundToPage(info.MappedSize)
	if !ok || m.size == 0 || rounded > limit {
		return fmt.Errorf("map of %d bytes: the pinning allows 1 to %d: %w", m.size, limit, unix.EINVAL)
	}
	// A driver may say anything of its page, 0 too.
	if page := max(uint64(info.PageSize), hostPage); b.addr%page != 0 {
		return fmt.Errorf("cannot map %#x, which is not aligned to the backend's pages: pin from a multiple of %d bytes on: %w", b.addr, page, unix.EINVAL)
	}
	m.gpu, m.mapped = info.VA, rounded
	return nil
}

// Mapping is the buffer's mapping. Errors: EINVAL (it is not mapped).
func (b *Buffer) Mapping() (*Mapping, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.may(toFind); err != nil {
		return nil, err
	}
	return b.mapping, nil
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
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.may(toAsk); err != nil {
		return Info{}, err
	}
	i, err := b.pin.Info()
	info := Info{Info: i}
	if b.state == mapped {
		info.Mapped, info.Type = true, b.mapping.typ
	}
	return info, err
}

// Revoked is 1 once the driver has taken the buffer's pages back, as gdrdrv does with memory
// that is freed while it is pinned.
func (b *Buffer) Revoked() (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.may(toAsk); err != nil {
		return 0, err
	}
	return b.pin.CallbackFlag()
}
