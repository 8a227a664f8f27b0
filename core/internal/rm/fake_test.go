package rm

import (
	"encoding/binary"
	"fmt"
	"gdrapi/core/backend"
	"os"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"
	"gdrapi/tests/doubles/nvrm"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fakeRM is the simulated driver of tests/doubles behind the kernel interface. A call that no
// correct library makes fails the test.
//
// Its memory is memfds, and its mappings are real.
type fakeRM struct {
	*nvrm.Driver
	t  testing.TB
	mu sync.Mutex

	files    map[int]*fakeFile
	nextFD   int
	mappings map[uintptr]*fakeMapping

	nodeMode map[*nvrm.GPU]error // of access to a device node
	coherent map[*nvrm.GPU]bool  // as CUDA says
	shown    []*nvrm.GPU         // to CUDA; nil: CUDA is not initialised

	calls  []string
	faults map[string]*fault
	closed bool // the host closed a descriptor of the library's
	faulty bool // a fault was injected; what cannot be undone then is not the library's mistake

	answered func(call string, b []byte) // may change the answer of a request
}

// fault makes the nth call of a name fail: with a status if err is one.
type fault struct {
	nth int
	err error
}

type fakeFile struct {
	of    *nvrm.File // nil: a file of the host's that is not the driver's
	host  bool       // the host's
	owned bool       // the library has marked it
	used  bool       // it was mapped
}

// fakeMapping is what one munmap removes: a mapping, or a reserved range with its
// mappings.
type fakeMapping struct {
	size     uintptr
	reserved bool
	windows  []*nvrm.Mapping
}

// foreign is a process that is not this one.
const foreign = 1

// newRM makes a machine with the GPUs, or with two of the usual kind.
func newRM(t testing.TB, gpus ...nvrm.Machine) *fakeRM {
	if gpus == nil {
		gpus = []nvrm.Machine{"pcie", "pcie"}
	}
	f := &fakeRM{
		t: t, files: map[int]*fakeFile{}, nextFD: 1 << 20, mappings: map[uintptr]*fakeMapping{}, faults: map[string]*fault{},
		nodeMode: map[*nvrm.GPU]error{}, coherent: map[*nvrm.GPU]bool{},
		Driver: nvrm.New(nvrm.Config{
			Machines: gpus, BAR: 1 << 40, Page: uint64(os.Getpagesize()), PhysAttr: 2,
		}),
	}
	f.setVersion(580)
	f.Complain = func(format string, args ...any) {
		if !f.faulty || !strings.HasPrefix(format, "RM_FREE") && !strings.HasPrefix(format, "UNMAP_MEMORY") {
			f.t.Errorf(format, args...)
		}
	}
	f.Log = func(line string) {
		if strings.Contains(line, "Assertion failed") {
			f.t.Errorf("a request with this line in the kernel's log: %s", line)
		}
	}
	t.Cleanup(func() {
		for len(f.Clients) > 0 {
			f.EndClient(f.Clients[0])
		}
	})
	return f
}

func (f *fakeRM) setVersion(major int) {
	f.Version, f.VersionText, f.Chipset = major, fmt.Sprintf("%d.159.04", major), 0
	if major >= firstThatSays {
		f.Chipset = chipsetUnaligned
	}
}

func at(g *nvrm.GPU) cuda.PCIAddress {
	return cuda.PCIAddress{Domain: g.Domain, Bus: g.Bus, Slot: g.Slot}
}

func node(g *nvrm.GPU) string { return fmt.Sprintf("/dev/nvidia%d", g.Minor) }

// call notes a call and returns the error that it must fail with. f.mu is held.
func (f *fakeRM) call(name string) error {
	f.calls = append(f.calls, name)
	if x := f.faults[name]; x != nil {
		if x.nth--; x.nth == 0 {
			f.faulty = true
			return x.err
		}
	}
	return nil
}

// called is call for the simulated CUDA.
func (f *fakeRM) called(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.call(name)
}

// fail makes the nth call of name from now on fail.
func (f *fakeRM) fail(name string, nth int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[name] = &fault{nth, err}
}

// count returns how often name was called.
func (f *fakeRM) count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.calls {
		if c == name {
			n++
		}
	}
	return n
}

