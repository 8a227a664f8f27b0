package rm

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"gdrapi/core/backend"
	"gdrapi/core/backend/backendtest"
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
	all  *proofs
	of   *shared // the process's client
	*session
}

func newWorld(t *testing.T, gpus ...nvrm.Machine) *world {
	w := &world{t: t, rm: newRM(t, gpus...), all: new(proofs), of: new(shared)}
	w.cuda = newCUDA(w.rm)
	w.session = newSession(w.rm, w.cuda, w.cuda.watch, w.of, w.all)
	return w
}

// blind is newWorld without watched exports.
func blind(t *testing.T, gpus ...nvrm.Machine) *world {
	w := newWorld(t, gpus...)
	w.session = newSession(w.rm, w.cuda, nil, w.of, w.all)
	return w
}

// verdict is what the first GPU's proof says of a way.
func (w *world) verdict(of way) verdict { return w.all.at(at(w.rm.GPUs[0])).of(of) }

// proven sets the verdicts of the first GPU: exports are right, and IPC handles are not.
func (w *world) proven() {
	p := w.all.at(at(w.rm.GPUs[0]))
	p.set(byExport, right)
	p.set(byIPC, wrong)
}

// allRight sets the verdicts of all GPUs.
func (w *world) allRight() {
	for _, gpu := range w.rm.GPUs {
		for of := range wayCount {
			w.all.at(at(gpu)).set(of, right)
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

func TestWholeLife(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 3*mib)
	fds := cudatest.FDs(t)
	p := w.pinned(a.start, 70000)
	info, err := p.Info()
	require.NoError(t, err)
	require.Equal(t, backend.Info{VA: a.start, MappedSize: 2 << 16, PageSize: 1 << 16}, info)
	require.Equal(t, [][2]uint64{{a.start, a.start + 70000}}, w.cuda.synced)
	flag, err := p.CallbackFlag()
	require.NoError(t, err)
	require.Zero(t, flag)

	for range 2 {
		va, got, err := p.Map(2<<16, backend.None)
		require.NoError(t, err)
		require.Equal(t, backend.WC, got)
		require.Contains(t, cudatest.VMFlags(t, va), "dc", "not for forked children")
		w.checkBytes(va, a.start, 2<<16)
		_, _, err = p.Map(1<<16, backend.None)
		require.ErrorIs(t, err, unix.EINVAL, "mapped already")
		require.NoError(t, unmap(p))
		require.True(t, cudatest.Faults(va))
		require.ErrorIs(t, unmap(p), unix.EINVAL)
	}
	require.NoError(t, p.Unpin())
	require.Zero(t, w.rm.count("reserve"), "one object needs no range of addresses")
	require.Zero(t, w.held())
	require.Equal(t, 4, w.rm.live(), "the client and the device, each with a descriptor, until the session ends")
	w.end()
	require.NoError(t, w.Close(), "with no client")
	require.Equal(t, fds, cudatest.FDs(t))
	require.Zero(t, w.rm.barUsed())
}

func TestEveryKindOfMemory(t *testing.T) {
	two := []uint64{2 * mib, 2 * mib}
	for _, c := range []struct {
		what string
		make func(c *fakeCUDA) *fakeAlloc
		err  error
	}{
		{"cuMemAlloc of 100 B", func(c *fakeCUDA) *fakeAlloc { return c.memAlloc(0, 100) }, nil},
		{"cuMemAlloc of 1 B", func(c *fakeCUDA) *fakeAlloc { return c.memAlloc(0, 1) }, nil},
		{"cuMemAlloc of 1000 B", func(c *fakeCUDA) *fakeAlloc { return c.memAlloc(0, 1000) }, nil},
		{"cuMemAlloc of 64 KiB", func(c *fakeCUDA) *fakeAlloc { return c.memAlloc(0, 1<<16) }, nil},
		{"cuMemAlloc of 3 MiB", func(c *fakeCUDA) *fakeAlloc { return c.memAlloc(0, 3*mib) }, nil},
		{"cuMemAlloc of 1 GiB", func(c *fakeCUDA) *fakeAlloc { return c.memAlloc(0, 1<<30) }, nil},
		{"the second GPU", func(c *fakeCUDA) *fakeAlloc { return c.memAlloc(1, 3*mib) }, nil},
		{"pool", func(c *fakeCUDA) *fakeAlloc { return c.pool(0, mib, 5*mib) }, nil},
		{"pool of 100 MiB", func(c *fakeCUDA) *fakeAlloc { return c.pool(1, 0, 100*mib) }, nil},
		{"VMM", func(c *fakeCUDA) *fakeAlloc { return c.vmm(0, false, two[:1]) }, nil},
		{"VMM with descriptors", func(c *fakeCUDA) *fakeAlloc { return c.vmm(0, true, two[:1]) }, nil},
		{"VMM of 2 objects", func(c *fakeCUDA) *fakeAlloc { return c.vmm(0, false, two) }, nil},
		{"VMM of 3 objects", func(c *fakeCUDA) *fakeAlloc { return c.vmm(0, false, []uint64{6 * mib, 2 * mib, 4 * mib}) }, nil},
		{"VMM of 5 objects", func(c *fakeCUDA) *fakeAlloc {
			return c.vmm(1, true, []uint64{2 * mib, 2 * mib, 8 * mib, 2 * mib, 4 * mib})
		}, nil},
		{"VMM A, B, A", func(c *fakeCUDA) *fakeAlloc { return c.vmm(0, false, two, 0, 1, 0) }, nil},
		{"VMM A, A", func(c *fakeCUDA) *fakeAlloc { return c.vmm(0, false, two, 0, 0) }, nil},
		{"VMM A, A, B, A, A", func(c *fakeCUDA) *fakeAlloc { return c.vmm(0, false, two, 0, 0, 1, 0, 0) }, nil},
		{"managed", func(c *fakeCUDA) *fakeAlloc { return c.of(managed, mib) }, unix.EINVAL},
		{"host", func(c *fakeCUDA) *fakeAlloc { return c.of(host, mib) }, unix.EINVAL},
		{"imported by IPC", func(c *fakeCUDA) *fakeAlloc { return c.of(imported, mib) }, unix.ENOTSUP},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t)
			w.cuda.memAlloc(0, 300) // a neighbour of a small buffer
			w.cuda.memAlloc(0, 1<<16)
			a := c.make(w.cuda)
			if c.err != nil {
				w.notPinned(a.start, a.size, c.err, "")
				w.end()
				return
			}
			// Whole pages. The rest of this test maps them.
			start := a.start &^ (gpuPage - 1)
			p := w.pinned(start, a.end()-start)
			w.cycle(p)
			w.cycle(p)
			require.NoError(t, p.Unpin())
			require.Zero(t, w.held())
			w.end()
			w.cuda.free(a)
		})
	}
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

