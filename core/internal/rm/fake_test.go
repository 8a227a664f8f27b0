package rm

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"testing"
	"unsafe"

	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fakeRM is a simulated resource manager of NVIDIA's kernel driver. It is only a test
// double. It reads and writes the requests by the byte offsets of the interface, not
// through the structs under test. It refuses what the driver refuses, with the same
// status. A call that no correct library makes fails the test.
//
// Its memory is memfds, and its mappings are real.
type fakeRM struct {
	t  testing.TB
	mu sync.Mutex

	gpus     []*fakeGPU
	files    map[int]*fakeFile
	nextFD   int
	clients  map[uint32]*fakeClient
	next     uint32 // next handle
	linear   uint64
	mappings map[uintptr]*fakeMapping
	barFree  uint64
	memories int // that are not freed

	shown   []*fakeGPU // to CUDA; nil: CUDA is not initialised
	chipset int64      // flags of GET_CHIPSET_INFO, -1: the driver does not answer
	version string
	space   uint32 // of memory, 0: the driver does not answer
	page    uint64 // the kernel's

	calls  []string
	faults map[string]*fault
	faulty bool // a fault was injected; what cannot be undone then is not the library's mistake
}

// fault makes the nth call of a name fail: with a status if err is one.
type fault struct {
	nth int
	err error
}

type fakeGPU struct {
	at           cuda.PCIAddress
	minor, gpuID uint32
	instance     uint32
	coherent     bool
	answer       answer // of mappings
	ats          bool   // of GET_ID_INFO
	nodeMode     error  // of access to its device node
}

func (g *fakeGPU) path() string { return fmt.Sprintf("/dev/nvidia%d", g.minor) }

type fakeFile struct {
	path       string
	gpu        *fakeGPU  // nil: /dev/nvidiactl
	registered *fakeFile // the control file that a GPU's file was registered with
	window     *fakeWindow
	used       bool // MAP_MEMORY has prepared it
	host       bool // a file of the host's, not the driver's
	owned      bool // the library has marked it
}

type fakeClient struct {
	file    *fakeFile // nil: CUDA's, or another process's
	foreign bool      // of another process
	objects map[uint32]*fakeObject
}

type fakeObject struct {
	parent  uint32
	gpu     *fakeGPU
	memory  *fakeMemory // nil: a device
	windows map[uint64]*fakeWindow
}

type fakeMemory struct {
	fd     int
	ino    uint64
	size   uint64
	gpu    *fakeGPU
	refs   int
	answer *answer // nil: that of the GPU
}

// fakeWindow is a part of an object in the BAR.
type fakeWindow struct {
	memory         *fakeMemory
	offset, length uint64
	va             uintptr // 0: the CPU has not mapped it
}

// fakeMapping is what one munmap removes: a mapping, or a reserved range with its
// mappings.
type fakeMapping struct {
	size     uintptr
	reserved bool
	windows  []*fakeWindow
}

func newRM(t testing.TB) *fakeRM {
	f := &fakeRM{
		t: t, files: map[int]*fakeFile{}, nextFD: 1 << 20, clients: map[uint32]*fakeClient{}, next: 0xC1D00000,
		chipset: -1, version: "580.159.04", page: uint64(os.Getpagesize()),
		mappings: map[uintptr]*fakeMapping{}, barFree: 1 << 40, faults: map[string]*fault{},
		gpus: []*fakeGPU{
			{at: cuda.PCIAddress{Domain: 0x10000, Bus: 0x8d, Slot: 0}, minor: 3, gpuID: 0x8d00, instance: 1, answer: answerBAR1},
			{at: cuda.PCIAddress{Domain: 0, Bus: 0x1b, Slot: 2}, minor: 1, gpuID: 0x1b00, instance: 0, answer: answerBAR1},
		},
	}
	t.Cleanup(func() {
		for _, c := range f.clients {
			for _, o := range c.objects {
				f.drop(o)
			}
		}
	})
	return f
}

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
	for _, c := range f.clients {
		if c.file == nil {
			continue
		}
		n += 1 + len(c.objects)
		for _, o := range c.objects {
			n += len(o.windows)
		}
	}
	return n
}

