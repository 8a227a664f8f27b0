package cache

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"gdrapi/core"

	"golang.org/x/sys/unix"
)

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
	p := plan{id: id, start: addr, end: addr + size}
	wide := c.widen(p)
	if (wide.start == addr || c.hasID(wide.start, id)) && c.hasID(wide.end-1, id) {
		return wide, nil
	}
	last, err := c.driver.BufferID(p.end - 1)
	if err != nil {
		return plan{}, fmt.Errorf("the range ends past its allocation: %w", err)
	}
	if last != id {
		return plan{}, fmt.Errorf("the range lies in several allocations, and one at a time can be cached; ask for each, or use gdr_pin_buffer: %w", unix.ENOTSUP)
	}
	return p, nil
}

// widen widens the range to GPU pages. It stops at the end of the allocation, if the
// driver says where that is.
func (c *Cache) widen(p plan) plan {
	base, size, err := c.driver.AllocationRange(p.start)
	if err != nil || base > p.start || size < p.end-base {
		return p
	}
	return plan{
		id:    p.id,
		start: max(roundDown(p.start, gpuPage), base),
		end:   min(roundUp(p.end, gpuPage), base+size),
	}
}

// add pins the range that has the bytes, and adds it.
func (c *Cache) add(addr, size, id, now uint64) (*kept, error) {
	var p plan
	err := c.outside(func() (err error) {
		p, err = c.plan(addr, size, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	m, handle, err := c.pin(p)
	if err == nil {
		err = c.outside(func() error {
			if c.hasID(p.start, id) && c.hasID(p.end-1, id) {
				return nil
			}
			return fmt.Errorf("the memory was freed while it was being pinned: %w", unix.EINVAL)
		})
	}
	if k := c.hold(addr, size, id, now); k != nil {
		c.end(m)
		return k, nil // another thread has pinned it
	}
	if err == nil {
		err = c.checkCount()
	}
	if err != nil {
		c.end(m)
		return nil, err
	}
	k := c.insert(p, m, handle, now)
	// A range that was held before the pinning may be free now.
	c.makeRoom(0)
	return k, nil
}

// end has unlock end a mapping, or nil.
func (c *Cache) end(m *core.Mapping) {
	if m != nil {
		c.ended = append(c.ended, m)
	}
}

// checkCount makes room for one more range.
func (c *Cache) checkCount() error {
	if len(c.live)+len(c.retired) == MaxRanges && !c.evict() {
		return fmt.Errorf("%d ranges of this cache are held; put some: %w", MaxRanges, unix.ENOMEM)
	}
	return nil
}

// pages is the number of bytes that p takes in whole pages of the backend's.
func (c *Cache) pages(p plan) uint64 {
	page := c.device.PageSize()
	return roundUp(p.end, page) - roundDown(p.start, page)
}

// pin pins and maps. It unpins other ranges if it lacks room or descriptors.
func (c *Cache) pin(p plan) (m *core.Mapping, handle uint64, err error) {
	c.makeRoom(c.pages(p))
	if err := c.checkCount(); err != nil {
		return nil, 0, err
	}
	for {
		m, handle, err = c.pinOnce(p)
		if !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.EMFILE) || !c.evict() {
			return m, handle, err
		}
	}
}

// pinOnce pins and maps, and gives the buffer its handle. The cache is unlocked meanwhile.
func (c *Cache) pinOnce(p plan) (m *core.Mapping, handle uint64, err error) {
	err = c.outside(func() (err error) {
		if m, err = c.device.Map(p.start, p.end-p.start); err != nil {
			return err
		}
		if handle, err = c.of.library.Show(m.Buffer()); err != nil {
			m = nil
		}
		return err
	})
	return m, handle, err
}

// insert adds a range with one hold.
func (c *Cache) insert(p plan, m *core.Mapping, handle, now uint64) *kept {
	c.retireUseless(p, true)
	in := c.of.library.Place(handle)
	k := &kept{mapping: m, handle: handle, in: in, start: p.start, end: p.end, id: p.id, bytes: c.pages(p)}
	in.fill(k, c.handle, now)
	at := c.after(p.start)
	c.live = slices.Insert(c.live, at, k)
	c.list(at)
	c.setPinned(c.pinned + k.bytes)
	return k
}

// list lists the ranges from number at on for C.
func (c *Cache) list(at int) {
	for i := at; i < len(c.live); i++ {
		c.spans[i].start.Store(c.live[i].start)
		c.spans[i].handle.Store(c.live[i].handle)
	}
	c.line.count.Store(uint32(len(c.live)))
}

// isStale reports whether k, which has some of p's bytes, is of no use: its allocation no
// longer has those bytes, or the caller has unmapped or unpinned it.
func isStale(k *kept, p plan) bool { return k.id != p.id || !k.mapping.IsOpen() }

// isNested reports whether one of the two lies in the other. A search could then miss one
// of them.
func isNested(k *kept, p plan) bool {
	return (k.start >= p.start && k.end <= p.end) || (k.start <= p.start && k.end >= p.end)
}

// retireUseless retires the stale ranges that share bytes with p. Where p is to be added, it
// also retires those that lie in p, or have all of p.
func (c *Cache) retireUseless(p plan, added bool) {
	i := sort.Search(len(c.live), func(i int) bool { return c.live[i].end > p.start })
	for i < len(c.live) && c.live[i].start < p.end {
		if k := c.live[i]; isStale(k, p) || (added && isNested(k, p)) {
			c.retire(i)
		} else {
			i++
		}
	}
}

// retire takes a range out of what hits find. It unpins the range now, or with its last
// hold.
func (c *Cache) retire(at int) {
	k := c.live[at]
	k.in.retire(k.handle, true)
	c.live = slices.Delete(c.live, at, at+1)
	c.list(at)
	if k.held() {
		c.retired = append(c.retired, k)
	} else {
		c.unpin(k)
	}
}

// unpin has unlock unpin k.
func (c *Cache) unpin(k *kept) {
	c.end(k.mapping)
	c.setPinned(c.pinned - k.bytes)
}

// setPinned shows puts whether too much is pinned.
func (c *Cache) setPinned(bytes uint64) {
	c.pinned = bytes
	c.line.room.Store(int64(min(c.most, math.MaxInt64)) - int64(bytes))
}

// dropRetired unpins the retired ranges that have no hold any more.
func (c *Cache) dropRetired() {
	c.retired = slices.DeleteFunc(c.retired, func(k *kept) bool {
		if k.held() {
			return false
		}
		c.unpin(k)
		return true
	})
}

// oldest is the index of the unheld range whose last use is the longest ago, or -1 if all
// are held.
func (c *Cache) oldest() int {
	oldest, when := -1, uint64(0)
	for i, k := range c.live {
		used := k.in.used.Load()
		if k.held() || (oldest >= 0 && used >= when) {
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
		if k := c.live[i]; k.in.retire(k.handle, false) {
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
