package rm

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"gdrapi/core/cuda"
	"gdrapi/tests/doubles/nvrm"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fakeCUDA is a simulated CUDA driver over a simulated resource manager. It is only a
// test double. It makes memory of each kind. Its answers are those of an H100 with driver
// 580.159.
type fakeCUDA struct {
	t      testing.TB
	rm     *fakeRM
	client *nvrm.Client // CUDA's
	other  *nvrm.Client // another process's

	mu         sync.Mutex
	allocs     []*fakeAlloc
	next       uint64    // next address
	chunk      *fakePart // shared by small buffers
	chunkUsed  uint64    // bytes
	references map[cuda.MemHandle]*fakePart
	nextHandle cuda.MemHandle
	synced     [][2]uint64 // ranges with SYNC_MEMOPS
	lastID     uint64

	contexts atomic.Int32 // calls of withMemory that run now
	ordinal  atomic.Int32 // of the last context

	// What the library gets when it allocates, once on each GPU: of cuMemAlloc, and VMM.
	ownLegacy, ownVMM []*fakeAlloc

	// What a test changes.
	wrongReads int       // this many ReadBacks return another last byte
	exportsAs  *fakePart // what cuMemExportToShareableHandle gives instead
	written    bool      // a kernel writes all memory, all the time
	noMappings bool      // before CUDA 12
	full       bool      // no memory is left
	writes     byte
	ipcWord    [16]uint32 // added to the words of IPC handles
	noExport   bool       // no cuMemGetHandleForAddressRange
	seen       func(*Seen)
	described  func(*cuda.MemoryInfo)
}

type fakeKind int

const (
	legacy   fakeKind = iota // cuMemAlloc
	vmm                      // cuMemCreate
	pool                     // cuMemAllocAsync
	managed                  // cuMemAllocManaged
	host                     // cuMemAllocHost
	imported                 // cuIpcOpenMemHandle
)

func (k fakeKind) String() string {
	return [...]string{"cuMemAlloc", "VMM", "pool", "managed", "host", "imported"}[k]
}

// fakeAlloc is one allocation; of VMM one reserved range.
type fakeAlloc struct {
	kind        fakeKind
	ordinal     int
	start, size uint64
	id          uint64 // another one for each
	parts       []*fakePart
}

func (a *fakeAlloc) end() uint64 { return a.start + a.size }

// fakePart is a range of addresses with one object of the driver mapped to it.
type fakePart struct {
	start, size uint64
	offset      uint64 // in the object
	client      *nvrm.Client
	object      *nvrm.Object
	exportable  bool
}

func newCUDA(rm *fakeRM) *fakeCUDA {
	c := &fakeCUDA{
		t: rm.t, rm: rm, client: rm.newClient(os.Getpid()), other: rm.newClient(foreign),
		next: 0x7f0000000000, references: map[cuda.MemHandle]*fakePart{}, nextHandle: 77,
	}
	for ordinal := range rm.GPUs {
		p := c.part(ordinal, c.client, 2*mib)
		start := c.place(p)
		c.ownLegacy = append(c.ownLegacy, c.add(&fakeAlloc{kind: legacy, ordinal: ordinal, parts: []*fakePart{p}, start: start + 5*gpuPage, size: ownSize}))
		c.ownVMM = append(c.ownVMM, c.vmm(ordinal, true, []uint64{2 * mib}))
	}
	return c
}

const mib = 1 << 20

// part makes an object of a GPU and maps it at new addresses.
func (c *fakeCUDA) part(ordinal int, client *nvrm.Client, size uint64) *fakePart {
	return &fakePart{size: size, client: client, object: c.rm.newMemory(c.rm.GPUs[ordinal], client, size), exportable: true}
}

// place puts parts side by side, at addresses that no one else has.
func (c *fakeCUDA) place(parts ...*fakePart) (start uint64) {
	start = c.next
	at := start
	for _, p := range parts {
		p.start = at
		at += p.size
	}
	c.next = (at + 64*mib) &^ (2*mib - 1)
	return start
}

func (c *fakeCUDA) add(a *fakeAlloc) *fakeAlloc {
	c.lastID++
	a.id = c.lastID
	c.allocs = append(c.allocs, a)
	return a
}

// memAlloc is cuMemAlloc. Small buffers share an object of 2 MiB, at distances of 512
// bytes. Large ones have an object of their own.
func (c *fakeCUDA) memAlloc(ordinal int, size uint64) *fakeAlloc {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &fakeAlloc{kind: legacy, ordinal: ordinal, size: size}
	if size > mib {
		p := c.part(ordinal, c.client, (size+2*mib-1)&^(2*mib-1))
		a.start = c.place(p)
		a.parts = []*fakePart{p}
		return c.add(a)
	}
	if c.chunk == nil || c.chunkUsed+size > c.chunk.size {
		c.chunk, c.chunkUsed = c.part(ordinal, c.client, 2*mib), 0
		c.place(c.chunk)
	}
	a.start = c.chunk.start + c.chunkUsed
	a.parts = []*fakePart{c.chunk}
	c.chunkUsed += (size + 511) &^ 511
	return c.add(a)
}

