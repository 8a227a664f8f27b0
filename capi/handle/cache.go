package handle

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"gdrapi/core"

	"golang.org/x/sys/unix"
)

// The structs of this file are those of capi/cache_range.h, field by field. Hits and puts
// are C, and read and write this memory.

// maxCaches is how many caches a process has at most.
const maxCaches = 64

// span is a range in the order of addresses.
type span struct {
	start  atomic.Uint64
	handle atomic.Uint64
}

// line is what a hit and a put read first.
type line struct {
	key   atomic.Uint64
	count atomic.Uint32
	_     uint32
	room  atomic.Int64
	_     uint64

	spans, ranges, slots uint64
	attribute            uint64
}

// rangeLine is a pinned range, at the index of its handle.
type rangeLine struct {
	state atomic.Uint64
	start atomic.Uint64
	end   atomic.Uint64
	id    atomic.Uint64
	va    atomic.Uint64
	owner atomic.Uint64
	used  atomic.Uint64
	_     uint64
}

const (
	retiredBit = 1 << 31
	holdsMax   = retiredBit - 1
)

// stateOf is the state of the range of h without holds.
func stateOf(h Handle) uint64 { return h.generation() << 32 }

func sameGeneration(a, b uint64) bool { return (a^b)>>32 == 0 }

// holds are those of the range of h. It is a core.Holds.
type holds struct {
	in *rangeLine
	h  Handle
}

// change replaces the range's state by what to gives, while the place is that of h. It returns
// false where the place has another range, or to refuses.
func (n holds) change(to func(state uint64) (uint64, bool)) bool {
	for {
		s := n.in.state.Load()
		if !sameGeneration(s, stateOf(n.h)) {
			return false
		}
		next, ok := to(s)
		if !ok || n.in.state.CompareAndSwap(s, next) {
			return ok
		}
	}
}

// Take takes a hold, if h still names that range.
func (n holds) Take(now uint64) bool {
	taken := n.change(func(s uint64) (uint64, bool) { return s + 1, s&retiredBit == 0 && s&holdsMax != holdsMax })
	if taken {
		n.in.used.Store(now)
	}
	return taken
}

// Drop ends a hold.
func (n holds) Drop() {
	n.change(func(s uint64) (uint64, bool) { return s - 1, s&holdsMax != 0 })
}

// Retire prevents new holds. Without heldToo it returns false if somebody holds the range. A
// range that is gone, or was replaced, counts as retired.
func (n holds) Retire(heldToo bool) bool {
	return n.change(func(s uint64) (uint64, bool) { return s | retiredBit, s&holdsMax == 0 || heldToo }) ||
		!sameGeneration(n.in.state.Load(), stateOf(n.h))
}

// Held reports whether somebody holds the range, retired or not.
func (n holds) Held() bool {
	s := n.in.state.Load()
	return sameGeneration(s, stateOf(n.h)) && s&holdsMax != 0
}

// Used is the time of the last use.
func (n holds) Used() uint64 { return n.in.used.Load() }

// memory is shared with C, which reads it.
type memory struct {
	ranges [slotCount]rangeLine
	lines  [maxCaches]line
	spans  [maxCaches][core.MaxRanges]span
}

// newMemory reserves 80 MiB of address space. Only what is used gets memory. It is never
// unmapped: a call with an old handle may read it at any time. A forked child does not
// inherit it.
func newMemory() (*memory, error) {
	mem, err := zeros(int(unsafe.Sizeof(memory{})), unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, fmt.Errorf("no memory for caches: %w", err)
	}
	return (*memory)(unsafe.Pointer(unsafe.SliceData(mem))), nil
}

// places are where the caches of a process lie.
type places struct {
	mu    sync.Mutex
	mem   *memory // nil before the first cache
	taken [maxCaches]bool
}

// take finds a place for a cache.
func (p *places) take() (mem *memory, at int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem == nil {
		if p.mem, err = newMemory(); err != nil {
			return nil, 0, err
		}
	}
	if at = slices.Index(p.taken[:], false); at < 0 {
		return nil, 0, fmt.Errorf("%d caches are open; close one: %w", maxCaches, unix.ENOMEM)
	}
	p.taken[at] = true
	return p.mem, at, nil
}

func (p *places) give(at int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[at] = false
}

