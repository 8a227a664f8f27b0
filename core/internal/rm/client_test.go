package rm

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/cuda/cudatest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func (w *world) another() *session {
	return &session{kernel: w.rm, cuda: w.cuda, watch: w.cuda.watch, shared: w.of}
}

func TestSessionsShareTheClient(t *testing.T) {
	w := newWorld(t)
	a, far := w.cuda.memAlloc(0, 2*mib), w.cuda.memAlloc(1, 2*mib)
	second, idle := w.another(), w.another()
	p := w.pinned(a.start, 1)
	q, err := second.Pin(backend.PinRequest{Addr: far.start, Size: 1})
	require.NoError(t, err)
	r, err := second.Pin(backend.PinRequest{Addr: a.start, Size: 1})
	require.NoError(t, err)
	require.Equal(t, 1, w.rm.count("open /dev/nvidiactl"))
	require.Equal(t, 1, w.rm.count("RM_ALLOC 0x41"))
	require.Equal(t, 2, w.rm.count("RM_ALLOC 0x80"), "a device for each GPU")
	require.NoError(t, p.Unpin())
	require.NoError(t, w.Close())
	require.NoError(t, w.Close(), "a second time gives nothing back")
	require.NoError(t, idle.Close(), "it never had the client")
	require.NotNil(t, w.of.client)
	va, _, err := q.Map(65536, backend.None)
	require.NoError(t, err, "the second session's are as they were")
	w.checkBytes(va, far.start, 65536)
	require.NoError(t, unmap(q))
	require.NoError(t, q.Unpin())
	require.NoError(t, r.Unpin())
	require.NoError(t, second.Close())
	require.Zero(t, w.rm.live(), "the last one closes")
	require.NoError(t, second.Close())

	require.NoError(t, w.pinned(a.start, 1).Unpin(), "and the next one makes a client anew")
	require.Equal(t, 2, w.rm.count("open /dev/nvidiactl"))
	w.end()
}

// A session takes a reference to the client at its first pin, once.
func TestSessionHoldsOnce(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 2*mib)
	other := w.another()
	for range 3 {
		require.NoError(t, w.pinned(a.start, 1).Unpin())
	}
	p, err := other.Pin(backend.PinRequest{Addr: a.start, Size: 1})
	require.NoError(t, err)
	require.Equal(t, 2, w.of.holders)
	require.NoError(t, w.Close())
	require.Equal(t, 1, w.of.holders)
	require.NoError(t, p.Unpin())
	require.NoError(t, other.Close())
	require.Zero(t, w.rm.live())
}

// A host that closes every descriptor (daemons do) loses its pins. A later pin works
// again. A number that the host uses by then is not touched.
func TestHostClosesOurDescriptors(t *testing.T) {
	for _, then := range []int{nothing, hostsFile, hostsOpen} {
		w := newWorld(t)
		a := w.cuda.memAlloc(0, 2*mib)
		second := w.another()
		old := w.pinned(a.start, 1)
		_, err := second.Pin(backend.PinRequest{Addr: a.start, Size: 1})
		require.NoError(t, err)
		_, _, err = old.Map(4096, backend.None)
		require.NoError(t, err)

		lost := w.of.client
		w.rm.hostCloses(lost.fd, then)
		for _, g := range lost.gpus {
			w.rm.hostCloses(g.fd, then)
		}
		p := w.pinned(a.start, 1)
		require.NotSame(t, lost, w.of.client)
		w.cycle(p)
		require.NoError(t, p.Unpin())

		require.Error(t, unmap(old), "its window went with the client")
		require.Error(t, old.Unpin())
		require.NoError(t, second.Close(), "it had the client that is gone")
		require.NotNil(t, w.of.client)
		q, err := w.Pin(backend.PinRequest{Addr: a.start, Size: 1})
		require.NoError(t, err)
		require.NoError(t, q.Unpin())
		require.Zero(t, w.held())
		w.end()
		hosts := 0
		for _, file := range w.rm.files {
			require.True(t, file.host)
			hosts++
		}
		if then != nothing {
			require.Equal(t, 2, hosts, "what is the host's stays open")
		}
	}
}

// The host closes only the client's descriptor. The library then closes the others.
func TestHostClosesTheClient(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 2*mib)
	require.NoError(t, w.pinned(a.start, 1).Unpin())
	w.rm.hostCloses(w.of.client.fd, nothing)
	require.NoError(t, w.pinned(a.start, 1).Unpin())
	require.Equal(t, 4, w.rm.live(), "the new client's")
	w.end()
}

