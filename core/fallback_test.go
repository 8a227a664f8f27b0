package core

import (
	"sync"
	"testing"

	"gdrapi/core/backend"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// half is a fake backend that may be half of a fallback.
type half struct {
	*fake
	name      string
	undecided bool
	serves    []error // the result of each call; the last one is also for all later calls
	able      error
	attribute int
	version   int
}

func newHalf(name string, undecided bool, serves ...error) *half {
	return &half{fake: &fake{fail: map[string]error{}}, name: name, undecided: undecided, serves: serves}
}

func (h *half) Name() string                        { return h.name }
func (h *half) Open() (backend.Session, error)      { return h, h.call("open") }
func (h *half) Undecided() bool                     { return h.undecided }
func (h *half) Version() (int, int)                 { return 2, h.version }
func (h *half) Attribute(backend.Attr) (int, error) { return h.attribute, h.call("attribute") }
func (h *half) count(name string) (n int)           { return count(h.fake, name) }
func (h *half) Able() error {
	_ = h.call("able")
	return h.able
}
func (h *half) Serves(req backend.PinRequest) (e error) {
	n := h.count("serves")
	_ = h.call("serves")
	return h.serves[min(n, len(h.serves)-1)]
}

func count(f *fake, name string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if c == name {
			n++
		}
	}
	return n
}

// openHalves makes a Library with these backends, and a context in it.
func openHalves(t *testing.T, halves ...*half) (*Library, Handle) {
	t.Helper()
	saved := backends
	backends = func(Options) (entries []entry) {
		for _, h := range halves {
			entries = append(entries, entry{Backend: h})
		}
		return entries
	}
	t.Cleanup(func() { backends = saved })
	l, err := New(1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.table.Close()) })
	g, err := l.Open(Options{})
	require.NoError(t, err)
	return l, g
}

func nameOf(t *testing.T, l *Library, g Handle) string {
	t.Helper()
	name, err := l.BackendName(g)
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
		l, g := openHalves(t, able, other)
		require.Equal(t, "able|other", nameOf(t, l, g), c.what)
		for range 3 {
			h, err := l.Pin(g, request)
			require.NoError(t, err, c.what)
			require.NoError(t, l.Unpin(g, h))
			require.Equal(t, c.name, nameOf(t, l, g), c.what)
		}
		require.Equal(t, 1, able.count("serves"), c.what)
		require.Equal(t, c.pins, [2]int{able.count("pin"), other.count("pin")}, c.what)
		require.NoError(t, l.Close(g))
		require.Equal(t, [2]int{1, 1}, [2]int{able.count("close"), other.count("close")}, "both are closed")
	}
}

// The answer for dma-bufs is final once CUDA can give one. It decides for the pins.
func TestAttributeDecides(t *testing.T) {
	for _, c := range []struct {
		able  error
		value int
		name  string
	}{
		{nil, 1, "able"},
		{unix.ENOTSUP, 0, "other"},
	} {
		able, other := newHalf("able", true, unix.EMLINK), newHalf("other", false)
		able.attribute = 1
		l, g := openHalves(t, able, other)
		able.able = unix.EINVAL // CUDA is not initialised
		v, err := l.Attribute(g, backend.AttrDMABufMmap)
		require.NoError(t, err)
		require.Zero(t, v)
		require.Equal(t, "able|other", nameOf(t, l, g))
		able.able = c.able
		_, err = l.Attribute(g, backend.AttrPersistentMapping)
		require.NoError(t, err)
		require.Equal(t, "able|other", nameOf(t, l, g), "the other questions decide nothing")
		for range 2 {
			v, err = l.Attribute(g, backend.AttrDMABufMmap)
			require.NoError(t, err)
			require.Equal(t, c.value, v)
			require.Equal(t, c.name, nameOf(t, l, g))
		}
		_, err = l.Pin(g, request)
		require.NoError(t, err)
		require.Zero(t, able.count("serves"))
	}
}

// An invalid request says nothing about the backends.
func TestErrorsDoNotDecide(t *testing.T) {
	able, other := newHalf("able", true, unix.EINVAL, unix.ENOMEM, unix.EINVAL, unix.ENOTSUP), newHalf("other", false)
	l, g := openHalves(t, able, other)
	for _, want := range []unix.Errno{unix.EINVAL, unix.ENOMEM, unix.EINVAL} {
		_, err := l.Pin(g, request)
		require.Equal(t, want, Errno(err))
		require.Equal(t, "able|other", nameOf(t, l, g))
	}
	other.fail["pin"] = unix.ENOMEM
	_, err := l.Pin(g, request)
	require.Equal(t, unix.ENOMEM, Errno(err))
	require.Equal(t, "other", nameOf(t, l, g), "a pin that fails has decided")
	delete(other.fail, "pin")
	_, err = l.Pin(g, request)
	require.NoError(t, err)
	require.Equal(t, 4, able.count("serves"))
	require.Zero(t, able.count("pin"))
	require.NoError(t, l.Close(g))
	require.Zero(t, other.live)
}

