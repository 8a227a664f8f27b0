package handle

import (
	"slices"
	"testing"
	"time"

	"gdrapi/core"
	"gdrapi/core/backend/backendtest"
	"gdrapi/core/cuda/cudatest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// freeSlots is the slots of the table that the next handles get. A call that leaves
// nothing behind does not change them.
func freeSlots(t *testing.T, l *Library) []uint32 {
	t.Helper()
	const slotMask = 1<<20 - 1
	var handles [32]Handle
	var slots []uint32
	for i := range handles {
		h, err := l.table.alloc()
		require.NoError(t, err)
		handles[i] = h
		slots = append(slots, uint32(h)&slotMask)
	}
	for _, h := range handles {
		l.table.release(h)
	}
	slices.Sort(slots)
	return slots
}

// Whatever the backend answers, a finished call leaves no slot and no pin.
func TestEverySlotComesBack(t *testing.T) {
	mustPin := func(t *testing.T, l *Library, g Handle) Handle {
		h, err := l.Pin(g, request)
		require.NoError(t, err)
		return h
	}
	for name, c := range map[string]struct {
		fail map[string]error
		do   func(t *testing.T, l *Library, f *backendtest.Fake, g Handle) error
		want unix.Errno
	}{
		"unpin": {nil, func(t *testing.T, l *Library, f *backendtest.Fake, g Handle) error {
			return l.Unpin(g, mustPin(t, l, g))
		}, 0},
		"a pin that is refused": {map[string]error{"pin": unix.ENOMEM}, func(t *testing.T, l *Library, f *backendtest.Fake, g Handle) error {
			_, err := l.Pin(g, request)
			return err
		}, unix.ENOMEM},
		"memory that cannot be had": {nil, func(t *testing.T, l *Library, f *backendtest.Fake, g Handle) error {
			_, err := l.MemAlloc(g, 0, 0)
			return err
		}, unix.EINVAL},
		"a cache": {nil, func(t *testing.T, l *Library, f *backendtest.Fake, g Handle) error {
			c, err := l.CacheOpen(g, 0)
			require.NoError(t, err)
			return l.CacheClose(c)
		}, 0},
		"an unpin that fails": {map[string]error{"unpin": unix.EIO}, func(t *testing.T, l *Library, f *backendtest.Fake, g Handle) error {
			return l.Unpin(g, mustPin(t, l, g))
		}, unix.EIO},
		"an unpin whose unmap fails": {map[string]error{"unmap": unix.EPERM, "unpin": unix.EIO}, func(t *testing.T, l *Library, f *backendtest.Fake, g Handle) error {
			h := mustPin(t, l, g)
			_, err := l.Map(g, h, 4096, 0)
			require.NoError(t, err)
			return l.Unpin(g, h)
		}, unix.EPERM},
		"an open that fails": {map[string]error{"open": unix.ENOENT}, func(t *testing.T, l *Library, f *backendtest.Fake, g Handle) error {
			_, err := l.Open(options(f))
			return err
		}, unix.ENODEV},
		"a close where all fails": {map[string]error{"unmap": unix.EPERM, "unpin": unix.EIO, "close": unix.EBADF}, func(t *testing.T, l *Library, f *backendtest.Fake, _ Handle) error {
			own, err := l.Open(options(f))
			require.NoError(t, err)
			for range 5 {
				_, err := l.Map(own, mustPin(t, l, own), 4096, 0)
				require.NoError(t, err)
			}
			return l.Close(own)
		}, unix.EPERM},
		"a close that fails alone": {map[string]error{"close": unix.EBADF}, func(t *testing.T, l *Library, f *backendtest.Fake, _ Handle) error {
			own, err := l.Open(options(f))
			require.NoError(t, err)
			mustPin(t, l, own)
			return l.Close(own)
		}, unix.EBADF},
	} {
		t.Run(name, func(t *testing.T) {
			l, f, g := open(t)
			before := freeSlots(t, l)
			for what, err := range c.fail {
				f.Fail[what] = err
			}
			for range 3 {
				require.Equal(t, c.want, core.Errno(c.do(t, l, f, g)))
			}
			require.Equal(t, before, freeSlots(t, l))
			require.Zero(t, f.Live)
			require.Zero(t, named[*core.Buffer](l))
			require.Equal(t, 1, named[*core.Device](l))
		})
	}
}

// With every handle in use a call fails with ENOMEM, and undoes what it made.
func TestNoHandleIsLeft(t *testing.T) {
	l, f, g := open(t)
	for {
		if _, err := l.table.alloc(); err != nil {
			break
		}
	}
	f.Calls = nil
	_, err := l.Open(options(f))
	require.Equal(t, unix.ENOMEM, core.Errno(err))
	_, err = l.Pin(g, request)
	require.Equal(t, unix.ENOMEM, core.Errno(err))
	require.Equal(t, []string{"open", "close", "pin", "unpin"}, f.Calls)
	_, err = l.MemAlloc(g, 0, 4096)
	require.Equal(t, unix.ENOMEM, core.Errno(err))
	require.Zero(t, f.Live)
	require.Equal(t, 1, named[*core.Device](l))
}

// Nothing new appears once Close has begun.
func TestCallsDuringClose(t *testing.T) {
	l, f, g := open(t)
	h, err := l.Pin(g, request)
	require.NoError(t, err)
	f.OnClose = func() {
		_, err := l.Pin(g, request)
		require.Equal(t, unix.EINVAL, core.Errno(err))
		_, err = l.MemAlloc(g, 0, 1)
		require.Equal(t, unix.EINVAL, core.Errno(err))
		require.Equal(t, unix.EINVAL, core.Errno(l.Unpin(g, h)))
		require.Equal(t, unix.EINVAL, core.Errno(l.Close(g)))
	}
	require.NoError(t, l.Close(g))
	require.Equal(t, []string{"open", "pin", "unpin", "close"}, f.Calls)
}

// If several threads unpin a buffer, one of them does it, even if the others found the
// buffer before it was gone.
func TestUnpinHappensOnce(t *testing.T) {
	l, f, g := open(t)
	h, err := l.Pin(g, request)
	require.NoError(t, err)
	inUnpin, goOn := make(chan struct{}), make(chan struct{})
	f.OnUnpin = func() {
		close(inUnpin) // once
		<-goOn
	}
	const threads = 8
	results := make(chan error, threads)
	for range threads {
		go func() { results <- l.Unpin(g, h) }()
	}
	<-inUnpin
	time.Sleep(20 * time.Millisecond) // most of the time the others wait for the first
	close(goOn)
	var done int
	for range threads {
		if err := <-results; err == nil {
			done++
		} else {
			require.Equal(t, unix.EINVAL, core.Errno(err))
		}
	}
	require.Equal(t, 1, done)
	require.Equal(t, []string{"open", "pin", "unpin"}, f.Calls)
}

// Two threads may both have found the allocation that they free.
func TestMemoryIsFreedOnce(t *testing.T) {
	sim := cudatest.Need(t)
	l, _, g := open(t)
	slots, live := freeSlots(t, l), sim.Live()
	m, err := l.MemAlloc(g, 0, 1)
	require.NoError(t, err)
	mem, err := l.Memory(g, m)
	require.NoError(t, err)
	require.NoError(t, l.MemFree(g, m))
	require.ErrorIs(t, mem.Close(), core.ErrClosed)
	require.Equal(t, slots, freeSlots(t, l))
	require.Equal(t, live, sim.Live())
}
