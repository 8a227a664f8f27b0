package core

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"gdrapi/core/cuda"
)

// MaxRanges is how many ranges one cache has at most.
const MaxRanges = 16384

// CacheDriver is what a cache needs to know from CUDA about memory.
type CacheDriver interface {
	// BufferID is the ID of the allocation that has addr. No two allocations of a
	// process ever have the same ID. 0 is none.
	BufferID(addr uint64) (uint64, error)
	// AllocationRange is the start of that allocation and its size in bytes.
	AllocationRange(addr uint64) (base, size uint64, err error)
	// PointerGetAttribute is the address of cuPointerGetAttribute, for Hits.
	PointerGetAttribute() uintptr
}

func cudaDriver() (CacheDriver, error) {
	d, err := cuda.Loaded()
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Hits shows the ranges of a cache to others than this package, who hold and give back
// ranges without the cache's lock. The cache calls each method with that lock.
type Hits interface {
	// Asks says by which function a hit asks for a buffer ID. The first range comes later.
	Asks(pointerGetAttribute uintptr)
	// Add shows a range, the one at that place in the order of addresses. It is held once.
	Add(place int, r Shown) Holds
	// View makes the View of a buffer that the cache has pinned.
	View(*Buffer) (View, error)
	// Remove ends what Add began at that place.
	Remove(place int)
	// Room says, after each Add, how many bytes may still be pinned. Below 0 too many are.
	Room(bytes int64)
}

// Shown is a range of a cache: GPU addresses from Start to before End, in the allocation with
// the buffer ID.
type Shown struct {
	Start, End, ID uint64
	VA             uint64 // the CPU's address of Start
	Used           uint64 // the time of the last use
	View           View   // of the range's buffer
}

// Holds counts who holds a range.
type Holds interface {
	// Take takes a hold, unless the range is retired. now is the time of its last use.
	Take(now uint64) bool
	// Drop ends a hold.
	Drop()
	// Retire has no new hold taken. Without heldToo it returns false if there is a hold.
	Retire(heldToo bool) bool
	// Held reports whether there is a hold.
	Held() bool
	// Used is the time of the last use.
	Used() uint64
}

// tally is the Holds of a cache without Hits. The cache's lock guards it.
type tally struct {
	holds   int
	retired bool
	used    uint64
}

func (n *tally) Take(now uint64) bool {
	if n.retired {
		return false
	}
	n.holds++
	n.used = now
	return true
}

func (n *tally) Retire(heldToo bool) bool {
	n.retired = n.retired || n.holds == 0 || heldToo
	return n.retired
}

func (n *tally) Drop()        { n.holds-- }
func (n *tally) Held() bool   { return n.holds > 0 }
func (n *tally) Used() uint64 { return n.used }

// noHits are the Hits of a Go program's cache: all use its methods.
type noHits struct{}

func (noHits) View(*Buffer) (View, error) { return nil, nil } // nobody else copies
func (noHits) Asks(uintptr)               {}
func (noHits) Add(_ int, r Shown) Holds   { return &tally{holds: 1, used: r.Used} }
func (noHits) Remove(int)                 {}
func (noHits) Room(int64)                 {}

// Cache keeps ranges of GPU memory pinned and mapped while nobody uses them.
type Cache struct {
	device *Device
	hits   Hits
	most   uint64 // bytes to keep pinned

	mu      sync.Mutex
	closed  bool
	driver  CacheDriver // nil until it is found
	pinned  uint64      // bytes that are pinned now
	live    []*kept
	retired []*kept // to be unpinned with their last hold
}

// OpenCache opens a cache that keeps up to most bytes pinned that nobody holds.
func (d *Device) OpenCache(most uint64) (*Cache, error) { return d.OpenShownCache(most, noHits{}) }

// OpenShownCache is OpenCache with hits of others.
func (d *Device) OpenShownCache(most uint64, hits Hits) (*Cache, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	c := &Cache{device: d, hits: hits, most: most}
	d.caches.add(c)
	return c, nil
}

// Device is the device that the cache pins through.
func (c *Cache) Device() *Device { return c.device }

// lock takes the lock of a cache that is open.
func (c *Cache) lock() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return fmt.Errorf("the cache is closed: %w", ErrClosed)
	}
	return nil
}