// hits shows the ranges of one cache to C. It is a core.Hits.
type hits struct {
	library *Library
	h       Handle // of the cache
	at      int    // its place
	line    *line
	spans   *[core.MaxRanges]span
	ranges  *[slotCount]rangeLine
}

// newHits takes a place and a handle for a cache.
func (l *Library) newHits() (*hits, error) {
	mem, at, err := l.places.take()
	if err != nil {
		return nil, err
	}
	h, err := l.table.alloc()
	if err != nil {
		l.places.give(at)
		return nil, err
	}
	s := &hits{library: l, h: h, at: at, line: &mem.lines[at], spans: &mem.spans[at], ranges: &mem.ranges}
	s.line.spans = uint64(uintptr(unsafe.Pointer(s.spans)))
	s.line.ranges = uint64(uintptr(unsafe.Pointer(s.ranges)))
	s.line.slots = uint64(l.table.address())
	s.line.key.Store(uint64(h))
	l.table.setCache(h, uintptr(unsafe.Pointer(s.line)))
	return s, nil
}

// end gives up the place. The next cache may use it.
func (s *hits) end() {
	s.library.table.setCache(s.h, 0)
	s.line.key.Store(0)
	s.library.places.give(s.at)
}

// View makes a handle for a buffer that the cache has pinned.
func (s *hits) View(b *core.Buffer) (core.View, error) { return s.library.view(b) }

// Asks sets by what function hits ask for a buffer ID.
func (s *hits) Asks(pointerGetAttribute uintptr) { s.line.attribute = uint64(pointerGetAttribute) }

// Add shows a range. It writes the state last, because the state lets hits in.
func (s *hits) Add(place int, r core.Shown) core.Holds {
	h := r.View.(view).h
	in := &s.ranges[h.index()]
	// Usually it is retired already. It is not if the caller unpinned the old range.
	in.state.Or(retiredBit)
	in.start.Store(r.Start)
	in.end.Store(r.End)
	in.id.Store(r.ID)
	in.va.Store(r.VA)
	in.owner.Store(uint64(s.h))
	in.used.Store(r.Used)
	in.state.Store(stateOf(h) | 1)

	n := s.line.count.Load()
	for i := int(n); i > place; i-- {
		s.spans[i].set(s.spans[i-1].start.Load(), s.spans[i-1].handle.Load())
	}
	s.spans[place].set(r.Start, uint64(h))
	s.line.count.Store(n + 1)
	return holds{in, h}
}

// Remove ends what Add began at that place.
func (s *hits) Remove(place int) {
	n := s.line.count.Load() - 1
	for i := place; i < int(n); i++ {
		s.spans[i].set(s.spans[i+1].start.Load(), s.spans[i+1].handle.Load())
	}
	s.line.count.Store(n)
}

// Room shows puts whether too much is pinned.
func (s *hits) Room(bytes int64) { s.line.room.Store(bytes) }

func (s *span) set(start, handle uint64) {
	s.start.Store(start)
	s.handle.Store(handle)
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
	c, err := d.OpenShownCache(most, hits)
	if err != nil {
		hits.end()
		l.table.release(hits.h)
		return 0, err
	}
	return hits.h, l.add(hits.h, &cache{c, hits})
}

func (l *Library) cache(h Handle) (*cache, error) {
	if c, ok := l.table.get(h).(*cache); ok {
		return c, nil
	}
	return nil, fmt.Errorf("no open cache has the handle %#x; gdr_close of its gdr_t ended it, or gdr_cache_close: %w", uint64(h), unix.EINVAL)
}

// Held is a range of a cache that the caller holds. C's gdr_cache_put ends the hold.
type Held struct {
	Handle Handle
	VA     uintptr // the CPU's address of the byte asked for
}

// CacheGet holds a range of a cache that has the size bytes at addr. now is the time on
// the clock by which C dates hits.
func (l *Library) CacheGet(h Handle, addr, size, now uint64) (Held, error) {
	c, err := l.cache(h)
	if err != nil {
		return Held{}, err
	}
	r, err := c.Hold(addr, size, now)
	if err != nil {
		return Held{}, err
	}
	return Held{Handle: r.View().(view).h, VA: r.VA()}, nil
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
		l.end(h)
	}
	return err
}
