// Package cache keeps ranges of GPU memory pinned and mapped while nobody uses them:
// it plans, pins, evicts and flushes.
//
// A hit and a put are C (capi/cache.c): they take no lock and enter no Go. They find
// ranges in memory that this package writes. capi/cache_range.h states the protocol
// between the two. All else is here, under the cache's lock.
package cache

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"
	"unsafe"

	"gdrapi/core/handle"

	"golang.org/x/sys/unix"
)

// Handle names a cache, or a buffer that it has pinned.
type Handle = handle.Handle

// Driver is what a cache needs to know from CUDA about memory.
type Driver interface {
	// BufferID is the ID of the allocation that has addr. No two allocations of a
	// process ever have the same ID. 0 is none.
	BufferID(addr uint64) (uint64, error)
	// AllocationRange is the start of that allocation and its size in bytes.
	AllocationRange(addr uint64) (base, size uint64, err error)
	// PointerGetAttribute is the address of cuPointerGetAttribute, for hits.
	PointerGetAttribute() uintptr
}

// Pins pins and maps through the context that a cache was opened with. The cache's caller
// keeps that context open meanwhile.
type Pins interface {
	Pin(addr, size uint64) (Handle, error)
	// Info is the GPU address at the start of h's mapping, and the backend's page
	// size.
	Info(h Handle) (va uint64, page uint32, err error)
	Map(h Handle, size uint64) (uintptr, error)
	Unpin(h Handle) error
}

// Table gives out handles, and shows C which of them are caches.
type Table interface {
	Alloc() (Handle, error)
	Free(Handle)
	SetCache(h Handle, line uintptr)
	Published(Handle) bool
	Slots() uintptr
}

// Set has the caches of a process. The zero Set has none.
type Set struct {
	mu    sync.Mutex
	mem   *memory // nil before the first cache
	taken [CachesMax]bool
}

// Cache is one cache. Its methods may be called from any goroutine.
type Cache struct {
	h     Handle
	table Table
	pins  Pins
	find  func() (Driver, error)
	end   func() // releases the cache's place in the Set
	mem   *memory
	line  *line
	spans *[RangesMax]span
	most  uint64 // bytes to keep pinned

	mu      sync.Mutex
	closed  bool
	driver  Driver // nil until it is found
	page    uint64 // the backend's page size; 0 before the first pinning
	pinned  uint64 // bytes that are pinned now
	live    []entry
	retired []entry // to be unpinned with their last hold
}

// entry is a pinned range. The entries of Cache.live are in the order of their addresses.
// None lies in another, so their ends are in order, too.
type entry struct {
	h          Handle
	start, end uint64
	id         uint64 // of the allocation
	bytes      uint64 // pinned for the range
}

// Held is a range that the caller holds. C's gdr_cache_put ends the hold.
type Held struct {
	Handle Handle
	VA     uint64 // the CPU's address of the byte asked for
	GPU    uint64 // the GPU's address of a new mapping; 0 if the mapping is not new
	Size   uint64 // bytes pinned for a new mapping
}

// Open opens a cache that keeps up to most bytes pinned. find finds the driver. After an
// error it is called again.
func (s *Set) Open(table Table, most uint64, pins Pins, find func() (Driver, error)) (*Cache, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem == nil {
		mem, err := newMemory()
		if err != nil {
			return nil, fmt.Errorf("no memory for caches: %w", err)
		}
		s.mem = mem
	}
	at := slices.Index(s.taken[:], false)
	if at < 0 {
		return nil, fmt.Errorf("%d caches are open; close one: %w", CachesMax, unix.ENOMEM)
	}
	h, err := table.Alloc()
	if err != nil {
		return nil, err
	}
	s.taken[at] = true
	c := &Cache{
		h: h, table: table, pins: pins, find: find,
		mem: s.mem, line: &s.mem.lines[at], spans: &s.mem.spans[at],
		most: most, page: uint64(unix.Getpagesize()),
	}
	c.end = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taken[at] = false
	}
	c.line.spans = uint64(uintptr(unsafe.Pointer(c.spans)))
	c.line.ranges = uint64(uintptr(unsafe.Pointer(&s.mem.ranges)))
	c.line.slots = uint64(table.Slots())
	c.setPinned(0)
	c.line.key.Store(uint64(h))
	table.SetCache(h, uintptr(unsafe.Pointer(c.line)))
	return c, nil
}

// Handle is the handle of the cache.
func (c *Cache) Handle() Handle { return c.h }