// vmm is a reserved range of objects. The same index twice is the same object twice.
func (c *fakeCUDA) vmm(ordinal int, exportable bool, sizes []uint64, which ...int) *fakeAlloc {
	c.mu.Lock()
	defer c.mu.Unlock()
	var objects []*fakePart
	for _, size := range sizes {
		p := c.part(ordinal, c.client, size)
		p.exportable = exportable
		objects = append(objects, p)
	}
	parts := slices.Clone(objects)
	if len(which) > 0 {
		parts = nil
		for _, i := range which {
			p := *objects[i]
			parts = append(parts, &p)
		}
	}
	a := &fakeAlloc{kind: vmm, ordinal: ordinal, parts: parts, start: c.place(parts...)}
	for _, p := range parts {
		a.size += p.size
	}
	return c.add(a)
}

// pool is cuMemAllocAsync: objects of 32 MiB side by side, with the allocation somewhere
// in them.
func (c *fakeCUDA) pool(ordinal int, before, size uint64) *fakeAlloc {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []*fakePart
	for have := uint64(0); have < before+size; have += 32 * mib {
		parts = append(parts, c.part(ordinal, c.client, 32*mib))
	}
	a := &fakeAlloc{kind: pool, ordinal: ordinal, parts: parts, size: size}
	a.start = c.place(parts...) + before
	return c.add(a)
}

// of makes memory of the other kinds.
func (c *fakeCUDA) of(kind fakeKind, size uint64) *fakeAlloc {
	c.mu.Lock()
	defer c.mu.Unlock()
	client := c.client
	if kind == imported {
		client = c.other
	}
	p := c.part(0, client, (size+2*mib-1)&^(2*mib-1))
	return c.add(&fakeAlloc{kind: kind, size: size, start: c.place(p), parts: []*fakePart{p}})
}

// free is cuMemFree and the like. The addresses are not used again.
func (c *fakeCUDA) free(a *fakeAlloc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.allocs = slices.DeleteFunc(c.allocs, func(b *fakeAlloc) bool { return b == a })
	gone := map[*nvrm.Object]bool{}
	for _, p := range a.parts {
		shared := slices.ContainsFunc(c.allocs, func(b *fakeAlloc) bool { return slices.Contains(b.parts, p) })
		if !shared && p != c.chunk && !gone[p.object] {
			gone[p.object] = true
			c.rm.freeMemory(p.client, p.object)
		}
	}
}

// at finds the allocation and the part that an address is in.
func (c *fakeCUDA) at(addr uint64) (*fakeAlloc, *fakePart) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.allocs {
		if addr < a.start || addr >= a.end() {
			continue
		}
		for _, p := range a.parts {
			if addr >= p.start && addr < p.start+p.size {
				return a, p
			}
		}
	}
	return nil, nil
}

// fill writes random bytes into an allocation's objects.
func (c *fakeCUDA) fill(a *fakeAlloc) {
	for _, p := range a.parts {
		b := make([]byte, p.object.Memory.Size)
		rand.Read(b)
		_, err := unix.Pwrite(p.object.Memory.FD, b, 0)
		require.NoError(c.t, err)
	}
}

// pread and pwrite are the GPU's copies. As in the real driver all bytes are of one
// allocation.
func (c *fakeCUDA) pread(b []byte, addr uint64) {
	a, p := c.at(addr)
	require.NotNil(c.t, p, "%#x", addr)
	require.LessOrEqual(c.t, addr+uint64(len(b)), a.end(), "%#x", addr)
	n, err := unix.Pread(p.object.Memory.FD, b, int64(p.offset+addr-p.start))
	require.NoError(c.t, err)
	require.Equal(c.t, len(b), n)
}

func (c *fakeCUDA) pwrite(addr uint64, b []byte) {
	_, p := c.at(addr)
	require.NotNil(c.t, p, "%#x", addr)
	n, err := unix.Pwrite(p.object.Memory.FD, b, int64(p.offset+addr-p.start))
	require.NoError(c.t, err)
	require.Equal(c.t, len(b), n)
}

func result(name string, r cuda.Result) error { return fmt.Errorf("%s: %w", name, r) }

func (c *fakeCUDA) needsContext(name string) {
	if c.contexts.Load() == 0 {
		c.t.Errorf("%s without a current context", name)
	}
}

