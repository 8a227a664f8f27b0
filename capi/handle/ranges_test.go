package handle

import (
	"testing"
	"unsafe"

	"gdrapi/core"
	"gdrapi/tests/ctest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestLayout compares the shared memory with capi/cache_range.h.
func TestLayout(t *testing.T) {
	var r rangeLine
	var s span
	var l line
	h := Handle(0x123_89abcdef_54321)
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
	}, "-I..")
}

func TestStates(t *testing.T) {
	const h = Handle(1<<52 | 5<<20 | 3)
	var r rangeLine
	n, later := holds{&r, h}, holds{&r, h + 1<<20}
	r.state.Store(stateOf(h))
	require.False(t, n.Held())
	require.True(t, n.Take(7))
	require.EqualValues(t, 7, n.Used())
	require.True(t, n.Held())
	require.False(t, later.Take(8), "a later handle has none")
	require.EqualValues(t, 7, n.Used())
	require.False(t, later.Held())
	later.Drop()
	require.False(t, n.Retire(false), "it is held")
	require.True(t, later.Retire(false), "another handle counts as retired")
	require.True(t, n.Retire(true))
	require.False(t, n.Take(8))
	require.True(t, n.Held())
	for range 2 {
		n.Drop()
		require.Equal(t, stateOf(h)|retiredBit, r.state.Load())
		require.True(t, n.Retire(false))
	}
	r.state.Store(stateOf(h) | holdsMax)
	require.False(t, n.Take(8), "no more holds than fit")
}

// C finds the ranges in the order of their addresses.
func TestSpans(t *testing.T) {
	l, _, _ := open(t)
	s, err := l.newHits()
	require.NoError(t, err)
	handles := map[uint64]Handle{}
	add := func(place int, start uint64) core.Holds {
		h, err := l.table.alloc()
		require.NoError(t, err)
		n := s.Add(place, core.Shown{Start: start, End: start + 9, ID: 7, VA: start << 8, Used: 5, View: view{l, h}})
		handles[start] = n.(holds).h
		return n
	}
	shown := func(starts ...uint64) {
		t.Helper()
		require.EqualValues(t, len(starts), s.line.count.Load())
		for i, start := range starts {
			require.Equal(t, start, s.spans[i].start.Load())
			require.EqualValues(t, handles[start], s.spans[i].handle.Load())
		}
	}
	first := add(0, 20)
	add(0, 10)
	add(2, 40)
	add(2, 30)
	shown(10, 20, 30, 40)
	s.Remove(3)
	shown(10, 20, 30)
	s.Remove(0)
	shown(20, 30)
	require.True(t, first.Held())
	require.EqualValues(t, 5, first.Used())
	first.Drop()
	require.False(t, first.Held(), "it was held once")
	r := first.(holds).in
	require.Same(t, &s.ranges[handles[20].index()], r)
	require.Equal(t, []uint64{20, 29, 7, 20 << 8, uint64(s.h)},
		[]uint64{r.start.Load(), r.end.Load(), r.id.Load(), r.va.Load(), r.owner.Load()})
}

// The last range has a place, too, and goes.
func TestAllSpans(t *testing.T) {
	l, _, _ := open(t)
	s, err := l.newHits()
	require.NoError(t, err)
	h, err := l.table.alloc()
	require.NoError(t, err)
	for i := range core.MaxRanges {
		s.Add(i, core.Shown{Start: uint64(i), View: view{l, h}})
	}
	require.EqualValues(t, core.MaxRanges-1, s.spans[core.MaxRanges-1].start.Load())
	s.Remove(1)
	require.EqualValues(t, core.MaxRanges-1, s.line.count.Load())
	require.EqualValues(t, core.MaxRanges-1, s.spans[core.MaxRanges-2].start.Load())
}

