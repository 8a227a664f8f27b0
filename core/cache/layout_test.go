package cache

import (
	"testing"
	"unsafe"

	"gdrapi/core/handle"
	"gdrapi/tests/ctest"
)

// TestLayout compares the shared memory with capi/cache_range.h.
func TestLayout(t *testing.T) {
	var r rangeLine
	var s span
	var l line
	h := handle.Handle(0x123_89abcdef_54321)
	ctest.Agree(t, `#include "cache_range.h"`, map[string]uint64{
		"sizeof(struct range)":              uint64(unsafe.Sizeof(r)),
		"offsetof(struct range, state)":     uint64(unsafe.Offsetof(r.state)),
		"offsetof(struct range, start)":     uint64(unsafe.Offsetof(r.start)),
		"offsetof(struct range, end)":       uint64(unsafe.Offsetof(r.end)),
		"offsetof(struct range, id)":        uint64(unsafe.Offsetof(r.id)),
		"offsetof(struct range, va)":        uint64(unsafe.Offsetof(r.va)),
		"offsetof(struct range, owner)":     uint64(unsafe.Offsetof(r.owner)),
		"offsetof(struct range, used)":      uint64(unsafe.Offsetof(r.used)),
		"sizeof(struct span)":               uint64(unsafe.Sizeof(s)),
		"offsetof(struct span, start)":      uint64(unsafe.Offsetof(s.start)),
		"offsetof(struct span, handle)":     uint64(unsafe.Offsetof(s.handle)),
		"sizeof(struct cache)":              uint64(unsafe.Sizeof(l)),
		"offsetof(struct cache, key)":       uint64(unsafe.Offsetof(l.key)),
		"offsetof(struct cache, count)":     uint64(unsafe.Offsetof(l.count)),
		"offsetof(struct cache, room)":      uint64(unsafe.Offsetof(l.room)),
		"offsetof(struct cache, spans)":     uint64(unsafe.Offsetof(l.spans)),
		"offsetof(struct cache, ranges)":    uint64(unsafe.Offsetof(l.ranges)),
		"offsetof(struct cache, slots)":     uint64(unsafe.Offsetof(l.slots)),
		"offsetof(struct cache, attribute)": uint64(unsafe.Offsetof(l.attribute)),
		"RETIRED":                           retiredBit,
		"HOLDS_MAX":                         holdsMax,
		"state_of(0x12389abcdef54321)":      stateOf(h),
	}, "-I../../capi")
}
