package rm

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"gdrapi/core/backend"
	"gdrapi/core/cuda/cudatest"
	"gdrapi/tests/doubles/nvrm"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var _ backend.Backend = Backend{}

// world is a simulated machine and a session on it.
type world struct {
	t    *testing.T
	rm   *fakeRM
	cuda *fakeCUDA
	of   *shared // the process's client
	*session
}

func newWorld(t *testing.T, gpus ...nvrm.Machine) *world {
	w := &world{t: t, rm: newRM(t, gpus...), of: new(shared)}
	w.cuda = newCUDA(w.rm)
	w.session = w.another()
	return w
}

// blind is newWorld without watched exports.
func blind(t *testing.T, gpus ...nvrm.Machine) *world {
	w := newWorld(t, gpus...)
	w.session.watch = nil
	return w
}

// verdict is what the first GPU's proof says of a way.
func (w *world) verdict(of way) verdict { return w.of.proof(at(w.rm.GPUs[0])).of(of) }

// proven sets the verdicts of the first GPU: exports are right, and IPC handles are not.
func (w *world) proven() {
	p := w.of.proof(at(w.rm.GPUs[0]))
	p.set(byExport, right)
	p.set(byIPC, wrong)
}

// allRight sets the verdicts of all GPUs.
func (w *world) allRight() {
	for _, gpu := range w.rm.GPUs {
		for of := range wayCount {
			w.of.proof(at(gpu)).set(of, right)
		}
	}
}

func (w *world) pinned(addr, size uint64) *pin {
	w.t.Helper()
	live := w.held()
	p, err := w.Pin(backend.PinRequest{Addr: addr, Size: size})
	require.NoError(w.t, err, "%d bytes at %#x", size, addr)
	if live >= 0 { // the host has not closed the client, which this pin would replace
		require.Equal(w.t, live+len(p.(*pin).extents), w.held(), "an object each")
	}
	length := uint64(0)
	for _, extent := range p.(*pin).extents {
		length += extent.length
	}
	require.Equal(w.t, p.(*pin).size, length, "extents are the pin's")
	return p.(*pin)
}

func (w *world) notPinned(addr, size uint64, want error, line string) {
	w.t.Helper()
	live := w.held()
	_, err := w.Pin(backend.PinRequest{Addr: addr, Size: size})
	require.ErrorIs(w.t, err, want, "%d bytes at %#x", size, addr)
	require.ErrorContains(w.t, err, line)
	require.Equal(w.t, live, w.held(), "left behind by %d bytes at %#x", size, addr)
}

// held counts what the library has from the machine, without its client and its devices.
// These stay until the last session ends.
func (w *world) held() int {
	w.cuda.mu.Lock()
	references := len(w.cuda.references)
	w.cuda.mu.Unlock()
	live := w.rm.live() + references
	if c := w.of.client; c != nil {
		live -= 2 + 2*len(c.gpus) // descriptor and client; descriptor and device
	}
	return live
}

// end closes the session. Nothing may be left.
func (w *world) end() {
	w.t.Helper()
	require.NoError(w.t, w.Close())
	require.Zero(w.t, w.rm.live())
	require.Empty(w.t, w.cuda.references)
}

// checkBytes writes on one side and reads on the other: 8 bytes of each part of the
// mapping at va, and the last bytes.
func (w *world) checkBytes(va uintptr, addr, size uint64) {
	w.t.Helper()
	got, word := make([]byte, 8), make([]byte, 8)
	check := func(at uint64) {
		if a, _ := w.cuda.at(addr + at); a == nil || addr+at+8 > a.end() {
			return // it is beside a small buffer
		}
		m := cudatest.Bytes(va+uintptr(at), 8)
		order.PutUint64(word, addr+at)
		w.cuda.pwrite(addr+at, word)
		require.Equal(w.t, word, []byte(string(m)), "the GPU's bytes at %#x", addr+at)
		order.PutUint64(word, ^(addr + at))
		copy(m, word)
		w.cuda.pread(got, addr+at)
		require.Equal(w.t, word, got, "the CPU's bytes at %#x", addr+at)
	}
	for at := uint64(0); at < size; at += 1 << 16 {
		check(at)
	}
	check(size - 8)
}

// cycle maps the whole pages of a pin and checks all bytes.
func (w *world) cycle(p *pin) {
	w.t.Helper()
	w.cycleAs(p, backend.WC)
}

func (w *world) cycleAs(p *pin, want backend.MappingType) {
	w.t.Helper()
	va, got, err := p.Map(p.size, backend.None)
	require.NoError(w.t, err)
	require.Equal(w.t, want, got)
	w.checkBytes(va, p.first, p.size)
	require.NoError(w.t, unmap(p))
}

