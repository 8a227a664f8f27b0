package core

import (
	"fmt"
	"sync"
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/backend/backendtest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// half is a fake backend that may be half of a fallback.
type half struct {
	*backendtest.Fake
	name      string
	tentative bool
	able      []error // the result of each ServesAny; the last one is also for all later calls
	attribute int
	mu        sync.Mutex
	asked     []backend.Attr // guarded by mu
	version   int
}

func newHalf(name string, tentative bool, able ...error) *half {
	return &half{Fake: backendtest.New(), name: name, tentative: tentative, able: append(able, nil)[:max(len(able), 1)]}
}

func (h *half) Name() string                   { return h.name }
func (h *half) Open() (backend.Session, error) { return h, h.Call("open") }
func (h *half) Tentative() bool                { return h.tentative }
func (h *half) Version() (int, int)            { return 2, h.version }
func (h *half) count(name string) (n int)      { return count(h.Fake, name) }
func (h *half) Attribute(a backend.Attr) (int, error) {
	h.mu.Lock()
	h.asked = append(h.asked, a)
	h.mu.Unlock()
	return h.attribute, h.Call("attribute")
}
func (h *half) ServesAny() error {
	n := h.count("able")
	_ = h.Call("able")
	return h.able[min(n, len(h.able)-1)]
}

func count(f *backendtest.Fake, name string) (n int) {
	for _, c := range f.Made() {
		if c == name {
			n++
		}
	}
	return n
}

// openHalves opens a device with these backends.
func openHalves(t *testing.T, halves ...*half) *Device {
	t.Helper()
	var all []backend.Backend
	for _, h := range halves {
		all = append(all, h)
	}
	d, err := Open(Options{Backends: all})
	require.NoError(t, err)
	return d
}

func nameOf(t *testing.T, d *Device) string {
	t.Helper()
	name, err := d.Backend()
	require.NoError(t, err)
	return name
}

func TestFirstPinDecides(t *testing.T) {
	for _, c := range []struct {
		what   string
		serves error
		name   string
		pins   [2]int
	}{
		{"the first serves", nil, "able", [2]int{3, 0}},
		{"the first does not", unix.ENOTSUP, "other", [2]int{0, 3}},
	} {
		// Only the first answer counts.
		able, other := newHalf("able", true, c.serves, unix.EMLINK), newHalf("other", false)
		d := openHalves(t, able, other)
		require.Equal(t, "able|other", nameOf(t, d), c.what)
		for range 3 {
			h, err := d.Pin(request)
			require.NoError(t, err, c.what)
			require.NoError(t, h.Close())
			require.Equal(t, c.name, nameOf(t, d), c.what)
		}
		require.Equal(t, 1, able.count("able"), c.what)
		require.Equal(t, c.pins, [2]int{able.count("pin"), other.count("pin")}, c.what)
		require.NoError(t, d.Close())
		require.Equal(t, [2]int{1, 1}, [2]int{able.count("close"), other.count("close")}, "both are closed")
	}
}

// While CUDA cannot say what a device can do, the first backend says what is wrong.
func TestErrorsDoNotDecide(t *testing.T) {
	able, other := newHalf("able", true, unix.EINVAL, unix.EIO, unix.EINVAL, unix.ENOTSUP), newHalf("other", false)
	d := openHalves(t, able, other)
	for _, want := range []unix.Errno{unix.EINVAL, unix.ENOMEM, unix.EINVAL} {
		able.Fail["pin"] = want
		_, err := d.Pin(request)
		require.Equal(t, want, Errno(err))
		require.Equal(t, "able|other", nameOf(t, d))
	}
	other.Fail["pin"] = unix.ENOMEM
	_, err := d.Pin(request)
	require.Equal(t, unix.ENOMEM, Errno(err))
	require.Equal(t, "other", nameOf(t, d), "a pin that fails has decided")
	delete(other.Fail, "pin")
	_, err = d.Pin(request)
	require.NoError(t, err)
	require.Equal(t, [2]int{4, 3}, [2]int{able.count("able"), able.count("pin")})
	require.NoError(t, d.Close())
	require.Zero(t, other.Live)
}

// What the chosen backend does not serve the standby pins. The answers stay the chosen one's.
func TestStandbyPinsWhatIsNotServed(t *testing.T) {
	for _, tentative := range []bool{false, true} {
		able, other := newHalf("able", tentative), newHalf("other", false)
		able.attribute = 1
		d := openHalves(t, able, other)
		for _, c := range []struct {
			first, standby error
			want           unix.Errno
			pins           [2]int
		}{
			{nil, unix.EMLINK, 0, [2]int{1, 0}},
			{backend.NotServed{Reason: unix.EINVAL}, nil, 0, [2]int{1, 1}},
			{fmt.Errorf("with context: %w", backend.NotServed{Reason: unix.ENOTSUP}), nil, 0, [2]int{1, 1}},
			{backend.NotServed{Reason: unix.EINVAL}, unix.ENOTSUP, unix.EINVAL, [2]int{1, 1}}, // as alone
			{unix.EINVAL, nil, unix.EINVAL, [2]int{1, 0}},
			{unix.ENOTSUP, nil, unix.ENOTSUP, [2]int{1, 0}},
		} {
			able.Fail["pin"], other.Fail["pin"] = c.first, c.standby
			before := [2]int{able.count("pin"), other.count("pin")}
			b, err := d.Pin(request)
			require.Equal(t, c.want, Errno(err), "%+v", c)
			if c.first != nil && c.standby != nil {
				require.EqualError(t, err, "invalid argument; nor does the other backend pin it: operation not supported")
			}
			require.Equal(t, c.pins, [2]int{able.count("pin") - before[0], other.count("pin") - before[1]}, "%+v", c)
			require.Equal(t, "able", nameOf(t, d))
			v, err := d.Attribute(backend.AttrDMABufMmap)
			require.NoError(t, err)
			require.Equal(t, 1, v)
			if b != nil {
				require.NoError(t, b.Close())
			}
		}
		require.Zero(t, able.Live+other.Live)
		require.NoError(t, d.Close())
		require.Equal(t, [2]int{1, 1}, [2]int{able.count("close"), other.count("close")}, "both are closed")
	}
}

// Before the first pin an attribute is the value that is true of both.
func TestAttributesOfAPair(t *testing.T) {
	for _, c := range []struct{ able, other, before int }{{1, 1, 1}, {1, 0, 0}, {0, 1, 0}, {0, 0, 0}} {
		for _, serves := range []error{nil, unix.ENOTSUP} {
			able, other := newHalf("able", true, unix.EINVAL, serves), newHalf("other", false) // CUDA cannot tell at first
			able.attribute, other.attribute = c.able, c.other
			able.version, other.version = 6, 7
			d := openHalves(t, able, other)
			v, err := d.Attribute(backend.AttrDMABufMmap)
			require.NoError(t, err)
			require.Equal(t, c.before, v, "%+v", c)
			_, minor, err := d.Version()
			require.NoError(t, err)
			require.Equal(t, 6, minor)

			_, err = d.Pin(request)
			require.NoError(t, err)
			v, err = d.Attribute(backend.AttrDMABufMmap)
			require.NoError(t, err)
			want := c.able
			if serves != nil {
				want = c.other
			}
			require.Equal(t, want, v, "%+v", c)
			require.NoError(t, d.Close())
		}
	}
	for i := range 2 {
		halves := []*half{newHalf("able", true, nil), newHalf("other", false)}
		d := openHalves(t, halves...)
		halves[i].Fail["attribute"] = unix.EINVAL
		_, err := d.Attribute(backend.AttrForcePCIe)
		require.Equal(t, unix.EINVAL, Errno(err))
		require.NoError(t, d.Close())
	}
}

// When there is a fallback, and when there is one backend.
func TestWhoStandsBy(t *testing.T) {
	fails := func(h *half) *half {
		h.Fail["open"] = unix.ENOENT
		return h
	}
	for _, c := range []struct {
		what   string
		halves []*half
		name   string
		opened int // how many backends are opened, from the first on
	}{
		{"decided", []*half{newHalf("a", false), newHalf("b", false), newHalf("c", false)}, "a", 2},
		{"alone", []*half{newHalf("a", true, nil)}, "a", 1},
		{"a fallback", []*half{newHalf("a", true, nil), newHalf("b", false), newHalf("c", false)}, "a|b", 2},
		{"a fallback of two tentative", []*half{newHalf("a", true, nil), newHalf("b", true, nil), newHalf("c", false)}, "a|b", 2},
		{"the next does not open", []*half{newHalf("a", true, nil), fails(newHalf("b", false))}, "a", 2},
		{"the one after that does", []*half{newHalf("a", true, nil), fails(newHalf("b", false)), newHalf("c", false)}, "a|c", 3},
		{"the first does not open", []*half{fails(newHalf("a", true)), newHalf("b", true, nil), newHalf("c", false)}, "b|c", 3},
	} {
		d := openHalves(t, c.halves...)
		require.Equal(t, c.name, nameOf(t, d), c.what)
		for i, h := range c.halves {
			require.Equal(t, i < c.opened, h.count("open") == 1, "%s: %s", c.what, h.name)
		}
		_, err := d.Pin(request)
		require.NoError(t, err, c.what)
		require.NoError(t, d.Close())
		for _, h := range c.halves {
			opened := h.count("open") == 1 && h.Fail["open"] == nil
			require.Equal(t, opened, h.count("close") == 1, "%s: %s is closed", c.what, h.name)
		}
	}
}

// Many first pins at the same time decide once.
func TestFirstPinsRace(t *testing.T) {
	able, other := newHalf("able", true, unix.EIO, unix.ENOTSUP), newHalf("other", false)
	able.Fail["pin"] = unix.EINVAL
	d := openHalves(t, able, other)
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := 0
	for range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, err := d.Pin(request)
			_, _ = d.Attribute(backend.AttrDMABufMmap)
			_, _ = d.Backend()
			if err != nil {
				mu.Lock()
				failed++
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	require.Equal(t, 1, failed, "the one before CUDA could say")
	require.Equal(t, 2, able.count("able"))
	require.Equal(t, 15, other.count("pin"))
	require.NoError(t, d.Close())
	require.Zero(t, other.Live)
}
