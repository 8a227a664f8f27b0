package cache

import (
	"sync/atomic"
	"unsafe"
)

// The structs of this file are those of capi/cache_range.h, field by field. Hits and puts
// are C, and read and write this memory.

const (
	slotCount = 1 << 20 // GDR_SLOT_COUNT
	maxCaches = 64      // a process has at most
)

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

	spans, attribute uint64
	_                [2]uint64
}

// Range is a pinned range, in the slot of its handle.
type Range struct {
	state atomic.Uint64
	start atomic.Uint64
	end   atomic.Uint64
	id    atomic.Uint64
	va    atomic.Uint64
	owner atomic.Uint64
	used  atomic.Uint64
	_     uint64
}

// provide makes memory for *p, of the type that C reads, unless there is some.
func provide[T any](s *Caches, p **T) error {
	if *p != nil {
		return nil
	}
	mem, err := s.library.Zeros(int(unsafe.Sizeof(**p)))
	if err == nil {
		*p = (*T)(unsafe.Pointer(unsafe.SliceData(mem)))
	}
	return err
}

const (
	retiredBit = 1 << 31
	holdsMax   = retiredBit - 1
)

// stateOf is the state of the range of a handle without holds: it has the handle's generation.
func stateOf(handle uint64) uint64 { return handle / slotCount << 32 }

func sameGeneration(a, b uint64) bool { return (a^b)>>32 == 0 }

// change replaces the range's state by what to gives, while the place is that of the handle. It
// returns false where the place has another range, or to refuses.
func (r *Range) change(handle uint64, to func(state uint64) (uint64, bool)) bool {
	for {
		s := r.state.Load()
		if !sameGeneration(s, stateOf(handle)) {
			return false
		}
		next, ok := to(s)
		if !ok || r.state.CompareAndSwap(s, next) {
			return ok
		}
	}
}

// take takes a hold, if the handle still names that range.
func (r *Range) take(handle, now uint64) bool {
	taken := r.change(handle, func(s uint64) (uint64, bool) { return s + 1, s&retiredBit == 0 && s&holdsMax != holdsMax })
	if taken {
		r.used.Store(now)
	}
	return taken
}

// retire prevents new holds. Without heldToo it returns false if somebody holds the range. A
// range that is gone, or was replaced, counts as retired.
func (r *Range) retire(handle uint64, heldToo bool) bool {
	return r.change(handle, func(s uint64) (uint64, bool) { return s | retiredBit, s&holdsMax == 0 || heldToo }) ||
		!sameGeneration(r.state.Load(), stateOf(handle))
}

// held reports whether somebody holds the range, retired or not.
func (r *Range) held(handle uint64) bool {
	s := r.state.Load()
	return sameGeneration(s, stateOf(handle)) && s&holdsMax != 0
}

// fill makes the place that of k, held once. It writes the state last, because that lets hits in.
func (r *Range) fill(k *kept, owner, now uint64) {
	// Usually it is retired already. It is not if the caller unpinned the old range.
	r.state.Or(retiredBit)
	r.start.Store(k.start)
	r.end.Store(k.end)
	r.id.Store(k.id)
	r.va.Store(uint64(k.mapping.VA()) + k.start - k.mapping.GPU())
	r.owner.Store(owner)
	r.used.Store(now)
	r.state.Store(stateOf(k.handle) | 1)
}