// Part of the buffer is pinned, and part of the pin is mapped.
func TestParts(t *testing.T) {
	const unit = 2 * mib
	sizes := []uint64{unit, unit, 3 * unit, unit, 2 * unit}
	for _, c := range []struct {
		from, pin, mapped uint64
		extents, windows  int
	}{
		{0, 8 * unit, 8 * unit, 5, 5},
		{0, 8 * unit, 4096, 5, 1},
		{0, 8 * unit, unit, 5, 1},
		{0, 8 * unit, unit + 4096, 5, 2},
		{0, 8 * unit, 2*unit + 65536, 5, 3},
		{unit - 65536, 2 * 65536, 2 * 65536, 2, 2},
		{unit - 65536, 2 * 65536, 65536, 2, 1},
		{unit - 65536, 65536 + 1, 2 * 65536, 2, 2}, // one byte of the second unit
		{unit + 65536, 3 * unit, 3 * unit, 2, 2},
		{unit - 65536, unit + 2*65536, unit + 2*65536, 3, 3},
		{2*unit + 65536, unit, unit, 1, 1},
		{5*unit - 1<<16, 3 << 16, 3 << 16, 2, 2},
		{8*unit - 1<<16, 1, 65536, 1, 1},
	} {
		for _, open := range []func(*testing.T, ...nvrm.Machine) *world{newWorld, blind} {
			w := open(t)
			a := w.cuda.vmm(0, true, sizes)
			p := w.pinned(a.start+c.from, c.pin)
			require.Len(t, p.extents, c.extents, "%+v", c)
			require.Equal(t, c.extents, w.held(), "an object each")
			va, _, err := p.Map(c.mapped, backend.None)
			require.NoError(t, err, "%+v", c)
			require.Equal(t, c.extents+c.windows+1, w.held(), "and a window each, in one mapping")
			w.checkBytes(va, p.first, c.mapped)
			require.NoError(t, unmap(p))
			require.NoError(t, p.Unpin())
			require.Zero(t, w.held())
			w.end()
		}
	}
}

// A PCI domain has 32 bits.
func TestGPUInALatePCIDomain(t *testing.T) {
	for _, domain := range []uint32{0x10, 0x10000} {
		w := newWorld(t)
		w.rm.GPUs[0].Domain = domain
		w.allRight()
		require.NoError(t, w.pinned(w.cuda.memAlloc(0, 2*mib).start, 1).Unpin())
		w.end()
	}
}

// From address 1 to the last one. Rounded to GPU pages, the range ends where it begins.
func TestPinOfAllAddresses(t *testing.T) {
	w := newWorld(t)
	w.notPinned(1, 1<<64-2, unix.EINVAL, "end of the address space")
	w.end()
}

func TestForcedPCIeOnACoherentGPU(t *testing.T) {
	w := newWorld(t)
	w.rm.coherent[w.rm.GPUs[0]] = true
	a := w.cuda.memAlloc(0, 4096)
	_, err := w.Pin(backend.PinRequest{Addr: a.start, Size: 1, Flags: backend.PinForcePCIe})
	require.ErrorIs(t, err, unix.EINVAL)
	require.ErrorContains(t, err, "PCIe")
	w.end()
}

// A mapping of another type than was asked for goes. That it cannot go is told, too.
func TestAnotherTypeThatStays(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 2*mib)
	p := w.pinned(a.start, 4096)
	w.rm.fail("munmap", 1, unix.EDOM)
	_, _, err := p.Map(4096, backend.Device)
	require.ErrorIs(t, err, unix.ENOTSUP)
	require.ErrorIs(t, err, unix.EDOM)
	require.NoError(t, p.Unpin())
}

func TestPartsOfDifferentTypes(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.vmm(0, false, []uint64{2 * mib, 2 * mib})
	a.parts[1].object.Memory.Answer = nvrm.MapAnswer(answerBAR1Registers.mapping, answerBAR1Registers.cache)
	p := w.pinned(a.start, 4*mib)
	_, _, err := p.Map(4*mib, backend.None)
	require.ErrorIs(t, err, unix.ENOTSUP)
	require.ErrorContains(t, err, "as type 1 and as type 3; pin each on its own")
	require.Equal(t, 2, w.held())
	_, got, err := p.Map(2*mib, backend.None)
	require.NoError(t, err, "the first alone")
	require.Equal(t, backend.WC, got)
	require.NoError(t, unmap(p))
	require.NoError(t, p.Unpin())
	w.end()
}

