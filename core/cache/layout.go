package cache

import (
	"sync/atomic"
	"unsafe"

	"gdrapi/core/handle"
	"gdrapi/core/internal/sys"
)

// The structs of this file are those of capi/cache_range.h, field by field. Hits and puts
// are C, and read and write this memory. TestLayout compares the two.

const (
	// RangesMax is how many ranges one cache has at most.
	RangesMax = 16384
	// CachesMax is how many caches a process has at most.
	CachesMax = 64
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
func stateOf(h handle.Handle) uint64 { return h.Generation() << 32 }

func sameGeneration(a, b uint64) bool { return (a^b)>>32 == 0 }

// hold takes a hold of the range of h, if h still names that range.
func (r *rangeLine) hold(h handle.Handle) bool {
	for {
		s := r.state.Load()
		if !sameGeneration(s, stateOf(h)) || s&retiredBit != 0 || s&holdsMax == holdsMax {
			return false
		}
		if r.state.CompareAndSwap(s, s+1) {
			return true
		}
	}
}

// letGo ends a hold of the range of h, and gives the state that it leaves. It returns false
// if nobody holds the range.
func (r *rangeLine) letGo(h handle.Handle) (left uint64, ok bool) {
	for {
		s := r.state.Load()
		if !sameGeneration(s, stateOf(h)) || s&holdsMax == 0 {
			return 0, false
		}
		if r.state.CompareAndSwap(s, s-1) {
			return s - 1, true
		}
	}
}

// retire prevents new holds of the range of h. Without heldToo it returns false if
// somebody holds the range. A range that is gone, or was replaced, counts as retired.
func (r *rangeLine) retire(h handle.Handle, heldToo bool) bool {
	for {
		s := r.state.Load()
		switch {
		case !sameGeneration(s, stateOf(h)):
			return true
		case s&holdsMax != 0 && !heldToo:
			return false
		case r.state.CompareAndSwap(s, s|retiredBit):
			return true
		}
	}
}

// held reports whether somebody holds the range of h, retired or not.
func (r *rangeLine) held(h handle.Handle) bool {
	s := r.state.Load()
	return sameGeneration(s, stateOf(h)) && s&holdsMax != 0
}

// memory is shared with C, which reads it.
type memory struct {
	ranges [handle.SlotCount]rangeLine
	lines  [CachesMax]line
	spans  [CachesMax][RangesMax]span
}

// newMemory reserves 80 MiB of address space. Only what is used gets memory. It is never
// unmapped: a call with an old handle may read it at any time. A forked child does not
// inherit it.
func newMemory() (*memory, error) {
	mem, err := sys.Zeros(int(unsafe.Sizeof(memory{})))
	if err != nil {
		return nil, err
	}
	return (*memory)(unsafe.Pointer(unsafe.SliceData(mem))), nil
}