// live counts what the library has from the driver: descriptors, clients and their
// objects, windows in the BAR, mappings.
func (f *fakeRM) live() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.mappings)
	for _, file := range f.files {
		if !file.host {
			n++
		}
	}
	for _, c := range f.Clients {
		if c.File == nil {
			continue
		}
		n += 1 + len(c.Objects)
		for _, o := range c.Objects {
			n += len(o.Mappings)
		}
	}
	return n
}

func (f *fakeRM) open(name string) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("open " + name); err != nil {
		return -1, err
	}
	kind, gpu := nvrm.Control, (*nvrm.GPU)(nil)
	if name != controlPath {
		kind, gpu = nvrm.Device, f.named(name)
	}
	if kind == nvrm.Device && gpu == nil {
		f.t.Errorf("open of %q", name)
		return -1, unix.ENOENT
	}
	f.nextFD++
	f.files[f.nextFD] = &fakeFile{of: f.Open(kind, gpu)}
	return f.nextFD, nil
}

// named is the GPU with a device node.
func (f *fakeRM) named(name string) *nvrm.GPU {
	for _, g := range f.GPUs {
		if node(g) == name {
			return g
		}
	}
	return nil
}

func (f *fakeRM) close(fd int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	file := f.files[fd]
	if file == nil || file.host {
		f.t.Errorf("close of descriptor %d, which is not the library's", fd)
		return unix.EBADF
	}
	err := f.call("close")
	f.end(fd)
	return err
}

// end is the last close of a file. It frees the file's clients.
func (f *fakeRM) end(fd int) {
	f.Close(f.files[fd].of)
	delete(f.files, fd)
}

// What has a descriptor's number after the host has closed the descriptor.
const (
	nothing   = iota
	hostsFile // a file of the host's
	hostsOpen // another open of the same device
	otherCopy // such an open of another copy of the library, with the same mark
)

// hostCloses closes a descriptor without the library's knowledge.
func (f *fakeRM) hostCloses(fd, then int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.files[fd]
	require.NotNil(f.t, was)
	f.closed = true
	f.end(fd)
	switch then {
	case hostsFile:
		f.files[fd] = &fakeFile{host: true}
	case hostsOpen, otherCopy:
		f.files[fd] = &fakeFile{of: f.Open(was.of.Kind, was.of.GPU), host: true, owned: then == otherCopy}
	}
}

func (f *fakeRM) own(fd int) (fileID, error) {
	f.mu.Lock()
	if file := f.files[fd]; file != nil {
		file.owned = true
	}
	f.mu.Unlock()
	return f.identity(fd)
}

func (f *fakeRM) identity(fd int) (fileID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("identity"); err != nil {
		return fileID{}, err
	}
	file := f.files[fd]
	var id fileID
	switch {
	case file == nil:
		return id, unix.EBADF
	case file.of == nil:
		id = fileID{Dev: 9}
	case file.of.GPU != nil:
		id = fileID{Dev: 5, Ino: 100 + uint64(file.of.GPU.Minor), Rdev: 195 << 8}
	default:
		id = fileID{Dev: 5, Ino: 99, Rdev: 195<<8 | 255}
	}
	if file.owned {
		id.Owner = 1
	}
	return id, nil
}

// The requests that the library makes.
var fakeRequests = map[uint32]string{
	0xC0104629: "RM_FREE",
	0xC020462A: "RM_CONTROL",
	0xC030462B: "RM_ALLOC",
	0xC01C4634: "DUP_OBJECT",
	0xC038464E: "MAP_MEMORY",
	0xC020464F: "UNMAP_MEMORY",
	0xC90046C8: "CARD_INFO",
	0xC00446C9: "REGISTER_FD",
	0xC04846D2: "VERSION",
}

// Where a request has its status.
var fakeStatus = map[string]int{"RM_FREE": 12, "RM_CONTROL": 28, "RM_ALLOC": 40, "DUP_OBJECT": 24, "MAP_MEMORY": 40, "UNMAP_MEMORY": 24}

