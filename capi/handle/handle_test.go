package handle

import (
	"sync"
	"testing"
	"unsafe"

	"gdrapi/tests/ctest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func newTable(t *testing.T, epoch uint32) *Table {
	t.Helper()
	tab, err := New(epoch)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tab.Close()) })
	return tab
}

func TestEpochRange(t *testing.T) {
	for _, epoch := range []uint32{0, MaxEpoch + 1} {
		_, err := New(epoch)
		require.ErrorIs(t, err, unix.EAGAIN)
	}
	h, err := newTable(t, MaxEpoch).Alloc()
	require.NoError(t, err)
	require.EqualValues(t, MaxEpoch, h>>(genBits+indexBits))
}

func TestHandlesAreNeverGivenTwice(t *testing.T) {
	tab := newTable(t, 1)
	seen := map[Handle]bool{}
	for range 1000 {
		h, err := tab.Alloc()
		require.NoError(t, err)
		require.NotZero(t, h)
		require.False(t, seen[h], "handle %#x twice", h)
		seen[h] = true
		tab.Free(h)
	}
	require.Len(t, tab.gens, 1, "a freed slot is used again")
}

func TestLastGenerationRetiresTheSlot(t *testing.T) {
	tab := newTable(t, 1)
	h, err := tab.Alloc()
	require.NoError(t, err)
	tab.Free(h)
	tab.gens[h.Index()] = maxGen - 2
	for gen := uint64(maxGen - 1); gen <= maxGen; gen++ {
		last, err := tab.Alloc()
		require.NoError(t, err)
		require.Equal(t, h.Index(), last.Index())
		require.Equal(t, gen, last.Generation())
		tab.Free(last)
	}
	next, err := tab.Alloc()
	require.NoError(t, err)
	require.NotEqual(t, h.Index(), next.Index())
}

// The parts of a handle, at both ends of each.
func TestParts(t *testing.T) {
	for _, epoch := range []uint32{1, MaxEpoch} {
		for _, gen := range []uint32{0, 1, 2, maxGen - 1, maxGen} {
			for _, index := range []uint32{0, 1, slotCount - 1} {
				h := compose(epoch, gen, index)
				require.Equal(t, index, h.Index())
				require.EqualValues(t, gen, h.Generation())
				require.EqualValues(t, epoch, h>>(genBits+indexBits))
			}
		}
	}
}

func TestTableFull(t *testing.T) {
	tab := newTable(t, 1)
	tab.gens = make([]uint32, slotCount-1)
	h, err := tab.Alloc()
	require.NoError(t, err, "the last slot")
	require.EqualValues(t, slotCount-1, h.Index())
	_, err = tab.Alloc()
	require.ErrorIs(t, err, unix.ENOMEM)
	tab.Free(h)
	again, err := tab.Alloc()
	require.NoError(t, err)
	require.Equal(t, h.Index(), again.Index())
}

func TestPublishRetract(t *testing.T) {
	tab := newTable(t, 3)
	h, err := tab.Alloc()
	require.NoError(t, err)
	s := &tab.slots[h.Index()]
	require.Zero(t, s.key.Load())
	tab.Publish(h, 0x1000, 4096, 1)
	require.EqualValues(t, h, s.key.Load())
	require.EqualValues(t, 0x1000, s.va)
	require.EqualValues(t, 4096, s.len)
	require.True(t, tab.Retract(h).Done())
	require.Zero(t, s.key.Load())
}

func TestMixedTypes(t *testing.T) {
	tab := newTable(t, 1)
	var hs [3]Handle
	for i := range hs {
		hs[i], _ = tab.Alloc()
	}
	retract := func(h Handle) { require.True(t, tab.Retract(h).Done()) }
	mixed := func() uint32 { return tab.header.mixed.Load() }
	tab.Publish(hs[0], 0, 1, 1)
	tab.Publish(hs[1], 0, 1, 1)
	require.Zero(t, mixed())
	tab.Publish(hs[2], 0, 1, 2)
	require.EqualValues(t, 1, mixed())
	retract(hs[0])
	require.EqualValues(t, 1, mixed())
	retract(hs[1])
	require.Zero(t, mixed())
	retract(hs[2])
	require.Zero(t, mixed())
}

