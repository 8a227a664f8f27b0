// Package core is the control plane of libgdrapi. It does what the functions of the C
// ABI do, except for the copies. It has no cgo.
//
// A Library is the state of one process. Handles name contexts (gdr_t), pinned buffers
// (gdr_mh_t), allocations (gdr_mem_t) and registration caches (gdr_cache_t). All
// handles come out of one table, so no two objects of any kind have the same one.
package core

import (
	"fmt"
	"sync"

	"gdrapi/core/backend"
	"gdrapi/core/cache"
	"gdrapi/core/cuda"
	"gdrapi/core/dl"
	"gdrapi/core/handle"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// Handle names a context, a pinned buffer, an allocation or a registration cache.
type Handle = handle.Handle

// Map flags. The values are those of enum gdr_map_flags. A flag other than the default
// requests the mapping type of the same value.
const (
	mapFlagDefault = 0
	mapFlagMax     = int(backend.Device)
)

// Library is the state of the C ABI in one process. Its methods may be called from any
// goroutine.
type Library struct {
	table *handle.Table

	mu       sync.RWMutex // guards the maps, not what they name
	contexts map[Handle]*context
	buffers  map[Handle]*buffer
	memories map[Handle]*memory
	caches   map[Handle]*openCache

	cacheSet cache.Set
}

// context is one gdr_open.
type context struct {
	session backend.Session
	backend string // its name

	// Every call on the context holds mu for reading. Close holds it for writing. So
	// nothing new appears once Close has begun.
	mu     sync.RWMutex
	closed bool
	ended  bool // a Close has begun to end what was made through it
}

// buffer is one pinned buffer.
type buffer struct {
	owner *context

	mu   sync.Mutex // serialises the calls on pin
	pin  backend.Pin
	addr uint64 // that the caller pinned
	gone bool   // unpinned; its handle is out of the maps or about to be

	va     uintptr // of the mapping; 0: not mapped
	mapped uint64  // bytes, a multiple of the host page
	typ    backend.MappingType
	drain  *handle.Drain // not nil: the mapping shall go when its copies have ended
}

// memory is one gdr_mem_alloc.
type memory struct {
	owner *context
	alloc *cuda.Allocation
}

// UseMemory sets the functions of the host that make and end mappings. It must be
// called before the first mapping.
func UseMemory(mmap func(addr, size uintptr, prot, flags, fd int, offset uint64) (uintptr, error), munmap func(va, size uintptr) error) {
	sys.UseMemory(sys.Memory{Mmap: mmap, Munmap: munmap})
}

// UseLoader sets how the CUDA driver is loaded, and what says whether this process can
// load a library. It must be called before the first open.
func UseLoader(driver cuda.Loader, usable func() bool) {
	cuda.UseLoader(driver)
	dl.Usable = usable
}

// New makes a Library whose handles carry epoch.
func New(epoch uint32) (*Library, error) {
	t, err := handle.New(epoch)
	if err != nil {
		return nil, err
	}
	return &Library{
		table:    t,
		contexts: map[Handle]*context{},
		buffers:  map[Handle]*buffer{},
		memories: map[Handle]*memory{},
		caches:   map[Handle]*openCache{},
	}, nil
}

// TableAddr is the address of the handle table that the C copy routines read.
func (l *Library) TableAddr() uintptr { return l.table.Addr() }

// Open opens the backend that opts name, or else the first one that opens.
func (l *Library) Open(opts Options) (Handle, error) {
	candidates, err := choose(opts)
	if err != nil {
		return 0, err
	}
	session, name, err := openFirst(candidates)
	if err != nil {
		return 0, err
	}
	h, err := l.table.Alloc()
	if err != nil {
		_ = session.Close()
		return 0, err
	}
	l.mu.Lock()
	l.contexts[h] = &context{session: session, backend: name}
	l.mu.Unlock()
	return h, nil
}

// openFirst opens the first candidate that opens. Where that one cannot know before a
// pin whether it can pin, the next one that opens stands by. When no candidate opens,
// openFirst logs the reason of each.
func openFirst(candidates []backend.Backend) (_ backend.Session, name string, err error) {
	var reasons []error
	var undecided *fallback
	for _, b := range candidates {
		session, err := b.Open()
		if err != nil {
			reasons = append(reasons, fmt.Errorf("the %s backend does not open: %w", b.Name(), err))
			continue
		}
		if undecided != nil {
			log.Infof("gdr_open: the first pin decides between the %s and the %s backend", undecided.name, b.Name())
			undecided.standby, undecided.standbyName = session, b.Name()
			return undecided, undecided.name + "|" + b.Name(), nil
		}
		if u, ok := session.(backend.Undecided); ok && u.Undecided() && len(candidates) > 1 {
			undecided = &fallback{first: u, name: b.Name()}
			continue
		}
		log.Infof("gdr_open: using the %s backend", b.Name())
		return session, b.Name(), nil
	}
	if undecided != nil {
		// A pin may find that this one does not serve.
		for _, err := range reasons {
			log.Infof("gdr_open: %v", err)
		}
		log.Infof("gdr_open: using the %s backend", undecided.name)
		return undecided.first, undecided.name, nil
	}
	for _, err := range reasons {
		log.Errorf("gdr_open: %v", err)
	}
	return nil, "", fmt.Errorf("no backend opens; see the line of each above: %w", unix.ENODEV)
}

// find finds a context. Another thread may close it before find returns.
func (l *Library) find(g Handle) (*context, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if c := l.contexts[g]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("no open gdr_t is %#x: %w", uint64(g), unix.EINVAL)
}

func closedError(g Handle) error {
	return fmt.Errorf("gdr_t %#x is closed: %w", uint64(g), unix.EINVAL)
}

// enter finds a context. Close of it then waits until leave is called.
func (l *Library) enter(g Handle) (*context, error) {
	c, err := l.find(g)
	if err != nil {
		return nil, err
	}
	c.mu.RLock()
	if c.closed {
		c.mu.RUnlock()
		return nil, closedError(g)
	}
	return c, nil
}

func (c *context) leave() { c.mu.RUnlock() }

// acquire finds a pinned buffer of c and locks it; release unlocks it.
func (l *Library) acquire(c *context, h Handle) (*buffer, error) {
	l.mu.RLock()
	b := l.buffers[h]
	l.mu.RUnlock()
	if b == nil || b.owner != c {
		return nil, fmt.Errorf("no buffer pinned through this gdr_t has the handle %#x: %w", uint64(h), unix.EINVAL)
	}
	b.mu.Lock()
	if b.gone {
		b.mu.Unlock()
		return nil, fmt.Errorf("handle %#x is unpinned: %w", uint64(h), unix.EINVAL)
	}
	return b, nil
}

func (b *buffer) release() { b.mu.Unlock() }

// ErrCopies is what a call that ends mappings returns while copies run through one. The
// caller makes the call again. Meanwhile no new copy begins.
var ErrCopies = handle.ErrCopies

// Close ends a context and all its mappings, pinnings, allocations and caches. When a step
// fails, Close goes on. It returns the first error. ErrCopies comes before it has ended
// anything. Of several Closes one succeeds.
func (l *Library) Close(g Handle) error {
	c, err := l.find(g)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()

	l.abandonCaches(c)
	buffers, memories := l.belongings(c)
	if !l.retractAll(buffers) {
		return ErrCopies
	}
	c.mu.Lock()
	ended := c.ended
	c.ended = true
	c.mu.Unlock()
	if ended {
		return closedError(g)
	}
	for h, b := range buffers {
		b.mu.Lock()
		err = first(err, l.unpin(h, b))
		b.mu.Unlock()
	}
	for h, m := range memories {
		err = first(err, l.freeMemory(h, m))
	}
	err = first(err, c.session.Close())
	l.mu.Lock()
	delete(l.contexts, g)
	l.mu.Unlock()
	l.table.Free(g)
	return err
}

// retractAll begins to end all mappings. It returns false while copies run through one.
func (l *Library) retractAll(buffers map[Handle]*buffer) bool {
	done := true
	for h, b := range buffers {
		b.mu.Lock()
		if b.va != 0 {
			done = l.retract(h, b) && done
		}
		b.mu.Unlock()
	}
	return done
}

func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// belongings lists what was made through c.
func (l *Library) belongings(c *context) (map[Handle]*buffer, map[Handle]*memory) {
	buffers, memories := map[Handle]*buffer{}, map[Handle]*memory{}
	l.mu.RLock()
	defer l.mu.RUnlock()
	for h, b := range l.buffers {
		if b.owner == c {
			buffers[h] = b
		}
	}
	for h, m := range l.memories {
		if m.owner == c {
			memories[h] = m
		}
	}
	return buffers, memories
}

// Pin pins a buffer of GPU memory.
func (l *Library) Pin(g Handle, req backend.PinRequest) (Handle, error) {
	c, err := l.enter(g)
	if err != nil {
		return 0, err
	}
	defer c.leave()
	return l.pin(c, req)
}

// pin is Pin in a context that is entered.
func (l *Library) pin(c *context, req backend.PinRequest) (Handle, error) {
	if err := checkPin(req); err != nil {
		return 0, err
	}
	req.Flags &= backend.PinForcePCIe // the reference ignores the other bits
	h, err := l.table.Alloc()
	if err != nil {
		return 0, err
	}
	pin, err := c.session.Pin(req)
	if err != nil {
		l.table.Free(h)
		return 0, err
	}
	l.mu.Lock()
	l.buffers[h] = &buffer{owner: c, pin: pin, addr: req.Addr}
	l.mu.Unlock()
	log.Debugf("pinned %d bytes at %#x as %#x", req.Size, req.Addr, uint64(h))
	return h, nil
}

func checkPin(req backend.PinRequest) error {
	switch {
	case req.Addr == 0 || req.Size == 0:
		return fmt.Errorf("pin of %d bytes at %#x: neither may be 0: %w", req.Size, req.Addr, unix.EINVAL)
	case req.Addr+req.Size < req.Addr:
		return fmt.Errorf("pin of %d bytes at %#x: the range wraps: %w", req.Size, req.Addr, unix.EINVAL)
	}
	return nil
}

// Unpin frees a pinned buffer, and its mapping first if there is one. It returns ErrCopies
// while copies run through that.
func (l *Library) Unpin(g, h Handle) error {
	c, err := l.enter(g)
	if err != nil {
		return err
	}
	defer c.leave()
	return l.unpinOf(c, h)
}

// unpinOf is Unpin in a context that is entered.
func (l *Library) unpinOf(c *context, h Handle) error {
	b, err := l.acquire(c, h)
	if err != nil {
		return err
	}
	defer b.release()
	return l.unpin(h, b)
}

// unpin unpins b. The caller has locked b, and b is not gone; Close calls unpin after
// the last call on its context has left. unpin frees the handle even when the driver
// fails, because a caller could do nothing with it.
func (l *Library) unpin(h Handle, b *buffer) error {
	var err error
	if b.va != 0 {
		if err = l.unmap(h, b); err == ErrCopies {
			return err
		}
	}
	b.gone = true
	err = first(err, b.pin.Unpin())
	l.mu.Lock()
	delete(l.buffers, h)
	l.mu.Unlock()
	l.table.Free(h)
	log.Debugf("unpinned %#x", uint64(h))
	return err
}

// Mapping is a mapping that has been made. It has the CPU's and the GPU's address of
// the first byte.
type Mapping struct {
	VA  uintptr
	GPU uint64
}

// Map gives the CPU a mapping of the first size bytes of a pinned buffer.
func (l *Library) Map(g, h Handle, size uint64, flags int) (Mapping, error) {
	c, err := l.enter(g)
	if err != nil {
		return Mapping{}, err
	}
	defer c.leave()
	return l.mapOf(c, h, size, flags)
}

// mapOf is Map in a context that is entered.
func (l *Library) mapOf(c *context, h Handle, size uint64, flags int) (Mapping, error) {
	b, err := l.acquire(c, h)
	if err != nil {
		return Mapping{}, err
	}
	defer b.release()
	return l.mapBuffer(h, b, size, flags)
}

func (l *Library) mapBuffer(h Handle, b *buffer, size uint64, flags int) (Mapping, error) {
	if flags < mapFlagDefault || flags > mapFlagMax {
		return Mapping{}, fmt.Errorf("map: unknown flags %#x: %w", flags, unix.EINVAL)
	}
	if b.va != 0 {
		return Mapping{}, fmt.Errorf("map: the buffer is mapped already; pin it again for a second mapping: %w", unix.EAGAIN)
	}
	info, err := b.pin.Info()
	if err != nil {
		return Mapping{}, err
	}
	rounded, ok := roundToPage(size)
	limit, _ := roundToPage(info.MappedSize)
	if !ok || size == 0 || rounded > limit {
		return Mapping{}, fmt.Errorf("map of %d bytes: the pinning allows 1 to %d: %w", size, limit, unix.EINVAL)
	}
	// A driver may say anything of its page, 0 too.
	if page := max(uint64(info.PageSize), hostPage); b.addr%page != 0 {
		return Mapping{}, fmt.Errorf("cannot map %#x, which is not aligned to the backend's pages: pin from a multiple of %d bytes on: %w", b.addr, page, unix.EINVAL)
	}
	va, typ, err := b.pin.Map(rounded, backend.MappingType(flags))
	if err != nil {
		return Mapping{}, err
	}
	b.va, b.mapped, b.typ = va, rounded, typ
	l.table.Publish(h, va, rounded, uint32(typ))
	log.Debugf("mapped %d bytes of %#x at %#x, mapping type %d", rounded, uint64(h), va, typ)
	return Mapping{VA: va, GPU: info.VA}, nil
}

// Unmap unmaps all of a mapping. It returns ErrCopies while copies run through it. As in
// the reference, the handle names the mapping. Some consumers pass another address in va;
// DPDK passes the GPU's. As there, size may be smaller than the mapping, or its size in
// whole pages of the GPU.
func (l *Library) Unmap(g, h Handle, va uintptr, size uint64) error {
	c, err := l.enter(g)
	if err != nil {
		return err
	}
	defer c.leave()
	b, err := l.acquire(c, h)
	if err != nil {
		return err
	}
	defer b.release()
	if b.va == 0 {
		return fmt.Errorf("unmap: the buffer is not mapped: %w", unix.EINVAL)
	}
	if most := (b.mapped + gpuPage - 1) &^ (gpuPage - 1); size == 0 || size > most {
		return fmt.Errorf("unmap of %d bytes: the mapping has %d: %w", size, b.mapped, unix.EINVAL)
	}
	if uint64(va)%hostPage != 0 {
		return fmt.Errorf("unmap at %#x, which is not on a host page; the mapping is at %#x: %w", va, b.va, unix.EINVAL)
	}
	if va != b.va {
		log.Warnf("gdr_unmap: the mapping of %#x is at %#x, not at %#x; it is taken down all the same", uint64(h), b.va, va)
	}
	return l.unmap(h, b)
}

// unmap unmaps b, once no copy runs through it. The caller has locked b, and b is mapped.
func (l *Library) unmap(h Handle, b *buffer) error {
	if !l.retract(h, b) {
		return ErrCopies
	}
	b.drain = nil
	b.va, b.mapped, b.typ = 0, 0, backend.None
	return b.pin.Unmap()
}

// gpuPage is GPU_PAGE_SIZE of gdrapi.h.
const gpuPage = 1 << 16

// retract keeps new copies out of b's mapping. It returns false while copies run through
// it.
func (l *Library) retract(h Handle, b *buffer) bool {
	if b.drain == nil {
		b.drain = l.table.Retract(h)
	}
	return b.drain.Done()
}

var hostPage = uint64(unix.Getpagesize())

// roundToPage rounds up to host pages. It reports false where the sum wraps.
func roundToPage(n uint64) (uint64, bool) {
	r := (n + hostPage - 1) &^ (hostPage - 1)
	return r, r >= n
}

// Info is what gdr_get_info answers.
type Info struct {
	backend.Info
	Mapped bool
	Type   backend.MappingType
}

// Info describes a pinned buffer.
func (l *Library) Info(g, h Handle) (Info, error) {
	c, err := l.enter(g)
	if err != nil {
		return Info{}, err
	}
	defer c.leave()
	return l.infoOf(c, h)
}

// infoOf is Info in a context that is entered.
func (l *Library) infoOf(c *context, h Handle) (Info, error) {
	b, err := l.acquire(c, h)
	if err != nil {
		return Info{}, err
	}
	defer b.release()
	i, err := b.pin.Info()
	return Info{Info: i, Mapped: b.va != 0, Type: b.typ}, err
}

// CallbackFlag is 1 once the driver has revoked a buffer's pages.
func (l *Library) CallbackFlag(g, h Handle) (int, error) {
	c, err := l.enter(g)
	if err != nil {
		return 0, err
	}
	defer c.leave()
	b, err := l.acquire(c, h)
	if err != nil {
		return 0, err
	}
	defer b.release()
	return b.pin.CallbackFlag()
}

// Attribute answers an attribute of the open backend.
func (l *Library) Attribute(g Handle, a backend.Attr) (int, error) {
	c, err := l.enter(g)
	if err != nil {
		return 0, err
	}
	defer c.leave()
	if a < backend.AttrPersistentMapping || a > backend.AttrDMABufMmap {
		return 0, fmt.Errorf("unknown attribute %d: %w", a, unix.EINVAL)
	}
	return c.session.Attribute(a)
}

// DriverVersion is the version of gdrdrv. On other backends it is this library's.
func (l *Library) DriverVersion(g Handle) (major, minor int, err error) {
	c, err := l.enter(g)
	if err != nil {
		return 0, 0, err
	}
	defer c.leave()
	major, minor = c.session.Version()
	return major, minor, nil
}

// BackendName is the name of the backend that pins. While a fallback has not decided, it is
// both names with a bar between them.
func (l *Library) BackendName(g Handle) (string, error) {
	c, err := l.enter(g)
	if err != nil {
		return "", err
	}
	defer c.leave()
	if p, ok := c.session.(*fallback); ok {
		if name := p.chosenName(); name != "" {
			return name, nil
		}
	}
	return c.backend, nil
}

// MemAlloc allocates GPU memory that Pin accepts on any backend.
func (l *Library) MemAlloc(g Handle, device int, size uint64) (Handle, error) {
	c, err := l.enter(g)
	if err != nil {
		return 0, err
	}
	defer c.leave()
	if size == 0 {
		return 0, fmt.Errorf("gdr_mem_alloc of 0 bytes: %w", unix.EINVAL)
	}
	h, err := l.table.Alloc()
	if err != nil {
		return 0, err
	}
	a, err := cuda.Alloc(device, size)
	if err != nil {
		l.table.Free(h)
		return 0, err
	}
	l.mu.Lock()
	l.memories[h] = &memory{owner: c, alloc: a}
	l.mu.Unlock()
	return h, nil
}

// MemFree frees an allocation of MemAlloc. Buffers that are pinned in it behave as
// after a program has freed its own memory.
func (l *Library) MemFree(g, m Handle) error {
	c, err := l.enter(g)
	if err != nil {
		return err
	}
	defer c.leave()
	mem, err := l.memory(c, m)
	if err != nil {
		return err
	}
	return l.freeMemory(m, mem)
}

// freeMemory frees mem, unless another thread has just done so.
func (l *Library) freeMemory(h Handle, mem *memory) error {
	l.mu.Lock()
	_, ours := l.memories[h]
	delete(l.memories, h)
	l.mu.Unlock()
	if !ours {
		return fmt.Errorf("allocation %#x is freed: %w", uint64(h), unix.EINVAL)
	}
	l.table.Free(h)
	return mem.alloc.Free()
}

// MemPtr is the device address and the size in bytes of an allocation.
func (l *Library) MemPtr(g, m Handle) (ptr, size uint64, err error) {
	c, err := l.enter(g)
	if err != nil {
		return 0, 0, err
	}
	defer c.leave()
	mem, err := l.memory(c, m)
	if err != nil {
		return 0, 0, err
	}
	return mem.alloc.Ptr(), mem.alloc.Size(), nil
}

// MemExport exports an allocation as a dma-buf. The caller closes the descriptor.
func (l *Library) MemExport(g, m Handle, flags uint32) (fd int, err error) {
	c, err := l.enter(g)
	if err != nil {
		return -1, err
	}
	defer c.leave()
	mem, err := l.memory(c, m)
	if err != nil {
		return -1, err
	}
	if flags&^backend.PinForcePCIe != 0 {
		return -1, fmt.Errorf("export flags %#x; pass 0 or GDR_PIN_FLAG_FORCE_PCIE: %w", flags, unix.EINVAL)
	}
	return mem.alloc.Export(flags&backend.PinForcePCIe != 0)
}

func (l *Library) memory(c *context, h Handle) (*memory, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	mem := l.memories[h]
	if mem == nil || mem.owner != c {
		return nil, fmt.Errorf("no allocation made through this gdr_t has the handle %#x: %w", uint64(h), unix.EINVAL)
	}
	return mem, nil
}
