// Package cache has the registration caches of gdrapi_ext.h, but for their hits and puts, which
// are C. It uses package core as any Go program does.
package cache

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"unsafe"

	"gdrapi/core"
	"gdrapi/core/cuda"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// MaxRanges is how many ranges one cache has at most.
const MaxRanges = 16384

// driver is what a cache needs to know from CUDA about memory.
type driver interface {
	BufferID(addr uint64) (uint64, error)
	AllocationRange(addr uint64) (base, size uint64, err error)
	PointerGetAttribute() uintptr
}

// Library is what the caches need of the library around them.
type Library interface {
	// Zeros makes memory that C may read at any time.
	Zeros(size int) ([]byte, error)
	// Show gives a buffer a handle, or closes it.
	Show(*core.Buffer) (handle uint64, err error)
	// Place is where C looks for the range of a handle.
	Place(handle uint64) *Range
}

// Caches are those of a process.
type Caches struct {
	library Library
	driver  func() (driver, error) // tests have their own

	mu    sync.Mutex
	lines *[maxCaches]line // nil before the first cache
	spans [maxCaches]*[MaxRanges]span
	taken [maxCaches]bool
}

// New is without a cache.
func New(l Library) *Caches {
	return &Caches{library: l, driver: func() (driver, error) { return cuda.Loaded() }}
}

// Cache keeps ranges of GPU memory pinned and mapped while nobody uses them. Its methods may be
// called from any goroutine.
type Cache struct {
	of     *Caches
	device *core.Device
	most   uint64 // bytes to keep pinned
	handle uint64
	at     int // its place among the caches
	line   *line
	spans  *[MaxRanges]span

	mu      sync.Mutex // not held while something is pinned or unpinned: the host may hook mmap and munmap
	closed  bool
	driver  driver          // nil until it is found
	pinned  uint64          // bytes that are pinned now
	live    []*kept         // by address. None lies in another, so their ends are in order, too
	retired []*kept         // to be unpinned with their last hold
	ended   []*core.Mapping // to be unpinned by unlock
}

// kept is a range that is pinned and mapped.
type kept struct {
	mapping    *core.Mapping
	handle     uint64
	in         *Range
	start, end uint64
	id         uint64 // of the allocation
	bytes      uint64 // pinned for the range
}

func (k *kept) held() bool { return k.in.held(k.handle) }

// Open opens a cache with a handle. It keeps up to most bytes pinned that nobody holds.
//
// A place has 256 KiB of address space, from its first cache on. It is never unmapped: a call with
// an old handle may read it at any time. A forked child does not inherit it.
func (s *Caches) Open(d *core.Device, most, handle uint64) (*Cache, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Index(s.taken[:], false)
	if at < 0 {
		return nil, fmt.Errorf("%d caches are open; close one: %w", maxCaches, unix.ENOMEM)
	}
	if err := errors.Join(provide(s, &s.lines), provide(s, &s.spans[at])); err != nil {
		return nil, fmt.Errorf("no memory for caches; raise the memory limit, or close other caches: %w", err)
	}
	s.taken[at] = true
	l := &s.lines[at]
	l.spans = uint64(uintptr(unsafe.Pointer(s.spans[at])))
	l.key.Store(handle)
	return &Cache{of: s, device: d, most: most, handle: handle, at: at, line: l, spans: s.spans[at]}, nil
}

// Device is the device that the cache pins through.
func (c *Cache) Device() *core.Device { return c.device }

// Address is where C finds the cache.
func (c *Cache) Address() uintptr { return uintptr(unsafe.Pointer(c.line)) }

// lock takes the lock of a cache that is open.
func (c *Cache) lock() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return errClosed()
	}
	return nil
}

func errClosed() error {
	return fmt.Errorf("the cache is closed; close it after the last call: %w", core.ErrClosed)
}

