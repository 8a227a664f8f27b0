package handle

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Handle is the value of a gdr_t, a gdr_mh_t, a gdr_mem_t or a gdr_cache_t. The zero
// Handle names nothing. It has the index of a slot and the slot's generation, so a stale
// handle never names another object.
type Handle uint64

func compose(epoch, gen, index uint32) Handle {
	return Handle(epoch)<<(genBits+indexBits) | Handle(gen)<<indexBits | Handle(index)
}

// index is the index of h's slot. Other tables use the same index for h.
func (h Handle) index() uint32 { return uint32(h) & (slotCount - 1) }

// maxGen is the last generation of a slot. After it the table does not use the slot
// again. So no handle value is ever made twice.
const maxGen = 1<<genBits - 1

// entry is what the table has of a slot that was ever used.
type entry struct {
	gen    uint32 // of the last handle
	object any    // nil: the handle names nothing, or nothing yet
}

// block has the entries of indexes in a row. A table in one piece would be copied into a larger one
// as it grows: a piece of many MiB, for which there may be no memory.
type block [1024]entry

// table gives out handles, and has the object of each. C's copies look up mapped buffers in
// its slots without a lock. All its methods may be called from any goroutine.
type table struct {
	epoch  uint32
	shared *Shared
	mem    []byte
	slots  *[slotCount]slot

	mu      sync.RWMutex
	blocks  []*block // of the entries, by index
	used    uint32   // entries that have been given out
	free    []uint32 // indexes below used that nothing uses
	perType [4]int   // live mappings by type
}

// slotsAtFirst is how many slots are made with the table: 128 KiB of them.
const slotsAtFirst = 1024

// newTable makes a table whose handles carry epoch, 1 to MaxEpoch, and tells C where it is.
//
// It reserves 128 MiB of address space. Only what is used can be read, so a host that locks its
// memory (mlockall) gets no more of it. A forked child does not inherit it.
func newTable(epoch uint32, shared *Shared) (*table, error) {
	if epoch == 0 || epoch > MaxEpoch {
		return nil, fmt.Errorf("%d generations of forks have opened the library; let a child exec before it opens: %w", MaxEpoch, unix.EAGAIN)
	}
	mem, err := zeros(int(slotCount*unsafe.Sizeof(slot{})), unix.PROT_NONE)
	if err != nil {
		return nil, fmt.Errorf("handle table: %w", err)
	}
	t := &table{epoch: epoch, shared: shared, mem: mem, slots: slotsIn(mem)}
	if err := t.makeSlots(slotsAtFirst); err != nil {
		_ = unix.Munmap(mem)
		return nil, err
	}
	shared.slots.Store(uint64(t.address()))
	return t, nil
}

// makeSlots makes the first n slots, a power of two. The slots that C reads stay where they are.
func (t *table) makeSlots(n uint32) error {
	if err := unix.Mprotect(t.mem[:uintptr(n)*unsafe.Sizeof(slot{})], unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return fmt.Errorf("no memory for more handles; raise the memory limit: %w", err)
	}
	t.shared.last.Store(n - 1)
	return nil
}

// address is the address of the slots that C reads.
func (t *table) address() uintptr { return uintptr(unsafe.Pointer(t.slots)) }

// alloc gives out a new handle. It names nothing until put.
func (t *table) alloc() (Handle, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var i uint32
	switch {
	case len(t.free) > 0:
		i = t.free[len(t.free)-1]
		t.free = t.free[:len(t.free)-1]
	case t.used < slotCount:
		i = t.used
		if i > t.shared.last.Load() {
			if err := t.makeSlots(1 << bits.Len32(i)); err != nil {
				return 0, err
			}
		}
		if int(i) == len(t.blocks)*len(block{}) {
			t.blocks = append(t.blocks, new(block))
		}
		t.used++
		// A random start makes a guessed handle unlikely to hit.
		t.at(i).gen = rand.Uint32() >> 1
	default:
		return 0, fmt.Errorf("all %d handles are in use; unpin buffers that you no longer use: %w", slotCount, unix.ENOMEM)
	}
	e := t.at(i)
	e.gen++
	return compose(t.epoch, e.gen, i), nil
}

// at is the entry with an index below used. The caller holds mu.
func (t *table) at(i uint32) *entry {
	return &t.blocks[i/uint32(len(block{}))][i%uint32(len(block{}))]
}

// put makes h, of alloc, the handle of an object.
func (t *table) put(h Handle, object any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at(h.index()).object = object
}

// entry is that of h, or nil where h is not the slot's newest handle. The caller holds mu.
func (t *table) entry(h Handle) *entry {
	i := h.index()
	if i >= t.used {
		return nil
	}
	if e := t.at(i); compose(t.epoch, e.gen, i) == h {
		return e
	}
	return nil
}

// get finds the object of a handle; nil: it has none.
func (t *table) get(h Handle) any {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e := t.entry(h); e != nil {
		return e.object
	}
	return nil
}

// take takes the object from a handle, and leaves the handle to the caller. Of several calls
// one gets it, the others nil.
func (t *table) take(h Handle) any {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(h)
	if e == nil {
		return nil
	}
	object := e.object
	e.object = nil
	return object
}

// release ends a handle of alloc that names nothing. It must not be published.
func (t *table) release(h Handle) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := h.index(); t.at(i).gen < maxGen {
		t.free = append(t.free, i)
	}
}

// handlesWhere lists the handles of the objects that is says yes to.
func (t *table) handlesWhere(is func(object any) bool) []Handle {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var handles []Handle
	for i := range t.used {
		if e := t.at(i); e.object != nil && is(e.object) {
			handles = append(handles, compose(t.epoch, e.gen, i))
		}
	}
	return handles
}

// publish lets copies through h use the n bytes mapped at va. typ is a value of enum
// gdr_mapping_type. One call at a time for each handle.
func (t *table) publish(h Handle, va uintptr, n uint64, typ uint32) {
	t.count(typ, +1)
	t.slots[h.index()].set(uint64(h), uint64(va), n, typ)
}

// retract ends what publish began: no copy through h will start.
func (t *table) retract(h Handle) {
	s := &t.slots[h.index()]
	typ := uint32(s.state.Load() & slotType)
	s.set(0, 0, 0, 0)
	t.count(typ, -1)
}

// set changes the fields in the order that slot.h states.
func (s *slot) set(key, va, n uint64, typ uint32) {
	count := s.state.Load() &^ (slotCounts - 1)
	s.state.Store(count | slotChanges)
	s.key.Store(key)
	s.va.Store(va)
	s.len.Store(n)
	s.state.Store(count + slotCounts | uint64(typ&slotType))
}

// setCache makes h the handle of the registration cache whose line is at that address.
// With 0, h is no cache's handle any more.
func (t *table) setCache(h Handle, line uintptr) {
	t.slots[h.index()].cache.Store(uint64(line))
}

// count counts the mappings of type typ up or down by by. While there are mappings of
// more than one type, writes use full fences.
func (t *table) count(typ uint32, by int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.perType[typ&3] += by
	live := 0
	for _, n := range t.perType {
		if n > 0 {
			live++
		}
	}
	var mixed uint32
	if live > 1 {
		mixed = 1
	}
	t.shared.mixed.Store(mixed)
}
