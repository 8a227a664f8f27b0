package rm

import (
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/cuda/cudatest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Once the IPC handle and the watch have agreed, only the IPC handle is used.
func TestIPCHandleThatAgrees(t *testing.T) {
	w := newWorld(t)
	small, large := w.cuda.memAlloc(0, 512), w.cuda.memAlloc(0, 8*mib)
	w.cuda.memAlloc(0, 100)
	second := w.cuda.memAlloc(0, 700)
	v := w.cuda.vmm(0, false, []uint64{2 * mib})
	for _, c := range []struct {
		a            *fakeAlloc
		watched, ipc int // calls until now
	}{
		{small, 1, 1},
		{small, 1, 2},
		{large, 1, 3},
		{second, 1, 4},
		{v, 3, 4}, // both ends
		{v, 5, 4},
		{small, 5, 5},
	} {
		start := c.a.start &^ (gpuPage - 1)
		p := w.pinned(start, c.a.end()-start)
		require.Equal(t, c.watched, w.rm.count("watch"), "%+v", c)
		require.Equal(t, c.ipc, w.rm.count("cuIpcGetMemHandle"), "%+v", c)
		w.cycle(p)
		require.NoError(t, p.Unpin())
	}
	require.Equal(t, int32(agrees), w.ipc.state.Load())

	// The IPC handle fails once. The watch is used.
	w.rm.fail("cuIpcGetMemHandle", 1, errOwn)
	require.NoError(t, w.pinned(small.start, 1).Unpin())
	require.Equal(t, 6, w.rm.count("watch"))
	w.end()
}

func TestIPCHandleThatDiffers(t *testing.T) {
	for _, word := range []int{7, 12, 13} {
		w := newWorld(t)
		w.cuda.ipcWord[word] = 4096
		a := w.cuda.memAlloc(0, 8*mib)
		for i := range 3 {
			p := w.pinned(a.start, a.size)
			w.cycle(p)
			require.NoError(t, p.Unpin())
			require.Equal(t, i+1, w.rm.count("watch"))
			require.Equal(t, 1, w.rm.count("cuIpcGetMemHandle"), "it is never asked again")
		}
		require.Equal(t, int32(differs), w.ipc.state.Load())

		// Even if no other way is left.
		w.session.finder.watch = nil
		w.notPinned(a.start, 4096, unix.ENOTSUP, "load gdrdrv")
		require.Equal(t, 1, w.rm.count("cuIpcGetMemHandle"))
		w.end()
	}
}

// If there is no handle, nothing is decided.
func TestIPCHandleThatFails(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 8*mib)
	w.rm.fail("cuIpcGetMemHandle", 1, errOwn)
	require.NoError(t, w.pinned(a.start, 1).Unpin())
	require.Equal(t, int32(notCompared), w.ipc.state.Load())
	require.NoError(t, w.pinned(a.start, 1).Unpin())
	require.Equal(t, int32(agrees), w.ipc.state.Load())
	w.end()
}

// Why exports cannot be watched, and what can be found without that.
func TestWithoutTheWatch(t *testing.T) {
	for _, c := range []struct {
		what  string
		blind func(w *world)
	}{
		{"no watch", func(w *world) { w.session.finder.watch = nil }},
		{"no slot in libcuda", func(w *world) {
			w.session.finder.watch = func(uintptr, uint64, uint64) (Seen, error) { return Seen{}, unix.ENOTSUP }
		}},
		{"no function", func(w *world) { w.cuda.noExport = true }},
		{"no dma-bufs", func(w *world) {
			w.cuda.seen = func(s *Seen) { closeSeen(s); *s = Seen{Result: int32(cuda.ErrNotSupported), FD: -1} }
		}},
		{"an export by other requests", func(w *world) {
			w.cuda.seen = func(s *Seen) { *s = Seen{Result: s.Result, FD: s.FD} }
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t)
			c.blind(w)
			for _, make := range []func() *fakeAlloc{
				func() *fakeAlloc { return w.cuda.memAlloc(0, 3*mib) },
				func() *fakeAlloc { return w.cuda.memAlloc(1, 100) },
				func() *fakeAlloc { return w.cuda.vmm(0, true, []uint64{2 * mib}) },
				func() *fakeAlloc { return w.cuda.vmm(0, true, []uint64{2 * mib, 4 * mib, 2 * mib}) },
				func() *fakeAlloc { return w.cuda.vmm(0, true, []uint64{2 * mib, 2 * mib}, 0, 1, 0) },
			} {
				a := make()
				start := a.start &^ (gpuPage - 1)
				p := w.pinned(start, a.end()-start)
				w.cycle(p)
				require.NoError(t, p.Unpin())
				w.cuda.free(a)
			}
			require.Equal(t, int32(notCompared), w.ipc.state.Load())
			if c.what != "an export by other requests" {
				p := w.cuda.pool(0, 0, mib)
				w.notPinned(p.start, p.size, unix.ENOTSUP, "load gdrdrv")
			}
			shut := w.cuda.vmm(0, false, []uint64{2 * mib})
			w.notPinned(shut.start, 1, cuda.ErrNotPermitted, "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR")
			half := w.cuda.vmm(0, true, []uint64{2 * mib, 2 * mib})
			half.parts[1].exportable = false
			w.notPinned(half.start, half.size, cuda.ErrNotPermitted, "load gdrdrv")
			require.NoError(t, w.pinned(half.start, 1).Unpin())
			far := w.cuda.of(imported, mib)
			w.notPinned(far.start, 1, unix.ENOTSUP, "")
			w.end()
		})
	}
}