// lock takes the lock of a cache that is open.
func (c *Cache) lock() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return fmt.Errorf("cache %#x is closed: %w", uint64(c.h), handle.ErrClosed)
	}
	return nil
}

// Get holds a range that has the size bytes at addr. It pins one if there is none. now is
// the clock of hits (capi/cache_range.h).
func (c *Cache) Get(addr, size, now uint64) (Held, error) {
	if err := c.lock(); err != nil {
		return Held{}, err
	}
	defer c.mu.Unlock()
	if err := c.findDriver(); err != nil {
		return Held{}, err
	}
	c.makeRoom(0)
	id, err := c.driver.BufferID(addr)
	if err != nil {
		c.retireUseless(plan{start: addr, end: addr + 1}, false)
		return Held{}, fmt.Errorf("give the address of GPU memory, not %#x: %w", addr, err)
	}
	// Another thread may have pinned it by now.
	if held, ok := c.hold(addr, size, id, now); ok {
		return held, nil
	}
	c.retireUseless(plan{id: id, start: addr, end: addr + 1}, false)
	return c.add(addr, size, id, now)
}

func (c *Cache) findDriver() error {
	if c.driver != nil {
		return nil
	}
	d, err := c.find()
	if err != nil {
		return err
	}
	c.driver = d
	c.line.attribute = uint64(d.PointerGetAttribute())
	return nil
}

func (c *Cache) rangeOf(h Handle) *rangeLine { return &c.mem.ranges[h.Index()] }

// after is the index of the first range that starts after addr.
func (c *Cache) after(addr uint64) int {
	return sort.Search(len(c.live), func(i int) bool { return c.live[i].start > addr })
}

// hold does what a hit does.
func (c *Cache) hold(addr, size, id, now uint64) (Held, bool) {
	at := c.after(addr)
	if at == 0 {
		return Held{}, false
	}
	e := c.live[at-1]
	if addr >= e.end || size > e.end-addr || e.id != id || !c.table.Published(e.h) {
		return Held{}, false
	}
	r := c.rangeOf(e.h)
	if !r.hold(e.h) {
		return Held{}, false
	}
	r.used.Store(now)
	return Held{Handle: e.h, VA: r.va.Load() + (addr - e.start)}, true
}

// plan is what a miss will pin: bytes of the allocation with this id.
type plan struct {
	id, start, end uint64
}

func roundDown(n, page uint64) uint64 { return n &^ (page - 1) }
func roundUp(n, page uint64) uint64   { return roundDown(n+page-1, page) }

// gpuPage is GPU_PAGE_SIZE of gdrapi.h.
const gpuPage = 64 << 10

func (c *Cache) hasID(addr, id uint64) bool {
	got, err := c.driver.BufferID(addr)
	return err == nil && got == id
}

func (c *Cache) plan(addr, size, id uint64) (plan, error) {
	if id == 0 {
		return plan{}, fmt.Errorf("the CUDA driver has no buffer ID for this memory, so it cannot be cached; use gdr_pin_buffer: %w", unix.ENOTSUP)
	}
	last, err := c.driver.BufferID(addr + size - 1)
	if err != nil {
		return plan{}, fmt.Errorf("the range ends past its allocation: %w", err)
	}
	if last != id {
		return plan{}, fmt.Errorf("the range lies in several allocations, and one at a time can be cached; ask for each, or use gdr_pin_buffer: %w", unix.ENOTSUP)
	}
	return c.widen(plan{id: id, start: addr, end: addr + size}), nil
}

// widen widens the range to GPU pages. It stops at the end of the allocation, if the
// driver says where that is. The IDs at both ends are checked in any case.
func (c *Cache) widen(p plan) plan {
	base, size, err := c.driver.AllocationRange(p.start)
	if err != nil || base > p.start || size < p.end-base {
		return p
	}
	wide := plan{
		id:    p.id,
		start: max(roundDown(p.start, gpuPage), base),
		end:   min(roundUp(p.end, gpuPage), base+size),
	}
	if !c.hasID(wide.start, p.id) || !c.hasID(wide.end-1, p.id) {
		return p
	}
	return wide
}

// pinned is a pinned and mapped range.
type pinned struct {
	h       Handle
	va, gpu uint64 // addresses of the mapping's first byte
	skip    uint64 // bytes of it before the range
	bytes   uint64
}

