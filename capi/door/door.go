// Package door is what the handles of the C ABI name. It turns each into its object, and
// has the object do what the C function says. It has no cgo.
//
// Handles name devices (gdr_t), buffers (gdr_mh_t), allocations (gdr_mem_t) and registration
// caches (gdr_cache_t). All of them come out of one table, so no two objects of any kind
// have the same one. An object is used through the gdr_t that made it, and through no other.
package door

import (
	"errors"
	"fmt"

	"gdrapi/capi/handle"
	"gdrapi/core"
	"gdrapi/core/backend"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// Handle names a device, a buffer, an allocation or a registration cache.
type Handle = handle.Handle

// Library is the state of the C ABI in one process. Its methods may be called from any
// goroutine.
type Library struct {
	table    *handle.Table
	devices  *handle.Objects[*core.Device]
	buffers  *handle.Objects[*core.Buffer]
	memories *handle.Objects[*core.Memory]
	caches   *handle.Objects[*cache]
	places   places
}

// New makes a Library whose handles carry epoch.
func New(epoch uint32) (*Library, error) {
	t, err := handle.New(epoch)
	if err != nil {
		return nil, err
	}
	return &Library{
		table:    t,
		devices:  handle.NewObjects[*core.Device](t),
		buffers:  handle.NewObjects[*core.Buffer](t),
		memories: handle.NewObjects[*core.Memory](t),
		caches:   handle.NewObjects[*cache](t),
	}, nil
}

// RegisterBarrier makes copies cheaper; see handle.Table.
func (l *Library) RegisterBarrier(register func() error) { l.table.RegisterBarrier(register) }

// TableAddr is the address of the handle table that the C copy routines read.
func (l *Library) TableAddr() uintptr { return l.table.Addr() }

// Open opens the backend that opts name, or else the first one that opens. When no backend
// opens, Open logs the reason of each.
func (l *Library) Open(opts core.Options) (Handle, error) {
	d, err := core.Open(opts)
	if reasons := core.NoBackend(err); reasons != nil {
		for _, err := range reasons {
			log.Errorf("gdr_open: %v", err)
		}
		return 0, fmt.Errorf("no backend opens; see the line of each above: %w", unix.ENODEV)
	}
	if err != nil {
		return 0, err
	}
	h, err := l.table.Alloc()
	if err != nil {
		_ = d.Close()
		return 0, err
	}
	l.devices.Put(h, d)
	return h, nil
}

// device finds a device. Another thread may close it before device returns.
func (l *Library) device(g Handle) (*core.Device, error) {
	if d, ok := l.devices.Get(g); ok {
		return d, nil
	}
	return nil, fmt.Errorf("no open gdr_t is %#x: %w", uint64(g), unix.EINVAL)
}

// of finds an object that was made through g. what is its kind, as the error has it.
func of[T interface{ Device() *core.Device }](l *Library, objects *handle.Objects[T], g, h Handle, what string) (none T, err error) {
	d, err := l.device(g)
	if err != nil {
		return none, err
	}
	if o, ok := objects.Get(h); ok && o.Device() == d {
		return o, nil
	}
	return none, fmt.Errorf("no %s through this gdr_t has the handle %#x: %w", what, uint64(h), unix.EINVAL)
}

func (l *Library) buffer(g, h Handle) (*core.Buffer, error) {
	return of(l, l.buffers, g, h, "buffer pinned")
}

func (l *Library) memory(g, h Handle) (*core.Memory, error) {
	return of(l, l.memories, g, h, "allocation made")
}

// Close ends a device and all that was made through it, with the handles. It returns
// core.ErrCopies while copies run through a mapping.
func (l *Library) Close(g Handle) error {
	d, err := l.device(g)
	if err != nil {
		return err
	}
	if err = d.Close(); err == core.ErrCopies || errors.Is(err, core.ErrClosed) {
		return err
	}
	// Buffers have ended their handles by themselves.
	for _, h := range l.memories.Those(func(m *core.Memory) bool { return m.Device() == d }) {
		l.memories.Remove(h)
	}
	for _, h := range l.caches.Those(func(c *cache) bool { return c.Device() == d }) {
		l.forget(h)
	}
	l.devices.Remove(g)
	return err
}

// Pin pins a buffer of GPU memory.
func (l *Library) Pin(g Handle, req backend.PinRequest) (Handle, error) {
	d, err := l.device(g)
	if err != nil {
		return 0, err
	}
	b, err := d.PinShown(req, l.gate)
	if err != nil {
		return 0, err
	}
	return handleOf(b.Gate()), nil
}

// gate gives a buffer its handle. It is called before the device can be closed: what Close
// unpins has a handle already.
func (l *Library) gate(b *core.Buffer) (core.Gate, error) {
	h, err := l.table.Alloc()
	if err != nil {
		return nil, err
	}
	l.buffers.Put(h, b)
	return l.buffers.Gate(h), nil
}

func handleOf(g core.Gate) Handle { return g.(*handle.Gate).Handle() }

// Unpin frees a buffer, and its mapping first if there is one. It returns core.ErrCopies
// while copies run through that.
func (l *Library) Unpin(g, h Handle) error {
	b, err := l.buffer(g, h)
	if err != nil {
		return err
	}
	return b.Close()
}

// Map gives the CPU a mapping of the first size bytes of a buffer. flags are of enum
// gdr_map_flags: a flag other than the default requests the mapping type of the same value.
func (l *Library) Map(g, h Handle, size uint64, flags int) (*core.Mapping, error) {
	b, err := l.buffer(g, h)
	if err != nil {
		return nil, err
	}
	return b.Map(size, core.MappingType(flags))
}

// gpuPage is GPU_PAGE_SIZE of gdrapi.h.
const gpuPage = 1 << 16

var hostPage = uint64(unix.Getpagesize())

// Unmap unmaps all of a mapping. It returns core.ErrCopies while copies run through it. As in
// the reference, the handle names the mapping. Some consumers pass another address in va;
// DPDK passes the GPU's. As there, size may be smaller than the mapping, or its size in
// whole pages of the GPU.
func (l *Library) Unmap(g, h Handle, va uintptr, size uint64) error {
	b, err := l.buffer(g, h)
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
		log.Warnf("gdr_unmap: the mapping of %#x is at %#x, not at %#x; it is taken down all the same", uint64(h), m.VA(), va)
	}
	return m.Close()
}

