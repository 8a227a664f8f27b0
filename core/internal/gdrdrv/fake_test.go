package gdrdrv

import (
	"os"
	"slices"
	"testing"
	"unsafe"

	"gdrapi/core/backend"
	"gdrapi/core/internal/sys"

	"golang.org/x/sys/unix"
)

// fakeDriver is a simulated gdrdrv in memory. It is only a test double. It refuses what a real
// driver refuses, with the same errno. A call that no correct library makes fails the test. It
// takes the structures of abi.go, which TestABI holds.
type fakeDriver struct {
	t          *testing.T
	driver     version
	minAPI     version
	token      uint64 // of the last PIN_BUFFER
	space      uint32
	persistent bool
	forcePCIe  bool
	defaultMap uint32   // mapping type that the driver chooses itself
	canMap     []uint32 // types that may be requested

	fds, hosts map[int]bool // hosts: the host has closed and used again
	nextFD     int
	buffers    map[uint64]*fakeBuffer
	nextHandle uint64
	mappings   map[uintptr]fakeMapping

	revokeAtMmap bool // the memory is freed right after the next mmap

	calls []string
	fail  map[string]unix.Errno // by name of the call; each error is returned once
}

type fakeBuffer struct {
	va, mappedSize uint64
	requested      uint32
	mapped         uint32 // type, 0: not mapped
	wc             bool   // the type of the last mapping was WC; GET_INFO says so later, too
	revoked        bool
}

type fakeMapping struct {
	size   uintptr
	buffer *fakeBuffer
}

func newFake(t *testing.T, driver version) *fakeDriver {
	return &fakeDriver{
		t: t, driver: driver, minAPI: 2 << 16,
		persistent: true, forcePCIe: true, defaultMap: 1, canMap: []uint32{0, 1},
		fds: map[int]bool{}, hosts: map[int]bool{}, nextFD: 100, buffers: map[uint64]*fakeBuffer{}, nextHandle: 0x1000,
		mappings: map[uintptr]fakeMapping{}, fail: map[string]unix.Errno{},
	}
}

// call notes a call and returns the error that it must fail with.
func (f *fakeDriver) call(name string) error {
	f.calls = append(f.calls, name)
	if errno, ok := f.fail[name]; ok {
		delete(f.fail, name)
		return errno
	}
	return nil
}

// isOpen says whether a descriptor is; else no correct library makes the call.
func (f *fakeDriver) isOpen(call string, fd int) bool {
	if !f.fds[fd] {
		f.t.Errorf("%s of descriptor %d, which is not open", call, fd)
	}
	return f.fds[fd]
}

// live counts what the library has from the driver.
func (f *fakeDriver) live() int { return len(f.fds) + len(f.buffers) + len(f.mappings) }

func (f *fakeDriver) open(path string) (int, error) {
	if err := f.call("open"); err != nil {
		return -1, err
	}
	if path != "/dev/gdrdrv" {
		f.t.Errorf("open of %q", path)
		return -1, unix.ENOENT
	}
	f.nextFD++
	f.fds[f.nextFD] = true
	return f.nextFD, nil
}

func (f *fakeDriver) own(fd int) (sys.FileID, error) {
	if err := f.call("own"); err != nil {
		return sys.FileID{}, err
	}
	return f.identity(fd)
}

// identity is the descriptor's own, until hostCloses.
func (f *fakeDriver) identity(fd int) (sys.FileID, error) {
	if !f.fds[fd] {
		return sys.FileID{}, unix.EBADF
	}
	if f.hosts[fd] {
		return sys.FileID{Ino: 1}, nil
	}
	return sys.FileID{Ino: 1, Owner: 1}, nil
}

// hostCloses closes a descriptor without the library's knowledge. If it is used again, the
// number is then another open of the driver, whose buffers have the same handles.
func (f *fakeDriver) hostCloses(fd int, again bool) {
	if f.hosts[fd] = true; !again {
		delete(f.fds, fd)
	}
}

func (f *fakeDriver) close(fd int) error {
	if f.hosts[fd] {
		f.t.Errorf("close of descriptor %d, which is the host's", fd)
	}
	if !f.isOpen("close", fd) {
		return unix.EBADF
	}
	err := f.call("close")
	delete(f.fds, fd)
	clear(f.buffers) // the driver frees what a closed file leaves
	return err
}

// The requests, each with the driver version that added it.
var requests = map[uint32]struct {
	name  string
	since version
}{
	iocPinBuffer: {"PIN_BUFFER", 0x20000}, iocUnpinBuffer: {"UNPIN_BUFFER", 0x20000}, iocGetCBFlag: {"GET_CB_FLAG", 0x20000},
	iocGetInfo: {"GET_INFO", 0x20000}, iocGetInfoV2: {"GET_INFO_V2", 0x20004}, iocGetAttr: {"GET_ATTR", 0x20005},
	iocPinBufferV2: {"PIN_BUFFER_V2", 0x20005}, iocReqMappingType: {"REQ_MAPPING_TYPE", 0x20005}, iocGetVersion: {"GET_VERSION", 0},
}