func (f *fakeRM) open(path string) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("open " + path); err != nil {
		return -1, err
	}
	file := &fakeFile{path: path}
	if path != "/dev/nvidiactl" {
		for _, g := range f.gpus {
			if g.path() == path {
				file.gpu = g
			}
		}
		if file.gpu == nil {
			f.t.Errorf("open of %q", path)
			return -1, unix.ENOENT
		}
	}
	f.nextFD++
	f.files[f.nextFD] = file
	return f.nextFD, nil
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
	file := f.files[fd]
	delete(f.files, fd)
	for h, c := range f.clients {
		if c.file != file {
			continue
		}
		for _, o := range c.objects {
			f.drop(o)
		}
		delete(f.clients, h)
	}
}

// drop frees an object and its windows in the BAR.
func (f *fakeRM) drop(o *fakeObject) {
	for _, w := range o.windows {
		f.barFree += w.length
	}
	if o.memory != nil {
		f.unref(o.memory)
	}
}

func (f *fakeRM) unref(m *fakeMemory) {
	if m.refs--; m.refs == 0 {
		require.NoError(f.t, unix.Close(m.fd))
		f.memories--
	}
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
	f.end(fd)
	switch then {
	case hostsFile:
		f.files[fd] = &fakeFile{path: "a file of the host's", host: true}
	case hostsOpen, otherCopy:
		f.files[fd] = &fakeFile{path: was.path, gpu: was.gpu, host: true, owned: then == otherCopy}
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
	case file.gpu != nil:
		id = fileID{Dev: 5, Ino: 100 + uint64(file.gpu.minor), Rdev: 195 << 8}
	case file.path == controlPath:
		id = fileID{Dev: 5, Ino: 99, Rdev: 195<<8 | 255}
	default:
		id = fileID{Dev: 9}
	}
	if file.owned {
		id.Owner = 1
	}
	return id, nil
}

// The interface once more, by bytes.
var fakeRequests = map[uint32]struct {
	name   string
	size   int
	onGPU  bool // on a GPU's file, else on the control file
	status int  // offset of the NV_STATUS, 0: none
	do     func(f *fakeRM, file *fakeFile, arg []byte) (status, error)
}{
	0xC0104629: {"RM_FREE", 16, false, 12, (*fakeRM).rmFree},
	0xC020462A: {"RM_CONTROL", 32, false, 28, (*fakeRM).rmControl},
	0xC030462B: {"RM_ALLOC", 48, false, 40, (*fakeRM).rmAlloc},
	0xC01C4634: {"DUP_OBJECT", 28, false, 24, (*fakeRM).dupObject},
	0xC038464E: {"MAP_MEMORY", 56, false, 40, (*fakeRM).mapMemory},
	0xC020464F: {"UNMAP_MEMORY", 32, false, 24, (*fakeRM).unmapMemory},
	0xC90046C8: {"CARD_INFO", 2304, false, 0, (*fakeRM).cardInfo},
	0xC00446C9: {"REGISTER_FD", 4, true, 0, (*fakeRM).registerFD},
	0xC04846D2: {"VERSION", 72, false, 0, (*fakeRM).versionText},
}

var order = binary.NativeEndian

func u32(b []byte, at int) uint32 { return order.Uint32(b[at:]) }
func u64(b []byte, at int) uint64 { return order.Uint64(b[at:]) }

func (f *fakeRM) ioctl(fd int, code uint32, arg unsafe.Pointer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	file := f.files[fd]
	if file == nil {
		_ = f.call("ioctl of nothing")
		return unix.EBADF
	}
	if file.host && file.path != controlPath {
		_ = f.call("ioctl of the host's file")
		return unix.ENOTTY
	}
	r, ok := fakeRequests[code]
	if !ok || r.onGPU != (file.gpu != nil) {
		f.t.Errorf("request %#x (%s) on %s", code, r.name, file.path)
		return unix.EINVAL
	}
	// With -race this fails if the struct is smaller than the interface's.
	b := unsafe.Slice((*byte)(arg), r.size)
	name := r.name
	switch name {
	case "RM_ALLOC":
		name += fmt.Sprintf(" %#x", u32(b, 12))
	case "RM_CONTROL":
		name += fmt.Sprintf(" %#x", u32(b, 8))
	}
	var st status
	err := f.call(name)
	if s, ok := err.(status); ok {
		st, err = s, nil
	} else if err == nil {
		st, err = r.do(f, file, b)
	}
	if r.status != 0 {
		order.PutUint32(b[r.status:], uint32(st))
	} else if st != 0 {
		f.t.Errorf("%s has no status", r.name)
	}
	return err
}

// client is the client with the handle, if it belongs to the file.
func (f *fakeRM) client(file *fakeFile, h uint32) *fakeClient {
	if c := f.clients[h]; c != nil && c.file == file {
		return c
	}
	return nil
}

