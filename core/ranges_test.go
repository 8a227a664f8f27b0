package core

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/backend/backendtest"
	"gdrapi/core/cuda"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	allocation = 2 << 20 // bytes of each allocation of the fake driver; the first is at 2 MiB
	gpu        = 64 << 10
)

// fake is a driver and a backend in memory: it pins nothing.
type fake struct {
	mu       sync.Mutex
	ids      [8]uint64 // of the allocations; 0: no allocation
	newest   uint64
	split    uint64 // addresses from here on have another ID; 0: none has
	noRange  bool   // the driver does not know where allocations end
	nameless bool   // the driver has no IDs
	asked    int    // how often for an ID

	gpuPage uint32
	places  int   // the number of pinnings that fit
	full    error // the error if no more fit
	made    map[uint64]*pinning
	sizes   []uint64 // of all pinnings until now
	fail    map[string]error

	inPin, inUnpin func() // called in Pin and in Unpin; nil: nothing
}

// pinning is what the fake backend has pinned. Its mapping's address shows its number.
type pinning struct {
	*fake
	n, addr, size uint64
}

func newFake() *fake {
	f := &fake{gpuPage: gpu, places: 10, full: unix.ENOMEM, made: map[uint64]*pinning{}, fail: map[string]error{}}
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
	f.asked++
	i := addr / allocation
	if i >= uint64(len(f.ids)) || f.ids[i] == 0 {
		return 0, cuda.ErrInvalidValue
	}
	if f.nameless {
		return 0, nil
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

// pins is how many pinnings there were until now.
func (f *fake) pins() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sizes)
}

func (f *fake) Name() string                        { return "fake" }
func (f *fake) Open() (backend.Session, error)      { return f, nil }
func (f *fake) Attribute(backend.Attr) (int, error) { return 0, nil }
func (f *fake) Version() (int, int)                 { return 2, 6 }
func (f *fake) Close() error                        { return nil }

func (f *fake) Pin(r backend.PinRequest) (backend.Pin, error) {
	defer call(f.inPin)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ids[r.Addr/allocation] == 0 {
		return nil, cuda.ErrInvalidValue
	}
	if err := f.fail["pin"]; err != nil {
		return nil, err
	}
	if len(f.made) >= f.places {
		return nil, f.full
	}
	f.sizes = append(f.sizes, r.Size)
	p := &pinning{f, uint64(len(f.sizes)), r.Addr, r.Size}
	f.made[p.n] = p
	return p, nil
}

func (p *pinning) Info() (backend.Info, error) {
	return backend.Info{VA: p.addr, MappedSize: p.size, PageSize: p.gpuPage}, p.fail["info"]
}

func (p *pinning) Map(uint64, backend.MappingType) (uintptr, backend.MappingType, error) {
	backendtest.NoMemory(uintptr(p.n << 32))
	return uintptr(p.n << 32), backend.WC, p.fail["map"]
}

func (p *pinning) Unmap() error               { return nil }
func (p *pinning) CallbackFlag() (int, error) { return 0, nil }

func (p *pinning) Unpin() error {
	call(p.inUnpin)
	p.fake.mu.Lock()
	defer p.fake.mu.Unlock()
	delete(p.made, p.n)
	return p.fail["unpin"]
}

func call(f func()) {
	if f != nil {
		f()
	}
}

// mirror is Hits that notes what it is shown.
type mirror struct {
	noHits
	asks   uintptr
	ranges []Shown
	room   int64
}

func (m *mirror) Asks(f uintptr) { m.asks = f }
func (m *mirror) Room(n int64)   { m.room = n }
func (m *mirror) Remove(at int)  { m.ranges = slices.Delete(m.ranges, at, at+1) }
func (m *mirror) Add(at int, r Shown) Holds {
	m.ranges = slices.Insert(m.ranges, at, r)
	return m.noHits.Add(at, r)
}

// user uses one cache of the fake driver.
type user struct {
	*fake
	*Cache
	*mirror
	t   *testing.T
	now atomic.Uint64 // the clock of hits
}

func (f *fake) open(t *testing.T) *Device {
	d, err := Open(Options{Backends: []backend.Backend{f}, CacheDriver: func() (CacheDriver, error) { return f, nil }})
	require.NoError(t, err)
	return d
}

func newUser(t *testing.T, most uint64) *user {
	f, m := newFake(), new(mirror)
	c, err := f.open(t).OpenShownCache(most, m)
	require.NoError(t, err)
	return &user{fake: f, Cache: c, mirror: m, t: t}
}

func (u *user) get(addr, size uint64) *Range {
	u.t.Helper()
	r, err := u.Hold(addr, size, u.now.Add(1))
	require.NoError(u.t, err)
	return r
}

