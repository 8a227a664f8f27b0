// Package handle has the handles of the C ABI, and the objects that they name. It turns a
// handle into its object, and has the object do what the C function says. It has no cgo.
//
// Handles name devices (gdr_t), buffers (gdr_mh_t), allocations (gdr_mem_t) and registration
// caches (gdr_cache_t). All of them come out of one table, so no two objects of any kind
// have the same one. An object is used through the gdr_t that made it, and through no other.
package handle

import (
	"errors"
	"fmt"

	"gdrapi/capi/cache"
	"gdrapi/core"
	"gdrapi/core/backend"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// Library is the state of the C ABI in one process. Its methods may be called from any
// goroutine.
type Library struct {
	table  *table
	caches *cache.Caches
}

// New makes a Library whose handles carry epoch, 1 to MaxEpoch. C finds their table by shared.
func New(epoch uint32, shared *Shared) (*Library, error) {
	t, err := newTable(epoch, shared)
	if err != nil {
		return nil, err
	}
	l := &Library{table: t}
	l.caches = cache.New(forCaches{l})
	return l, nil
}

// forCaches is a cache.Library.
type forCaches struct{ *Library }

func (forCaches) Zeros(size int) ([]byte, error) { return zeros(size, unix.PROT_READ|unix.PROT_WRITE) }

func (l forCaches) Show(b *core.Buffer) (uint64, error) {
	h, err := l.giveHandle(b)
	return uint64(h), err
}

func (l forCaches) Place(h uint64) *cache.Range { return &l.table.slots[Handle(h).index()].held }

// Open opens the backend that opts name, or else the first one that opens. When no backend
// opens, Open logs the reason of each.
func (l *Library) Open(opts core.Options) (Handle, error) {
	d, err := core.Open(opts)
	if reasons := (core.NoBackend{}); errors.As(err, &reasons) {
		for _, err := range reasons {
			log.Errorf("gdr_open: %v", err)
		}
		return 0, fmt.Errorf("no backend opens; see the line of each above: %w", unix.ENODEV)
	}
	if err != nil {
		return 0, err
	}
	h, err := l.table.alloc()
	if err != nil {
		_ = d.Close()
		return 0, err
	}
	l.table.put(h, d)
	return h, nil
}

// Device finds a device. Another thread may close it before Device returns.
func (l *Library) Device(g Handle) (*core.Device, error) {
	if d, ok := l.table.get(g).(*core.Device); ok {
		return d, nil
	}
	return nil, fmt.Errorf("no open gdr_t is %#x: %w", uint64(g), unix.EINVAL)
}

// deviceObject is an object that was made through a device.
type deviceObject interface{ Device() *core.Device }

// findObject finds an object that was made through g. what is its kind, as the error has it.
func findObject[T deviceObject](l *Library, g, h Handle, what string) (none T, err error) {
	d, err := l.Device(g)
	if err != nil {
		return none, err
	}
	if o, ok := l.table.get(h).(T); ok && o.Device() == d {
		return o, nil
	}
	return none, fmt.Errorf("no %s through this gdr_t has the handle %#x: %w", what, uint64(h), unix.EINVAL)
}

// Buffer finds a buffer that was pinned through g.
func (l *Library) Buffer(g, h Handle) (*core.Buffer, error) {
	return findObject[*core.Buffer](l, g, h, "buffer pinned")
}

// Memory finds an allocation that was made through g.
func (l *Library) Memory(g, h Handle) (*core.Memory, error) {
	return findObject[*core.Memory](l, g, h, "allocation made")
}

// endHandle ends a handle, and what C sees of its object. Of several calls one does it.
func (l *Library) endHandle(h Handle) {
	object := l.table.take(h)
	if object == nil {
		return
	}
	if c, ok := object.(*cache.Cache); ok {
		l.table.setCache(h, 0)
		_ = c.Close() // unless CacheClose has
	}
	l.table.release(h)
}

// add makes h, of the table, the handle of an object. Close of the device ends the handles
// that it finds, so the handle of an object that comes later is ended here.
func (l *Library) add(h Handle, object deviceObject) error {
	l.table.put(h, object)
	if object.Device().IsClosed() {
		l.endHandle(h)
		return fmt.Errorf("another thread has closed the gdr_t; close it after the last call: %w", core.ErrClosed)
	}
	return nil
}

// Close ends a device and all that was made through it, with the handles.
func (l *Library) Close(g Handle) error {
	d, err := l.Device(g)
	if err != nil {
		return err
	}
	if err = d.Close(); errors.Is(err, core.ErrClosed) {
		return err
	}
	for _, h := range l.table.handlesWhere(func(object any) bool {
		o, ok := object.(deviceObject)
		return ok && o.Device() == d
	}) {
		l.endHandle(h)
	}
	l.endHandle(g)
	return err
}

// Pin pins a buffer of GPU memory, as gdr_pin_buffer. Of a request for whole GPU pages no byte is
// certainly the caller's: UCX, libfabric and others round to pages before they call.
func (l *Library) Pin(g Handle, req backend.PinRequest) (Handle, error) {
	if req.Addr%gpuPage == 0 && req.Size%gpuPage == 0 {
		req.Skip = req.Size
	}
	return l.pin(g, func(d *core.Device) (*core.Buffer, error) { return d.Pin(req) })
}

// PinBytes pins the pages of size bytes that are the caller's own.
func (l *Library) PinBytes(g Handle, addr, size uint64, flags uint32) (Handle, error) {
	return l.pin(g, func(d *core.Device) (*core.Buffer, error) { return d.PinBytes(addr, size, flags) })
}

// PinFD pins what a descriptor of Buffer.Export has.
func (l *Library) PinFD(g Handle, fd int) (Handle, error) {
	return l.pin(g, func(d *core.Device) (*core.Buffer, error) { return d.PinFD(fd) })
}

func (l *Library) pin(g Handle, from func(*core.Device) (*core.Buffer, error)) (Handle, error) {
	d, err := l.Device(g)
	if err != nil {
		return 0, err
	}
	b, err := from(d)
	if err != nil {
		return 0, err
	}
	return l.giveHandle(b)
}

// giveHandle gives a new buffer its handle, or closes it.
func (l *Library) giveHandle(b *core.Buffer) (Handle, error) {
	h, err := l.table.alloc()
	if err != nil {
		_ = b.Close()
		return 0, err
	}
	l.table.put(h, b)
	if err := b.Show(view{l, h}); err != nil { // another thread has closed the device, and b by that
		l.endHandle(h)
		return 0, err
	}
	return h, nil
}

// view is a buffer's handle, by which C's copies find its mapping. It is a core.View.
type view struct {
	l *Library
	h Handle
}

func (v view) Mapped(va uintptr, n uint64, typ uint32) { v.l.table.publish(v.h, va, n, typ) }
func (v view) Unmapped()                               { v.l.table.retract(v.h) }
func (v view) Gone()                                   { v.l.endHandle(v.h) }

// Unpin frees a buffer, and its mapping first if there is one.
func (l *Library) Unpin(g, h Handle) error {
	b, err := l.Buffer(g, h)
	if err != nil {
		return err
	}
	return b.Close()
}

// Map gives the CPU a mapping of the first size bytes of a buffer. flags are of enum
// gdr_map_flags: a flag other than the default requests the mapping type of the same value.
func (l *Library) Map(g, h Handle, size uint64, flags int) (va uintptr, err error) {
	b, err := l.Buffer(g, h)
	if err != nil {
		return 0, err
	}
	m, err := b.Map(size, core.MappingType(flags))
	if err != nil {
		return 0, err
	}
	return m.VA(), nil
}

// gpuPage is GPU_PAGE_SIZE of gdrapi.h.
const gpuPage = 1 << 16

var hostPage = uint64(unix.Getpagesize())

// Unmap unmaps all of a mapping. As in the reference, the handle names the mapping. Some consumers pass another address in va;
// DPDK passes the GPU's. As there, size may be smaller than the mapping, or its size in
// whole pages of the GPU.
func (l *Library) Unmap(g, h Handle, va uintptr, size uint64) error {
	b, err := l.Buffer(g, h)
	if err != nil {
		return err
	}
	m, err := b.Mapping()
	if err != nil {
		return err
	}
	if most := (m.Mapped() + gpuPage - 1) &^ (gpuPage - 1); size == 0 || size > most {
		return fmt.Errorf("unmap of %d bytes: the mapping has %d: %w", size, m.Mapped(), unix.EINVAL)
	}
	if uint64(va)%hostPage != 0 {
		return fmt.Errorf("unmap at %#x, which is not on a host page; the mapping is at %#x: %w", va, m.VA(), unix.EINVAL)
	}
	if va != m.VA() {
		log.Warnf("gdr_unmap: the mapping of %#x is at %#x, not at %#x, and is unmapped anyway; pass the address that gdr_map gave", uint64(h), m.VA(), va)
	}
	return m.Close()
}

// make gives what do makes its handle.
func (l *Library) make(do func(h Handle) (deviceObject, error)) (Handle, error) {
	h, err := l.table.alloc()
	if err != nil {
		return 0, err
	}
	object, err := do(h)
	if err != nil {
		l.table.release(h)
		return 0, err
	}
	return h, l.add(h, object)
}

// MemAlloc allocates GPU memory that Pin accepts on any backend.
func (l *Library) MemAlloc(g Handle, device int, size uint64) (Handle, error) {
	d, err := l.Device(g)
	if err != nil {
		return 0, err
	}
	return l.make(func(Handle) (deviceObject, error) { return d.Alloc(device, size) })
}

// MemFree frees an allocation of MemAlloc.
func (l *Library) MemFree(g, h Handle) error {
	m, err := l.Memory(g, h)
	if err != nil {
		return err
	}
	err = m.Close()
	if !errors.Is(err, core.ErrClosed) {
		l.endHandle(h)
	}
	return err
}

// CacheOpen opens a cache. It keeps up to most bytes pinned that nobody holds.
func (l *Library) CacheOpen(g Handle, most uint64) (Handle, error) {
	d, err := l.Device(g)
	if err != nil {
		return 0, err
	}
	return l.make(func(h Handle) (deviceObject, error) {
		c, err := l.caches.Open(d, most, uint64(h))
		if err == nil {
			l.table.setCache(h, c.Address())
		}
		return c, err
	})
}

// Cache finds a cache.
func (l *Library) Cache(h Handle) (*cache.Cache, error) {
	if c, ok := l.table.get(h).(*cache.Cache); ok {
		return c, nil
	}
	return nil, fmt.Errorf("no open cache has the handle %#x; use a cache until it or its gdr_t is closed: %w", uint64(h), unix.EINVAL)
}

// CacheClose ends a cache and unpins all of it.
func (l *Library) CacheClose(h Handle) error {
	c, err := l.Cache(h)
	if err == nil {
		err = c.Close()
	}
	if err == nil {
		l.endHandle(h)
	}
	return err
}