// Two sessions held the client that the host closed. Both hold the new one. When the
// first session ends, the second still has it.
func TestBothSessionsHoldTheNewClient(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 2*mib)
	second := w.another()
	pin := func(s *session) {
		p, err := s.Pin(backend.PinRequest{Addr: a.start, Size: 1})
		require.NoError(t, err)
		require.NoError(t, p.Unpin())
	}
	pin(w.session)
	pin(second)
	w.rm.hostCloses(w.of.client.fd, nothing)
	pin(w.session)
	pin(second)
	require.Equal(t, 2, w.of.holders)
	client := w.of.client
	require.NoError(t, second.Close())
	pin(w.session)
	require.Same(t, client, w.of.client)
	w.end()
}

// The same at the end of the last session.
func TestCloseLeavesTheHostsFiles(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 2*mib)
	require.NoError(t, w.pinned(a.start, 1).Unpin())
	w.rm.hostCloses(w.of.client.fd, hostsFile)
	require.NoError(t, w.Close())
	require.Zero(t, w.rm.live())
	require.Len(t, w.rm.files, 1)
}

// The number is an open of the same device by another copy of the library. A new gdr_open
// works, and after that the old one does.
func TestAnotherCopyHasTheNumber(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 2*mib)
	require.NoError(t, w.pinned(a.start, 1).Unpin())
	w.rm.hostCloses(w.of.client.fd, otherCopy)
	w.notPinned(a.start, 1, unix.ENOTSUP, "NV_ERR_INVALID_CLIENT")
	second := w.another()
	p, err := second.Pin(backend.PinRequest{Addr: a.start, Size: 1})
	require.NoError(t, err)
	require.NoError(t, p.Unpin())
	require.NoError(t, w.pinned(a.start, 1).Unpin())
	require.NoError(t, second.Close())
}

// In a forked child the parent's client is refused.
func TestClientOfAnotherProcess(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 2*mib)
	p := w.pinned(a.start, 1)
	w.rm.fail("MAP_MEMORY", 1, statusInvalidClient)
	_, _, err := p.Map(4096, backend.None)
	require.ErrorIs(t, err, unix.EACCES)
	require.ErrorContains(t, err, "gdr_open")
	require.NoError(t, p.Unpin())
	w.end()
}

func TestNoClient(t *testing.T) {
	for _, c := range []struct {
		call string
		err  error
		want error
		line string
	}{
		{"open /dev/nvidiactl", unix.ENOENT, unix.ENOENT, "no NVIDIA driver"},
		{"open /dev/nvidiactl", unix.ENODEV, unix.ENODEV, "no NVIDIA driver"},
		{"open /dev/nvidiactl", unix.EIO, unix.EIO, "no NVIDIA driver"},
		{"open /dev/nvidiactl", unix.EMFILE, unix.EMFILE, "open /dev/nvidiactl"},
		{"open /dev/nvidia2", unix.EMFILE, unix.EMFILE, "open /dev/nvidia2"},
		{"open /dev/nvidiactl", unix.EACCES, unix.EACCES, "/dev/nvidiactl may not be opened"},
		{"open /dev/nvidiactl", unix.ENOMEM, unix.ENOMEM, "open /dev/nvidiactl"},
		{"open /dev/nvidia2", unix.EPERM, unix.EPERM, "/dev/nvidia2 may not be opened"},
		{"open /dev/nvidia2", unix.ENXIO, unix.ENXIO, "compute,utility"},
		{"CARD_INFO", unix.EINVAL, unix.ENOTSUP, "CARD_INFO: this NVIDIA driver does not know the request"},
		{"RM_ALLOC 0x41", unix.EINVAL, unix.ENOTSUP, "load gdrdrv"},
		{"RM_ALLOC 0x80", unix.ENOTTY, unix.ENOTSUP, "load gdrdrv"},
		{"RM_ALLOC 0x80", unix.EAGAIN, unix.EAGAIN, "RM_ALLOC of a device"},
		{"RM_ALLOC 0x80", statusBusyRetry, unix.EAGAIN, "try again"},
		{"RM_ALLOC 0x80", statusInvalidDevice, unix.ENODEV, "NV_ERR_INVALID_DEVICE"},
		{"REGISTER_FD", unix.EINVAL, unix.ENODEV, "the GPU is lost"},
		{"REGISTER_FD", unix.EBADF, unix.EBADF, "REGISTER_FD"},
		{"RM_CONTROL 0x205", statusNotSupported, unix.ENOTSUP, "GET_ID_INFO"},
		{"DUP_OBJECT", unix.EINVAL, unix.ENOTSUP, "DUP_OBJECT"},
		{"MAP_MEMORY", unix.EINVAL, unix.ENOTSUP, "MAP_MEMORY"},
	} {
		w := newWorld(t)
		w.proven()
		a := w.cuda.memAlloc(0, 100) // a window of it ends past the buffer, which is tried
		w.rm.fail(c.call, 1, c.err)
		w.notPinned(a.start, 2*gpuPage, c.want, c.line)
		require.NoError(t, w.pinned(a.start, 4096).Unpin())
		w.end()
	}
}

