package core

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"gdrapi/core/backend"
	"gdrapi/core/cache"
	"gdrapi/core/cuda"
	"gdrapi/core/handle"
)

// Caches is where caches have their ranges: in the memory of Set, by handles of Table. Buffers
// are what these handles name.
type Caches struct {
	Table   *handle.Table
	Buffers *handle.Objects[*Buffer]
	Set     cache.Set

	// Driver gives the driver that caches ask about memory. nil: CUDA's.
	Driver func() (cache.Driver, error)
}

// Cache keeps ranges of GPU memory pinned and mapped while nobody uses them.
type Cache struct {
	device *Device
	in     *Caches
	cache  *cache.Cache
}

// cachePins pins for a cache, through the cache's device. That device is entered.
type cachePins struct {
	device *Device
	in     *Caches
}

func (p cachePins) Pin(addr, size uint64) (handle.Handle, error) {
	h, err := p.in.Table.Alloc()
	if err != nil {
		return 0, err
	}
	b, err := p.device.pin(PinRequest{Addr: addr, Size: size})
	if err != nil {
		p.in.Table.Free(h)
		return 0, err
	}
	p.in.Buffers.Put(h, b)
	return h, b.SetGate(p.in.Buffers.Gate(h))
}

// hold finds a buffer and takes its lock.
func (p cachePins) hold(h handle.Handle) (*Buffer, error) {
	b, ok := p.in.Buffers.Get(h)
	if !ok {
		return nil, fmt.Errorf("the buffer is unpinned: %w", ErrClosed)
	}
	return b, b.hold()
}

func (p cachePins) Info(h handle.Handle) (va uint64, page uint32, err error) {
	b, err := p.hold(h)
	if err != nil {
		return 0, 0, err
	}
	defer b.mu.Unlock()
	i, err := b.pin.Info()
	return i.VA, i.PageSize, err
}

func (p cachePins) Map(h handle.Handle, size uint64) (uintptr, error) {
	b, err := p.hold(h)
	if err != nil {
		return 0, err
	}
	defer b.mu.Unlock()
	m, err := b.mapLocked(size, backend.None)
	if err != nil {
		return 0, err
	}
	return m.va, nil
}

func (p cachePins) Unpin(h handle.Handle) error {
	b, err := p.hold(h)
	if err != nil {
		return err
	}
	defer b.mu.Unlock()
	return b.unpin()
}

func (in *Caches) driver() (cache.Driver, error) {
	if in.Driver != nil {
		return in.Driver()
	}
	d, err := cuda.Loaded()
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Open opens a cache through d. It keeps up to most bytes pinned that nobody holds.
func (in *Caches) Open(d *Device, most uint64) (*Cache, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	opened, err := in.Set.Open(in.Table, most, cachePins{d, in}, in.driver)
	if err != nil {
		return nil, err
	}
	c := &Cache{device: d, in: in, cache: opened}
	d.caches.add(c)
	return c, nil
}

// Handle names the cache in its Caches.
func (c *Cache) Handle() handle.Handle { return c.cache.Handle() }

// Device is the device that the cache pins through.
func (c *Cache) Device() *Device { return c.device }

// ours has the caches of programs that use this package alone.
var ours = sync.OnceValues(func() (*Caches, error) {
	const epoch = 1 // handles of a forked child would have another
	t, err := handle.New(epoch)
	if err != nil {
		return nil, err
	}
	return &Caches{Table: t, Buffers: handle.NewObjects[*Buffer](t)}, nil
})

// OpenCache opens a cache that keeps up to most bytes pinned that nobody holds. A program has
// 64 caches at most. Errors: ENOMEM.
func (d *Device) OpenCache(most uint64) (*Cache, error) {
	in, err := ours()
	if err != nil {
		return nil, err
	}
	return in.Open(d, most)
}

// Range is a range of GPU memory that a cache holds pinned and mapped. It is an io.ReaderAt
// and an io.WriterAt, as a Mapping is.
type Range struct {
	cache   *Cache
	h       handle.Handle
	mapping *Mapping
	skip    uint64 // bytes of the mapping before offset 0
	size    uint64
	put     atomic.Bool
}

// started is when the clock that dates hits began.
var started = time.Now()

// Get gives the size bytes of GPU memory at addr. If the cache has them pinned and mapped, and
// the memory was not freed meanwhile, that takes one question to CUDA. Else Get pins and maps
// them. Close of the Range gives them back. Errors: those of Device.Map, and ENOTSUP (the bytes
// lie in several allocations, or the program has not loaded CUDA).
func (c *Cache) Get(addr, size uint64) (*Range, error) {
	if err := checkPin(PinRequest{Addr: addr, Size: size}); err != nil {
		return nil, err
	}
	held, err := c.Hold(addr, size, uint64(time.Since(started)))
	if err != nil {
		return nil, err
	}
	r := &Range{cache: c, h: held.Handle, size: size}
	if b, ok := c.in.Buffers.Get(held.Handle); ok {
		r.mapping, err = b.Mapping()
	}
	if r.mapping == nil {
		// Another goroutine has closed the cache.
		return nil, first(err, fmt.Errorf("the cache is closed: %w", ErrClosed))
	}
	r.skip = held.VA - uint64(r.mapping.va)
	return r, nil
}

// ReadAt reads as Mapping.ReadAt does. Offset 0 is the byte at the address that Get was given.
func (r *Range) ReadAt(p []byte, off int64) (n int, err error) {
	if r.put.Load() {
		return 0, fmt.Errorf("the range is given back: %w", ErrClosed)
	}
	return r.mapping.readAt(p, off, r.skip, r.size)
}

// WriteAt writes as Mapping.WriteAt does.
func (r *Range) WriteAt(p []byte, off int64) (n int, err error) {
	if r.put.Load() {
		return 0, fmt.Errorf("the range is given back: %w", ErrClosed)
	}
	return r.mapping.writeAt(p, off, r.skip, r.size)
}

// Close gives the range back. The cache keeps it pinned while it has room.
func (r *Range) Close() error {
	if r.put.Swap(true) {
		return fmt.Errorf("the range is given back: %w", ErrClosed)
	}
	if err := r.cache.device.enter(); err != nil {
		return err
	}
	defer r.cache.device.leave()
	return r.cache.cache.Put(r.h)
}

// Hold holds a range of the cache that has the size bytes at addr. now is the time on the
// clock by which hits are dated.
func (c *Cache) Hold(addr, size, now uint64) (cache.Held, error) {
	if err := c.device.enter(); err != nil {
		return cache.Held{}, err
	}
	defer c.device.leave()
	return c.cache.Get(addr, size, now)
}

// Settle unpins the ranges that a put has left to unpin.
func (c *Cache) Settle() error {
	if err := c.device.enter(); err != nil {
		return err
	}
	defer c.device.leave()
	return c.cache.Settle()
}

// Flush unpins all ranges that nobody holds.
func (c *Cache) Flush() error {
	if err := c.device.enter(); err != nil {
		return err
	}
	defer c.device.leave()
	return c.cache.Flush()
}

// Close ends the cache and unpins all of it.
func (c *Cache) Close() error {
	if err := c.device.enter(); err != nil {
		return err
	}
	defer c.device.leave()
	if err := c.cache.Close(); err != nil {
		return err
	}
	c.device.caches.remove(c)
	return nil
}

// abandon ends the cache of a device that is being closed. No thread is in a call on it.
func (c *Cache) abandon() {
	c.cache.Abandon()
	c.device.caches.remove(c)
}