func (f *fakeRM) newHandle() uint32 {
	f.next++
	return f.next
}

// zero fails the test if bytes that must be 0 are not.
func (f *fakeRM) zero(what string, b []byte) {
	for _, x := range b {
		if x != 0 {
			f.t.Errorf("%s is not 0: %x", what, b)
			return
		}
	}
}

// params is what the params of RM_ALLOC and RM_CONTROL point to.
func (f *fakeRM) params(b []byte, at, sizeAt int, want uint32) []byte {
	if u32(b, sizeAt) != want {
		return nil
	}
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&b[at]))), want)
}

func (f *fakeRM) rmAlloc(file *fakeFile, b []byte) (status, error) {
	root, parent, class := u32(b, 0), u32(b, 4), u32(b, 12)
	f.zero("the object of RM_ALLOC", b[8:12])
	f.zero("rights of RM_ALLOC", b[24:32])
	f.zero("flags of RM_ALLOC", b[36:40])
	h := f.newHandle()
	switch class {
	case 0x41:
		f.zero("root, parent of a client", b[0:8])
		f.zero("params of a client", b[16:24])
		f.zero("params_size of a client", b[32:36])
		f.clients[h] = &fakeClient{file: file, objects: map[uint32]*fakeObject{}}
	case 0x80:
		c := f.client(file, root)
		if c == nil {
			return 0x23, nil
		}
		if parent != root {
			return 0x36, nil
		}
		p := f.params(b, 16, 32, 56)
		if p == nil {
			return 0x3A, nil
		}
		f.zero("target_client, target_device, flags, va range of a device", p[8:48])
		if u32(p, 4) != root || u32(p, 48) != 2 {
			return 0x1F, nil
		}
		gpu := f.attached(file, u32(p, 0))
		if gpu == nil {
			return 0x26, nil
		}
		c.objects[h] = &fakeObject{parent: root, gpu: gpu}
	default:
		return 0x22, nil
	}
	order.PutUint32(b[8:], h)
	return 0, nil
}

// attached is the GPU of an instance, if a file of that GPU is registered with the
// control file.
func (f *fakeRM) attached(control *fakeFile, instance uint32) *fakeGPU {
	for _, file := range f.files {
		if file.gpu != nil && file.gpu.instance == instance && file.registered == control {
			return file.gpu
		}
	}
	return nil
}

func (f *fakeRM) rmFree(file *fakeFile, b []byte) (status, error) {
	c := f.client(file, u32(b, 0))
	if c == nil {
		return 0x23, nil
	}
	o := c.objects[u32(b, 8)]
	if o == nil || o.parent != u32(b, 4) {
		return 0x57, nil
	}
	if len(o.windows) > 0 && !f.faulty {
		f.t.Errorf("RM_FREE of an object with %d windows in the BAR", len(o.windows))
	}
	f.drop(o)
	delete(c.objects, u32(b, 8))
	return 0, nil
}

func (f *fakeRM) rmControl(file *fakeFile, b []byte) (status, error) {
	c := f.client(file, u32(b, 0))
	if c == nil {
		return 0x23, nil
	}
	if u32(b, 4) != u32(b, 0) {
		return 0x56, nil // these commands need the client itself
	}
	f.zero("flags of RM_CONTROL", b[12:16])
	switch u32(b, 8) {
	case 0x205:
		return f.idInfo(b), nil
	case 0x3D06:
		return f.importFD(c, b), nil
	case 0xD01:
		p := f.params(b, 16, 24, 12)
		if p == nil || f.space == 0 {
			return 0x56, nil
		}
		if o := c.objects[u32(p, 0)]; o == nil || o.memory == nil {
			return 0x33, nil
		}
		order.PutUint32(p[8:], f.space)
		return 0, nil
	case 0x104:
		if p := f.params(b, 16, 24, 152); p != nil && f.chipset >= 0 {
			order.PutUint32(p[148:], uint32(f.chipset))
			return 0, nil
		}
	}
	return 0x56, nil
}

func (f *fakeRM) versionText(_ *fakeFile, b []byte) (status, error) {
	if u32(b, 0) != '2' {
		return 0, unix.EINVAL
	}
	copy(b[8:], f.version)
	return 0, nil
}

func (f *fakeRM) idInfo(b []byte) status {
	p := f.params(b, 16, 24, 32)
	if p == nil {
		return 0x1F
	}
	for _, g := range f.gpus {
		if g.gpuID == u32(p, 0) {
			if g.ats {
				order.PutUint32(p[4:], 1<<6)
			}
			order.PutUint32(p[8:], g.instance)
			return 0
		}
	}
	return 0x1F
}