// elsewhere is a CUDA whose GPUs have another address.
type elsewhere struct {
	*fakeCUDA
	at cuda.PCIAddress
}

func (e elsewhere) PCIAddress(cuda.Device) (cuda.PCIAddress, error) { return e.at, nil }

func TestGPUThatTheDriverDoesNotList(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 2*mib)
	at := at(w.rm.GPUs[0])
	for _, other := range []cuda.PCIAddress{
		{Domain: at.Domain + 2, Bus: at.Bus, Slot: at.Slot},
		{Domain: at.Domain, Bus: at.Bus + 1, Slot: at.Slot},
		{Domain: at.Domain, Bus: at.Bus, Slot: at.Slot + 1},
	} {
		w.session.cuda = elsewhere{w.cuda, other}
		w.notPinned(a.start, 1, unix.ENODEV, other.String())
	}
	w.end()
}

func TestProbe(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(f *fakeRM)
		want   error
		line   string
	}{
		{"a machine with two GPUs", func(*fakeRM) {}, nil, ""},
		{"the first one's node is not ours", func(f *fakeRM) { f.nodeMode[f.GPUs[0]] = unix.EACCES }, nil, ""},
		{"the second one is not in the container", func(f *fakeRM) { f.nodeMode[f.GPUs[1]] = unix.ENOENT }, nil, ""},
		{"CUDA has the first alone", func(f *fakeRM) { f.nodeMode[f.GPUs[1]], f.shown = unix.ENOENT, f.GPUs[:1] }, nil, ""},
		{"CUDA has that one alone", func(f *fakeRM) { f.nodeMode[f.GPUs[1]], f.shown = unix.ENOENT, f.GPUs[1:] }, unix.ENOENT, "compute,utility"},
		{"CUDA has none", func(f *fakeRM) { f.shown = f.GPUs[:0] }, nil, ""},
		{"no node is ours", func(f *fakeRM) { f.nodeMode[f.GPUs[0]], f.nodeMode[f.GPUs[1]] = unix.EACCES, unix.EACCES }, unix.EACCES, "may not be opened"},
		{"no node", func(f *fakeRM) { f.nodeMode[f.GPUs[0]], f.nodeMode[f.GPUs[1]] = unix.ENOENT, unix.ENOENT }, unix.ENOENT, "compute,utility"},
		{"no GPU", func(f *fakeRM) { f.GPUs = nil }, unix.ENODEV, "no GPU"},
		{"no driver", func(f *fakeRM) { f.fail("open /dev/nvidiactl", 1, unix.ENOENT) }, unix.ENOENT, "no NVIDIA driver"},
		{"not for this user", func(f *fakeRM) { f.fail("open /dev/nvidiactl", 1, unix.EACCES) }, unix.EACCES, "may not be opened"},
		{"a client of another size", func(f *fakeRM) { f.fail("RM_ALLOC 0x41", 1, unix.EINVAL) }, unix.ENOTSUP, "does not know the request"},
		{"cards of another size", func(f *fakeRM) { f.fail("CARD_INFO", 1, unix.EINVAL) }, unix.ENOTSUP, "does not know the request"},
		{"no client", func(f *fakeRM) { f.fail("RM_ALLOC 0x41", 1, statusNoMemory) }, unix.ENOMEM, "RM_ALLOC of a client"},
		{"a close that fails", func(f *fakeRM) { f.fail("close", 1, unix.EIO) }, nil, ""},
		{"no identity", func(f *fakeRM) { f.fail("identity", 1, unix.EIO) }, unix.EIO, ""},
	} {
		f := newRM(t)
		c.change(f)
		err := f.probe()
		if c.want == nil {
			require.NoError(t, err, c.what)
		} else {
			require.ErrorIs(t, err, c.want, c.what)
			require.ErrorContains(t, err, c.line, c.what)
		}
		require.Zero(t, f.live(), "an open leaves nothing: %s", c.what)
		for _, call := range f.calls {
			require.NotContains(t, []string{"open /dev/nvidia0", "open /dev/nvidia2"}, call, "a GPU's first open takes seconds")
		}
	}
}

