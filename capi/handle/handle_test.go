package handle

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func tableOf(t testing.TB, epoch uint32) *table {
	t.Helper()
	tab, err := newTable(epoch, new(Shared))
	require.NoError(t, err)
	return tab
}

// A handle names what it was given for, and no other handle of its slot does.
func TestTable(t *testing.T) {
	for _, epoch := range []uint32{1, MaxEpoch} {
		tab := tableOf(t, epoch)
		seen := map[Handle]bool{}
		for range 1000 {
			h, err := tab.alloc()
			require.NoError(t, err)
			require.EqualValues(t, epoch, h>>(genBits+indexBits))
			require.False(t, seen[h], "handle %#x twice", h)
			seen[h] = true
			require.Nil(t, tab.get(h))
			tab.put(h, 5)
			require.Equal(t, 5, tab.get(h))
			require.Equal(t, []Handle{h}, tab.handlesWhere(func(object any) bool { return object == 5 }))
			for _, other := range []Handle{0, h + 1, h + 1<<indexBits, h - 1<<indexBits, h ^ 1<<(genBits+indexBits)} {
				require.Nil(t, tab.get(other))
				require.Nil(t, tab.take(other))
			}
			require.Equal(t, 5, tab.take(h))
			require.Nil(t, tab.take(h), "one of several gets it")
			require.Nil(t, tab.get(h))
			tab.release(h)
		}
		require.EqualValues(t, 1, tab.used, "a free slot is used again")
	}
	for _, epoch := range []uint32{0, MaxEpoch + 1} {
		_, err := newTable(epoch, new(Shared))
		require.ErrorIs(t, err, unix.EAGAIN)
	}
}

func TestLastGenerationRetiresTheSlot(t *testing.T) {
	tab := tableOf(t, 1)
	h, err := tab.alloc()
	require.NoError(t, err)
	tab.release(h)
	tab.at(h.index()).gen = maxGen - 1
	last, err := tab.alloc()
	require.NoError(t, err)
	require.Equal(t, h.index(), last.index())
	require.EqualValues(t, maxGen, tab.at(last.index()).gen)
	tab.release(last)
	next, err := tab.alloc()
	require.NoError(t, err)
	require.NotEqual(t, h.index(), next.index())
}

// Writes have the full fence while mappings of several types are live.
func TestMixedTypes(t *testing.T) {
	tab := tableOf(t, 1)
	var hs [3]Handle
	for i := range hs {
		hs[i], _ = tab.alloc()
	}
	mixed := func() uint32 { return tab.shared.mixed.Load() }
	tab.publish(hs[0], 0x1000, 1, 1)
	tab.publish(hs[1], 0x1000, 1, 1)
	require.Zero(t, mixed())
	tab.publish(hs[2], 0x1000, 1, 2)
	require.EqualValues(t, 1, mixed())
	tab.retract(hs[0])
	require.EqualValues(t, 1, mixed())
	tab.retract(hs[1])
	require.Zero(t, mixed())
	tab.retract(hs[2])
	require.Zero(t, mixed())
}

// A reader that finds one state twice has the fields of one mapping, while the same handle
// is published and retracted all the time.
func TestReaderFindsOneMapping(t *testing.T) {
	tab := tableOf(t, 1)
	h, err := tab.alloc()
	require.NoError(t, err)
	s := &tab.slots[h.index()]
	var end atomic.Bool
	var wg sync.WaitGroup
	found := 0
	wg.Add(1)
	go func() {
		defer wg.Done()
		for !end.Load() || found == 0 {
			state := s.state.Load()
			key, va, n := s.key.Load(), s.va.Load(), s.len.Load()
			if s.state.Load() != state || state&slotChanges != 0 || key != uint64(h) {
				continue
			}
			found++
			if va != n<<12 || state&slotType != n%3+1 {
				t.Errorf("va %#x, %d bytes, state %#x", va, n, state)
				return
			}
		}
	}()
	for i := uint64(1); i < 200_000; i++ {
		tab.publish(h, uintptr(i<<12), i, uint32(i%3+1))
		tab.retract(h)
	}
	end.Store(true)
	tab.publish(h, 1<<12, 1, 2)
	wg.Wait()
	require.Zero(t, tab.perType[1]+tab.perType[3])
}