// add pins the range that has the bytes, and adds it.
func (c *Cache) add(addr, size, id, now uint64) (Held, error) {
	p, err := c.plan(addr, size, id)
	if err != nil {
		return Held{}, err
	}
	m, err := c.pin(p)
	if err != nil {
		return Held{}, err
	}
	if !c.hasID(p.start, id) || !c.hasID(p.end-1, id) {
		_ = c.pins.Unpin(m.h)
		return Held{}, fmt.Errorf("the memory was freed while it was being pinned: %w", unix.EINVAL)
	}
	c.insert(p, m, now)
	// A range that was held before the pinning may be free now.
	c.makeRoom(0)
	return Held{Handle: m.h, VA: m.va + m.skip + (addr - p.start), GPU: m.gpu, Size: m.bytes}, nil
}

// pin pins and maps. It unpins other ranges if it lacks room or descriptors.
func (c *Cache) pin(p plan) (pinned, error) {
	c.makeRoom(roundUp(p.end-roundDown(p.start, c.page), c.page))
	if len(c.live)+len(c.retired) == RangesMax && !c.evict() {
		return pinned{}, fmt.Errorf("%d ranges of this cache are held; put some: %w", RangesMax, unix.ENOMEM)
	}
	for {
		page := c.page
		m, err := c.pinOnce(p)
		switch {
		case err == nil:
			return m, nil
		case c.page != page:
		case (errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EMFILE)) && c.evict():
		default:
			return pinned{}, err
		}
	}
}

// pinOnce pins and maps. It fails if the backend's page size is not the expected one.
func (c *Cache) pinOnce(p plan) (_ pinned, err error) {
	start := roundDown(p.start, c.page)
	h, err := c.pins.Pin(start, p.end-start)
	if err != nil {
		return pinned{}, err
	}
	defer func() {
		if err != nil {
			_ = c.pins.Unpin(h)
		}
	}()
	gpu, page, err := c.pins.Info(h)
	if err != nil {
		return pinned{}, err
	}
	if uint64(page) > c.page {
		c.page = uint64(page)
		if start%c.page != 0 {
			return pinned{}, fmt.Errorf("%#x does not lie on a page of the backend's, which has %d bytes: %w", start, page, unix.EINVAL)
		}
	}
	va, err := c.pins.Map(h, p.end-start)
	if err != nil {
		return pinned{}, err
	}
	return pinned{
		h: h, va: uint64(va), gpu: gpu, skip: p.start - gpu,
		bytes: roundUp(p.end-start, c.page),
	}, nil
}

// insert adds a range with one hold. It writes the state last, because the state lets
// hits in.
func (c *Cache) insert(p plan, m pinned, now uint64) {
	c.retireUseless(p, true)
	r := c.rangeOf(m.h)
	// Usually it is retired already. It is not if the caller unpinned the old range.
	r.state.Or(retiredBit)
	r.start.Store(p.start)
	r.end.Store(p.end)
	r.id.Store(p.id)
	r.va.Store(m.va + m.skip)
	r.owner.Store(uint64(c.h))
	r.used.Store(now)
	r.state.Store(stateOf(m.h) | 1)

	e := entry{h: m.h, start: p.start, end: p.end, id: p.id, bytes: m.bytes}
	at := c.after(p.start)
	c.live = slices.Insert(c.live, at, e)
	for i := len(c.live) - 1; i >= at; i-- {
		c.show(i)
	}
	c.setPinned(c.pinned + e.bytes)
	c.line.count.Store(uint32(len(c.live)))
}

// show lets hits find the range at index i.
func (c *Cache) show(i int) {
	c.spans[i].start.Store(c.live[i].start)
	c.spans[i].handle.Store(uint64(c.live[i].h))
}

// isStale reports whether e, which has some of p's bytes, is of no use: its allocation no
// longer has those bytes, or the caller has unmapped or unpinned it.
func (c *Cache) isStale(e entry, p plan) bool {
	return e.id != p.id || !c.table.Published(e.h)
}

// isNested reports whether one of the two lies in the other. A search could then miss one
// of them.
func isNested(e entry, p plan) bool {
	return (e.start >= p.start && e.end <= p.end) || (e.start <= p.start && e.end >= p.end)
}

// retireUseless retires the ranges that share bytes with p and are stale. If p is to be
// added, it retires nested ranges, too.
func (c *Cache) retireUseless(p plan, added bool) {
	i := sort.Search(len(c.live), func(i int) bool { return c.live[i].end > p.start })
	for i < len(c.live) && c.live[i].start < p.end {
		if e := c.live[i]; c.isStale(e, p) || (added && isNested(e, p)) {
			c.retire(i)
		} else {
			i++
		}
	}
}

