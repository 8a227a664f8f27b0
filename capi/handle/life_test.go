package handle

import (
	"slices"
	"testing"

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

// opened is what open makes.
type opened struct {
	*testing.T
	l *Library
	f *backendtest.Fake
	g Handle
}

func (o opened) pin() Handle {
	h, err := o.l.Pin(o.g, request)
	require.NoError(o, err)
	return h
}

func (o opened) mapped() Handle {
	h := o.pin()
	_, err := o.l.Map(o.g, h, 4096, 0)
	require.NoError(o, err)
	return h
}

// Whatever the backend answers, a finished call leaves no slot, no pin and no memory.
func TestEverySlotComesBack(t *testing.T) {
	type fails = map[string]error
	for name, c := range map[string]struct {
		fail fails
		do   func(o opened) error
		want unix.Errno
	}{
		"unpin":               {nil, func(o opened) error { return o.l.Unpin(o.g, o.pin()) }, 0},
		"an unpin that fails": {fails{"unpin": unix.EIO}, func(o opened) error { return o.l.Unpin(o.g, o.pin()) }, unix.EIO},
		"an unpin whose unmap fails": {fails{"unmap": unix.EPERM, "unpin": unix.EIO},
			func(o opened) error { return o.l.Unpin(o.g, o.mapped()) }, unix.EPERM},
		"a pin that is refused": {fails{"pin": unix.ENOMEM}, func(o opened) error {
			_, err := o.l.Pin(o.g, request)
			return err
		}, unix.ENOMEM},
		"memory that cannot be had": {nil, func(o opened) error {
			_, err := o.l.MemAlloc(o.g, 0, 0)
			return err
		}, unix.EINVAL},
		"memory": {nil, func(o opened) error {
			m, err := o.l.MemAlloc(o.g, 0, 1)
			require.NoError(o, err)
			return o.l.MemFree(o.g, m)
		}, 0},
		"a cache": {nil, func(o opened) error {
			c, err := o.l.CacheOpen(o.g, 0)
			require.NoError(o, err)
			return o.l.CacheClose(c)
		}, 0},
		"an open that fails": {fails{"open": unix.ENOENT}, func(o opened) error {
			_, err := o.l.Open(options(o.f))
			return err
		}, unix.ENODEV},
		"a close where all fails": {fails{"unmap": unix.EPERM, "unpin": unix.EIO, "close": unix.EBADF}, func(o opened) (err error) {
			o.g, err = o.l.Open(options(o.f))
			require.NoError(o, err)
			for range 5 {
				o.mapped()
			}
			return o.l.Close(o.g)
		}, unix.EPERM},
	} {
		t.Run(name, func(t *testing.T) {
			sim := cudatest.Need(t)
			l, f, g := open(t)
			before, live := freeSlots(t, l), sim.Live()
			f.Fail = c.fail
			for range 3 {
				require.Equal(t, c.want, core.Errno(c.do(opened{t, l, f, g})))
			}
			require.Equal(t, before, freeSlots(t, l))
			require.Equal(t, live, sim.Live())
			require.Zero(t, f.Live)
			require.Zero(t, named[*core.Buffer](l))
			require.Equal(t, 1, named[*core.Device](l))
		})
	}
}

// With every handle in use a call fails with ENOMEM, and undoes what it made.
func TestNoHandleIsLeft(t *testing.T) {
	l, f, g := open(t)
	for n := 0; ; n++ {
		h, err := l.table.alloc()
		if err != nil {
			require.GreaterOrEqual(t, n, slotCount-2, "all but the device's")
			break
		}
		if h == 0 {
			t.Fatal("a handle that is none")
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