var order = binary.NativeEndian

func (f *fakeRM) ioctl(fd int, code uint32, arg unsafe.Pointer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	file := f.files[fd]
	if file == nil {
		_ = f.call("ioctl of nothing")
		return unix.EBADF
	}
	if file.host && (file.of == nil || file.of.Kind != nvrm.Control) {
		_ = f.call("ioctl of the host's file")
		return unix.ENOTTY
	}
	name := fakeRequests[code]
	// With -race this fails if the struct is smaller than the interface's.
	b := unsafe.Slice((*byte)(arg), nvrm.Size(code))
	call := name
	switch name {
	case "RM_ALLOC":
		call += fmt.Sprintf(" %#x", order.Uint32(b[12:]))
	case "RM_CONTROL":
		call += fmt.Sprintf(" %#x", order.Uint32(b[8:]))
	}
	err := f.call(call)
	if s, ok := err.(status); ok {
		at, has := fakeStatus[name]
		require.True(f.t, has, "%s has no status", name)
		order.PutUint32(b[at:], uint32(s))
		return nil
	} else if err != nil {
		return err
	}
	err = f.Request(caller{f}, file.of, code, b)
	if f.answered != nil {
		f.answered(call, b)
	}
	return err
}

// params are what a control points to.
func params(b []byte) []byte { return memory(order.Uint64(b[16:]), int(order.Uint32(b[24:]))) }

// caller is this process.
type caller struct{ *fakeRM }

// memory is what a request points to.
func memory(addr uint64, n int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}

func (caller) Read(addr uint64, b []byte) error  { copy(b, memory(addr, len(b))); return nil }
func (caller) Write(addr uint64, b []byte) error { copy(memory(addr, len(b)), b); return nil }
func (caller) Process() int                      { return os.Getpid() }
func (caller) IsOf(process int) bool             { return process == os.Getpid() }

// File is the driver's file, or of a descriptor that CUDA has exported a file with its memory.
func (c caller) File(fd int) *nvrm.File {
	if file := c.files[fd]; file != nil {
		return file.of
	}
	var st, of unix.Stat_t
	if fd < 0 || unix.Fstat(fd, &st) != nil {
		return nil
	}
	for _, client := range c.Clients {
		for _, o := range client.Objects {
			if o.Memory != nil && unix.Fstat(o.Memory.FD, &of) == nil && of.Ino == st.Ino {
				return nvrm.Exported(o.Memory)
			}
		}
	}
	return nil
}

// The library has descriptors by open alone.
func (c caller) Give(int, bool) (int, error)             { return -1, unix.EINVAL }
func (c caller) Replace(int) (int, error)                { return -1, unix.EINVAL }
func (c caller) GiveFile(*nvrm.File) (int, error)        { return -1, unix.EINVAL }
func (c caller) Revoke(int, *nvrm.Memory, *nvrm.Mapping) {}

// take returns what the one mmap of a file may map.
func (f *fakeRM) take(fd int, size uintptr) (*nvrm.Memory, *nvrm.Mapping, error) {
	file := f.files[fd]
	if file == nil || file.of == nil || file.used {
		f.t.Errorf("mmap of descriptor %d, which has nothing to map", fd)
		return nil, nil, unix.EINVAL
	}
	memory, w := f.Mapped(file.of)
	if w == nil && f.closed {
		return nil, nil, unix.EINVAL // another thread of the host's closed the client after that
	}
	if w == nil || w.Length != uint64(size) {
		f.t.Errorf("mmap of %d bytes, where %+v was prepared", size, w)
		return nil, nil, unix.EINVAL
	}
	file.used = true
	return memory, w, nil
}

func (f *fakeRM) mmap(fd int, size uintptr) (uintptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("mmap"); err != nil {
		return 0, err
	}
	memory, w, err := f.take(fd, size)
	if err != nil {
		return 0, err
	}
	va, err := sys.Mmap(memory.FD, w.Offset, size)
	require.NoError(f.t, err)
	w.Addr = uint64(va)
	f.mappings[va] = &fakeMapping{size: size, windows: []*nvrm.Mapping{w}}
	return va, nil
}