func TestRequestNumbers(t *testing.T) {
	known := map[uint32]bool{}
	for _, c := range []struct{ nr, size uintptr }{
		{nrFree, 16}, {nrControl, 32}, {nrAlloc, 48}, {nrDup, 28}, {nrMapMemory, 56}, {nrUnmapMemory, 32},
		{nrCardInfo, maxCards * 72}, {nrRegisterFD, 4}, {nrVersion, 72},
	} {
		n := request(c.nr, c.size)
		require.Contains(t, fakeRequests, n, "%#x", n)
		known[n] = true
	}
	require.Len(t, fakeRequests, len(known))
}

// Threads pin, map, unmap and unpin, and sessions come and go.
func TestManyThreads(t *testing.T) {
	w := newWorld(t)
	small, v := w.cuda.memAlloc(0, 1<<16), w.cuda.vmm(1, true, []uint64{2 * mib, 2 * mib})
	large, p := w.cuda.memAlloc(0, 8*mib), w.cuda.pool(0, 0, 40*mib)
	fds := cudatest.FDs(t)
	cycle := func(s *session, a *fakeAlloc) error {
		p, err := s.Pin(backend.PinRequest{Addr: a.start, Size: a.size})
		if err != nil {
			return err
		}
		for range 2 {
			va, _, err := p.Map(a.size, backend.None)
			if err != nil {
				return err
			}
			if b := cudatest.Bytes(va, 8); b[0] != 0 {
				return fmt.Errorf("bytes %x of nobody's", b)
			}
			if err := unmap(p); err != nil {
				return err
			}
		}
		return p.Unpin()
	}
	cudatest.Together(16, func(i int) {
		for range 8 {
			s := w.another()
			for _, a := range []*fakeAlloc{small, v, large, p} {
				if err := cycle(s, a); err != nil {
					t.Errorf("thread %d: %v", i, err)
				}
			}
			if err := s.Close(); err != nil {
				t.Errorf("thread %d: %v", i, err)
			}
		}
	})
	require.Zero(t, w.rm.live())
	require.Empty(t, w.cuda.references)
	require.Equal(t, fds, cudatest.FDs(t))
	require.Nil(t, w.of.client)
}

// A session ends while others make their first pin on a GPU.
func TestCloseBesideTheFirstPin(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 2*mib)
	for range 50 {
		cudatest.Together(4, func(int) {
			s := w.another()
			p, err := s.Pin(backend.PinRequest{Addr: a.start, Size: 1})
			if err == nil {
				err = errors.Join(p.Unpin(), s.Close())
			}
			if err != nil {
				t.Error(err)
			}
		})
		require.Nil(t, w.of.client)
		require.Zero(t, w.rm.live())
	}
}

// One session, many threads. One of them closes the host's descriptors now and then.
// Every call returns, with or without an error.
func TestThreadsWithAHostThatCloses(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 2*mib)
	w.rm.faulty = true // objects may be freed while they are mapped
	var stop sync.WaitGroup
	done := make(chan struct{})
	stop.Add(1)
	go func() {
		defer stop.Done()
		for {
			select {
			case <-done:
				return
			default:
			}
			w.of.mu.Lock()
			if c := w.of.client; c != nil {
				if file, err := w.rm.identity(c.fd); err == nil && file == c.file {
					w.rm.hostCloses(c.fd, nothing)
				}
			}
			w.of.mu.Unlock()
		}
	}()
	cudatest.Together(4, func(int) {
		for range 50 {
			p, err := w.Pin(backend.PinRequest{Addr: a.start, Size: 4096})
			if err != nil {
				continue
			}
			if _, _, err := p.Map(4096, backend.None); err == nil {
				_ = unmap(p)
			}
			_ = p.Unpin()
		}
	})
	close(done)
	stop.Wait()
	require.Empty(t, w.rm.mappings)
	require.NoError(t, w.Close())
}
