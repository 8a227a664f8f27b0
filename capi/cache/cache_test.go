package cache

import (
	"errors"
	"sync"
	"testing"

	"gdrapi/core"
	"gdrapi/core/backend"
	"gdrapi/core/backend/backendtest"
	"gdrapi/core/cuda"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// numbers is a driver that gives the memory at any address the number that a test says, and does
// not know where allocations end.
type numbers struct{ id func() (uint64, error) }

func (n numbers) BufferID(uint64) (uint64, error) { return n.id() }
func (n numbers) AllocationRange(uint64) (uint64, uint64, error) {
	return 0, 0, cuda.ErrInvalidValue
}
func (n numbers) PointerGetAttribute() uintptr { return 0x1234 }

// counting is a Library whose handles count from 1.
type counting struct {
	f      *backendtest.Fake
	last   uint64
	ranges [1 << 16]Range
}

func (*counting) Zeros(n int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
}

func (l *counting) Show(*core.Buffer) (uint64, error) {
	l.last++
	return l.last, l.f.Call("show")
}

func (l *counting) Place(handle uint64) *Range { return &l.ranges[handle] }

// open opens a cache of a fake backend, over a driver that numbers memory.
func open(t *testing.T, most uint64, id func(f *backendtest.Fake) (uint64, error)) (*Cache, *backendtest.Fake) {
	t.Helper()
	f := backendtest.New()
	d, err := core.Open(core.Options{Backends: []backend.Backend{f}})
	require.NoError(t, err)
	s := New(&counting{f: f})
	s.driver = func() (driver, error) {
		return numbers{func() (uint64, error) { return id(f) }}, f.Call("driver")
	}
	c, err := s.Open(d, most, 1<<20)
	require.NoError(t, err)
	return c, f
}

func count(f *backendtest.Fake, call string) (n int) {
	for _, made := range f.Made() {
		if made == call {
			n++
		}
	}
	return n
}

func one(*backendtest.Fake) (uint64, error) { return 1, nil }

func get(c *Cache, addr, size uint64) (uint64, error) {
	h, _, err := c.Get(addr, size, 1)
	return h, err
}

// drop ends a hold, as C does.
func drop(c *Cache, handle uint64) {
	c.of.library.Place(handle).change(handle, func(s uint64) (uint64, bool) { return s - 1, s&holdsMax != 0 })
}

// A panic in what runs without the lock reaches the caller, and the cache works after it.
func TestPanic(t *testing.T) {
	broken := true
	c, _ := open(t, 1<<30, func(*backendtest.Fake) (uint64, error) {
		if broken {
			panic("in CUDA")
		}
		return 1, nil
	})
	require.PanicsWithValue(t, "in CUDA", func() { _, _ = get(c, 0x10000, 8) })
	broken = false
	h, err := get(c, 0x10000, 8)
	require.NoError(t, err)
	drop(c, h)
	require.NoError(t, c.Close())
}

// An error of CUDA becomes the same errno as everywhere in this library. Nothing is pinned then, nor
// where memory may have gone in the pin, or other memory may be there.
func TestGetsThatFail(t *testing.T) {
	const addr = 0x10000
	answers := func(before, after uint64, err error) func(f *backendtest.Fake) (uint64, error) {
		return func(f *backendtest.Fake) (uint64, error) {
			if count(f, "pin") == 0 && before != 0 {
				return before, nil
			}
			return after, err
		}
	}
	for _, c := range []struct {
		id   func(f *backendtest.Fake) (uint64, error)
		fail string
		want unix.Errno
	}{
		{answers(0, 0, cuda.ErrInvalidValue), "", unix.EINVAL},
		{answers(0, 0, cuda.ErrNotSupported), "", unix.ENOTSUP},
		{answers(0, 0, nil), "", unix.ENOTSUP}, // memory that has no ID cannot be told from other memory
		{answers(7, 0, cuda.ErrInvalidValue), "", unix.EINVAL},
		{answers(7, 8, nil), "", unix.EINVAL},
		{one, "driver", unix.EDOM},
		{one, "pin", unix.EDOM},
		{one, "info", unix.EDOM},
		{one, "map", unix.EDOM},
	} {
		cache, f := open(t, 1<<30, c.id)
		if c.fail != "" {
			f.Fail[c.fail] = unix.EDOM
		}
		_, err := get(cache, addr, 8)
		require.Equal(t, c.want, core.Errno(err), "%v", err)
		require.Zero(t, f.Live)
		require.Zero(t, cache.line.count.Load())
		if c.fail != "" {
			delete(f.Fail, c.fail)
			_, err = get(cache, addr, 8)
			require.NoError(t, err, "the next one works")
		}
	}
}

func TestUnpinThatFails(t *testing.T) {
	c, f := open(t, 1<<30, one)
	h, err := get(c, 0x10000, 64)
	require.NoError(t, err)
	drop(c, h)
	f.Fail["unpin"] = unix.EIO
	require.NoError(t, c.Flush(), "the buffer is gone all the same")
	require.Zero(t, f.Live)
}

// A range that is given back while another one is pinned makes room after the pin.
func TestRoomAfterThePin(t *testing.T) {
	var c *Cache
	var held uint64
	c, f := open(t, 4096, func(f *backendtest.Fake) (uint64, error) {
		if count(f, "map") == 2 && held != 0 {
			drop(c, held)
			held = 0
		}
		return 1, nil
	})
	var err error
	held, err = get(c, 0x10000, 64)
	require.NoError(t, err)
	_, err = get(c, 0x20000, 64)
	require.NoError(t, err)
	require.Zero(t, held)
	require.Equal(t, 1, f.Live)
}

// If a cache has all the ranges it can, one is unpinned. If all are held, Get fails with
// ENOMEM. C finds them in the order of their addresses.
func TestNoPlaceLeft(t *testing.T) {
	c, f := open(t, 1<<40, one)
	for i := range uint64(MaxRanges) {
		h, err := get(c, (i^3)*8192+4096, 16) // some come before those that are there
		require.NoError(t, err)
		require.Equal(t, i+1, h)
	}
	const other = 1 << 40
	_, err := get(c, other, 1)
	require.ErrorIs(t, err, unix.ENOMEM)
	drop(c, 7)
	_, err = get(c, other, 1)
	require.NoError(t, err)
	require.Equal(t, MaxRanges, f.Live)
	require.EqualValues(t, MaxRanges, c.line.count.Load())
	for i := 1; i < MaxRanges; i++ {
		require.Less(t, c.spans[i-1].start.Load(), c.spans[i].start.Load())
		require.NotEqual(t, uint64(7), c.spans[i].handle.Load())
	}
	_, err = get(c, other+8192, 1)
	require.ErrorIs(t, err, unix.ENOMEM)
}

// A caller may unpin a range without the cache, whose place then has the next one. A hit of the old
// handle meanwhile sees the words of one range, or that it has gone.
func TestFillBesideAHit(t *testing.T) {
	cache, _ := open(t, 1<<30, one)
	m, err := cache.device.Map(0x10000, 64)
	require.NoError(t, err)
	var r Range
	fill := func(i uint64) { r.fill(&kept{mapping: m, handle: i * slotCount, start: i, end: i, id: i}, i, i) }
	fill(1)
	done := make(chan bool)
	mixed := 0
	go func() {
		defer close(done)
		for range 1 << 20 {
			state := r.state.Load()
			end, id, owner, start := r.end.Load(), r.id.Load(), r.owner.Load(), r.start.Load()
			if state&retiredBit != 0 || r.state.Load() != state {
				continue
			}
			if i := state >> 32; end != i || id != i || owner != i || start != i {
				mixed++
			}
		}
	}()
	for i := uint64(2); ; i++ {
		select {
		case <-done:
			require.Zero(t, mixed)
			return
		default:
			fill(i)
		}
	}
}

// Where descriptors or memory are used up, ranges that nobody holds go before Get fails.
func TestPinsThatLackSomething(t *testing.T) {
	for why, left := range map[unix.Errno]int{unix.EMFILE: 1, unix.ENOMEM: 1, unix.EPERM: 3} {
		c, f := open(t, 1<<30, one)
		for i := range uint64(3) {
			h, err := get(c, 0x10000*(i+1), 64)
			require.NoError(t, err)
			if i > 0 {
				drop(c, h)
			}
		}
		f.Fail["pin"] = why
		_, err := get(c, 0x80000, 64)
		require.ErrorIs(t, err, why)
		require.Equal(t, left, f.Live, "%v", why)
	}
}

// A cache that is closed gives no hit any more, also by what a call found before.
func TestClose(t *testing.T) {
	c, f := open(t, 1<<30, one)
	h, err := get(c, 0x10000, 64)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.Zero(t, f.Live)
	require.Zero(t, c.line.count.Load())
	require.False(t, c.of.library.Place(h).take(h, 2))
}

// A close and calls on the device's caches at the same time.
func TestCloseAndGet(t *testing.T) {
	for range 50 {
		c, f := open(t, 1<<20, one)
		var wg sync.WaitGroup
		for i := range uint64(3) {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for {
					if _, err := get(c, 0x10000*(i+1), 100); err != nil {
						if !errors.Is(err, unix.EINVAL) {
							t.Error(err)
						}
						return
					}
				}
			}()
		}
		require.NoError(t, c.device.Close())
		require.NoError(t, c.Close())
		wg.Wait()
		require.Zero(t, f.Live)
		require.ErrorIs(t, c.Close(), core.ErrClosed)
		require.Zero(t, c.line.count.Load())
	}
}
