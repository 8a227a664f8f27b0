package cache

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gdrapi/core/cuda"
	"gdrapi/core/handle"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	allocation = 2 << 20 // bytes of each allocation of the fake driver; the first is at 2 MiB
	gpu        = 64 << 10
)

// fake is a driver and a backend in memory: it pins nothing.
type fake struct {
	mu      sync.Mutex
	ids     [8]uint64 // of the allocations; 0: no allocation
	newest  uint64
	split   uint64 // addresses from here on have another ID; 0: none has
	noRange bool   // the driver does not know where allocations end

	table   *handle.Table
	gpuPage uint32
	places  int   // the number of pinnings that fit
	full    error // the error if no more fit
	made    map[Handle]pinning
	sizes   []uint64 // of all pinnings until now
	fail    map[string]error

	inPin, inUnpin func() // called in Pin and in Unpin; nil: nothing
}

type pinning struct {
	addr, size, id uint64
	mapped         bool
}

func newFake(t *testing.T) *fake {
	table, err := handle.New(1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, table.Close()) })
	f := &fake{table: table, gpuPage: gpu, places: 10, full: unix.ENOMEM, made: map[Handle]pinning{}, fail: map[string]error{}}
	for i := range f.ids[1:] {
		f.renew(i + 1)
	}
	return f
}

// renew frees allocation i and allocates it anew.
func (f *fake) renew(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.newest++
	f.ids[i] = f.newest
}

func (f *fake) free(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids[i] = 0
}

func at(i int) uint64 { return uint64(i) * allocation }

func (f *fake) BufferID(addr uint64) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := addr / allocation
	if i >= uint64(len(f.ids)) || f.ids[i] == 0 {
		return 0, cuda.ErrInvalidValue
	}
	if f.split != 0 && addr >= f.split {
		return f.ids[i] + 1000, nil
	}
	return f.ids[i], nil
}

func (f *fake) AllocationRange(addr uint64) (base, size uint64, err error) {
	if f.noRange {
		return 0, 0, cuda.ErrInvalidValue
	}
	return addr / allocation * allocation, allocation, nil
}

func (f *fake) PointerGetAttribute() uintptr { return 0x1234 }

func (f *fake) Pin(addr, size uint64) (Handle, error) {
	defer call(f.inPin)
	id, err := f.BufferID(addr)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err = errors.Join(err, f.fail["pin"]); err != nil {
		return 0, err
	}
	if len(f.made) >= f.places {
		return 0, f.full
	}
	h, err := f.table.Alloc()
	f.sizes = append(f.sizes, size)
	f.made[h] = pinning{addr: addr, size: size, id: id}
	return h, err
}

func (f *fake) Info(h Handle) (uint64, uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made[h].addr, f.gpuPage, f.fail["info"]
}

// Map returns an address that shows whose mapping it is.
func (f *fake) Map(h Handle, size uint64) (uintptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.made[h]
	if size != p.size || p.mapped {
		panic("a mapping of another size, or a second one")
	}
	if err := f.fail["map"]; err != nil {
		return 0, err
	}
	p.mapped = true
	f.made[h] = p
	f.table.Publish(h, mapping(h), size, 1)
	return mapping(h), nil
}

func mapping(h Handle) uintptr { return uintptr(h.Index()+1) << 32 }

func (f *fake) Unpin(h Handle) error {
	call(f.inUnpin)
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.made[h]
	if !ok {
		return unix.EINVAL
	}
	delete(f.made, h)
	if p.mapped {
		f.table.Retract(h)
	}
	f.table.Free(h)
	return f.fail["unpin"]
}

func call(f func()) {
	if f != nil {
		f()
	}
}

func (f *fake) find() (Driver, error) { return f, nil }

// user uses one cache of the fake driver, as C does.
type user struct {
	*fake
	*Cache
	t   *testing.T
	now atomic.Uint64 // the clock of hits
}

func (f *fake) open(t *testing.T, s *Set, most uint64) *user {
	c, err := s.Open(f.table, most, f, f.find)
	require.NoError(t, err)
	return &user{fake: f, Cache: c, t: t}
}

func newUser(t *testing.T, most uint64) *user { return newFake(t).open(t, new(Set), most) }