// unlock then unpins what has ended, unless its caller or the device's Close has. If the driver
// fails, the buffer is gone as well.
func (c *Cache) unlock() {
	ended := c.ended
	c.ended = nil
	c.mu.Unlock()
	for _, m := range ended {
		if err := m.Close(); err != nil && !errors.Is(err, core.ErrClosed) {
			log.Errorf("an unpin by a cache: %v", err)
		}
	}
}

// Get holds a range that has the size bytes at addr. If the cache has them pinned and mapped, and
// the memory was not freed meanwhile, that takes one question to CUDA. Else Get pins and maps
// them. now is the time on the clock by which C dates hits. va is the CPU's address of addr.
func (c *Cache) Get(addr, size, now uint64) (handle uint64, va uintptr, err error) {
	if err := c.lock(); err != nil {
		return 0, 0, err
	}
	defer c.unlock()
	k, err := c.find(addr, size, now)
	if err != nil {
		return 0, 0, err
	}
	return k.handle, k.mapping.VA() + uintptr(addr-k.mapping.GPU()), nil
}

// Settle unpins ranges that nobody holds while the cache is too big, and those that were retired.
func (c *Cache) Settle() error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.unlock()
	c.makeRoom(0)
	return nil
}

// Flush unpins all ranges that nobody holds.
func (c *Cache) Flush() error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.unlock()
	c.dropRetired()
	for i := len(c.live) - 1; i >= 0; i-- {
		if k := c.live[i]; k.in.retire(k.handle, false) {
			c.retire(i)
		}
	}
	return nil
}

// Close ends the cache and unpins all its ranges, held or not, those whose device is closed
// excepted: they are unpinned. C finds nothing in it any more, and its place is free.
func (c *Cache) Close() error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.unlock()
	c.closed = true
	c.line.count.Store(0)
	for _, k := range slices.Concat(c.live, c.retired) {
		k.in.retire(k.handle, true)
		c.unpin(k)
	}
	c.live, c.retired = nil, nil
	c.line.key.Store(0)
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.taken[c.at] = false
	return nil
}

// outside calls fn, which calls CUDA, without the lock: CUDA may call the host back. A panic of fn's
// goes on with the lock held, as the caller's deferred unlock expects it.
func (c *Cache) outside(fn func() error) (err error) {
	c.unlock()
	defer func() {
		c.mu.Lock()
		if c.closed {
			err = errClosed()
		}
	}()
	return fn()
}

// find holds a range that has the size bytes at addr. It pins one if there is none.
func (c *Cache) find(addr, size, now uint64) (_ *kept, err error) {
	var id uint64
	d := c.driver
	err = c.outside(func() (err error) {
		if d == nil {
			if d, err = c.of.driver(); err != nil {
				return err
			}
		}
		id, err = d.BufferID(addr)
		return err
	})
	if d != nil && c.driver == nil {
		c.driver = d
		c.line.attribute = uint64(d.PointerGetAttribute())
	}
	if err != nil && (d == nil || c.closed) {
		return nil, err
	}
	c.makeRoom(0)
	if err != nil {
		c.retireUseless(plan{start: addr, end: addr + 1}, false)
		return nil, fmt.Errorf("%#x has no buffer ID; pass the address of memory that this process allocated with CUDA: %w", addr, err)
	}
	// Another thread may have pinned it by now.
	if k := c.hold(addr, size, id, now); k != nil {
		return k, nil
	}
	c.retireUseless(plan{id: id, start: addr, end: addr + 1}, false)
	return c.add(addr, size, id, now)
}

// after is the index of the first range that starts after addr.
func (c *Cache) after(addr uint64) int {
	return sort.Search(len(c.live), func(i int) bool { return c.live[i].start > addr })
}

// hold holds a live range that has the bytes, as a hit in C does; nil: there is none.
func (c *Cache) hold(addr, size, id, now uint64) *kept {
	at := c.after(addr)
	if at == 0 {
		return nil
	}
	k := c.live[at-1]
	if addr >= k.end || size > k.end-addr || k.id != id || !k.mapping.IsOpen() || !k.in.take(k.handle, now) {
		return nil
	}
	return k
}
