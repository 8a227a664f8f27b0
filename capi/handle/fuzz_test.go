package handle

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// modelSlot is what FuzzTable expects of one handle.
type modelSlot struct {
	mapped bool
	va     uint64
	n      uint64
	typ    uint32
}

// tableSteps limits a script, as each step compares the whole table.
const tableSteps = 200

// FuzzTable runs a script of bytes, two for each step: what to do, and which of the live
// handles to do it to. A model knows the live handles and the mappings.
func FuzzTable(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 1, 0, 2, 0, 3, 0})                               // one handle's life
	f.Add([]byte{0, 0, 0, 0, 0, 0, 1, 0, 0x11, 1, 0x21, 2, 2, 1, 3, 1}) // three types at once
	f.Add([]byte{0, 0, 3, 0, 0, 0, 3, 0, 0, 0, 3, 0})                   // a slot used again and again
	f.Add([]byte{0, 0, 4, 0, 0, 0, 4, 0, 0, 0})                         // last generations
	f.Add([]byte{0, 0, 5, 0, 1, 0, 2, 0, 1, 0, 3, 0, 0, 0})

	f.Fuzz(func(t *testing.T, script []byte) {
		tab, err := New(7)
		require.NoError(t, err)
		defer func() { require.NoError(t, tab.Close()) }()
		runTableScript(t, tab, script)
	})
}

func runTableScript(t *testing.T, tab *Table, script []byte) {
	live := map[Handle]*modelSlot{}
	var order []Handle         // the live ones; the script chooses from them
	given := map[Handle]bool{} // all handles until now

	for range tableSteps {
		if len(script) < 2 {
			break
		}
		op, which := script[0], int(script[1])
		script = script[2:]
		if op&0xf == 0 {
			h, err := tab.Alloc()
			require.NoError(t, err)
			require.NotZero(t, h)
			require.EqualValues(t, 7, h>>(genBits+indexBits), "the epoch")
			require.False(t, given[h], "a handle is given out once")
			live[h] = &modelSlot{}
			order = append(order, h)
			given[h] = true
			checkTable(t, tab, live, given)
			continue
		}
		if len(order) == 0 {
			continue
		}
		i := which % len(order)
		h := order[i]
		m := live[h]
		switch op & 0xf {
		case 1:
			if m.mapped {
				break // the core maps a handle only once
			}
			*m = modelSlot{true, 4096 * uint64(which+1), 4096 * uint64(op+1), uint32(op >> 4 & 3)}
			tab.Publish(h, uintptr(m.va), m.n, m.typ)
		case 2:
			if m.mapped {
				retract(t, tab, h)
				m.mapped = false
			}
		case 4, 3:
			if m.mapped {
				retract(t, tab, h)
			}
			if op&0xf == 4 { // as if the slot had been used 2^32 times
				retire(tab, h)
			}
			tab.Free(h)
			delete(live, h)
			order = append(order[:i], order[i+1:]...)
		default:
			checkForged(t, tab, live, h+Handle(op)<<indexBits)
		}
		checkTable(t, tab, live, given)
	}
	for h, m := range live {
		if m.mapped {
			retract(t, tab, h)
		}
		tab.Free(h)
	}
	checkTable(t, tab, nil, given)
	require.Zero(t, tab.header.mixed.Load())
}

func retract(t *testing.T, tab *Table, h Handle) {
	if !tab.Retract(h).Done() {
		t.Fatalf("a copy runs through %#x, and nobody copies", h)
	}
}

// retire makes h's generation the last of its slot.
func retire(tab *Table, h Handle) { tab.gens[h.Index()] = maxGen }

// checkTable compares what C would read with the model. It is most of the target's work,
// so it does not use require's reflection.
func checkTable(t *testing.T, tab *Table, live map[Handle]*modelSlot, given map[Handle]bool) {
	types := map[uint32]bool{}
	seen := map[uint32]Handle{}
	for h, m := range live {
		if other, twice := seen[h.Index()]; twice {
			t.Fatalf("%#x and %#x live in one slot", h, other)
		}
		seen[h.Index()] = h
		if got, want := mapping(tab, h), *m; m.mapped && got != want {
			t.Fatalf("%#x is %+v, want %+v", h, got, want)
		} else if !m.mapped && tab.slots[h.Index()].key.Load() != 0 {
			t.Fatalf("%#x is not mapped, and its slot has a key", h)
		}
		if m.mapped {
			types[m.typ] = true
		}
	}
	if mixed := tab.header.mixed.Load() == 1; mixed != (len(types) > 1) {
		t.Fatalf("mixed is %v with %d types mapped", mixed, len(types))
	}
	for h := range given {
		if live[h] == nil && tab.slots[h.Index()].key.Load() == uint64(h) {
			t.Fatalf("the stale handle %#x is mapped", h)
		}
	}
}

// mapping is what C finds by h.
func mapping(tab *Table, h Handle) modelSlot {
	s := &tab.slots[h.Index()]
	return modelSlot{mapped: s.key.Load() == uint64(h), va: s.va, n: s.len, typ: s.typ}
}

// checkForged checks that a handle with another generation finds nothing.
func checkForged(t *testing.T, tab *Table, live map[Handle]*modelSlot, forged Handle) {
	if m := live[forged]; m != nil {
		return
	}
	require.NotEqualValues(t, forged, tab.slots[forged.Index()].key.Load())
}

// FuzzEpoch: New accepts the epochs that fit into a handle, and no others.
func FuzzEpoch(f *testing.F) {
	for _, epoch := range []uint32{0, 1, MaxEpoch, MaxEpoch + 1, 1 << 31} {
		f.Add(epoch)
	}
	f.Fuzz(func(t *testing.T, epoch uint32) {
		tab, err := New(epoch)
		if epoch == 0 || epoch > MaxEpoch {
			require.ErrorIs(t, err, unix.EAGAIN)
			return
		}
		require.NoError(t, err)
		h, err := tab.Alloc()
		require.NoError(t, err)
		require.EqualValues(t, epoch, h>>(genBits+indexBits))
		require.NoError(t, tab.Close())
	})
}