// closeSeen closes the descriptor of a simulated export.
func closeSeen(s *Seen) {
	if s.FD >= 0 {
		unix.Close(int(s.FD))
	}
}

func TestExportsThatAreNotKnown(t *testing.T) {
	for _, c := range []struct {
		what string
		seen func(*Seen)
		want error
		line string
	}{
		{"a request of another size", func(s *Seen) { closeSeen(s); *s = Seen{Result: 1, FD: -1, Requests: 1, Size: 4000} }, unix.ENOTSUP, "4000 bytes"},
		{"the same, and it works", func(s *Seen) { *s = Seen{FD: s.FD, Requests: 1, Size: 4000} }, unix.ENOTSUP, "4000 bytes"},
		{"refused", func(s *Seen) { closeSeen(s); *s = Seen{Result: 1, FD: -1} }, unix.ENOTSUP, "cudaIpcOpenMemHandle"},
		{"no memory", func(s *Seen) { closeSeen(s); *s = Seen{Result: 2, FD: -1} }, unix.ENOMEM, "OUT_OF_MEMORY"},
		{"an object that is none", func(s *Seen) { s.Object++ }, unix.ENOTSUP, "DUP_OBJECT"},
		{"a client that is none", func(s *Seen) { s.Client++ }, unix.ENOTSUP, "DUP_OBJECT"},
		{"an offset past the object", func(s *Seen) { s.Offset += 1 << 40 }, unix.EINVAL, ""},
	} {
		w := newWorld(t)
		w.cuda.seen = c.seen
		v := w.cuda.vmm(0, true, []uint64{2 * mib})
		if c.want == unix.EINVAL {
			v = w.cuda.memAlloc(0, 2*mib)
		}
		fds := cudatest.FDs(t)
		w.notPinned(v.start, v.size, c.want, c.line)
		require.Equal(t, fds, cudatest.FDs(t), c.what)
		w.end()
	}
}

// An offset before the object's start is invalid.
func TestPlaceBeforeTheObject(t *testing.T) {
	w := newWorld(t)
	w.cuda.memAlloc(0, 8192)
	a := w.cuda.memAlloc(0, 512)
	w.cuda.seen = func(s *Seen) { s.Offset = 0 } // of a page 8 KiB further on
	w.notPinned(a.start, 1, unix.EINVAL, "before the memory")
	w.end()
}

func TestIPCHandleOfNothing(t *testing.T) {
	for _, word := range []int{ipcClient, ipcObject} {
		w := blind(t)
		a := w.cuda.memAlloc(0, 512)
		words, err := w.cuda.IPCHandle(a.start)
		require.NoError(t, err)
		w.cuda.ipcWord[word] = -words[word] // it is 0 then
		w.notPinned(a.start, 1, unix.ENOTSUP, "cannot be watched")
		require.Zero(t, w.rm.count("DUP_OBJECT"))
		w.end()
	}
}

func TestOutOfDescriptors(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.vmm(0, true, []uint64{2 * mib})
	w.cuda.seen = func(s *Seen) {
		if s.FD < 0 {
			*s = Seen{Result: s.Result, FD: -1}
		}
	}
	var err error
	cudatest.WithoutDescriptors(t, func() { _, err = w.Pin(backend.PinRequest{Addr: a.start, Size: 1}) })
	require.ErrorIs(t, err, unix.EMFILE)
	require.ErrorContains(t, err, "RLIMIT_NOFILE")
	require.Zero(t, w.held())
	w.end()
}

// Neighbours are one span if they touch in one object, and only then.
func TestJoin(t *testing.T) {
	left := span{place: place{client: 1, object: 2, offset: 0x1000}, first: 0x20000, end: 0x30000}
	right := span{place: place{client: 1, object: 2, offset: 0x11000}, first: 0x30000, end: 0x50000}
	require.Equal(t, []span{{place: left.place, first: 0x20000, end: 0x50000}}, join([]span{left}, []span{right}))
	for _, p := range []place{{1, 3, 0x11000}, {2, 2, 0x11000}, {1, 2, 0x12000}} {
		other := right
		other.place = p
		require.Equal(t, []span{left, other}, join([]span{left}, []span{other}))
	}
}

