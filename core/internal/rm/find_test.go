package rm

import (
	"os"
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
		watched, ipc int // calls of the pin
	}{
		{small, 1, 1},
		{small, 0, 1},
		{large, 0, 1},
		{second, 0, 1},
		{v, 1, 0},
		{v, 1, 0},
		{small, 0, 1},
	} {
		start := c.a.start &^ (gpuPage - 1)
		watched, ipc := w.rm.count("watch"), w.rm.count("cuIpcGetMemHandle")
		p := w.pinned(start, c.a.end()-start)
		require.Equal(t, c.watched, w.rm.count("watch")-watched, "%+v", c)
		require.Equal(t, c.ipc, w.rm.count("cuIpcGetMemHandle")-ipc, "%+v", c)
		w.cycle(p)
		require.NoError(t, p.Unpin())
	}
	require.Equal(t, right, w.verdict(byIPC))
	require.Equal(t, right, w.verdict(byExport))
	require.Zero(t, w.rm.count("cuMemAlloc")+w.rm.count("WriteOut")+w.rm.count("ReadBack"), "two ways that agree need no bytes")

	// The IPC handle fails once. The watch is used.
	w.rm.fail("cuIpcGetMemHandle", 1, errOwn)
	require.NoError(t, w.pinned(small.start, 1).Unpin())
	require.Equal(t, 4, w.rm.count("watch"))
	w.end()
}

func TestIPCHandleThatDiffers(t *testing.T) {
	for _, word := range []int{ipcOffset, ipcClient, ipcObject} {
		w := newWorld(t)
		w.cuda.ipcWord[word] = 4096
		a := w.cuda.memAlloc(0, 8*mib)
		for range 3 {
			p := w.pinned(a.start, a.size)
			w.cycle(p)
			require.NoError(t, p.Unpin())
			require.Equal(t, right, w.verdict(byExport), "as our own memory shows")
			require.Equal(t, wrong, w.verdict(byIPC))
		}
		asked, watched := w.rm.count("cuIpcGetMemHandle"), w.rm.count("watch")
		require.Equal(t, 1, w.rm.count("cuMemAlloc"))
		require.NoError(t, w.pinned(a.start, 4096).Unpin())
		require.Equal(t, asked, w.rm.count("cuIpcGetMemHandle"), "it is never asked again")
		require.Equal(t, watched+1, w.rm.count("watch"))
		require.Equal(t, 1, w.rm.count("cuMemAlloc"))

		// Even if no other way is left.
		w.session.watch = nil
		w.notPinned(a.start, 4096, unix.ENOTSUP, "load gdrdrv")
		require.Equal(t, asked, w.rm.count("cuIpcGetMemHandle"))
		w.end()
	}
}

// If there is no handle, nothing is decided of it. The ways are tried on our own memory.
func TestIPCHandleThatFails(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 8*mib)
	w.rm.fail("cuIpcGetMemHandle", 1, errOwn)
	require.NoError(t, w.pinned(a.start, 1).Unpin())
	require.Equal(t, right, w.verdict(byIPC), "our own memory has one")
	require.Equal(t, right, w.verdict(byExport))
	w.end()
}

// Why exports cannot be watched, and what can be found without that.
func TestWithoutTheWatch(t *testing.T) {
	for _, c := range []struct {
		what  string
		blind func(w *world)
	}{
		{"no watch", func(w *world) { w.session.watch = nil }},
		{"no slot in libcuda", func(w *world) {
			w.session.watch = func(uintptr, uint64, uint64) (Seen, error) { return Seen{}, unix.ENOTSUP }
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
			require.Equal(t, untried, w.verdict(byExport))
			require.Equal(t, right, w.verdict(byIPC), "as our own memory shows")
			require.Equal(t, right, w.verdict(byImport), "as our own memory shows")
			require.Equal(t, 2, w.rm.count("cuMemAlloc"), "one on each GPU")
			require.Equal(t, 1, w.rm.count("cuMemCreate"))
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
			w.rm.fail("cuMemExportToShareableHandle", 1, cuda.ErrInvalidValue)
			w.notPinned(half.start, 1, unix.ENOTSUP, "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR")
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
		{"an object that is none", func(s *Seen) { s.Object++ }, unix.ENOTSUP, "do not lead to the memory"},
		{"a client that is none", func(s *Seen) { s.Client++ }, unix.ENOTSUP, "DUP_OBJECT"},
		{"an offset past the object", func(s *Seen) { s.Offset += 1 << 40 }, unix.EINVAL, ""},
	} {
		w := newWorld(t)
		w.cuda.ipcWord[ipcOffset] = 4096
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

// A driver whose mappings have no bytes, or end before they begin.
func TestMappingsThatDoNotEnd(t *testing.T) {
	for _, size := range []uint64{0, 1} {
		w := newWorld(t)
		w.proven()
		a := w.cuda.vmm(0, false, []uint64{2 * mib, 2 * mib})
		w.cuda.described = func(m *cuda.MemoryInfo) {
			if m.Mapping != a.start {
				m.Mapping, m.MappingSize = m.Mapping-size, size
			}
		}
		w.notPinned(a.start, a.size, unix.EIO, "maps")
		w.end()
	}
}

// A pin of before a checkpoint is not mapped after it. A new pin shows the memory.
func TestMapAfterACheckpoint(t *testing.T) {
	w := newWorld(t)
	for _, size := range []uint64{300, 8 * mib} {
		a := w.cuda.memAlloc(0, size)
		start := a.start &^ (gpuPage - 1)
		old := w.pinned(start, a.end()-start)
		w.cycle(old)
		w.cuda.restore()
		live := w.held()
		_, _, err := old.Map(gpuPage, backend.None)
		require.ErrorIs(t, err, unix.EIO)
		require.ErrorContains(t, err, "unpin before a checkpoint")
		require.Equal(t, live, w.held())
		w.cuda.ipcWord[ipcClient] = -w.cuda.client.Handle // a handle that names no client tells nothing
		_, _, err = old.Map(gpuPage, backend.None)
		require.NoError(t, err)
		require.NoError(t, unmap(old))
		w.cuda.ipcWord[ipcClient] = 0
		require.NoError(t, old.Unpin())
		p := w.pinned(start, a.end()-start)
		w.cycle(p)
		require.NoError(t, p.Unpin())
	}
	w.end()
}

// Memory that the program has freed stays pinned, and is mapped, also where it has other
// memory at the address.
func TestMapAfterAFree(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 8*mib)
	for _, again := range []bool{false, true} {
		p := w.pinned(a.start, a.size)
		at := a.start
		w.cuda.free(a)
		if again {
			w.cuda.client = w.rm.newClient(os.Getpid())
			w.cuda.next = at
			require.Equal(t, at, w.cuda.memAlloc(0, 8*mib).start)
		}
		va, _, err := p.Map(a.size, backend.None)
		require.NoError(t, err)
		cudatest.Bytes(va, 8)[0] = 1
		require.NoError(t, unmap(p))
		require.NoError(t, p.Unpin())
		a = w.cuda.memAlloc(0, 8*mib)
	}
	w.end()
}