// Before the first pin an attribute is the value that is true of both.
func TestAttributesOfAPair(t *testing.T) {
	for _, c := range []struct{ able, other, before int }{{1, 1, 1}, {1, 0, 0}, {0, 1, 0}, {0, 0, 0}} {
		for _, serves := range []error{nil, unix.ENOTSUP} {
			able, other := newHalf("able", true, serves), newHalf("other", false)
			able.able = unix.EINVAL // CUDA cannot tell yet
			able.attribute, other.attribute = c.able, c.other
			able.version, other.version = 6, 7
			l, g := openHalves(t, able, other)
			v, err := l.Attribute(g, backend.AttrDMABufMmap)
			require.NoError(t, err)
			require.Equal(t, c.before, v, "%+v", c)
			_, minor, err := l.DriverVersion(g)
			require.NoError(t, err)
			require.Equal(t, 6, minor)

			_, err = l.Pin(g, request)
			require.NoError(t, err)
			v, err = l.Attribute(g, backend.AttrDMABufMmap)
			require.NoError(t, err)
			want := c.able
			if serves != nil {
				want = c.other
			}
			require.Equal(t, want, v, "%+v", c)
			require.NoError(t, l.Close(g))
		}
	}
	for i := range 2 {
		halves := []*half{newHalf("able", true, nil), newHalf("other", false)}
		l, g := openHalves(t, halves...)
		halves[i].fail["attribute"] = unix.EINVAL
		_, err := l.Attribute(g, backend.AttrForcePCIe)
		require.Equal(t, unix.EINVAL, Errno(err))
		require.NoError(t, l.Close(g))
	}
}

func TestCloseOfAPairTellsTheFirstError(t *testing.T) {
	able, other := newHalf("able", true, nil), newHalf("other", false)
	l, g := openHalves(t, able, other)
	able.fail["close"], other.fail["close"] = unix.EMLINK, unix.ENOMEM
	require.Equal(t, unix.EMLINK, Errno(l.Close(g)))
	require.Equal(t, 1, other.count("close"), "and the other is closed, too")

	able, other = newHalf("able", true, nil), newHalf("other", false)
	l, g = openHalves(t, able, other)
	other.fail["close"] = unix.ENOMEM
	require.Equal(t, unix.ENOMEM, Errno(l.Close(g)))
}

// When there is a fallback, and when there is one backend.
func TestWhoStandsBy(t *testing.T) {
	fails := func(h *half) *half {
		h.fail["open"] = unix.ENOENT
		return h
	}
	for _, c := range []struct {
		what   string
		halves []*half
		name   string
		opened int // how many backends are opened, from the first on
	}{
		{"decided", []*half{newHalf("a", false), newHalf("b", false)}, "a", 1},
		{"alone", []*half{newHalf("a", true, nil)}, "a", 1},
		{"a fallback", []*half{newHalf("a", true, nil), newHalf("b", false), newHalf("c", false)}, "a|b", 2},
		{"a fallback of two undecided", []*half{newHalf("a", true, nil), newHalf("b", true, nil), newHalf("c", false)}, "a|b", 2},
		{"the next does not open", []*half{newHalf("a", true, nil), fails(newHalf("b", false))}, "a", 2},
		{"the one after that does", []*half{newHalf("a", true, nil), fails(newHalf("b", false)), newHalf("c", false)}, "a|c", 3},
		{"the first does not open", []*half{fails(newHalf("a", true)), newHalf("b", true, nil), newHalf("c", false)}, "b|c", 3},
	} {
		l, g := openHalves(t, c.halves...)
		require.Equal(t, c.name, nameOf(t, l, g), c.what)
		for i, h := range c.halves {
			require.Equal(t, i < c.opened, h.count("open") == 1, "%s: %s", c.what, h.name)
		}
		_, err := l.Pin(g, request)
		require.NoError(t, err, c.what)
		require.NoError(t, l.Close(g))
		for _, h := range c.halves {
			opened := h.count("open") == 1 && h.fail["open"] == nil
			require.Equal(t, opened, h.count("close") == 1, "%s: %s is closed", c.what, h.name)
		}
	}
}

// A backend for requests by name is opened only for those, even if no other opens.
func TestOnRequestAlone(t *testing.T) {
	plain, asked := newHalf("plain", false), newHalf("asked", false)
	saved := backends
	backends = func(Options) []entry { return []entry{{Backend: plain}, {Backend: asked, onRequest: true}} }
	t.Cleanup(func() { backends = saved })
	l, err := New(1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.table.Close()) })

	g, err := l.Open(Options{})
	require.NoError(t, err)
	require.Equal(t, "plain", nameOf(t, l, g))
	require.NoError(t, l.Close(g))
	plain.fail["open"] = unix.ENOENT
	_, err = l.Open(Options{})
	require.Equal(t, unix.ENODEV, Errno(err))
	require.Zero(t, asked.count("open"))

	g, err = l.Open(Options{Backend: "asked"})
	require.NoError(t, err)
	require.Equal(t, "asked", nameOf(t, l, g))
	require.NoError(t, l.Close(g))
	require.Equal(t, 2, plain.count("open"), "the one that was not asked for is not tried")
}

// Many first pins at the same time decide once.
func TestFirstPinsRace(t *testing.T) {
	able, other := newHalf("able", true, unix.EINVAL, unix.ENOTSUP), newHalf("other", false)
	able.able = unix.EINVAL
	l, g := openHalves(t, able, other)
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := 0
	for range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, err := l.Pin(g, request)
			_, _ = l.Attribute(g, backend.AttrDMABufMmap)
			_, _ = l.BackendName(g)
			if err != nil {
				mu.Lock()
				failed++
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	require.Equal(t, 1, failed, "the one whose request was wrong")
	require.Equal(t, 2, able.count("serves"))
	require.Equal(t, 15, other.count("pin"))
	require.NoError(t, l.Close(g))
	require.Zero(t, other.live)
}

func TestBackendNameOfNothing(t *testing.T) {
	l, g := openHalves(t, newHalf("a", false))
	require.NoError(t, l.Close(g))
	_, err := l.BackendName(g)
	require.Equal(t, unix.EINVAL, Errno(err))
}