func (f *fakeRM) importFD(c *fakeClient, b []byte) status {
	p := f.params(b, 16, 24, 20)
	if p == nil || u32(p, 4) != 1 {
		return 0x1F
	}
	f.zero("the object of an import", p[16:20])
	device := c.objects[u32(p, 8)]
	if device == nil || device.memory != nil || u32(p, 12) != u32(p, 8) {
		return 0x26
	}
	m := f.exported(int(int32(u32(p, 0))))
	if m == nil || m.gpu != device.gpu {
		return 0x1F
	}
	order.PutUint32(p[16:], f.addMemory(c, u32(p, 8), m))
	return 0
}

// exported is the memory in an exported descriptor.
func (f *fakeRM) exported(fd int) *fakeMemory {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return nil
	}
	for _, c := range f.clients {
		for _, o := range c.objects {
			if o.memory != nil && o.memory.ino == st.Ino {
				return o.memory
			}
		}
	}
	return nil
}

func (f *fakeRM) addMemory(c *fakeClient, parent uint32, m *fakeMemory) uint32 {
	h := f.newHandle()
	m.refs++
	c.objects[h] = &fakeObject{parent: parent, gpu: m.gpu, memory: m, windows: map[uint64]*fakeWindow{}}
	return h
}

func (f *fakeRM) dupObject(file *fakeFile, b []byte) (status, error) {
	f.zero("the object of DUP_OBJECT", b[8:12])
	f.zero("flags of DUP_OBJECT", b[20:24])
	c := f.client(file, u32(b, 0))
	source := f.clients[u32(b, 12)]
	if c == nil || source == nil {
		return 0x23, nil
	}
	if source.foreign {
		return 0x1B, nil
	}
	device := c.objects[u32(b, 4)]
	if device == nil || device.memory != nil {
		return 0x36, nil
	}
	o := source.objects[u32(b, 16)]
	if o == nil {
		return 0x57, nil
	}
	if o.memory == nil {
		return 0x31, nil
	}
	if o.gpu != device.gpu {
		return 0x26, nil
	}
	order.PutUint32(b[8:], f.addMemory(c, u32(b, 4), o.memory))
	return 0, nil
}

func (f *fakeRM) mapMemory(file *fakeFile, b []byte) (status, error) {
	f.zero("the padding of MAP_MEMORY", b[12:16])
	f.zero("flags of MAP_MEMORY", b[44:48])
	c := f.client(file, u32(b, 0))
	if c == nil {
		return 0x23, nil
	}
	o := c.objects[u32(b, 8)]
	if o == nil || o.parent != u32(b, 4) {
		return 0x57, nil
	}
	if o.memory == nil {
		return 0x31, nil
	}
	into := f.files[int(int32(u32(b, 48)))]
	if into == nil || into.gpu != o.gpu {
		return 0x1F, nil
	}
	if into.used {
		return 0x63, nil
	}
	page := f.page
	offset, length := u64(b, 16), u64(b, 24)
	switch {
	case offset%page != 0 || length%page != 0 || length == 0:
		f.t.Errorf("MAP_MEMORY of %#x bytes at %#x", length, offset)
		return 0x1F, nil
	case offset >= o.memory.size:
		return 0x20, nil
	case length > o.memory.size-offset:
		return 0x2E, nil
	case length > f.barFree:
		return 0x1A, nil
	}
	f.barFree -= length
	f.linear += 1 << 32
	w := &fakeWindow{memory: o.memory, offset: offset, length: length}
	o.windows[f.linear] = w
	into.used, into.window = true, w
	order.PutUint64(b[32:], f.linear)
	kind := o.gpu.answer
	if o.memory.answer != nil {
		kind = *o.memory.answer
	}
	// The bits beside the two fields are not 0.
	order.PutUint32(b[44:], 1<<26|kind.cache<<23|1<<22|kind.mapping<<15|1<<17|1)
	return 0, nil
}

func (f *fakeRM) unmapMemory(file *fakeFile, b []byte) (status, error) {
	f.zero("flags of UNMAP_MEMORY", b[28:32])
	c := f.client(file, u32(b, 0))
	if c == nil {
		return 0x23, nil
	}
	o := c.objects[u32(b, 8)]
	if o == nil || o.parent != u32(b, 4) || o.windows[u64(b, 16)] == nil {
		return 0x57, nil
	}
	w := o.windows[u64(b, 16)]
	if w.va != 0 && !f.faulty {
		f.t.Errorf("UNMAP_MEMORY under a mapping of the CPU's at %#x", w.va)
	}
	f.barFree += w.length
	delete(o.windows, u64(b, 16))
	return 0, nil
}

