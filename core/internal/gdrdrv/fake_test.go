package gdrdrv

import (
	"encoding/binary"
	"fmt"
	"gdrapi/core/backend"
	"os"
	"slices"
	"testing"
	"unsafe"

	"gdrapi/core/internal/sys"

	"golang.org/x/sys/unix"
)

// fakeDriver is a simulated gdrdrv in memory. It is only a test double. It reads and
// writes the ioctls' arguments by the byte offsets of the ABI, not through the structures
// under test. It refuses what a real driver refuses, with the same errno. A call that no
// correct library makes fails the test.
type fakeDriver struct {
	t          *testing.T
	driver     uint32
	minAPI     uint32
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

func newFake(t *testing.T, major, minor uint32) *fakeDriver {
	return &fakeDriver{
		t: t, driver: major<<16 | minor, minAPI: 2 << 16,
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
	if !f.fds[fd] {
		f.t.Errorf("close of descriptor %d, which is not open", fd)
		return unix.EBADF
	}
	err := f.call("close")
	delete(f.fds, fd)
	clear(f.buffers) // the driver frees what a closed file leaves
	return err
}

// The ABI once more, by bytes: sizes of the arguments, and the driver version that added
// each ioctl.
var fakeIoctls = map[uint32]struct {
	name  string
	size  int
	since uint32
	do    func(f *fakeDriver, arg []byte) error
}{
	0xC028DA01: {"PIN_BUFFER", 40, 0x20000, (*fakeDriver).pinBuffer},
	0xC008DA02: {"UNPIN_BUFFER", 8, 0x20000, (*fakeDriver).unpinBuffer},
	0xC008DA03: {"GET_CB_FLAG", 16, 0x20000, (*fakeDriver).getCBFlag},
	0xC008DA04: {"GET_INFO", 48, 0x20000, (*fakeDriver).getInfo},
	0xC008DA05: {"GET_INFO_V2", 48, 0x20004, (*fakeDriver).getInfoV2},
	0xC008DA06: {"GET_ATTR", 8, 0x20005, (*fakeDriver).getAttr},
	0xC020DA07: {"PIN_BUFFER_V2", 32, 0x20005, (*fakeDriver).pinBufferV2},
	0xC008DA08: {"REQ_MAPPING_TYPE", 16, 0x20005, (*fakeDriver).reqMappingType},
	0xC008DAFF: {"GET_VERSION", 8, 0, (*fakeDriver).getVersion},
}

func (f *fakeDriver) ioctl(fd int, code uint32, arg unsafe.Pointer) error {
	if !f.fds[fd] {
		f.t.Errorf("ioctl on descriptor %d, which is not open", fd)
		return unix.EBADF
	}
	call, ok := fakeIoctls[code]
	if !ok || f.driver < call.since {
		f.t.Errorf("ioctl %#x (%s), which driver %#x does not know", code, call.name, f.driver)
		return unix.ENOTTY
	}
	if err := f.call(call.name); err != nil {
		return err
	}
	// With -race this fails if the structure is smaller than the ABI's.
	return call.do(f, unsafe.Slice((*byte)(arg), call.size))
}

var order = binary.NativeEndian

func (f *fakeDriver) getVersion(arg []byte) error {
	order.PutUint32(arg[0:], f.driver)
	order.PutUint32(arg[4:], f.minAPI)
	return nil
}

func (f *fakeDriver) pinBuffer(arg []byte) error {
	token, space := order.Uint64(arg[16:]), order.Uint32(arg[24:])
	f.token, f.space = token, space
	if f.persistent && (token != 0 || space != 0) {
		return unix.EINVAL
	}
	if space != 0 && token == 0 {
		return unix.EINVAL
	}
	h, err := f.pin(order.Uint64(arg[0:]), order.Uint64(arg[8:]))
	order.PutUint64(arg[32:], h)
	return err
}

func (f *fakeDriver) pinBufferV2(arg []byte) error {
	if order.Uint32(arg[20:]) != 0 {
		f.t.Errorf("the padding of PIN_BUFFER_V2 is not 0")
	}
	flags := order.Uint32(arg[16:])
	if flags&^1 != 0 || flags&1 != 0 && !f.forcePCIe {
		return unix.EINVAL
	}
	h, err := f.pin(order.Uint64(arg[0:]), order.Uint64(arg[8:]))
	order.PutUint64(arg[24:], h)
	return err
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

func (f *fakeDriver) find(arg []byte) (*fakeBuffer, error) {
	b := f.buffers[order.Uint64(arg)]
	if b == nil {
		return nil, unix.EINVAL
	}
	return b, nil
}

func (f *fakeDriver) unpinBuffer(arg []byte) error {
	b, err := f.find(arg)
	if err != nil {
		return err
	}
	if b.mapped != 0 {
		f.t.Errorf("unpin of a mapped buffer")
	}
	delete(f.buffers, order.Uint64(arg))
	return nil
}

func (f *fakeDriver) getCBFlag(arg []byte) error {
	b, err := f.find(arg)
	if err == nil && b.revoked {
		order.PutUint32(arg[8:], 1)
	}
	return err
}

func (f *fakeDriver) putInfo(b *fakeBuffer, arg []byte) {
	order.PutUint64(arg[8:], b.va)
	order.PutUint64(arg[16:], b.mappedSize)
	order.PutUint32(arg[24:], 1<<16)
	order.PutUint32(arg[28:], 2400)
	order.PutUint64(arg[32:], 987654)
}

func (f *fakeDriver) getInfo(arg []byte) error {
	b, err := f.find(arg)
	if err != nil {
		return err
	}
	f.putInfo(b, arg)
	if b.mapped != 0 {
		order.PutUint32(arg[40:], 1)
	}
	if b.wc {
		order.PutUint32(arg[44:], 1)
	}
	return nil
}

func (f *fakeDriver) getInfoV2(arg []byte) error {
	b, err := f.find(arg)
	if err != nil {
		return err
	}
	f.putInfo(b, arg)
	order.PutUint32(arg[40:], b.mapped)
	return nil
}

func (f *fakeDriver) getAttr(arg []byte) error {
	known := map[uint32]bool{1: f.persistent, 2: f.forcePCIe}
	v, ok := known[order.Uint32(arg[0:])]
	if !ok {
		return unix.EINVAL
	}
	if v {
		order.PutUint32(arg[4:], 1)
	}
	return nil
}

func (f *fakeDriver) reqMappingType(arg []byte) error {
	b, err := f.find(arg)
	if err != nil {
		return err
	}
	if b.mapped != 0 {
		return unix.EBUSY
	}
	want := order.Uint32(arg[8:])
	if want > 3 {
		return unix.EINVAL
	}
	if !slices.Contains(f.canMap, want) {
		return unix.EOPNOTSUPP
	}
	b.requested = want
	return nil
}

// mmap returns invented addresses, which nothing touches.
func (f *fakeDriver) mmap(fd int, offset uint64, size uintptr) (uintptr, error) {
	if !f.fds[fd] {
		f.t.Errorf("mmap of descriptor %d, which is not open", fd)
		return 0, unix.EBADF
	}
	if err := f.call("mmap"); err != nil {
		return 0, err
	}
	page := uint64(os.Getpagesize())
	if size == 0 || uint64(size)%page != 0 {
		f.t.Errorf("mmap of %d bytes, which is not whole pages", size)
	}
	if offset%page != 0 {
		f.t.Errorf("mmap offset %#x", offset)
		return 0, unix.EINVAL
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

func (f *fakeDriver) String() string {
	return fmt.Sprintf("gdrdrv %d.%d", f.driver>>16, f.driver&0xffff)
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