// The test stands for a thread that copies. It writes into a hazard record, as capi/data.c
// does.
func TestDrain(t *testing.T) {
	const h, other = Handle(1<<(genBits+indexBits) | 1), Handle(1<<(genBits+indexBits) | 2)
	many := func(n, names uint64) uint64 { return n<<manyShift | names }
	for _, c := range []struct {
		what        string
		begin, then uint64 // a record's word, when h is retracted and later
		names       [hazardNames]Handle
		waits, ends bool // for what it was; for what it is then
	}{
		{"a copy through h", uint64(h), 0, [3]Handle{}, true, true},
		{"that goes on", uint64(h), uint64(h), [3]Handle{}, true, false},
		{"a copy through another", uint64(other), uint64(other), [3]Handle{}, false, true},
		{"many pieces, of any handle", many(7, 0), many(7, 0), [3]Handle{}, true, false},
		{"the next of many", many(7, 0), many(8, 0), [3]Handle{}, true, true},
		{"many, without h", many(7, 1), many(7, 1), [3]Handle{other, h, h}, false, true},
		{"many, with h", many(7, 3), many(7, 3), [3]Handle{other, other, h}, true, false},
		{"many, which then says without h", many(7, 0), many(7, 1), [3]Handle{other}, true, true},
		{"many, which then says with h", many(7, 0), many(7, 2), [3]Handle{other, h}, true, false},
		{"many, and then through h", many(7, 0), uint64(h), [3]Handle{}, true, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			tab := newTable(t, 1)
			tab.header.fenced.Store(1)
			tab.Publish(h, 0, 1, 1)
			tab.header.hazardsUsed.Store(2)
			z := &tab.hazards[hazardCount-2]
			z.busy[2].Store(c.begin)
			for i, name := range c.names {
				z.names[i].Store(uint64(name))
			}
			d := tab.Retract(h)
			require.NotEqual(t, uint64(h), tab.slots[h.Index()].key.Load(), "copies may not use it")
			require.Equal(t, !c.waits, d.Done())
			z.busy[2].Store(c.then)
			require.Equal(t, c.ends, d.Done())
			z.busy[2].Store(0)
			require.True(t, d.Done())
			require.True(t, d.Done())
			require.Zero(t, tab.perType[1])
		})
	}
}

// C counts the threads that found no record, too. Those records that exist are read.
func TestMoreThreadsThanRecords(t *testing.T) {
	tab := newTable(t, 1)
	h, err := tab.Alloc()
	require.NoError(t, err)
	for _, used := range []uint32{hazardCount, hazardCount + 1, 1 << 31} {
		tab.Publish(h, 0, 1, 1)
		tab.header.hazardsUsed.Store(used)
		tab.hazards[0].busy[0].Store(uint64(h))
		d := tab.Retract(h)
		require.False(t, d.Done())
		tab.hazards[0].busy[0].Store(0)
		require.True(t, d.Done())
	}
}

// An object is found until it is removed or forgotten, once. A removed one's handle is free.
func TestObjects(t *testing.T) {
	tab := newTable(t, 1)
	o := NewObjects[string](tab)
	h, err := tab.Alloc()
	require.NoError(t, err)
	other, err := tab.Alloc()
	require.NoError(t, err)
	o.Put(h, "a")
	o.Put(other, "b")
	require.Equal(t, []Handle{other}, o.Those(func(s string) bool { return s == "b" }))
	for range 2 {
		object, ok := o.Get(h)
		require.True(t, ok)
		require.Equal(t, "a", object)
	}
	for range 2 {
		o.Remove(h)
		require.Equal(t, []uint32{h.Index()}, tab.free)
		_, ok := o.Get(h)
		require.False(t, ok)
	}
	object, ok := o.Forget(other)
	require.True(t, ok)
	require.Equal(t, "b", object)
	_, ok = o.Forget(other)
	require.False(t, ok)
	require.Zero(t, o.Len())
	require.Len(t, tab.free, 1, "a forgotten one's handle is the caller's")
}