// Windows are whole GPU pages. As with gdrdrv they may begin before a small buffer and
// end after it.
func TestWindowsAroundSmallBuffers(t *testing.T) {
	w := newWorld(t)
	w.cuda.memAlloc(0, 70000)
	gone := w.cuda.memAlloc(0, 512)
	small := w.cuda.memAlloc(0, 256)
	w.cuda.memAlloc(0, 512)
	require.NotZero(t, small.start%gpuPage)
	page := small.start &^ (gpuPage - 1)
	for _, c := range []struct{ addr, size, asked uint64 }{
		{small.start, small.size, small.start},
		{small.start + 100, 1, small.start + 100},
		{page, gpuPage, page},
		{small.start &^ 4095, 4096, small.start &^ 4095},
		{small.start, 4096, small.start}, // with the neighbour's bytes
	} {
		p := w.pinned(c.addr, c.size)
		require.Equal(t, page, p.first, "%+v", c)
		require.Equal(t, [2]uint64{c.asked, c.addr + c.size}, w.cuda.synced[len(w.cuda.synced)-1])
		w.cycle(p)
		require.NoError(t, p.Unpin())
	}

	// There is nothing before the buffer any more.
	w.cuda.free(gone)
	p := w.pinned(gone.start, 1024)
	require.Equal(t, [2]uint64{small.start, gone.start + 1024}, w.cuda.synced[len(w.cuda.synced)-1], "the first address that CUDA knows")
	require.NoError(t, p.Unpin())
	w.end()
}