// For children of fork. A driver's mapping may have the flag already, and refuse.
func TestDontForkIsBestEffort(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 2*mib)
	p := w.pinned(a.start, 4096)
	w.rm.fail("dontFork", 1, unix.EINVAL)
	w.cycle(p)
	require.NoError(t, p.Unpin())
	w.end()
}

// All calls of a pin's life on one kind of memory.
func life(w *world, a *fakeAlloc) error {
	p, err := w.Pin(backend.PinRequest{Addr: a.start, Size: a.size})
	if err != nil {
		return err
	}
	_, _, err = p.Map(p.(*pin).size, backend.None)
	// As the core does: a mapping is unmapped, once more if that failed.
	for range 2 {
		if p.(*pin).mapped != 0 {
			err = errors.Join(err, unmap(p))
		}
	}
	return errors.Join(err, p.Unpin())
}

// Each call on the way fails, at each of its times. The caller gets the error, and
// nothing is left.
func TestEveryCallFailsOnce(t *testing.T) {
	kinds := map[string]struct {
		gpu  nvrm.Machine
		make func(c *fakeCUDA) *fakeAlloc
	}{
		"cuMemAlloc": {"pcie", func(c *fakeCUDA) *fakeAlloc { return c.memAlloc(0, 3*mib) }},
		"pool":       {"pcie", func(c *fakeCUDA) *fakeAlloc { return c.pool(0, mib, 40*mib) }},
		"VMM":        {"pcie", func(c *fakeCUDA) *fakeAlloc { return c.vmm(1, true, []uint64{2 * mib, 2 * mib, 2 * mib}) }},
		"old VMM": {"pcie", func(c *fakeCUDA) *fakeAlloc {
			c.noMappings = true // its objects are searched for
			return c.vmm(1, true, []uint64{2 * mib, 2 * mib, 2 * mib})
		}},
		"scattered": {"grace", func(c *fakeCUDA) *fakeAlloc { return c.vmm(1, true, []uint64{6 * mib}) }},
		"GB10":      {"gb10", func(c *fakeCUDA) *fakeAlloc { return c.vmm(0, true, []uint64{2 * mib, 2 * mib}) }},
	}
	// A failure of these calls is not the library's.
	tolerated := []string{
		"identity", "close", "dontFork", "cuMemRelease", "watch", "cuIpcGetMemHandle",
		"RM_CONTROL 0x288", "RM_ALLOC 0xcb33", "RM_CONTROL 0xcb330101", "VERSION",
		"RM_CONTROL 0x410118", "RM_CONTROL 0x410110", // an answer that is not known refuses nothing
	}
	for kind, k := range kinds {
		make := k.make
		for _, open := range []func(*testing.T, ...nvrm.Machine) *world{newWorld, blind} {
			open := func(t *testing.T) *world {
				w := open(t, k.gpu, k.gpu)
				w.rm.Scattered = true
				w.allRight()
				return w
			}
			clean := open(t)
			if err := life(clean, make(clean.cuda)); kind == "pool" && err != nil {
				require.ErrorIs(t, err, unix.ENOTSUP)
				continue // only the watch finds a pool's memory
			} else {
				require.NoError(t, err)
			}
			clean.end()
			times := map[string]int{}
			for _, name := range clean.rm.calls {
				times[name]++
			}
			require.Greater(t, len(times), 12)
			times["identity"] = 2         // at the end the descriptor is another's
			times["RM_CONTROL 0x205"] = 1 // the close makes one more, and takes any answer but 0x23
			for name, n := range times {
				for nth := 1; nth <= n; nth++ {
					for _, failure := range []error{unix.EMLINK, statusStateInUse} {
						request := slices.ContainsFunc([]string{"RM_", "DUP", "MAP_", "UNMAP"}, func(p string) bool { return len(name) > len(p) && name[:len(p)] == p })
						if _, ok := failure.(status); ok && !request {
							continue
						}
						what := fmt.Sprintf("%s: call %d of %s fails with %v", kind, nth, name, failure)
						w := open(t)
						a := make(w.cuda)
						w.rm.fail(name, nth, failure)
						fds := cudatest.FDs(t)
						err := life(w, a)
						want := failure
						if name == "cuMemRetainAllocationHandle" {
							want = unix.ENOTSUP // the memory has none
						}
						// What a map asks of CUDA may fail.
						asks := kind == "cuMemAlloc" && nth > 1 && (name == "MemoryAt" || name == "withMemory")
						// The first object that is freed is the capabilities' of the machine.
						if !asks && !slices.Contains(tolerated, name) && (name != "RM_FREE" || nth > 1) {
							require.ErrorIs(t, err, want, what)
						}
						left := 0
						if name == "munmap" && nth < n {
							// The kernel keeps these.
							// The pin's munmap is tried again.
							left = 1
						}
						if name != "RM_FREE" {
							require.Equal(t, left, w.held(), what)
						}
						require.NoError(t, life(w, a), "%s, and the session works on", what)
						_ = w.Close() // this may be the failing call
						require.Equal(t, left, w.rm.live(), what)
						require.Empty(t, w.cuda.references, what)
						require.Equal(t, fds, cudatest.FDs(t), what)
						require.Zero(t, w.rm.barUsed(), what)
					}
				}
			}
		}
	}
}