// A gate opens and shuts again and again. It asks for the copies that ran when it was first shut.
func TestGate(t *testing.T) {
	tab := newTable(t, 1)
	o := NewObjects[int](tab)
	h, err := tab.Alloc()
	require.NoError(t, err)
	o.Put(h, 5)
	g := o.Gate(h)
	require.Equal(t, h, g.Handle())
	tab.header.hazardsUsed.Store(1)
	busy := &tab.hazards[hazardCount-1].busy[0]
	for round := range uintptr(3) {
		g.Open(round<<12, 64, 2)
		require.EqualValues(t, h, tab.slots[h.Index()].key.Load())
		require.EqualValues(t, round<<12, tab.slots[h.Index()].va)
		require.Equal(t, 1, tab.perType[2])
		busy.Store(uint64(h))
		for range 2 {
			require.False(t, g.Shut())
			require.Zero(t, tab.slots[h.Index()].key.Load())
		}
		busy.Store(0)
		require.True(t, g.Shut())
		busy.Store(uint64(h)) // a copy that is refused shows the handle, too
		require.True(t, g.Shut())
		busy.Store(0)
		require.Zero(t, tab.perType[2])
	}
	g.Gone()
	require.Zero(t, o.Len())
	require.Equal(t, []uint32{h.Index()}, tab.free)
}

func TestNoHandleIsTheNumberOfACopy(t *testing.T) {
	require.False(t, isMany(0))
	require.True(t, isMany(1))
	require.True(t, isMany(1<<(genBits+indexBits)-1))
	require.False(t, isMany(uint64(compose(1, 0, 0))))
	require.False(t, isMany(uint64(compose(MaxEpoch, maxGen, slotCount-1))))
}

func TestConcurrentUse(t *testing.T) {
	tab := newTable(t, 1)
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 500 {
				h, err := tab.Alloc()
				if err != nil {
					t.Error(err)
					return
				}
				tab.Publish(h, 0x1000, 64, 1)
				if got := tab.slots[h.Index()].key.Load(); got != uint64(h) {
					t.Errorf("slot of %#x holds %#x", h, got)
				}
				if !tab.Retract(h).Done() {
					t.Error("a copy runs, and nobody copies")
				}
				tab.Free(h)
			}
		}()
	}
	wg.Wait()
	require.Equal(t, len(tab.gens), len(tab.free), "every slot came back")
}

// TestLayout compares the table with capi/copy/slot.h.
func TestLayout(t *testing.T) {
	var s slot
	var z hazard
	var h header
	ctest.Agree(t, `#include "slot.h"`, map[string]uint64{
		"sizeof(struct gdr_slot)":                  uint64(unsafe.Sizeof(s)),
		"offsetof(struct gdr_slot, key)":           uint64(unsafe.Offsetof(s.key)),
		"offsetof(struct gdr_slot, va)":            uint64(unsafe.Offsetof(s.va)),
		"offsetof(struct gdr_slot, len)":           uint64(unsafe.Offsetof(s.len)),
		"offsetof(struct gdr_slot, type)":          uint64(unsafe.Offsetof(s.typ)),
		"offsetof(struct gdr_slot, cache)":         uint64(unsafe.Offsetof(s.cache)),
		"sizeof(struct gdr_hazard)":                uint64(unsafe.Sizeof(z)),
		"offsetof(struct gdr_hazard, owner)":       uint64(unsafe.Offsetof(z.owner)),
		"offsetof(struct gdr_hazard, busy)":        uint64(unsafe.Offsetof(z.busy)),
		"offsetof(struct gdr_hazard, names)":       uint64(unsafe.Offsetof(z.names)),
		"offsetof(struct gdr_hazard, self)":        uint64(unsafe.Offsetof(z.self)),
		"sizeof(struct gdr_table)":                 uint64(unsafe.Sizeof(h)),
		"offsetof(struct gdr_table, epoch)":        uint64(unsafe.Offsetof(h.epoch)),
		"offsetof(struct gdr_table, fenced)":       uint64(unsafe.Offsetof(h.fenced)),
		"offsetof(struct gdr_table, hazards_used)": uint64(unsafe.Offsetof(h.hazardsUsed)),
		"offsetof(struct gdr_table, mixed)":        uint64(unsafe.Offsetof(h.mixed)),
		"offsetof(struct gdr_table, slots)":        uint64(unsafe.Offsetof(h.slots)),
		"offsetof(struct gdr_table, hazards)":      uint64(unsafe.Offsetof(h.hazards)),
		"GDR_SLOT_COUNT":                           slotCount,
		"GDR_HAZARD_COUNT":                         hazardCount,
		"GDR_HAZARD_LEVELS":                        hazardLevels,
		"GDR_HAZARD_NAMES":                         hazardNames,
		"GDR_MANY_SHIFT":                           manyShift,
		"GDR_HANDLE_EPOCH_SHIFT":                   genBits + indexBits,
		"GDR_HANDLE_EPOCH_MAX":                     MaxEpoch,
	}, "-I../copy")
}
