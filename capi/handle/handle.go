// Package handle makes the 64-bit handles of the C ABI and keeps their table. The C
// copy routines look up handles in that table without a lock.
//
// A handle has the index of a slot and the slot's generation. So a stale handle never
// names another buffer. capi/copy/slot.h describes the layout, docs/design.md the protocol
// between a copy and an unmap.
package handle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Handle is the value of a gdr_t, a gdr_mh_t, a gdr_mem_t or a gdr_cache_t. The zero
// Handle names nothing.
type Handle uint64

func compose(epoch, gen, index uint32) Handle {
	return Handle(epoch)<<(genBits+indexBits) | Handle(gen)<<indexBits | Handle(index)
}

// Index is the index of h's slot. Other tables use the same index for h.
func (h Handle) Index() uint32 { return uint32(h) & (slotCount - 1) }

// Generation differs between h and the earlier and later handles of the same slot.
func (h Handle) Generation() uint64 { return uint64(h) >> indexBits & (1<<genBits - 1) }

// maxGen is the last generation of a slot. After it the table does not use the slot
// again. So no handle value is ever made twice.
const maxGen = 1<<genBits - 1

// Table gives out handles. All its methods may be called from any goroutine.
type Table struct {
	mem     []byte
	header  *header
	slots   *[slotCount]slot
	hazards *[hazardCount]hazard

	mu      sync.Mutex
	gens    []uint32 // generation that a slot had last, by index
	free    []uint32 // slots below len(gens) that nothing uses
	perType [4]int   // live mappings by type
}

// New makes a table whose handles carry epoch, 1 to MaxEpoch.
//
// It reserves 68 MiB of address space. Only the pages that are used take memory. A
// forked child does not inherit the table.
func New(epoch uint32) (*Table, error) {
	if epoch == 0 || epoch > MaxEpoch {
		return nil, fmt.Errorf("handle table: epoch %d is not in 1..%d: %w", epoch, MaxEpoch, unix.EAGAIN)
	}
	mem, err := Zeros(int(tableBytes))
	if err != nil {
		return nil, fmt.Errorf("handle table: %w", err)
	}
	t := &Table{mem: mem}
	t.header, t.slots, t.hazards = view(mem)
	t.header.epoch = epoch
	if !hasBarrier() {
		t.header.fenced.Store(1)
	}
	return t, nil
}

// Close frees the table's memory. After it neither Go nor C may use the table. The
// library itself never closes its table.
func (t *Table) Close() error { return unix.Munmap(t.mem) }

// Addr is the address of the struct gdr_table that C reads.
func (t *Table) Addr() uintptr { return uintptr(unsafe.Pointer(t.header)) }

// Alloc gives out a new handle. It is not mapped.
func (t *Table) Alloc() (Handle, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var i uint32
	switch {
	case len(t.free) > 0:
		i = t.free[len(t.free)-1]
		t.free = t.free[:len(t.free)-1]
	case len(t.gens) < slotCount:
		i = uint32(len(t.gens))
		// A random start makes a guessed handle unlikely to hit.
		t.gens = append(t.gens, rand.Uint32()>>1)
	default:
		return 0, fmt.Errorf("handle table: all %d handles are in use: %w", slotCount, unix.ENOMEM)
	}
	t.gens[i]++
	return compose(t.header.epoch, t.gens[i], i), nil
}

// Free ends a handle of Alloc. The handle must not be published.
func (t *Table) Free(h Handle) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := h.Index()
	if t.gens[i] < maxGen {
		t.free = append(t.free, i)
	}
}

// Publish lets copies through h use the n bytes mapped at va. typ is a value of
// enum gdr_mapping_type.
func (t *Table) Publish(h Handle, va uintptr, n uint64, typ uint32) {
	t.count(typ, +1)
	s := &t.slots[h.Index()]
	s.va, s.len, s.typ = uint64(va), n, typ
	s.key.Store(uint64(h))
}

// Drain is what is left of the copies that ran through a handle when it was retracted.
type Drain struct {
	table *Table
	h     Handle
	typ   uint32
	left  []running
	done  bool
}

// running is a copy, as a record showed it.
type running struct {
	record *hazard
	level  int
	busy   uint64
}

// Retract ends what Publish began: no copy through h will start. When Done of the Drain
// is true, none runs, and the mapping may be unmapped.
func (t *Table) Retract(h Handle) *Drain {
	s := &t.slots[h.Index()]
	s.key.Store(0)
	if t.header.fenced.Load() == 0 {
		barrier()
	}
	d := &Drain{table: t, h: h, typ: s.typ}
	used := min(t.header.hazardsUsed.Load(), hazardCount)
	records := t.hazards[hazardCount-used:]
	for i := range records {
		for l := range records[i].busy {
			if busy := records[i].busy[l].Load(); records[i].has(busy, h) {
				d.left = append(d.left, running{&records[i], l, busy})
			}
		}
	}
	return d
}

// Done reports whether all those copies have ended. It may be called again.
func (d *Drain) Done() bool {
	d.left = slices.DeleteFunc(d.left, func(r running) bool { return r.hasEnded(d.h) })
	if len(d.left) > 0 {
		return false
	}
	if !d.done {
		d.done = true
		d.table.count(d.typ, -1)
	}
	return true
}

// looks is how often hasEnded looks. A thread that goes on copying through a handle that
// was retracted shows it again and again, between copies that are refused.
const looks = 100

func (r running) hasEnded(h Handle) bool {
	for range looks {
		busy := r.record.busy[r.level].Load()
		// A copy of many pieces may have said meanwhile which handles it has.
		same := busy == r.busy || isMany(busy) && isMany(r.busy) && busy>>manyShift == r.busy>>manyShift
		if !same || !r.record.has(busy, h) {
			return true
		}
	}
	return false
}

// has reports whether the copy that busy of z shows has h, or may have it.
func (z *hazard) has(busy uint64, h Handle) bool {
	names := busy & manyNames
	if !isMany(busy) {
		return busy == uint64(h)
	}
	for i := range names {
		if z.names[i].Load() == uint64(h) {
			return true
		}
	}
	return names == 0
}

// isMany reports whether busy, of a hazard record, is the number of a copy of many
// pieces. Such a number has no epoch; a handle has one.
func isMany(busy uint64) bool { return busy != 0 && busy>>(genBits+indexBits) == 0 }

// SetCache makes h the handle of the registration cache whose line is at that address.
// With 0, h is no cache's handle any more.
func (t *Table) SetCache(h Handle, line uintptr) {
	t.slots[h.Index()].cache.Store(uint64(line))
}

// Slots is the address of the slots that C reads.
func (t *Table) Slots() uintptr { return uintptr(unsafe.Pointer(t.slots)) }

// count counts the mappings of type typ up or down by by. While there are mappings of
// more than one type, copies use full fences.
func (t *Table) count(typ uint32, by int) {
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
	t.header.mixed.Store(mixed)
}