func (u *user) refused(addr, size uint64, want unix.Errno) {
	u.t.Helper()
	_, err := u.Hold(addr, size, u.now.Add(1))
	require.ErrorIs(u.t, err, want)
}

func (u *user) put(r *Range) {
	u.t.Helper()
	require.NoError(u.t, r.Close())
}

// visit gets and puts a range. It reports whether that was pinned for it.
func (u *user) visit(addr, size uint64) (isNew bool) {
	u.t.Helper()
	before := u.pins()
	r, err := u.Hold(addr, size, u.now.Add(1))
	require.NoError(u.t, err)
	u.put(r)
	return u.pins() > before
}

// starts are where the cache's ranges begin.
func (u *user) starts() (starts []uint64) {
	for _, k := range u.live {
		starts = append(starts, k.start)
	}
	return starts
}

// shown compares what hits find with what the cache has.
func (u *user) shown() {
	u.t.Helper()
	require.Len(u.t, u.ranges, len(u.live))
	var bytes uint64
	for i, k := range u.live {
		require.Equal(u.t, k.start, u.ranges[i].Start)
		require.Equal(u.t, k.end, u.ranges[i].End)
		require.Equal(u.t, k.id, u.ranges[i].ID)
		require.EqualValues(u.t, k.start-k.mapping.gpu, u.ranges[i].VA-uint64(k.mapping.va))
		require.True(u.t, i == 0 || (u.live[i-1].start < k.start && u.live[i-1].end < k.end), "in order, none in another")
		bytes += k.bytes
	}
	for _, k := range u.retired {
		bytes += k.bytes
	}
	require.Equal(u.t, bytes, u.pinned)
	require.EqualValues(u.t, u.most-bytes, u.room)
}

// What counts the holds of a Go program.
func TestHolds(t *testing.T) {
	n := noHits{}.Add(0, Shown{Used: 3})
	require.True(t, n.Held())
	require.EqualValues(t, 3, n.Used())
	require.False(t, n.Retire(false), "it is held")
	require.True(t, n.Take(4))
	require.EqualValues(t, 4, n.Used())
	n.Drop()
	require.True(t, n.Held())
	require.True(t, n.Retire(true))
	require.False(t, n.Take(5), "it is retired")
	require.EqualValues(t, 4, n.Used())
	n.Drop()
	require.False(t, n.Held())
	require.True(t, n.Retire(false))
}

// What a miss pins, and how often it asks for an ID.
func TestPlan(t *testing.T) {
	split := at(1) + gpu + gpu/2
	for name, c := range map[string]struct {
		addr, size uint64
		split      uint64
		noRange    bool
		want       uint64 // bytes
		asked      int
		err        error
	}{
		"in the middle of a page":         {split - 100, 50, 0, false, gpu, 5, nil},
		"a page of two allocations":       {split - 100, 50, split, false, 50, 6, nil},
		"the second of them":              {split + 8, 8, split, false, 8, 5, nil},
		"both of them":                    {split - 100, 200, split, false, 0, 4, unix.ENOTSUP},
		"to the end":                      {at(2) - 1, 1, 0, false, gpu, 5, nil},
		"over the end":                    {at(2) - 1, 2, 0, false, 0, 3, unix.ENOTSUP},
		"past the last allocation":        {at(8) - 1, 2, 0, false, 0, 3, unix.EINVAL},
		"no memory":                       {0x100, 1, 0, false, 0, 1, unix.EINVAL},
		"a driver that gives no range":    {at(1) + 4096, 10, 0, true, 10, 4, nil},
		"two pages":                       {at(1) + gpu - 1, 2, 0, false, 2 * gpu, 5, nil},
		"the whole allocation":            {at(3), allocation, 0, false, allocation, 4, nil},
		"a host page of a larger GPU's":   {at(3) + gpu + 4096, 4096, 0, false, gpu, 5, nil},
		"more than the allocation by far": {at(3), 3 * allocation, 0, false, 0, 3, unix.ENOTSUP},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUser(t, 1<<30)
			u.split, u.noRange, u.gpuPage = c.split, c.noRange, 4096
			r, err := u.Hold(c.addr, c.size, 1)
			require.Equal(t, c.asked, u.asked)
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
				require.Empty(t, u.made)
				return
			}
			require.NoError(t, err)
			m := r.in.mapping
			require.EqualValues(t, 0, m.GPU()%4096)
			require.Equal(t, c.want, u.live[0].end-u.live[0].start)
			require.LessOrEqual(t, m.GPU(), c.addr)
			require.GreaterOrEqual(t, m.GPU()+m.Mapped(), c.addr+c.size)
			u.shown()
		})
	}
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