// The memory of a range is in smaller pieces than CUDA makes.
func TestPiecesThatAreTooSmall(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.vmm(0, false, []uint64{2 * mib})
	n := uint64(0)
	w.cuda.seen = func(s *Seen) { n++; s.Offset += n << 30 }
	w.notPinned(a.start, a.size, unix.ENOTSUP, "smaller than CUDA's least")
	w.end()
}

// The search halves the unknown part. It does not ask for each 2 MiB.
func TestSearchIsShort(t *testing.T) {
	for _, c := range []struct {
		sizes   []uint64
		watched int
	}{
		{[]uint64{128 * mib}, 2},
		{[]uint64{64 * mib, 64 * mib}, 5},
		{[]uint64{64 * mib, 32 * mib, 32 * mib}, 8},
	} {
		w := newWorld(t)
		a := w.cuda.vmm(0, false, c.sizes)
		p := w.pinned(a.start, a.size)
		require.Len(t, p.pieces, len(c.sizes))
		require.Equal(t, c.watched, w.rm.count("watch"), "%v", c.sizes)
		require.NoError(t, p.Unpin())
		w.end()
	}
}

// If bytes differ once, a kernel may have written there. If they differ twice, the object
// is not the address's.
func TestVerify(t *testing.T) {
	for _, open := range []func(*testing.T) *world{newWorld, blind} {
		w := open(t)
		a := w.cuda.memAlloc(0, 2*mib)
		w.cuda.wrongReads = 1
		require.NoError(t, w.pinned(a.start+100, 4096).Unpin())
		require.Equal(t, 2, w.rm.count("ReadBack"))
		require.NoError(t, w.pinned(a.start, 4096).Unpin())
		require.NoError(t, w.pinned(a.start+mib, 4096).Unpin())
		require.Equal(t, 2, w.rm.count("ReadBack"), "once for an object")

		b := w.cuda.memAlloc(0, 2*mib)
		w.cuda.wrongReads = 2
		w.notPinned(b.start, 4096, unix.ENOTSUP, "load gdrdrv")
		require.Equal(t, 4, w.rm.count("ReadBack"))
		require.NoError(t, w.pinned(b.start, 4096).Unpin())
		require.Equal(t, 5, w.rm.count("ReadBack"))
		w.end()
		require.NoError(t, w.pinned(b.start, 4096).Unpin())
		require.Equal(t, 6, w.rm.count("ReadBack"), "and anew for a new client")
		w.end()
	}
}

// Compared bytes show that a found object is not the address's.
func TestWrongObject(t *testing.T) {
	w := newWorld(t)
	a, b := w.cuda.memAlloc(0, 2*mib), w.cuda.memAlloc(0, 2*mib)
	w.cuda.pwrite(a.start, []byte{1})
	w.cuda.seen = func(s *Seen) { s.Object = b.parts[0].object }
	w.notPinned(a.start, 4096, unix.ENOTSUP, "not those of the object")
	w.cuda.seen = nil

	// The second object of a VMM range, at that.
	v := w.cuda.vmm(0, false, []uint64{2 * mib, 2 * mib})
	w.cuda.pwrite(v.start+2*mib, []byte{1})
	w.cuda.seen = func(s *Seen) {
		if s.Object == v.parts[1].object {
			s.Object = b.parts[0].object
		}
	}
	w.notPinned(v.start, v.size, unix.ENOTSUP, "not those of the object")
	w.end()
}

// One line is compared if the buffer has a line. At the end of small buffers less is
// compared.
func TestVerifyStaysInTheMemory(t *testing.T) {
	w := newWorld(t)
	for _, size := range []uint64{1, 7, 63, 64, 65, 512, 4097} {
		for _, at := range []uint64{0, size / 2, size - 1} {
			a := w.cuda.memAlloc(0, size)
			w.cuda.pwrite(a.start+at, []byte{byte(size)})
			w.of.client = nil // so that the chunk is unknown
			w.session.client = nil
			require.NoError(t, w.pinned(a.start+at, 1).Unpin(), "%d of %d", at, size)
			require.NoError(t, w.Close())
		}
	}
}

func TestVerifiedSetIsBounded(t *testing.T) {
	var v verifiedSet
	for i := range handle(3 * maxVerified) {
		p := place{client: 1, object: i}
		require.False(t, v.has(p))
		v.add(p)
		p.offset = 77
		require.True(t, v.has(p))
		require.LessOrEqual(t, len(v.set), maxVerified)
	}
}