// CUDA does not say where a page lies that begins in free space. Another page of the same
// object tells it.
func TestPoolsPageThatBeginsInFreeSpace(t *testing.T) {
	const block = 32 * mib
	type buffer struct{ at, size uint64 }
	for _, c := range []struct {
		what    string
		mine    buffer
		other   buffer
		pinned  bool
		unknown bool // where the driver does not say how large the object is
	}{
		{"a neighbour on the page before", buffer{mib + 512, 1024}, buffer{mib - 4096, 512}, true, false},
		{"a neighbour on the next page", buffer{mib + 512, 1024}, buffer{mib + 4096, 512}, true, false},
		{"a neighbour far before", buffer{31*mib + 512, 1024}, buffer{0, 512}, true, true},
		{"a neighbour far behind", buffer{512, 1024}, buffer{block - 4096, 512}, true, true},
		{"the buffer's own second page", buffer{mib + 512, 8192}, buffer{mib + 128<<10, 512}, true, false},
		{"none that begins a page", buffer{mib + 512, 1024}, buffer{mib + 8192 + 512, 512}, false, false},
		{"one in another object", buffer{block - 2048, 1024}, buffer{block, 512}, false, false},
	} {
		for _, noMappings := range []bool{false, true} {
			w := newWorld(t)
			w.cuda.noMappings = noMappings
			whole := w.cuda.pool(0, 0, 2*block)
			a := w.cuda.beside(whole, c.mine.at, c.mine.size)
			w.cuda.beside(whole, c.other.at, c.other.size)
			w.cuda.free(whole)
			page := a.start &^ (gpuPage - 1)
			for _, r := range []buffer{{a.start, a.size}, {page, a.start - page + 64}} {
				if !c.pinned || noMappings && c.unknown {
					w.notPinned(r.at, r.size, unix.ENOTSUP, "free space")
					continue
				}
				p := w.pinned(r.at, r.size)
				va, _, err := p.Map(p.size, backend.None)
				require.NoError(t, err)
				w.checkBytes(va+uintptr(a.start-p.first), a.start, a.size)
				require.NoError(t, unmap(p))
				require.NoError(t, p.Unpin())
			}
			w.end()
		}
	}
}

// The last GPU page of a buffer in a pool may reach past the buffer, but not further.
func TestWindowsPastAPoolsBuffer(t *testing.T) {
	for _, size := range []uint64{1, 300, 4096, 65536, 65536 + 1, 40*mib + 300, 31*mib - 1} {
		w := newWorld(t)
		a := w.cuda.pool(0, mib, size)
		whole := (size + gpuPage - 1) &^ (gpuPage - 1)
		for _, n := range []uint64{1, size, whole - 1, whole} {
			p := w.pinned(a.start, n)
			w.cycle(p)
			require.NoError(t, p.Unpin())
		}
		for _, at := range []uint64{0, size / 2, size - 1} {
			first := a.start + at
			require.NoError(t, w.pinned(first, a.start+whole-first).Unpin(), "from %d of %d on", at, size)
		}
		for _, n := range []uint64{whole + 1, whole + 4096, whole + mib} {
			w.notPinned(a.start, n, unix.EINVAL, "no device memory")
		}
		w.end()
	}
	w := newWorld(t)
	inside := w.cuda.pool(0, mib+8192, 300) // begins and ends inside a GPU page, and is alone on it
	for _, n := range []uint64{1, 300, 301, gpuPage - 8192} {
		for _, w.cuda.noMappings = range []bool{true, false} {
			require.NoError(t, w.pinned(inside.start, n).Unpin())
		}
	}
	w.notPinned(inside.start, gpuPage-8191, unix.EINVAL, "no device memory")
	v := w.cuda.vmm(0, true, []uint64{2 * mib})
	w.notPinned(v.start, v.size+1, unix.EINVAL, "")
	w.cuda.noMappings = true
	w.rm.fail("MemoryAt", 2, errOwn) // the first call is of the buffer's start
	w.notPinned(v.start, v.size, errOwn, "")
	w.end()
}

// The first pin of a process: a buffer on a host page with freed buffers. An export of
// the page fails.
func TestPageThatBeginsInFreeSpace(t *testing.T) {
	w := newWorld(t)
	gone := w.cuda.memAlloc(0, 512)
	small := w.cuda.memAlloc(0, 256)
	w.cuda.pwrite(small.start, []byte("some bytes"))
	w.cuda.free(gone)
	p := w.pinned(small.start, small.size)
	require.NoError(t, p.Unpin())
	require.Equal(t, right, w.verdict(byIPC), "by memory of the library's own")
	w.end()
}

