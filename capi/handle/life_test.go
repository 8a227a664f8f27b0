package handle

import (
	"slices"
	"testing"
	"time"

	"gdrapi/core"
	"gdrapi/core/backend"
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

// mapping is what C finds by a handle.
type mapping struct {
	key, va, size uint64
	typ           uint32
}

func slotOf(l *Library, h Handle) mapping {
	s := &l.table.slots[h.index()]
	return mapping{s.key.Load(), s.va.Load(), s.len.Load(), uint32(s.state.Load() & slotType)}
}

// Copies can begin while a buffer is mapped.
func TestCopiesAreLetInWhileMapped(t *testing.T) {
	l, f, g := open(t)
	h, err := l.Pin(g, request)
	require.NoError(t, err)
	require.Zero(t, slotOf(l, h).key)
	f.OnUnmap = func() { require.Zero(t, slotOf(l, h).key, "no copy is let in any more") }
	f.Type = backend.Caching
	for _, end := range []func() error{
		func() error { return l.Unmap(g, h, 0x7000, 5000) },
		func() error { return l.Unpin(g, h) },
	} {
		_, err := l.Map(g, h, 5000, 0)
		require.NoError(t, err)
		require.Equal(t, mapping{uint64(h), 0x7000, 8192, 2}, slotOf(l, h), "in host pages")
		require.NoError(t, end())
	}
	f.Fail["map"] = unix.EIO
	h, err = l.Pin(g, request)
	require.NoError(t, err)
	_, err = l.Map(g, h, 5000, 0)
	require.Equal(t, unix.EIO, core.Errno(err))
	require.Zero(t, slotOf(l, h).key)
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

func TestAnswersOfTheBackend(t *testing.T) {
	l, f, g := open(t)
	major, minor, err := l.DriverVersion(g)
	require.NoError(t, err)
	require.Equal(t, []int{2, 6}, []int{major, minor})
	name, err := l.BackendName(g)
	require.NoError(t, err)
	require.Equal(t, "fake", name)
	v, err := l.Attribute(g, backend.AttrForcePCIe)
	require.NoError(t, err)
	require.EqualValues(t, backend.AttrForcePCIe, v)
	h, err := l.Pin(g, request)
	require.NoError(t, err)
	for _, want := range []int{0, 1} {
		f.Flag = want
		flag, err := l.CallbackFlag(g, h)
		require.NoError(t, err)
		require.Equal(t, want, flag)
	}
	f.Fail["flag"] = unix.EIO
	_, err = l.CallbackFlag(g, h)
	require.Equal(t, unix.EIO, core.Errno(err))
	require.NoError(t, l.Unpin(g, h))
	_, err = l.CallbackFlag(g, h)
	require.Equal(t, unix.EINVAL, core.Errno(err))
	require.NoError(t, l.Close(g))
	_, _, err = l.DriverVersion(g)
	require.Equal(t, unix.EINVAL, core.Errno(err))
}

// Allocations, on the simulated driver.
func TestMemory(t *testing.T) {
	sim := cudatest.Need(t)
	l, f, g := open(t)
	other, err := l.Open(options(f))
	require.NoError(t, err)
	live, slots := sim.Live(), freeSlots(t, l)
	m, err := l.MemAlloc(g, 0, 1)
	require.NoError(t, err)
	ptr, size, err := l.MemPtr(g, m)
	require.NoError(t, err)
	require.EqualValues(t, cudatest.VMMChunk, size)
	sim.HtoD(0, ptr+size-8, []byte("the last"))
	require.Equal(t, "the last", string(sim.DtoH(0, ptr+size-8, 8)))

	_, _, err = l.MemPtr(other, m)
	require.Equal(t, unix.EINVAL, core.Errno(err), "through another gdr_t")
	require.Equal(t, unix.EINVAL, core.Errno(l.MemFree(other, m)))
	_, err = l.MemExport(other, m, 0)
	require.Equal(t, unix.EINVAL, core.Errno(err))
	for _, flags := range []uint32{2, 3, 1 << 31} {
		_, err = l.MemExport(g, m, flags)
		require.Equal(t, unix.EINVAL, core.Errno(err))
	}
	for _, flags := range []uint32{0, backend.PinForcePCIe} {
		fd, err := l.MemExport(g, m, flags)
		require.NoError(t, err)
		require.EqualValues(t, flags, sim.ExportFlags())
		require.NoError(t, unix.Close(fd))
	}

	require.NoError(t, l.MemFree(g, m))
	require.Equal(t, unix.EINVAL, core.Errno(l.MemFree(g, m)))
	_, _, err = l.MemPtr(g, m)
	require.Equal(t, unix.EINVAL, core.Errno(err))
	require.Equal(t, live, sim.Live())
	require.Equal(t, slots, freeSlots(t, l))

	const outOfMemory = 2
	sim.Fail("cuMemCreate", outOfMemory, 1)
	_, err = l.MemAlloc(g, 0, 1)
	require.Equal(t, unix.ENOMEM, core.Errno(err))
	require.Equal(t, slots, freeSlots(t, l))
	require.Zero(t, named[*core.Memory](l))

	m, err = l.MemAlloc(g, 0, 1)
	require.NoError(t, err)
	sim.Fail("cuMemUnmap", outOfMemory, 1)
	require.Equal(t, unix.ENOMEM, core.Errno(l.MemFree(g, m)))
	require.Equal(t, unix.EINVAL, core.Errno(l.MemFree(g, m)), "an error ends it, too")
	require.Equal(t, slots, freeSlots(t, l))
	live = sim.Live()

	mem, err := core.Open(options(f))
	require.NoError(t, err)
	own, err := mem.Alloc(0, 1)
	require.NoError(t, err)
	_, err = mem.Alloc(0, 0)
	require.Equal(t, unix.EINVAL, core.Errno(err))
	require.NoError(t, own.Close())
	_, err = own.Export(0)
	require.ErrorIs(t, err, core.ErrClosed, "nothing is exported that is freed")
	require.NoError(t, mem.Close())
	require.Equal(t, live, sim.Live())

	for range 3 {
		_, err = l.MemAlloc(g, 0, 1)
		require.NoError(t, err)
	}
	_, err = l.MemAlloc(other, 1, 1)
	require.NoError(t, err)
	require.NoError(t, l.Close(g))
	require.Equal(t, 1, named[*core.Memory](l), "the other's stays")
	sim.Fail("cuMemUnmap", outOfMemory, 1)
	require.Equal(t, unix.ENOMEM, core.Errno(l.Close(other)), "Close tells that, too")
	require.Zero(t, named[*core.Memory](l))
}

// Two threads may both have found the allocation that they free.
func TestMemoryIsFreedOnce(t *testing.T) {
	sim := cudatest.Need(t)
	l, _, g := open(t)
	slots, live := freeSlots(t, l), sim.Live()
	m, err := l.MemAlloc(g, 0, 1)
	require.NoError(t, err)
	mem, err := l.memory(g, m)
	require.NoError(t, err)
	require.NoError(t, l.MemFree(g, m))
	require.ErrorIs(t, mem.Close(), core.ErrClosed)
	require.Equal(t, slots, freeSlots(t, l))
	require.Equal(t, live, sim.Live())
}