// retire takes a range out of what hits find. It unpins the range now, or with its last
// hold.
func (c *Cache) retire(at int) {
	e := c.live[at]
	r := c.rangeOf(e.h)
	r.retire(e.h, true)
	c.live = slices.Delete(c.live, at, at+1)
	for i := at; i < len(c.live); i++ {
		c.show(i)
	}
	c.line.count.Store(uint32(len(c.live)))
	if r.held(e.h) || !c.unpin(e) {
		c.retired = append(c.retired, e)
	}
}

// unpin unpins e, unless copies still run through it. If the driver fails, the handle is
// gone as well.
func (c *Cache) unpin(e entry) bool {
	if c.pins.Unpin(e.h) == handle.ErrCopies {
		return false
	}
	c.setPinned(c.pinned - e.bytes)
	return true
}

// setPinned shows puts whether too much is pinned.
func (c *Cache) setPinned(bytes uint64) {
	c.pinned = bytes
	c.line.room.Store(int64(min(c.most, math.MaxInt64)) - int64(bytes))
}

// dropRetired unpins the retired ranges that have no hold any more.
func (c *Cache) dropRetired() {
	c.retired = slices.DeleteFunc(c.retired, func(e entry) bool {
		return !c.rangeOf(e.h).held(e.h) && c.unpin(e)
	})
}

// oldest is the index of the unheld range whose last use is the longest ago, or -1 if all
// are held.
func (c *Cache) oldest() int {
	oldest, when := -1, uint64(0)
	for i, e := range c.live {
		r := c.rangeOf(e.h)
		used := r.used.Load()
		if r.held(e.h) || (oldest >= 0 && used >= when) {
			continue
		}
		oldest, when = i, used
	}
	return oldest
}

// evict unpins the unheld range whose last use is the longest ago. It returns false if
// none can be unpinned.
func (c *Cache) evict() bool {
	for {
		i := c.oldest()
		if i < 0 {
			return false
		}
		// A hit may have taken a hold first.
		if e := c.live[i]; c.rangeOf(e.h).retire(e.h, false) {
			c.retire(i)
			return true
		}
	}
}

// makeRoom unpins ranges until the cache has room for more bytes, or until no range can
// be unpinned.
func (c *Cache) makeRoom(more uint64) {
	goal := c.most - min(more, c.most)
	c.dropRetired()
	for c.pinned > goal && c.evict() {
	}
}

// Put ends a hold, as gdr_cache_put does in C.
func (c *Cache) Put(h Handle) error {
	left, ok := c.rangeOf(h).letGo(h)
	if !ok {
		return fmt.Errorf("nobody holds %#x: %w", uint64(h), unix.EINVAL)
	}
	if left&holdsMax == 0 && (left&retiredBit != 0 || c.line.room.Load() < 0) {
		return c.Settle()
	}
	return nil
}

// Settle unpins unheld ranges while the cache is too big, and all unheld ranges that were
// retired.
func (c *Cache) Settle() error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	c.makeRoom(0)
	return nil
}

// Flush unpins all unheld ranges. It returns handle.ErrCopies while copies run through
// one.
func (c *Cache) Flush() error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	c.dropRetired()
	for i := len(c.live) - 1; i >= 0; i-- {
		if e := c.live[i]; c.rangeOf(e.h).retire(e.h, false) {
			c.retire(i)
		}
	}
	if slices.ContainsFunc(c.retired, func(e entry) bool { return !c.rangeOf(e.h).held(e.h) }) {
		return handle.ErrCopies
	}
	return nil
}

// Close ends the cache and unpins all its ranges, held or not. It returns handle.ErrCopies
// while copies run through one.
func (c *Cache) Close() error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	ranges := append(c.live, c.retired...)
	c.forget()
	c.retired = slices.DeleteFunc(ranges, c.unpin)
	if len(c.retired) > 0 {
		return handle.ErrCopies
	}
	c.leave()
	return nil
}

// Abandon ends the cache of a context that is being closed. Closing the context unpins
// all that was pinned through it.
func (c *Cache) Abandon() {
	if c.lock() != nil {
		return
	}
	defer c.mu.Unlock()
	c.forget()
	c.setPinned(0)
	c.leave()
}

// forget ends all hits: nobody finds or holds a range any more.
func (c *Cache) forget() {
	for _, e := range c.live {
		c.rangeOf(e.h).retire(e.h, true)
	}
	c.live, c.retired = nil, nil
	c.line.count.Store(0)
}

// leave gives up the handle, then the place. The next cache may use the place.
func (c *Cache) leave() {
	c.closed = true
	c.table.SetCache(c.h, 0)
	c.line.key.Store(0)
	c.table.Free(c.h)
	c.end()
}