// C finds a cache by the slot of its handle, and all else in the cache's line.
func TestWhatCFinds(t *testing.T) {
	l, _, g := open(t)
	h, err := l.CacheOpen(g, 1<<20)
	require.NoError(t, err)
	of := func() uintptr { // struct gdr_slot
		return uintptr(l.table.slots[h.index()].cache.Load())
	}
	line := &l.places.mem.lines[0]
	require.Equal(t, uintptr(unsafe.Pointer(line)), of())
	require.EqualValues(t, h, line.key.Load())
	held, err := l.CacheGet(h, someAddr, 8, 1)
	require.NoError(t, err)
	i, err := l.Info(g, held.Handle)
	require.NoError(t, err)
	require.EqualValues(t, l.table.address(), line.slots)
	require.EqualValues(t, uintptr(unsafe.Pointer(&l.places.mem.ranges)), line.ranges)
	require.EqualValues(t, uintptr(unsafe.Pointer(&l.places.mem.spans[0])), line.spans)
	require.EqualValues(t, 0x1234, line.attribute)
	require.EqualValues(t, 1<<20-i.MappedSize, line.room.Load())
	require.NoError(t, l.CacheClose(h))
	require.Zero(t, of())
	require.Zero(t, line.key.Load())
}

// A range that the caller unpins leaves its slot, and its place, to the next one.
func TestUnpinnedByTheCaller(t *testing.T) {
	l, f, g := open(t)
	c, err := l.CacheOpen(g, 1<<20)
	require.NoError(t, err)
	old, err := l.CacheGet(c, someAddr, 8, 1)
	require.NoError(t, err)
	require.NoError(t, l.Unpin(g, old.Handle))
	next, err := l.CacheGet(c, someAddr, 8, 2)
	require.NoError(t, err)
	require.Equal(t, old.Handle.index(), next.Handle.index())
	require.NotEqual(t, old.Handle, next.Handle)
	in := &l.places.mem.ranges[old.Handle.index()]
	holds{in, old.Handle}.Drop()
	require.Equal(t, stateOf(next.Handle)|1, in.state.Load())
	require.Equal(t, 1, f.Live)
}

// A process has so many caches. An open that fails takes no place. The next cache has the place
// of one that is closed, and another
func TestManyCaches(t *testing.T) {
	l, f, g := open(t)
	closed, err := l.Open(options(f))
	require.NoError(t, err)
	d, err := l.device(closed)
	require.NoError(t, err)
	require.NoError(t, d.Close()) // as another thread does, after CacheOpen has found the device
	for range 65 {
		_, err := l.CacheOpen(closed, 1)
		require.ErrorIs(t, err, core.ErrClosed)
	}
	var all []Handle
	for i := range 64 { // gdr_cache_open(3) has that figure
		c, err := l.CacheOpen(g, 1)
		require.NoError(t, err)
		all = append(all, c)
		opened, err := l.cache(c)
		require.NoError(t, err)
		require.Same(t, &l.places.mem.lines[i], opened.hits.line, "each has its own place")
		require.Same(t, &l.places.mem.spans[i], opened.hits.spans)
	}
	refused := func() {
		_, err := l.CacheOpen(g, 1)
		require.ErrorIs(t, err, unix.ENOMEM)
	}
	refused()
	old, err := l.cache(all[7])
	require.NoError(t, err)
	require.NoError(t, l.CacheClose(all[7]))
	require.Zero(t, old.hits.line.key.Load())
	var handles []Handle
	for {
		h, err := l.table.alloc()
		if err != nil {
			break
		}
		handles = append(handles, h)
	}
	for range 3 {
		refused()
	}
	l.table.release(handles[0])
	h, err := l.CacheOpen(g, 1)
	require.NoError(t, err)
	next, err := l.cache(h)
	require.NoError(t, err)
	require.Same(t, old.hits.line, next.hits.line)
	require.EqualValues(t, h, next.hits.line.key.Load())
	require.NotContains(t, all, h)
	refused()
}
