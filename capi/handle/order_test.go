package handle

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// watchBarrier calls f for each membarrier(2), until the test ends.
func watchBarrier(t *testing.T, f func(cmd uintptr) error) {
	real := membarrier
	membarrier = f
	t.Cleanup(func() { membarrier = real })
}

// The barrier comes once, after the key is cleared and before the records are read. So
// Retract waits for a copy that a thread announced before.
func TestBarrierIsBetweenKeyAndScan(t *testing.T) {
	tab := newTable(t, 1)
	tab.header.fenced.Store(0)
	h, err := tab.Alloc()
	require.NoError(t, err)
	tab.Publish(h, 0x1000, 4096, 1)
	calls := 0
	var ended atomic.Bool
	watchBarrier(t, func(cmd uintptr) error {
		calls++
		require.EqualValues(t, 8, cmd, "MEMBARRIER_CMD_PRIVATE_EXPEDITED")
		require.Zero(t, tab.slots[h.Index()].key.Load(), "the key is gone")
		tab.header.hazardsUsed.Store(1)
		z := &tab.hazards[hazardCount-1]
		z.busy[0].Store(uint64(h))
		go func() {
			time.Sleep(10 * time.Millisecond)
			ended.Store(true)
			z.busy[0].Store(0)
		}()
		return nil
	})
	d := tab.Retract(h)
	for !d.Done() {
		time.Sleep(time.Millisecond)
	}
	require.True(t, ended.Load(), "the copy has ended")
	require.Equal(t, 1, calls)
}

// If the host has blocked the barrier since the start, a wait replaces it. If the kernel
// never had the barrier, it is not called, and copies fence.
func TestNoBarrier(t *testing.T) {
	calls := 0
	watchBarrier(t, func(uintptr) error {
		calls++
		return unix.ENOSYS
	})
	var slept time.Duration
	var at *slot
	wait := sleep
	sleep = func(d time.Duration) {
		wait(d)
		require.Zero(t, at.key.Load(), "the key is gone")
		slept += d
	}
	t.Cleanup(func() { sleep = wait })
	tab := newTable(t, 1)
	require.Equal(t, 1, calls, "whether there is one")
	require.EqualValues(t, 1, tab.header.fenced.Load())
	h, err := tab.Alloc()
	require.NoError(t, err)
	at = &tab.slots[h.Index()]
	for _, fenced := range []uint32{1, 0} {
		calls, slept = 0, 0
		tab.header.fenced.Store(fenced)
		tab.Publish(h, 0x1000, 4096, 1)
		require.True(t, tab.Retract(h).Done())
		require.EqualValues(t, 1-fenced, calls)
		require.Equal(t, fenced == 0, slept >= time.Millisecond, "it takes longer than any store")
		require.Zero(t, tab.slots[h.Index()].key.Load())
	}
}

// Copies fence until the process is registered for the barrier.
func TestRegisterBarrier(t *testing.T) {
	watchBarrier(t, func(uintptr) error { return unix.EPERM })
	tab := newTable(t, 1)
	for _, c := range []struct {
		answer error
		calls  int
		fenced uint32
	}{
		{unix.ENOSYS, 1, 1},
		{nil, 1, 0},
		{nil, 0, 0}, // registered already
	} {
		calls := 0
		tab.RegisterBarrier(func() error { calls++; return c.answer })
		require.Equal(t, c.calls, calls)
		require.Equal(t, c.fenced, tab.header.fenced.Load())
	}
}

// A mapping is counted before its key lets copies in: the first of them has the right fence.
func TestKeyComesAfterTheCount(t *testing.T) {
	tab := newTable(t, 1)
	first, err := tab.Alloc()
	require.NoError(t, err)
	h, err := tab.Alloc()
	require.NoError(t, err)
	tab.Publish(first, 0, 1, 1)
	tab.mu.Lock() // which count takes
	done := make(chan struct{})
	go func() {
		tab.Publish(h, 0, 1, 2)
		close(done)
	}()
	for range 20 {
		time.Sleep(time.Millisecond)
		require.Zero(t, tab.slots[h.Index()].key.Load())
	}
	tab.mu.Unlock()
	<-done
	require.EqualValues(t, h, tab.slots[h.Index()].key.Load())
	require.EqualValues(t, 1, tab.header.mixed.Load())
}

// A thread that finds the key finds the key's mapping. The two threads must meet within a
// few instructions, so the test makes many mappings.
func TestKeyIsPublishedLast(t *testing.T) {
	tab := newTable(t, 1)
	const mappings = 200_000
	va := func(h Handle) uint64 { return uint64(h) << 12 }
	var next atomic.Uint32
	found, wrong := 0, 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			i := next.Load()
			if i == mappings {
				return
			}
			s := &tab.slots[i]
			key := s.key.Load()
			for key == 0 {
				key = s.key.Load()
			}
			if s.va != va(Handle(key)) || s.len != key {
				wrong++
			}
			found++
		}
	}()
	for i := range uint32(mappings) {
		h := compose(1, 1, i)
		tab.Publish(h, uintptr(va(h)), uint64(h), 1)
		next.Store(i + 1)
	}
	<-done
	require.NotZero(t, found)
	require.Zero(t, wrong, "a key was found before its address and length")
}