func (f *fakeRM) reserve(size uintptr) (uintptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("reserve"); err != nil {
		return 0, err
	}
	va, err := sys.Reserve(size)
	require.NoError(f.t, err)
	f.mappings[va] = &fakeMapping{size: size, reserved: true}
	return va, nil
}

// mmapInto maps into a reserved range. sys.MmapInto maps a file from offset 0. Here the
// file is the memory's, and the offset in it is not 0.
func (f *fakeRM) mmapInto(va uintptr, fd int, size uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("mmapInto"); err != nil {
		return err
	}
	for start, m := range f.mappings {
		if !m.reserved || va < start || va+size > start+m.size {
			continue
		}
		memory, w, err := f.take(fd, size)
		if err != nil {
			return err
		}
		_, err = unix.MmapPtr(memory.FD, int64(w.Offset), sys.Pointer(va), size,
			unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
		require.NoError(f.t, err)
		w.Addr = uint64(va)
		m.windows = append(m.windows, w)
		return nil
	}
	f.t.Errorf("a mapping over %#x, which was not reserved", va)
	return unix.EINVAL
}

func (f *fakeRM) munmap(va, size uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.mappings[va]
	if m == nil || m.size != size {
		f.t.Errorf("munmap of %d bytes at %#x, which is no mapping", size, va)
		return unix.EINVAL
	}
	if err := f.call("munmap"); err != nil {
		return err
	}
	require.NoError(f.t, sys.Munmap(va, size))
	for _, w := range m.windows {
		w.Addr = 0
	}
	delete(f.mappings, va)
	return nil
}

func (f *fakeRM) dontFork(va, size uintptr) error {
	if err := f.called("dontFork"); err != nil {
		return err
	}
	f.mu.Lock()
	m := f.mappings[va]
	f.mu.Unlock()
	if m == nil || m.size != size {
		f.t.Errorf("madvise of %d bytes at %#x, which are no whole mapping", size, va)
	}
	return sys.DontFork(va, size)
}

// access checks access to the device nodes.
func (f *fakeRM) access(name string) error {
	if g := f.named(name); g != nil {
		return f.nodeMode[g]
	}
	return unix.ENOENT
}

// shows gives the GPUs that CUDA has.
func (f *fakeRM) probe() error {
	_, err := probe(f, f.access, f.shows)
	return err
}

func (f *fakeRM) shows() map[cuda.PCIAddress]bool {
	if f.shown == nil {
		return nil
	}
	gpus := map[cuda.PCIAddress]bool{}
	for _, g := range f.shown {
		gpus[at(g)] = true
	}
	return gpus
}

// newMemory makes memory of a GPU, in a client of CUDA's.
func (f *fakeRM) newMemory(gpu *nvrm.GPU, client *nvrm.Client, size uint64) *nvrm.Object {
	f.mu.Lock()
	defer f.mu.Unlock()
	o, err := f.AddObject(client, gpu, size)
	require.NoError(f.t, err)
	return o
}

// newClient makes a client of CUDA's in a process.
func (f *fakeRM) newClient(process int) *nvrm.Client {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.NewClient(nil, process)
}

// freeMemory is CUDA's own RM_FREE.
func (f *fakeRM) freeMemory(client *nvrm.Client, o *nvrm.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.End(client, o)
}

// barUsed is what is mapped of the GPUs' BAR1.
func (f *fakeRM) barUsed() (n uint64) {
	for _, g := range f.GPUs {
		n += g.BARUsed
	}
	return n
}

// unmap ends a mapping as the core does: first the range, then what the pin has for it.
func unmap(p backend.Pin) error {
	q := p.(*pin)
	if f, ok := q.gpu.client.kernel.(*fakeRM); ok && q.mapped != 0 {
		f.mu.Lock()
		m := f.mappings[q.mapped]
		f.mu.Unlock()
		if err := f.munmap(q.mapped, m.size); err != nil {
			return err
		}
	}
	return p.Unmap()
}