func (f *fakeRM) cardInfo(_ *fakeFile, b []byte) (status, error) {
	f.zero("CARD_INFO", b)
	for i, g := range f.gpus {
		e := b[(i*3+1)*72:] // entries without a GPU lie between
		e[0] = 1
		order.PutUint32(e[4:], g.at.Domain)
		e[8], e[9] = g.at.Bus, g.at.Slot
		order.PutUint16(e[12:], 0x10DE)
		order.PutUint32(e[16:], g.gpuID)
		order.PutUint32(e[56:], g.minor)
	}
	return 0, nil
}

func (f *fakeRM) registerFD(file *fakeFile, b []byte) (status, error) {
	control := f.files[int(int32(u32(b, 0)))]
	if control == nil || control.gpu != nil || control.host || file.registered != nil {
		return 0, unix.EINVAL
	}
	file.registered = control
	return 0, nil
}

// take returns the window that the one mmap of a file may map.
func (f *fakeRM) take(fd int, size uintptr) (*fakeWindow, error) {
	file := f.files[fd]
	if file == nil || file.window == nil {
		f.t.Errorf("mmap of descriptor %d, which has nothing to map", fd)
		return nil, unix.EINVAL
	}
	w := file.window
	if w.length != uint64(size) {
		f.t.Errorf("mmap of %d bytes, where %d were prepared", size, w.length)
		return nil, unix.EINVAL
	}
	file.window = nil
	return w, nil
}

func (f *fakeRM) mmap(fd int, size uintptr) (uintptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("mmap"); err != nil {
		return 0, err
	}
	w, err := f.take(fd, size)
	if err != nil {
		return 0, err
	}
	w.va, err = sys.Mmap(w.memory.fd, w.offset, size)
	require.NoError(f.t, err)
	f.mappings[w.va] = &fakeMapping{size: size, windows: []*fakeWindow{w}}
	return w.va, nil
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
		w, err := f.take(fd, size)
		if err != nil {
			return err
		}
		_, err = unix.MmapPtr(w.memory.fd, int64(w.offset), unsafe.Pointer(*(*unsafe.Pointer)(unsafe.Pointer(&va))), size,
			unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
		require.NoError(f.t, err)
		w.va = va
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
		w.va = 0
	}
	delete(f.mappings, va)
	return nil
}

func (f *fakeRM) dontFork(va, size uintptr) error {
	if err := f.called("dontFork"); err != nil {
		return err
	}
	return sys.DontFork(va, size)
}

// access checks access to the device nodes.
func (f *fakeRM) access(path string) error {
	for _, g := range f.gpus {
		if g.path() == path {
			return g.nodeMode
		}
	}
	return unix.ENOENT
}

// shows gives the GPUs that CUDA has.
func (f *fakeRM) shows() map[cuda.PCIAddress]bool {
	if f.shown == nil {
		return nil
	}
	gpus := map[cuda.PCIAddress]bool{}
	for _, g := range f.shown {
		gpus[g.at] = true
	}
	return gpus
}

// newMemory makes memory of a GPU, in a client of CUDA's.
func (f *fakeRM) newMemory(gpu *fakeGPU, client uint32, size uint64) (object uint32, m *fakeMemory) {
	fd, err := unix.MemfdCreate("gpu", unix.MFD_CLOEXEC)
	require.NoError(f.t, err)
	require.NoError(f.t, unix.Ftruncate(fd, int64(size)))
	var st unix.Stat_t
	require.NoError(f.t, unix.Fstat(fd, &st))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.memories++
	m = &fakeMemory{fd: fd, ino: st.Ino, size: size, gpu: gpu}
	return f.addMemory(f.clients[client], client, m), m
}

// newClient makes a client that is not the library's.
func (f *fakeRM) newClient(foreign bool) uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.newHandle()
	f.clients[h] = &fakeClient{foreign: foreign, objects: map[uint32]*fakeObject{}}
	return h
}

// freeMemory is CUDA's own RM_FREE.
func (f *fakeRM) freeMemory(client, object uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	objects := f.clients[client].objects
	f.drop(objects[object])
	delete(objects, object)
}