// Range is a range of GPU memory that a cache holds pinned and mapped. It is an io.ReaderAt
// and an io.WriterAt, as a Mapping is.
type Range struct {
	cache *Cache
	in    *kept
	skip  uint64 // bytes of the mapping before offset 0
	size  uint64
	put   atomic.Bool
}

// started is when the clock that dates hits began.
var started = time.Now()

// Get gives the size bytes of GPU memory at addr. If the cache has them pinned and mapped, and
// the memory was not freed meanwhile, that takes one question to CUDA. Else Get pins and maps
// them. Close of the Range gives them back. Errors: those of Device.Map, and ENOTSUP (the bytes
// lie in several allocations, or the program has not loaded CUDA).
func (c *Cache) Get(addr, size uint64) (*Range, error) {
	return c.Hold(addr, size, uint64(time.Since(started)))
}

// Hold is Get at a time of the clock by which the Hits date theirs.
func (c *Cache) Hold(addr, size, now uint64) (*Range, error) {
	if err := checkPin(PinRequest{Addr: addr, Size: size}); err != nil {
		return nil, err
	}
	if err := c.lock(); err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	p, err := c.find(addr, size, now)
	if err != nil {
		return nil, err
	}
	return &Range{cache: c, in: p, skip: addr - p.mapping.gpu, size: size}, nil
}

// View is that of the range's buffer; nil: nobody else copies.
func (r *Range) View() View { return r.in.mapping.buffer.view }

// VA is the CPU's address of offset 0.
func (r *Range) VA() uintptr { return r.in.mapping.va + uintptr(r.skip) }

// ReadAt reads as Mapping.ReadAt does. Offset 0 is the byte at the address that Get was given.
func (r *Range) ReadAt(p []byte, off int64) (n int, err error) {
	if r.put.Load() {
		return 0, fmt.Errorf("the range is given back: %w", ErrClosed)
	}
	return r.in.mapping.readAt(p, off, r.skip, r.size)
}

// WriteAt writes as Mapping.WriteAt does.
func (r *Range) WriteAt(p []byte, off int64) (n int, err error) {
	if r.put.Load() {
		return 0, fmt.Errorf("the range is given back: %w", ErrClosed)
	}
	return r.in.mapping.writeAt(p, off, r.skip, r.size)
}

// Close gives the range back. The cache keeps it pinned while it has room.
func (r *Range) Close() error {
	if r.put.Swap(true) {
		return fmt.Errorf("the range is given back: %w", ErrClosed)
	}
	if err := r.cache.lock(); err != nil {
		return err
	}
	defer r.cache.mu.Unlock()
	r.in.holds.Drop()
	r.cache.makeRoom(0)
	return nil
}

// Settle unpins ranges that nobody holds while the cache is too big, and those that were retired.
func (c *Cache) Settle() error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	c.makeRoom(0)
	return nil
}

// Flush unpins all ranges that nobody holds.
func (c *Cache) Flush() error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	c.dropRetired()
	for i := len(c.live) - 1; i >= 0; i-- {
		if c.live[i].holds.Retire(false) {
			c.retire(i)
		}
	}
	return nil
}

// Close ends the cache and unpins all its ranges, held or not.
func (c *Cache) Close() error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	c.forget()
	for _, k := range c.retired {
		c.unpin(k)
	}
	c.retired = nil
	c.leave()
	return nil
}

// abandon ends the cache of a device that is being closed, which unpins all its buffers.
func (c *Cache) abandon() {
	if c.lock() != nil {
		return
	}
	defer c.mu.Unlock()
	c.forget()
	c.retired = nil
	c.setPinned(0)
	c.leave()
}

// forget ends all hits: nobody finds or holds a range any more.
func (c *Cache) forget() {
	for i := len(c.live) - 1; i >= 0; i-- {
		c.live[i].holds.Retire(true)
		c.hits.Remove(i)
	}
	c.retired = append(c.retired, c.live...)
	c.live = nil
}

func (c *Cache) leave() {
	c.closed = true
	c.device.caches.remove(c)
}