func TestRangeOverTwoAllocations(t *testing.T) {
	for _, open := range []func(*testing.T, ...nvrm.Machine) *world{newWorld, blind} {
		w := open(t)
		a := w.cuda.memAlloc(0, 2*mib)
		w.cuda.next = a.end() // the next allocation lies beside it
		b := w.cuda.memAlloc(0, 2*mib)
		require.Equal(t, a.end(), b.start)
		w.notPinned(a.start, 4*mib, unix.EINVAL, "end past the memory")
		w.notPinned(a.start, 2*mib+1, unix.EINVAL, "end past the memory")
		w.notPinned(a.end()-1, 2, unix.EINVAL, "end past the memory")
		// 3 MiB are in an object of 4 MiB. No one else has the rest of the
		// object.
		c := w.cuda.memAlloc(0, 3*mib)
		require.NoError(t, w.pinned(c.start, 4*mib).Unpin())
		w.notPinned(c.start, 4*mib+1, unix.EINVAL, "end past the memory")
		w.rm.fail("MAP_MEMORY", 1, unix.EMLINK)
		w.notPinned(c.start, 4*mib, unix.EMLINK, "MAP_MEMORY")
		for _, s := range []status{statusInvalidLimit, statusInvalidBase} {
			w.rm.fail("MAP_MEMORY", 1, s)
			w.notPinned(c.start, 4*mib+1, unix.EINVAL, "end past the memory")
		}
		require.NoError(t, w.pinned(a.start, 2*mib).Unpin())
		w.end()
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

func TestPinRefusesBadInput(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 2*mib)
	v := w.cuda.vmm(0, false, []uint64{2 * mib})
	for _, c := range []struct {
		what string
		req  backend.PinRequest
		want error
		line string
	}{
		{"no memory", backend.PinRequest{Addr: 4096, Size: 4096}, unix.EINVAL, "no device memory"},
		{"absurdly more", backend.PinRequest{Addr: a.start, Size: 1<<64 - 1 - a.start}, unix.EINVAL, "end of the address space"},
		{"more than the VMM range", backend.PinRequest{Addr: v.start, Size: 4 * mib}, unix.EINVAL, ""},
	} {
		_, err := w.Pin(c.req)
		require.ErrorIs(t, err, c.want, c.what)
		require.ErrorContains(t, err, c.line, c.what)
		require.Zero(t, w.held(), c.what)
	}
	// Tokens have no effect here.
	p, err := w.Pin(backend.PinRequest{Addr: a.start, Size: 1, Token: 7, VASpace: 9, Flags: backend.PinForcePCIe})
	require.NoError(t, err)
	for _, size := range []uint64{0, 2 << 16, 1 << 63} {
		_, _, err = p.Map(size, backend.None)
		require.ErrorIs(t, err, unix.EINVAL, "%d", size)
	}
	require.NoError(t, p.Unpin())
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

func TestMappingTypes(t *testing.T) {
	for _, c := range []struct {
		answer    answer
		ats       bool
		attribute bool                // CUDA says that the GPU is coherent
		want, got backend.MappingType // got is told with err, too
		err       error
	}{
		{answer: answer{2, 2}, got: backend.WC},
		{answer: answer{2, 2}, want: backend.WC, got: backend.WC},
		{answer: answer{2, 2}, want: backend.Caching, got: backend.WC, err: unix.ENOTSUP},
		{answer: answer{2, 2}, want: backend.Device, got: backend.WC, err: unix.ENOTSUP},
		{answer: answer{2, 2}, ats: true, got: backend.WC},
		{answer: answer{2, 1}, got: backend.Device},
		{answer: answer{2, 1}, want: backend.Device, got: backend.Device},
		{answer: answer{0, 6}, ats: true, got: backend.Caching},
		{answer: answer{0, 6}, attribute: true, got: backend.Caching},
		{answer: answer{0, 6}, ats: true, want: backend.WC, got: backend.Caching, err: unix.ENOTSUP},
		{answer: answer{0, 6}, err: unix.ENOTSUP},
		{answer: answer{1, 6}, got: backend.WC}, // the fake does not say how it is cached
		{answer: answer{0, 0}, ats: true, err: unix.ENOTSUP},
		{answer: answer{0, 2}, err: unix.ENOTSUP},
		{answer: answer{0, 5}, ats: true, err: unix.ENOTSUP},
		{answer: answer{1, 2}, err: unix.ENOTSUP},
		{answer: answer{2, 6}, ats: true, err: unix.ENOTSUP},
		{answer: answer{3, 7}, want: backend.WC, err: unix.ENOTSUP},
	} {
		w := newWorld(t)
		gpu := w.rm.GPUs[0]
		gpu.Answer, w.rm.coherent[gpu] = nvrm.MapAnswer(c.answer.mapping, c.answer.cache), c.attribute
		if c.ats {
			gpu.Flags = nvrm.IDATS
		}
		a := w.cuda.vmm(0, false, []uint64{2 * mib, 2 * mib})
		p := w.pinned(a.start, 4*mib)
		_, got, err := p.Map(4*mib, c.want)
		require.ErrorIs(t, err, c.err, "%+v", c)
		if c.err == nil {
			require.Equal(t, c.got, got, "%+v", c)
			require.NoError(t, unmap(p))
		} else if c.got != backend.None {
			require.ErrorContains(t, err, fmt.Sprintf("mapping type %d was asked for, the NVIDIA driver gave type %d", c.want, c.got))
		} else {
			require.ErrorContains(t, err, fmt.Sprintf("the mapping %d and the cache type %d", c.answer.mapping, c.answer.cache))
		}
		require.Equal(t, 2, w.held(), "two objects, and nothing mapped")
		require.ErrorIs(t, unmap(p), unix.EINVAL)
		require.NoError(t, p.Unpin())
		w.end()
	}
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

// A pin keeps memory that the program has freed, and its mapping.
func TestMappingOutlivesTheMemory(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 2*mib)
	before := w.rm.Memories
	p := w.pinned(a.start, 4096)
	w.cuda.pwrite(a.start, []byte("still here"))
	w.cuda.free(a)
	require.Equal(t, before, w.rm.Memories)
	va, _, err := p.Map(4096, backend.None)
	require.NoError(t, err)
	require.Equal(t, "still here", string(cudatest.Bytes(va, 10)))
	require.NoError(t, unmap(p))
	require.NoError(t, p.Unpin())
	require.Equal(t, before-1, w.rm.Memories)
	w.end()
}

func TestAttributesAndVersion(t *testing.T) {
	w := newWorld(t)
	forced := 1
	if runtime.GOARCH == "arm64" {
		forced = 0
	}
	backendtest.Attributes(t, w, map[backend.Attr]int{backend.AttrPersistentMapping: 1, backend.AttrForcePCIe: forced})
	major, minor := w.Version()
	require.Equal(t, []int{2, 6}, []int{major, minor})
	require.Zero(t, w.rm.live(), "and no client is made for it")
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
		require.Equal(t, c.errno, s.Errno(), "%v", s)
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

// What is lost, or differs, is told in one line, and nothing else is.
func TestWarnings(t *testing.T) {
	told := func(line string, f func()) {
		t.Helper()
		if line != "" {
			line = "WARN: " + line + "\n"
		}
		require.Equal(t, line, cudatest.Lines(t, f))
	}
	w := blind(t)
	a := w.cuda.vmm(0, true, []uint64{2 * mib})
	pin := func() {
		t.Helper()
		p, err := w.Pin(backend.PinRequest{Addr: a.start, Size: 1})
		require.NoError(t, err)
		require.NoError(t, p.Unpin())
	}
	told("", pin)
	w.rm.fail("cuMemRelease", 1, errOwn)
	told(fmt.Sprintf("a reference to the GPU memory at %#x is lost: of this test", a.start), pin)
	fd := w.of.client.fd
	w.rm.hostCloses(fd, nothing)
	told(fmt.Sprintf("the host closed descriptor %d, which was the library's; buffers pinned before are lost", fd), pin)
	told("", pin)
	w.end()

	w = blind(t)
	a = w.cuda.vmm(0, true, []uint64{2 * mib})
	w.allRight()
	w.rm.fail("RM_FREE", 1, errOwn) // the first is that of the capabilities
	told("an object of the driver's is lost: RM_FREE: of this test", pin)
	require.NoError(t, w.Close())

	f := newRM(t)
	check := func() { require.NoError(t, f.probe()) }
	told("", check)
	f.fail("close", 1, errOwn)
	told("close of /dev/nvidiactl: of this test", check)

	var p proof
	for of, line := range map[way]string{byIPC: "IPC handles", byExport: "dma-buf exports", byImport: "file descriptors"} {
		told("", func() { p.set(of, right) })
		line = "this NVIDIA driver differs from those that are known: its " + line + " do not lead to the memory, and are not used"
		told(line, func() { p.set(of, wrong) })
		told("", func() { p.set(of, wrong) })
		require.Equal(t, wrong, p.of(of))
	}
}
