package core

import (
	"sync"
	"sync/atomic"
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/backend/backendtest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// half is a fake backend that may be half of a fallback.
type half struct {
	*backendtest.Fake
	name               string
	able               []error // the result of each ServesAny; the last one is also for all later calls
	attribute, version int
}

func newHalf(name string, tentative bool, able ...error) *half {
	able = append(able, nil)[:max(len(able), 1)]
	if tentative { // CUDA cannot say at the open
		able = append([]error{unix.EINVAL}, able...)
	}
	return &half{Fake: backendtest.New(), name: name, able: able}
}

func (h *half) Name() string                        { return h.name }
func (h *half) Open() (backend.Session, error)      { return h, h.Call("open") }
func (h *half) Version() (int, int)                 { return 2, h.version }
func (h *half) Attribute(backend.Attr) (int, error) { return h.attribute, h.Call("attribute") }
func (h *half) ServesAny() error {
	n := h.count("able")
	_ = h.Call("able")
	return h.able[min(n, len(h.able)-1)]
}

func (h *half) count(name string) (n int) {
	for _, c := range h.Made() {
		if c == name {
			n++
		}
	}
	return n
}

func TestPairs(t *testing.T) {
	type says = []error
	for _, c := range []struct {
		able                 says
		script, first, other string
	}{
		// The first pin decides, once.
		{says{nil, unix.EMLINK}, "is:able|other pin is:able pin is:able", "able pin pin unpin unpin", ""},
		{says{unix.ENOTSUP, unix.EMLINK}, "is:able|other pin is:other pin is:other", "able", " pin pin unpin unpin"},
		// While CUDA cannot say what a device can do, the first backend says what is wrong. A pin that fails has decided.
		{says{unix.EINVAL, unix.EIO, unix.ENOTSUP}, "-pin=EINVAL pin=EINVAL is:able|other -pin=ENOMEM pin=ENOMEM is:able|other -2pin=ENOMEM pin=ENOMEM is:other +2pin pin",
			"able pin able pin able", " pin pin unpin"},
		// What the first does not serve the standby pins; the answers stay the first one's.
		{says{nil}, "-2pin=EIO pin +2pin -pin=NOTSERVED pin -2pin=ENOTSUP pin=EINVAL +2pin -pin=EINVAL pin=EINVAL -pin=ENOTSUP pin=ENOTSUP is:able attribute",
			"able pin pin pin pin pin attribute unpin", " pin pin unpin"},
		// A descriptor says which backend it is of. Nothing is decided by it.
		{says{nil}, "pinFD is:able|other", "pin unpin", ""},
		{says{nil}, "-pin=NOTSERVED pinFD is:able|other", "pin", " pin unpin"},
		{says{nil}, "-pin=EINVAL pinFD=EINVAL is:able|other", "pin", ""},
		{says{nil}, "-attribute=EINVAL attribute=EINVAL", "attribute", ""},
		{says{nil}, "-2attribute=EINVAL attribute=EINVAL", "attribute", " attribute"},
	} {
		l := live(t, newHalf("able", true, c.able...), newHalf("other", false))
		l.run(c.script + " close")
		require.Equal(t, "open able "+c.first+" close", l.f.asked(), c.script)
		require.Equal(t, "open"+c.other+" close", l.other.asked(), c.script)
		require.Zero(t, l.f.Live+l.other.Live)
	}
	l := live(t, newHalf("able", false), newHalf("other", false))
	l.run("is:able -pin=NOTSERVED -2pin=ENOTSUP")
	require.EqualError(t, failed(l.d.Pin(request)), "with context: invalid argument; nor does the other backend pin it: operation not supported")
}

// Before the first pin an attribute is the value that is true of both.
func TestAttributesOfAPair(t *testing.T) {
	for _, c := range []struct{ able, other, before int }{{1, 1, 1}, {1, 0, 0}, {0, 1, 0}, {0, 0, 0}} {
		for _, serves := range []error{nil, unix.ENOTSUP} {
			l := live(t, newHalf("able", true, unix.EINVAL, serves), newHalf("other", false)) // nor at the first pin
			l.f.attribute, l.other.attribute, l.f.version, l.other.version = c.able, c.other, 6, 7
			after := map[error]int{nil: c.able, unix.ENOTSUP: c.other}[serves]
			for _, want := range []int{c.before, after} {
				v, err := l.d.Attribute(backend.AttrDMABufMmap)
				require.NoError(t, err)
				require.Equal(t, want, v, "%+v", c)
				_, minor, err := l.d.Version()
				require.NoError(t, err)
				require.Equal(t, 6, minor)
				l.run("pin")
			}
		}
	}
}

// Many first pins at the same time decide once.
func TestFirstPinsRace(t *testing.T) {
	l := live(t, newHalf("able", true, unix.EIO, unix.ENOTSUP), newHalf("other", false))
	l.run("-pin=EINVAL")
	var failed atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if _, err := l.d.Pin(request); err != nil {
				failed.Add(1)
			}
			_, _ = l.d.Attribute(backend.AttrDMABufMmap)
			_, _ = l.d.Backend()
		}()
	}
	wg.Wait()
	require.Positive(t, failed.Load(), "those before CUDA could say")
	require.EqualValues(t, 16-failed.Load(), l.other.count("pin"))
	l.run("is:other close")
	require.Zero(t, l.other.Live)
}