func TestStatusToErrno(t *testing.T) {
	for _, c := range []struct {
		number uint32
		errno  unix.Errno
	}{
		{0x1A, unix.ENOMEM}, {0x1B, unix.EPERM}, {0x1F, unix.EINVAL}, {0x20, unix.EINVAL}, {0x23, unix.EACCES},
		{0x26, unix.ENODEV}, {0x2E, unix.EINVAL}, {0x31, unix.EINVAL}, {0x33, unix.EINVAL}, {0x40, unix.EIO},
		{0x51, unix.ENOMEM}, {0x56, unix.ENOTSUP}, {0x57, unix.EINVAL}, {0x63, unix.EBUSY}, {0x12345, unix.EIO},
		{0x03, unix.EAGAIN}, {0x0F, unix.ENODEV}, {0x10, unix.EAGAIN}, {0x11, unix.EAGAIN}, {0x17, unix.EIO}, {0x22, unix.EIO},
		{0x36, unix.ENOTSUP}, {0x3F, unix.EIO}, {0x62, unix.ENODEV}, {0x65, unix.EIO}, {0x6E, unix.ENODEV}, {0xFFFF, unix.EIO},
	} {
		s := status(c.number)
		wrapped := fmt.Errorf("REQUEST: %w", s)
		require.Equal(t, c.errno, s.Unwrap(), "%v", s)
		require.ErrorIs(t, wrapped, c.errno)
		require.ErrorIs(t, wrapped, s)
		require.NotErrorIs(t, wrapped, unix.EMLINK)
		require.Contains(t, s.Error(), fmt.Sprintf("%#x", c.number))
	}
	for s, e := range statuses {
		require.NotZero(t, e.Errno, "%v", s)
		require.Contains(t, e.Name, "NV_ERR_", "%v", s)
	}
}

// The errno for each status at a map, if the driver's status counts, and for a status
// that says that the object cannot be had.
func TestErrnoOfRequests(t *testing.T) {
	for s, e := range statuses {
		w := newWorld(t)
		a := w.cuda.memAlloc(0, 2*mib)
		p := w.pinned(a.start, 4096)
		w.rm.fail("MAP_MEMORY", 1, s)
		_, _, err := p.Map(4096, backend.None)
		require.ErrorIs(t, err, e.Errno, "%v", s)
		require.ErrorIs(t, err, s)
		if s == statusInsufficient {
			require.ErrorContains(t, err, "BAR1")
		}
		require.NoError(t, p.Unpin())

		want := e.Errno
		switch s {
		case statusInsufficientRights, statusInvalidClient, statusInvalidObject, statusInvalidObjectHandle, statusObjectNotFound:
			want = unix.ENOTSUP
		}
		w.rm.fail("DUP_OBJECT", 1, s)
		w.notPinned(a.start, 4096, want, "DUP_OBJECT")
		w.end()
	}
}

func TestBARIsFull(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 8*mib)
	p := w.pinned(a.start, 8*mib)
	w.rm.BAR = 4 * mib
	_, _, err := p.Map(8*mib, backend.None)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.ErrorContains(t, err, "unpin buffers")
	require.Regexp(t, "nvidia-smi|MiB of BAR1", err.Error(), "how much is free, or how to find out")
	require.Equal(t, 1, w.held())
	_, _, err = p.Map(4*mib, backend.None)
	require.NoError(t, err)
	require.NoError(t, unmap(p))
	require.NoError(t, p.Unpin())
	w.end()
}

// Memory that CUDA made in this process, and memory of another process.
func TestObjectOfAnotherProcess(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 2*mib)
	w.cuda.seen = func(s *Seen) { s.Client = w.cuda.other.Handle }
	w.notPinned(a.start, 4096, unix.ENOTSUP, "another process")
	w.end()
}