func (u *user) get(addr, size uint64) Held {
	u.t.Helper()
	h, err := u.Get(addr, size, u.now.Add(1))
	require.NoError(u.t, err)
	return h
}

func (u *user) refused(addr, size uint64, want unix.Errno) {
	u.t.Helper()
	_, err := u.Get(addr, size, u.now.Add(1))
	require.ErrorIs(u.t, err, want)
}

// put returns false if nobody holds h.
func (u *user) put(h Handle) bool {
	err := u.Put(h)
	require.True(u.t, err == nil || errors.Is(err, unix.EINVAL))
	return err == nil
}

func (u *user) visit(addr, size uint64) Held {
	u.t.Helper()
	h := u.get(addr, size)
	require.True(u.t, u.put(h.Handle))
	return h
}

// shown compares what hits find with what the cache has.
func (u *user) shown() {
	u.t.Helper()
	require.EqualValues(u.t, len(u.live), u.line.count.Load())
	var bytes uint64
	for i, e := range u.live {
		require.Equal(u.t, e.start, u.spans[i].start.Load())
		require.EqualValues(u.t, e.h, u.spans[i].handle.Load())
		require.True(u.t, i == 0 || (u.live[i-1].start < e.start && u.live[i-1].end < e.end), "in order, none in another")
		bytes += e.bytes
	}
	for _, e := range u.retired {
		bytes += e.bytes
	}
	require.Equal(u.t, bytes, u.pinned)
	require.EqualValues(u.t, u.most-bytes, u.line.room.Load())
}

func TestStates(t *testing.T) {
	h := handle.Handle(1<<52 | 5<<20 | 3)
	later := h + 1<<20
	var r rangeLine
	r.state.Store(stateOf(h))
	require.False(t, r.held(h))
	require.True(t, r.hold(h))
	require.True(t, r.held(h))
	require.False(t, r.hold(later), "a later handle has none")
	require.False(t, r.held(later))
	require.False(t, r.retire(h, false), "it is held")
	require.True(t, r.retire(later, false), "another handle counts as retired")
	require.True(t, r.retire(h, true))
	require.False(t, r.hold(h))
	require.True(t, r.held(h))
	r.state.Store(stateOf(h) | holdsMax)
	require.False(t, r.hold(h), "no more holds than fit")
}

// A pinned range is found for all its bytes, and for no others.
func TestHits(t *testing.T) {
	u := newUser(t, 1<<30)
	first := u.get(at(1)+5, 100)
	require.EqualValues(t, at(1), first.GPU)
	require.EqualValues(t, uint64(mapping(first.Handle))+5, first.VA)
	require.EqualValues(t, 0x1234, u.line.attribute)
	for _, c := range []struct {
		addr, size uint64
		hit        bool
	}{
		{at(1), gpu, true}, {at(1) + gpu - 1, 1, true}, {at(1) + 77, 0x1000, true},
		{at(1) + gpu, 1, false}, {at(1) + gpu + 5, 9, true}, {at(1), 2 * gpu, false},
		{at(1) + gpu, gpu, true}, {at(2), 1, false}, {at(7) + allocation - 1, 1, false},
	} {
		got := u.get(c.addr, c.size)
		require.Equal(t, c.hit, got.GPU == 0, "%#x, %d bytes", c.addr, c.size)
		start := u.made[got.Handle].addr
		require.EqualValues(t, uint64(mapping(got.Handle))+(c.addr-start), got.VA)
		u.put(got.Handle)
		u.shown()
	}
	require.NoError(t, u.Flush())
	require.Len(t, u.made, 1, "what is held")
	require.True(t, u.put(first.Handle))
	require.Empty(t, u.made, "it was retired: a longer range has its bytes")
	require.False(t, u.put(first.Handle))
}