func (c *fakeCUDA) MemoryAt(addr uint64) (cuda.MemoryInfo, error) {
	if err := c.rm.called("MemoryAt"); err != nil {
		return cuda.MemoryInfo{}, err
	}
	a, p := c.at(addr)
	if a == nil || a.kind == host || a.kind == managed {
		return cuda.MemoryInfo{}, fmt.Errorf("%#x is no device memory: %w", addr, unix.EINVAL)
	}
	m := cuda.MemoryInfo{Ordinal: a.ordinal, Legacy: a.kind == legacy, ID: a.id, Start: a.start, Size: a.size}
	if m.Legacy {
		m.Context = 1
	}
	if !c.noMappings {
		m.Mapping, m.MappingSize = p.start, p.size
	}
	if c.described != nil {
		c.described(&m)
	}
	return m, nil
}

func (c *fakeCUDA) MemoryIn(addr, size uint64) (m cuda.MemoryInfo, at uint64, err error) {
	m, err = c.MemoryAt(addr)
	if !errors.Is(err, unix.EINVAL) {
		return m, addr, err
	}
	for at := addr + 1; at < addr+size && at < addr&^0xffff+0x10000; at++ {
		if a, _ := c.at(at); a != nil {
			m, err := c.MemoryAt(at)
			return m, at, err
		}
	}
	return m, addr, err
}

func (c *fakeCUDA) MemGetAddressRange(addr uint64) (base, size uint64, err error) {
	c.needsContext("cuMemGetAddressRange")
	if err := c.rm.called("cuMemGetAddressRange"); err != nil {
		return 0, 0, err
	}
	a, p := c.at(addr)
	if a == nil {
		return 0, 0, result("cuMemGetAddressRange", cuda.ErrInvalidValue)
	}
	if a.kind == vmm {
		return p.start, p.size, nil
	}
	return a.start, a.size, nil
}