func TestLoad(t *testing.T) {
	words := make([]uint64, 12)
	from := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 96)
	for i := range from {
		from[i] = byte(i * 7)
	}
	for _, c := range []struct{ at, n int }{{0, 64}, {0, 1}, {3, 64}, {3, 2}, {8, 20}, {5, 0}} {
		b := make([]byte, c.n)
		load(b, uintptr(unsafe.Pointer(&from[c.at])))
		require.Equal(t, from[c.at:c.at+c.n], b, "%+v", c)
	}
}

var errOwn = errors.New("of this test")

// An error of CUDA's that is no result is returned unchanged.
func TestDeviceErrors(t *testing.T) {
	for _, name := range []string{"cuDeviceGet", "cuDeviceGetAttribute", "cuDeviceGetPCIBusId", "withMemory"} {
		w := newWorld(t)
		a := w.cuda.memAlloc(0, 4096)
		w.rm.fail(name, 1, errOwn)
		_, err := w.Pin(backend.PinRequest{Addr: a.start, Size: 1})
		require.ErrorIs(t, err, errOwn, name)
		require.NoError(t, w.pinned(a.start, 1).Unpin())
		require.NoError(t, w.pinned(a.start, 1).Unpin())
		want := 2 // the device is looked up once
		if name == "withMemory" {
			want = 1
		}
		require.Equal(t, want, w.rm.count("cuDeviceGet"), name)
		w.end()
	}
	var _ driver = live{}
}

// A map that fails tells, beside why, what of its beginning could not be undone.
func TestMapThatCannotBeUndone(t *testing.T) {
	for _, stays := range [][]string{nil, {"munmap"}, {"UNMAP_MEMORY"}, {"munmap", "UNMAP_MEMORY"}} {
		w := newWorld(t)
		a := w.cuda.vmm(0, false, []uint64{2 * mib, 2 * mib, 2 * mib})
		p := w.pinned(a.start, a.size)
		of := map[string]error{"munmap": unix.EMLINK, "UNMAP_MEMORY": unix.EXDEV}
		for _, call := range stays {
			w.rm.fail(call, 1, of[call])
		}
		w.rm.fail("MAP_MEMORY", 3, errOwn)
		unmapped := w.rm.count("UNMAP_MEMORY")
		va, got, err := p.Map(a.size, backend.None)
		require.ErrorIs(t, err, errOwn)
		for call, failure := range of {
			require.Equal(t, slices.Contains(stays, call), errors.Is(err, failure), "%v: %v", stays, err)
		}
		require.Zero(t, va)
		require.Equal(t, backend.None, got)
		require.Equal(t, unmapped+2, w.rm.count("UNMAP_MEMORY"), "each window")
		for _, e := range p.extents {
			require.Empty(t, e.windows)
		}
		require.ErrorIs(t, unmap(p), unix.EINVAL)
		require.NoError(t, p.Unpin())
		require.NoError(t, w.Close())
	}
}

// A pin whose objects, and a client whose descriptors, cannot be freed tell each error.
func TestEndsThatFail(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.vmm(0, false, []uint64{2 * mib, 2 * mib, 2 * mib})
	p := w.pinned(a.start, a.size)
	freed := w.rm.count("RM_FREE")
	w.rm.fail("RM_FREE", 2, errOwn)
	require.ErrorIs(t, p.Unpin(), errOwn)
	require.Equal(t, freed+3, w.rm.count("RM_FREE"), "the others are freed")

	w = newWorld(t)
	for ordinal := range 2 {
		require.NoError(t, w.pinned(w.cuda.memAlloc(ordinal, 2*mib).start, 1).Unpin())
	}
	for nth, name := range []string{"a GPU's", "a GPU's", "the client's"} {
		closed := w.rm.count("close")
		w.rm.fail("close", nth+1, errOwn)
		require.ErrorIs(t, w.Close(), errOwn, name)
		require.Equal(t, closed+3, w.rm.count("close"), name)
		require.Nil(t, w.of.client)
		w.rm.fail("close", 0, nil)
		for ordinal := range 2 {
			require.NoError(t, w.pinned(w.cuda.memAlloc(ordinal, 2*mib).start, 1).Unpin())
		}
	}
	require.NoError(t, w.Close())

	// A client that does not answer is left to its owner. The GPUs' descriptors are closed.
	w = newWorld(t)
	require.NoError(t, w.pinned(w.cuda.memAlloc(0, 2*mib).start, 1).Unpin())
	w.rm.hostCloses(w.of.client.fd, otherCopy)
	closed := w.rm.count("close")
	w.rm.fail("close", 1, errOwn)
	require.ErrorIs(t, w.Close(), errOwn)
	require.Equal(t, closed+1, w.rm.count("close"))
}