// Memory that has no ID cannot be told from other memory.
func TestNoID(t *testing.T) {
	u := newUser(t, 1<<30)
	u.nameless = true
	_, err := u.Hold(at(1), 8, 1)
	require.ErrorIs(t, err, unix.ENOTSUP)
	require.ErrorContains(t, err, "use gdr_pin_buffer")
	require.Empty(t, u.sizes)
}

// A retired range goes with the next call after its last hold, of any kind.
func TestRetiredGoes(t *testing.T) {
	for what, call := range map[string]func(u *user) error{
		"settle": func(u *user) error { return u.Settle() },
		"flush":  func(u *user) error { return u.Flush() },
		"get":    func(u *user) error { u.visit(at(3), 8); return nil },
		"a get that fails": func(u *user) error {
			u.refused(0x100, 8, unix.EINVAL)
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			u := newUser(t, 1<<30)
			r := u.get(at(1), 8)
			u.get(at(1), 2*gpu)
			require.Len(t, u.retired, 1)
			require.NoError(t, call(u))
			require.Len(t, u.retired, 1, "it is held")
			r.in.holds.Drop()
			require.NoError(t, call(u))
			require.Empty(t, u.retired)
			u.shown()
		})
	}
}

// refuses are Hits whose ranges are held as often as can be.
type refuses struct{ *mirror }

func (h refuses) Add(at int, r Shown) Holds { return most{h.mirror.Add(at, r)} }

type most struct{ Holds }

func (most) Take(uint64) bool { return false }

// A range of which no more holds fit is replaced by one with all its bytes or fewer: none
// lies in another.
func TestNoMoreHolds(t *testing.T) {
	for name, c := range map[string]struct {
		addr, size uint64
		left       int // of the first range, in hits
	}{
		"the same":      {at(1) + 1024, 2048, 0},
		"its begin":     {at(1) + 1024, 100, 0},
		"its end":       {at(1) + 3072 - 100, 100, 0},
		"its middle":    {at(1) + 2048, 100, 0},
		"more":          {at(1) + 1000, 4000, 0},
		"the one after": {at(1) + 3072, 100, 1},
		"from the last": {at(1) + 3071, 100, 1},
		"the one below": {at(1) + 924, 100, 1},
		"to the first":  {at(1) + 924, 101, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f, m := newFake(), new(mirror)
			f.noRange, f.gpuPage = true, 1
			c1, err := f.open(t).OpenShownCache(1<<30, refuses{m})
			require.NoError(t, err)
			u := &user{fake: f, Cache: c1, mirror: m, t: t}
			u.get(at(1)+1024, 2048)
			u.get(c.addr, c.size)
			require.Len(t, u.ranges, 1+c.left)
			u.shown()
		})
	}
}

func TestUnpinThatFails(t *testing.T) {
	u := newUser(t, 1<<30)
	u.visit(at(1), 64)
	u.fail["unpin"] = unix.EIO
	require.NoError(t, u.Flush(), "the buffer is gone all the same")
	require.Zero(t, u.pinned)
	u.shown()
}

// A range that is given back while another one is pinned makes room after the pin.
func TestRoomAfterThePin(t *testing.T) {
	u := newUser(t, gpu)
	held := u.get(at(1), 64)
	u.inPin = func() { held.in.holds.Drop() } // as C gives one back
	u.get(at(2), 64)
	require.Equal(t, []uint64{at(2)}, u.starts())
	require.Len(t, u.made, 1)
	u.shown()
}

// If a cache has all the ranges it can, one is unpinned. If all are held, Get fails with
// ENOMEM.
func TestNoPlaceLeft(t *testing.T) {
	u := newUser(t, 1<<40)
	u.places, u.noRange, u.gpuPage = MaxRanges+1, true, 1
	var held []*Range
	for i := range MaxRanges {
		held = append(held, u.get(at(1)+2*uint64(i)*16, 16))
	}
	u.refused(at(2), 1, unix.ENOMEM)
	u.put(held[7])
	u.get(at(2), 1)
	require.Len(t, u.made, MaxRanges)
	require.False(t, held[7].in.mapping.isOpen())
	u.renew(2)
	u.refused(at(2), 1, unix.ENOMEM)
	require.Len(t, u.retired, 1, "what is retired and held counts, too")
	u.shown()
}

// Without a driver Get fails. The next Get looks for a driver again.
func TestNoDriver(t *testing.T) {
	f := newFake()
	d := f.open(t)
	var missing error = unix.ENOTSUP
	d.cacheDriver = func() (CacheDriver, error) { return f, missing }
	c, err := d.OpenCache(1 << 30)
	require.NoError(t, err)
	_, err = c.Get(at(1), 1)
	require.ErrorIs(t, err, unix.ENOTSUP)
	missing = nil
	_, err = c.Get(at(1), 1)
	require.NoError(t, err)
}