func (c *fakeCUDA) MemRetainAllocationHandle(addr uint64) (cuda.MemHandle, error) {
	if err := c.rm.called("cuMemRetainAllocationHandle"); err != nil {
		return 0, err
	}
	a, p := c.at(addr)
	if a == nil || a.kind != vmm {
		return 0, result("cuMemRetainAllocationHandle", cuda.ErrInvalidValue)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nextHandle++
	c.references[c.nextHandle] = p
	return c.nextHandle, nil
}

func (c *fakeCUDA) MemExport(h cuda.MemHandle) (int, error) {
	if err := c.rm.called("cuMemExportToShareableHandle"); err != nil {
		return -1, err
	}
	c.mu.Lock()
	p := c.references[h]
	c.mu.Unlock()
	require.NotNil(c.t, p)
	if c.exportsAs != nil {
		p = c.exportsAs
	}
	if !p.exportable {
		return -1, result("cuMemExportToShareableHandle", cuda.ErrNotPermitted)
	}
	return unix.FcntlInt(uintptr(p.object.Memory.FD), unix.F_DUPFD_CLOEXEC, 0)
}

func (c *fakeCUDA) MemRelease(h cuda.MemHandle) error {
	c.mu.Lock()
	if c.references[h] == nil {
		c.t.Errorf("cuMemRelease of %d", h)
	}
	delete(c.references, h)
	c.mu.Unlock()
	return c.rm.called("cuMemRelease")
}

func (c *fakeCUDA) IPCHandle(addr uint64) ([16]uint32, error) {
	if err := c.rm.called("cuIpcGetMemHandle"); err != nil {
		return [16]uint32{}, err
	}
	a, p := c.at(addr)
	if a == nil || a.kind != legacy {
		return [16]uint32{}, result("cuIpcGetMemHandle", cuda.ErrInvalidValue)
	}
	words := [16]uint32{2: 4711, 4: uint32(a.size), 5: uint32(a.size >> 32), 7: uint32(a.start - p.start), 12: p.client.Handle, 13: p.object.Handle}
	for i := range words {
		words[i] += c.ipcWord[i]
	}
	return words, nil
}

const fakeExport = 0xE0 // the address of cuMemGetHandleForAddressRange

func (c *fakeCUDA) ExportFunction() uintptr {
	if c.noExport {
		return 0
	}
	return fakeExport
}

// watch is what capi/guest/watch.c sees of an export.
func (c *fakeCUDA) watch(export uintptr, addr, size uint64) (Seen, error) {
	c.needsContext("an export")
	if export != fakeExport || addr%hostPage != 0 || size != hostPage {
		c.t.Errorf("an export of %d bytes at %#x by %#x", size, addr, export)
	}
	if err := c.rm.called("watch"); err != nil {
		return Seen{}, err
	}
	seen := c.export(addr)
	if c.seen != nil {
		c.seen(&seen)
	}
	return seen, nil
}

func (c *fakeCUDA) export(addr uint64) Seen {
	a, p := c.at(addr)
	refused := Seen{Result: int32(cuda.ErrInvalidValue), FD: -1}
	if a == nil || a.kind == imported || a.kind == host || a.kind == managed {
		return refused
	}
	s := Seen{FD: -1, Requests: 1, Size: 2608, Client: p.client.Handle, Object: p.object.Handle, Offset: p.offset + addr - p.start}
	if a.kind == pool {
		s.Result = int32(cuda.ErrInvalidValue)
		return s
	}
	fd, err := unix.Eventfd(0, 0) // a driver's descriptor is not close-on-exec
	if err != nil {
		s.Result = int32(cuda.ErrOperatingSystem)
		return s
	}
	s.FD = int32(fd)
	return s
}

func (c *fakeCUDA) ReadBack(b []byte, addr uint64) error {
	c.needsContext("a copy")
	if err := c.rm.called("ReadBack"); err != nil {
		return err
	}
	c.pread(b, addr)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written {
		c.writes++
		b[0] += c.writes
	}
	if c.wrongReads > 0 {
		c.wrongReads--
		b[len(b)-1]++
	}
	return nil
}

func (c *fakeCUDA) WriteOut(addr uint64, b []byte) error {
	c.needsContext("a copy")
	if err := c.rm.called("WriteOut"); err != nil {
		return err
	}
	mine := func(a *fakeAlloc) bool { return addr >= a.start && addr+uint64(len(b)) <= a.start+ownSize }
	if !slices.ContainsFunc(c.ownLegacy, mine) && !slices.ContainsFunc(c.ownVMM, mine) {
		c.t.Errorf("the library writes to %#x, which is not its own", addr)
	}
	c.pwrite(addr, b)
	return nil
}

func (c *fakeCUDA) MemAlloc(size uint64) (uint64, error) {
	c.needsContext("cuMemAlloc")
	if err := c.rm.called("cuMemAlloc"); err != nil {
		return 0, err
	}
	if c.full {
		return 0, result("cuMemAlloc", cuda.ErrOutOfMemory)
	}
	require.EqualValues(c.t, ownSize, size)
	return c.ownLegacy[c.ordinal.Load()].start, nil
}

func (c *fakeCUDA) exportable(ordinal int, size uint64) (uint64, error) {
	if err := c.rm.called("cuMemCreate"); err != nil {
		return 0, err
	}
	if c.full {
		return 0, result("cuMemCreate", cuda.ErrOutOfMemory)
	}
	require.EqualValues(c.t, ownSize, size)
	return c.ownVMM[ordinal].start, nil
}

func (c *fakeCUDA) SetSyncMemops(m cuda.MemoryInfo, addr, end uint64) {
	c.needsContext("SYNC_MEMOPS")
	if a, _ := c.at(addr); a == nil || a.id != m.ID {
		c.t.Errorf("SYNC_MEMOPS of %#x, which is not in %+v", addr, m)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.synced = append(c.synced, [2]uint64{addr, end})
}

func (c *fakeCUDA) Device(ordinal int) (cuda.Device, error) {
	// A CUdevice is not an ordinal: the fake's CUdevices have other numbers.
	return cuda.Device(10 + ordinal), c.rm.called("cuDeviceGet")
}

func (c *fakeCUDA) gpu(dev cuda.Device) *nvrm.GPU { return c.rm.GPUs[dev-10] }

func (c *fakeCUDA) DeviceAttribute(a cuda.DeviceAttribute, dev cuda.Device) (int, error) {
	require.Equal(c.t, cuda.HostPageTables, a)
	if c.rm.coherent[c.gpu(dev)] {
		return 1, nil
	}
	return 0, c.rm.called("cuDeviceGetAttribute")
}

func (c *fakeCUDA) PCIAddress(dev cuda.Device) (cuda.PCIAddress, error) {
	return at(c.gpu(dev)), c.rm.called("cuDeviceGetPCIBusId")
}

func (c *fakeCUDA) withMemory(m cuda.MemoryInfo, addr uint64, fn func(in driver) error) error {
	if err := c.rm.called("withMemory"); err != nil {
		return err
	}
	if a, _ := c.at(addr); a == nil || m.Start != a.start {
		c.t.Errorf("the context of %#x, which is not in %+v", addr, m)
	}
	c.contexts.Add(1)
	defer c.contexts.Add(-1)
	c.ordinal.Store(int32(m.Ordinal))
	return fn(c)
}

// restore is what cuda-checkpoint's restore does: the same addresses and IDs, in objects of
// another client.
func (c *fakeCUDA) restore() {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.client
	c.client = c.rm.newClient(os.Getpid())
	made := map[*fakePart]bool{}
	for _, a := range c.allocs {
		for _, p := range a.parts {
			if p.client != was || made[p] {
				continue
			}
			made[p] = true
			p.client = c.client
			p.object = c.rm.newMemory(c.rm.GPUs[a.ordinal], c.client, p.object.Memory.Size)
		}
	}
}