// Info describes a buffer.
func (l *Library) Info(g, h Handle) (core.Info, error) {
	b, err := l.buffer(g, h)
	if err != nil {
		return core.Info{}, err
	}
	return b.Info()
}

// CallbackFlag is 1 once the driver has revoked a buffer's pages.
func (l *Library) CallbackFlag(g, h Handle) (int, error) {
	b, err := l.buffer(g, h)
	if err != nil {
		return 0, err
	}
	return b.Revoked()
}

// Attribute answers an attribute of the open backend.
func (l *Library) Attribute(g Handle, a backend.Attr) (int, error) {
	d, err := l.device(g)
	if err != nil {
		return 0, err
	}
	return d.Attribute(a)
}

// DriverVersion is the version of gdrdrv. On other backends it is this library's.
func (l *Library) DriverVersion(g Handle) (major, minor int, err error) {
	d, err := l.device(g)
	if err != nil {
		return 0, 0, err
	}
	return d.Version()
}

// BackendName is the name of the backend that pins.
func (l *Library) BackendName(g Handle) (string, error) {
	d, err := l.device(g)
	if err != nil {
		return "", err
	}
	return d.Backend()
}

// MemAlloc allocates GPU memory that Pin accepts on any backend.
func (l *Library) MemAlloc(g Handle, device int, size uint64) (Handle, error) {
	d, err := l.device(g)
	if err != nil {
		return 0, err
	}
	h, err := l.table.Alloc()
	if err != nil {
		return 0, err
	}
	if _, err = d.AllocShown(device, size, func(m *core.Memory) { l.memories.Put(h, m) }); err != nil {
		l.table.Free(h)
		return 0, err
	}
	return h, nil
}

// MemFree frees an allocation of MemAlloc.
func (l *Library) MemFree(g, h Handle) error {
	m, err := l.memory(g, h)
	if err != nil {
		return err
	}
	err = m.Close()
	if !errors.Is(err, core.ErrClosed) {
		l.memories.Remove(h)
	}
	return err
}

// MemPtr is the device address and the size in bytes of an allocation.
func (l *Library) MemPtr(g, h Handle) (ptr, size uint64, err error) {
	m, err := l.memory(g, h)
	if err != nil {
		return 0, 0, err
	}
	return m.Addr(), m.Size(), nil
}

// MemExport exports an allocation as a dma-buf. The caller closes the descriptor.
func (l *Library) MemExport(g, h Handle, flags uint32) (fd int, err error) {
	m, err := l.memory(g, h)
	if err != nil {
		return -1, err
	}
	return m.Export(flags)
}

// cache is an open cache, and what C sees of it.
type cache struct {
	*core.Cache
	hits *hits
}

// CacheOpen opens a cache. It keeps up to most bytes pinned that nobody holds.
func (l *Library) CacheOpen(g Handle, most uint64) (Handle, error) {
	d, err := l.device(g)
	if err != nil {
		return 0, err
	}
	hits, err := l.newHits()
	if err != nil {
		return 0, err
	}
	if _, err = d.OpenShownCache(most, hits); err != nil {
		hits.end()
		return 0, err
	}
	return hits.h, nil
}

func (l *Library) cache(h Handle) (*cache, error) {
	if c, ok := l.caches.Get(h); ok {
		return c, nil
	}
	return nil, fmt.Errorf("no open cache has the handle %#x; gdr_close of its gdr_t ended it, or gdr_cache_close: %w", uint64(h), unix.EINVAL)
}

// forget ends the handle of a cache that is closed. It does so once.
func (l *Library) forget(h Handle) {
	if c, ok := l.caches.Forget(h); ok {
		c.hits.end()
	}
}

// Held is a range of a cache that the caller holds. C's gdr_cache_put ends the hold.
type Held struct {
	Handle  Handle
	VA      uintptr       // the CPU's address of the byte asked for
	Mapping *core.Mapping // where the range lies; nil: it did before
}

// CacheGet holds a range of a cache that has the size bytes at addr. now is the time on
// the clock by which C dates hits.
func (l *Library) CacheGet(h Handle, addr, size, now uint64) (Held, error) {
	c, err := l.cache(h)
	if err != nil {
		return Held{}, err
	}
	r, isNew, err := c.Hold(addr, size, now)
	if err != nil {
		return Held{}, err
	}
	held := Held{Handle: handleOf(r.Gate()), VA: r.VA()}
	if isNew {
		held.Mapping = r.Mapping()
	}
	return held, nil
}

// CacheSettle unpins the ranges that a put has left to unpin.
func (l *Library) CacheSettle(h Handle) error {
	c, err := l.cache(h)
	if err != nil {
		return err
	}
	return c.Settle()
}

// CacheFlush unpins all ranges that nobody holds.
func (l *Library) CacheFlush(h Handle) error {
	c, err := l.cache(h)
	if err != nil {
		return err
	}
	return c.Flush()
}

// CacheClose ends a cache and unpins all of it.
func (l *Library) CacheClose(h Handle) error {
	c, err := l.cache(h)
	if err != nil {
		return err
	}
	if err = c.Close(); err == nil {
		l.forget(h)
	}
	return err
}