// What a miss pins.
func TestPlan(t *testing.T) {
	split := at(1) + gpu + gpu/2
	for name, c := range map[string]struct {
		addr, size uint64
		split      uint64
		noRange    bool
		want       uint64 // bytes
		err        error
	}{
		"in the middle of a page":         {split - 100, 50, 0, false, gpu, nil},
		"a page of two allocations":       {split - 100, 50, split, false, 50, nil},
		"the second of them":              {split + 8, 8, split, false, 8, nil},
		"both of them":                    {split - 100, 200, split, false, 0, unix.ENOTSUP},
		"to the end":                      {at(2) - 1, 1, 0, false, gpu, nil},
		"over the end":                    {at(2) - 1, 2, 0, false, 0, unix.ENOTSUP},
		"past the last allocation":        {at(8) - 1, 2, 0, false, 0, unix.EINVAL},
		"no memory":                       {0x100, 1, 0, false, 0, unix.EINVAL},
		"a driver that gives no range":    {at(1) + 4096, 10, 0, true, 10, nil},
		"two pages":                       {at(1) + gpu - 1, 2, 0, false, 2 * gpu, nil},
		"the whole allocation":            {at(3), allocation, 0, false, allocation, nil},
		"a host page of a larger GPU's":   {at(3) + gpu + 4096, 4096, 0, false, gpu, nil},
		"more than the allocation by far": {at(3), 3 * allocation, 0, false, 0, unix.ENOTSUP},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUser(t, 1<<30)
			u.split, u.noRange, u.gpuPage = c.split, c.noRange, 4096
			h, err := u.Get(c.addr, c.size, 1)
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
				require.Empty(t, u.made)
				return
			}
			require.NoError(t, err)
			p := u.made[h.Handle]
			require.EqualValues(t, 0, p.addr%4096)
			require.Equal(t, c.want, u.live[0].end-u.live[0].start)
			require.LessOrEqual(t, p.addr, c.addr)
			require.GreaterOrEqual(t, p.addr+p.size, c.addr+c.size)
			u.shown()
		})
	}
}

// The first pinning finds out that a backend's page is larger than the host's.
func TestPageOfTheBackend(t *testing.T) {
	u := newUser(t, 1<<30)
	u.noRange = true
	h := u.get(at(1)+4096, 10)
	require.EqualValues(t, at(1), u.made[h.Handle].addr)
	require.EqualValues(t, uint64(mapping(h.Handle))+4096, h.VA)
	require.Len(t, u.sizes, 2, "the first one was of the host's page")
	require.Len(t, u.made, 1)
	u.shown()
}

// A pinning is not handed out if its memory may be gone.
func TestFreedInThePin(t *testing.T) {
	u := newUser(t, 1<<30)
	u.inPin = func() { u.free(1) }
	u.refused(at(1), 64, unix.EINVAL)
	require.Empty(t, u.made)
	u.renew(1)
	u.inPin = func() { u.renew(1) }
	u.refused(at(1), 64, unix.EINVAL)
	require.Empty(t, u.made)
	u.inPin = nil
	u.visit(at(1), 64)
	u.shown()
}

// If pinnings or descriptors are short, an unheld range is unpinned.
func TestOthersMakeRoom(t *testing.T) {
	for _, answer := range []unix.Errno{unix.ENOMEM, unix.EMFILE} {
		t.Run(answer.Error(), func(t *testing.T) {
			u := newUser(t, 1<<30)
			u.places, u.full = 2, answer
			a, b := u.get(at(1), 64), u.get(at(2), 64)
			u.refused(at(3), 64, answer)
			require.True(t, u.put(a.Handle))
			c := u.get(at(3), 64)
			require.Len(t, u.made, 2)
			require.False(t, u.put(a.Handle), "it had to go")
			require.True(t, u.put(b.Handle))
			require.True(t, u.put(c.Handle))
			require.NoError(t, u.Flush())
			require.Empty(t, u.made)
			u.shown()
		})
	}
	u := newUser(t, 1<<30)
	u.places, u.full = 1, unix.EPERM
	u.visit(at(1), 64)
	u.refused(at(2), 64, unix.EPERM)
	require.Len(t, u.made, 1, "an answer of another kind unpins nothing")
}