func (f *fakeDriver) ioctl(fd int, code uint32, arg unsafe.Pointer) (err error) {
	if !f.isOpen("ioctl", fd) {
		return unix.EBADF
	}
	r, ok := requests[code]
	if !ok || f.driver < r.since {
		f.t.Errorf("ioctl %#x (%s), which driver %#x does not know", code, r.name, f.driver)
		return unix.ENOTTY
	}
	if err := f.call(r.name); err != nil {
		return err
	}
	switch code {
	case iocGetVersion:
		*(*getVersion)(arg) = getVersion{driver: f.driver, minAPI: f.minAPI}
	case iocGetAttr:
		a := (*getAttr)(arg)
		if a.attr != 1 && a.attr != 2 {
			return unix.EINVAL
		}
		if a.attr == 1 && f.persistent || a.attr == 2 && f.forcePCIe {
			a.value = 1
		}
	case iocPinBuffer:
		a := (*pinBuffer)(arg)
		if f.token, f.space = a.p2pToken, a.vaSpace; f.space != 0 && f.token == 0 || f.persistent && f.token != 0 {
			return unix.EINVAL
		}
		a.handle, err = f.pin(a.addr, a.size)
	case iocPinBufferV2:
		a := (*pinBufferV2)(arg)
		if a.flags&^1 != 0 || a.flags&1 != 0 && !f.forcePCIe {
			return unix.EINVAL
		}
		a.handle, err = f.pin(a.addr, a.size)
	default:
		return f.onBuffer(code, arg)
	}
	return err
}

// onBuffer serves the requests whose argument begins with a handle.
func (f *fakeDriver) onBuffer(code uint32, arg unsafe.Pointer) error {
	handle := *(*uint64)(arg)
	b := f.buffers[handle]
	if b == nil {
		return unix.EINVAL
	}
	info := getInfoV2{handle: handle, va: b.va, mappedSize: b.mappedSize, pageSize: 1 << 16, tscKHz: 2400, tmCycles: 987654}
	switch code {
	case iocUnpinBuffer:
		if b.mapped != 0 {
			f.t.Errorf("unpin of a mapped buffer")
		}
		delete(f.buffers, handle)
	case iocGetCBFlag:
		if b.revoked {
			(*getCBFlag)(arg).flag = 1
		}
	case iocGetInfo:
		*(*getInfoV2)(arg) = info
		(*getInfo)(arg).mapped = min(b.mapped, 1)
		if b.wc {
			(*getInfo)(arg).wcMapping = 1
		}
	case iocGetInfoV2:
		info.mappingType = b.mapped
		*(*getInfoV2)(arg) = info
	case iocReqMappingType:
		want := (*reqMappingType)(arg).mappingType
		switch {
		case b.mapped != 0:
			return unix.EBUSY
		case want > 3:
			return unix.EINVAL
		case !slices.Contains(f.canMap, want):
			return unix.EOPNOTSUPP
		}
		b.requested = want
	}
	return nil
}

func (f *fakeDriver) pin(addr, size uint64) (uint64, error) {
	if addr == 0 || size == 0 || addr+size < addr {
		return 0, unix.EINVAL
	}
	start := addr &^ 0xffff
	b := &fakeBuffer{va: addr, mappedSize: (addr + size - start + 0xffff) &^ 0xffff}
	h := f.nextHandle
	f.nextHandle += b.mappedSize / uint64(os.Getpagesize())
	f.buffers[h] = b
	return h, nil
}

// mmap returns invented addresses, which nothing touches.
func (f *fakeDriver) mmap(fd int, offset uint64, size uintptr) (uintptr, error) {
	if !f.isOpen("mmap", fd) {
		return 0, unix.EBADF
	}
	if err := f.call("mmap"); err != nil {
		return 0, err
	}
	page := uint64(os.Getpagesize())
	if size == 0 || (uint64(size)|offset)%page != 0 {
		f.t.Errorf("mmap of %d bytes at %#x, which are not whole pages", size, offset)
	}
	b := f.buffers[offset/page]
	if b == nil || b.mapped != 0 || b.va&0xffff != 0 || uint64(size) > b.mappedSize {
		return 0, unix.EINVAL
	}
	b.mapped = f.defaultMap
	if b.requested != 0 {
		b.mapped = b.requested
	}
	b.wc = b.mapped == 1
	va := uintptr(0x7f0000000000 + offset)
	f.mappings[va] = fakeMapping{size: size, buffer: b}
	if f.revokeAtMmap {
		b.revoked, b.mapped = true, 0
	}
	return va, nil
}

func (f *fakeDriver) munmap(va, size uintptr) error {
	m, ok := f.mappings[va]
	if !ok || m.size != size {
		f.t.Errorf("munmap of %d bytes at %#x, which is no mapping", size, va)
		return unix.EINVAL
	}
	if err := f.call("munmap"); err != nil {
		return err
	}
	m.buffer.mapped = 0
	delete(f.mappings, va)
	return nil
}

// unmap ends a mapping as the core does: first the range, then what the pin has for it.
func unmap(p backend.Pin) error {
	q := p.(*pin)
	if f, ok := q.session.kernel.(*fakeDriver); ok && q.va != 0 {
		if err := f.munmap(q.va, f.mappings[q.va].size); err != nil {
			return err
		}
	}
	return p.Unmap()
}