// The range whose last use is the longest ago is unpinned.
func TestOldestGoes(t *testing.T) {
	u := newUser(t, 1<<30)
	u.places = 3
	first := u.visit(at(1), 64)
	u.visit(at(2), 64)
	u.visit(at(3), 64)
	u.visit(at(1), 64)
	u.visit(at(4), 64)
	require.Equal(t, first.Handle, u.visit(at(1), 64).Handle, "it has stayed")
	require.Zero(t, u.visit(at(3), 64).GPU, "it has stayed")
	require.NotZero(t, u.visit(at(2), 64).GPU, "it has gone")
}

// A range whose memory is gone is not used any more.
func TestOtherMemoryThere(t *testing.T) {
	u := newUser(t, 1<<30)
	old := u.visit(at(1), 64)
	u.renew(1)
	new := u.get(at(1), 64)
	require.NotEqual(t, old.Handle, new.Handle)
	require.Len(t, u.made, 1)
	u.renew(1)
	third := u.get(at(1), 64)
	require.Len(t, u.made, 2, "one of them is held")
	require.True(t, u.put(new.Handle))
	require.Len(t, u.made, 1)
	u.free(1)
	u.refused(at(1), 1, unix.EINVAL)
	require.True(t, u.put(third.Handle))
	require.Empty(t, u.made)
	u.shown()
}

// If the caller unpins a range, only that range is lost.
func TestUnpinnedByTheCaller(t *testing.T) {
	u := newUser(t, 1<<30)
	a := u.get(at(1), 64)
	require.NoError(t, u.Unpin(a.Handle))
	b := u.get(at(1), 64) // in the same slot
	require.Equal(t, a.Handle.Index(), b.Handle.Index())
	require.NotEqual(t, a.Handle, b.Handle)
	require.False(t, u.put(a.Handle))
	require.True(t, u.put(b.Handle))
	u.shown()
	require.NoError(t, u.Unpin(b.Handle))
	long := u.visit(at(1), 2*gpu)
	require.NoError(t, u.Unpin(long.Handle))
	u.visit(at(1)+gpu, 2*gpu)
	require.Len(t, u.live, 1, "what has some of the bytes of another is gone, too")
	require.NoError(t, u.Flush())
	u.shown()
	require.NoError(t, u.Close())
}

// A failed call of the backend leaves nothing pinned and nothing in the cache.
func TestFailures(t *testing.T) {
	for _, what := range []string{"pin", "info", "map"} {
		u := newUser(t, 1<<30)
		u.visit(at(2), 64)
		u.fail[what] = unix.EIO
		u.refused(at(1), 64, unix.EIO)
		require.Len(t, u.made, 1, what)
		u.fail[what] = nil
		u.visit(at(1), 64)
		u.shown()
	}
	u := newUser(t, 1<<30)
	u.visit(at(1), 64)
	u.fail["unpin"] = unix.EIO
	require.NoError(t, u.Flush(), "the handle is gone all the same")
	require.Zero(t, u.pinned)
	u.shown()
}

// Unpinned bytes do not count towards the cache's limit.
func TestTwoPagesStay(t *testing.T) {
	u := newUser(t, 2*gpu)
	var first Held
	for i := range 5 {
		first = u.visit(at(1), 64)
		if i < 4 {
			require.NoError(t, u.Flush())
		}
	}
	u.visit(at(2), 64)
	require.Len(t, u.made, 2)
	require.Equal(t, first.Handle, u.visit(at(1), 64).Handle)
	u.visit(at(3), 64)
	require.Len(t, u.made, 2)
	held := u.get(at(4), 4*gpu)
	require.Len(t, u.made, 1, "room is made as far as that goes")
	require.True(t, u.put(held.Handle))
	require.Empty(t, u.made, "the last put unpins what is too much")
	u.shown()
}

// If a cache has all the ranges it can, one is unpinned. If all are held, Get fails with
// ENOMEM.
func TestNoPlaceLeft(t *testing.T) {
	u := newUser(t, 1<<40)
	u.places, u.noRange, u.gpuPage, u.page = RangesMax+1, true, 1, 1
	var held []Held
	for i := range RangesMax {
		held = append(held, u.get(at(1)+2*uint64(i)*16, 16))
	}
	u.refused(at(2), 1, unix.ENOMEM)
	require.True(t, u.put(held[7].Handle))
	u.get(at(2), 1)
	require.Len(t, u.made, RangesMax)
	require.False(t, u.put(held[7].Handle))
	u.shown()
}

// A closed cache is gone, also for goroutines that waited for it.
func TestClose(t *testing.T) {
	f := newFake(t)
	var s Set
	u := f.open(t, &s, 1<<30)
	a := u.get(at(1), 64)
	u.visit(at(2), 64)
	second := make(chan error)
	u.inUnpin = func() {
		u.inUnpin = nil
		go func() { second <- u.Close() }()
	}
	require.NoError(t, u.Close())
	require.ErrorIs(t, <-second, unix.EINVAL)
	require.Empty(t, f.made)
	require.Zero(t, u.line.key.Load())
	require.Zero(t, u.line.count.Load())
	require.False(t, u.rangeOf(a.Handle).hold(a.Handle))
	u.refused(at(1), 1, unix.EINVAL)
	require.ErrorIs(t, u.Flush(), unix.EINVAL)
	require.ErrorIs(t, u.Settle(), unix.EINVAL)

	// The next cache has its place, and another handle.
	v := f.open(t, &s, 1<<30)
	require.Same(t, u.line, v.line)
	require.NotEqual(t, u.Handle(), v.Handle())
	v.visit(at(1), 64)
	v.shown()
	v.Abandon()
	require.Len(t, f.made, 1, "the context unpins it")
	require.Zero(t, v.pinned)
	v.refused(at(1), 1, unix.EINVAL)
	v.Abandon()
}

func TestManyCaches(t *testing.T) {
	f := newFake(t)
	var s Set
	var all []*user
	for range CachesMax {
		all = append(all, f.open(t, &s, 1))
	}
	_, err := s.Open(f.table, 1, f, f.find)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.NoError(t, all[7].Close())
	// An open that fails takes no place.
	var handles []Handle
	for {
		h, err := f.table.Alloc()
		if err != nil {
			break
		}
		handles = append(handles, h)
	}
	for range 3 {
		_, err = s.Open(f.table, 1, f, f.find)
		require.ErrorIs(t, err, unix.ENOMEM)
	}
	f.table.Free(handles[0])
	f.open(t, &s, 1)
	_, err = s.Open(f.table, 1, f, f.find)
	require.ErrorIs(t, err, unix.ENOMEM)
}

// Without a driver Get fails. The next Get looks for a driver again.
func TestNoDriver(t *testing.T) {
	f := newFake(t)
	err := error(unix.ENOTSUP)
	c, openErr := new(Set).Open(f.table, 1<<30, f, func() (Driver, error) { return f, err })
	require.NoError(t, openErr)
	_, getErr := c.Get(at(1), 1, 1)
	require.ErrorIs(t, getErr, unix.ENOTSUP)
	err = nil
	_, getErr = c.Get(at(1), 1, 1)
	require.NoError(t, getErr)
}

// Threads get and put while memory is freed and allocated. A held range stays pinned.
func TestThreads(t *testing.T) {
	u := newUser(t, 8*gpu)
	u.full = unix.ENOMEM
	stop := time.Now().Add(time.Second)
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for time.Now().Before(stop) {
				i := 1 + rand.IntN(7)
				addr := at(i) + uint64(rand.IntN(2*gpu))
				h, err := u.Get(addr, 1+uint64(rand.IntN(gpu)), u.now.Add(1))
				if err != nil {
					continue
				}
				u.fake.mu.Lock()
				p, ok := u.made[h.Handle]
				u.fake.mu.Unlock()
				if !ok || addr < p.addr || addr >= p.addr+p.size {
					t.Errorf("%#x is not pinned while it is held", uint64(h.Handle))
					return
				}
				if !u.put(h.Handle) {
					t.Errorf("a hold of %#x is lost", uint64(h.Handle))
					return
				}
			}
		}()
	}
	wg.Add(1)
	go func() {
		defer wg.Done()
		for time.Now().Before(stop) {
			u.renew(1 + rand.IntN(7))
			if rand.IntN(8) == 0 {
				_ = u.Flush()
			}
			time.Sleep(200 * time.Microsecond)
		}
	}()
	wg.Wait()
	u.shown()
	require.NoError(t, u.Close())
	require.Empty(t, u.made)
}
