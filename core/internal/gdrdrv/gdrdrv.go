// Package gdrdrv is the backend that maps GPU memory through the gdrdrv kernel
// module, of any version from 2.0 on.
package gdrdrv

import (
	"errors"
	"fmt"
	"unsafe"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

const devicePath = "/dev/gdrdrv"

// Backend is the gdrdrv backend.
type Backend struct{}

func (Backend) Name() string { return "gdrdrv" }

// Open opens the device. It checks that the driver serves this library's version, and
// that this library works with the driver's.
func (Backend) Open() (backend.Session, error) {
	return open(linux{}, syncMemops)
}

func open(k kernel, sync func(addr, size uint64)) (_ *session, err error) {
	fd, err := k.open(devicePath)
	switch {
	case err == unix.ENXIO || err == unix.ENODEV:
		return nil, fmt.Errorf("%s is left from a module that is gone; load it (modprobe gdrdrv): %w", devicePath, err)
	case err == unix.ENOENT:
		return nil, fmt.Errorf("there is no %s, the gdrdrv kernel module is not loaded (modprobe gdrdrv): %w", devicePath, err)
	case err != nil:
		return nil, fmt.Errorf("open %s: %w", devicePath, err)
	}
	s := &session{kernel: k, fd: fd, sync: sync}
	defer func() {
		if err != nil {
			_ = k.close(fd)
		}
	}()
	if s.file, err = k.own(fd); err != nil {
		return nil, fmt.Errorf("%s: %w", devicePath, err)
	}
	var v getVersion
	if err := ioctl(s, "GET_VERSION", iocGetVersion, &v); err != nil {
		return nil, err
	}
	if v.driver < minDriver {
		return nil, fmt.Errorf("gdrdrv is %d.%d, and %d.%d is the oldest that works; install module and library of one version: %w", v.driver.major(), v.driver.minor(), minDriver.major(), minDriver.minor(), unix.ENOTSUP)
	}
	if v.minAPI > apiVersion {
		return nil, fmt.Errorf("gdrdrv %d.%d needs a libgdrapi of %d.%d or later, this is %d.%d; install module and library of one version: %w", v.driver.major(), v.driver.minor(), v.minAPI.major(), v.minAPI.minor(), apiVersion.major(), apiVersion.minor(), unix.ENOTSUP)
	}
	s.driver = v.driver
	return s, nil
}

// syncMemops is that of cuda.Driver.
func syncMemops(addr, size uint64) {
	cu, err := cuda.Load()
	if err != nil {
		log.Warnf("cannot set SYNC_MEMOPS on %#x, synchronise after each cuMemcpy before you read the mapping: %v", addr, err)
		return
	}
	cu.SyncMemops(addr, size)
}

// session is one open file of the driver. Its fields do not change.
type session struct {
	kernel kernel
	fd     int
	file   sys.FileID
	driver version
	sync   func(addr, size uint64) // calls CUDA
}

// check returns EBADF where the host has closed the descriptor: a request on another open of
// the driver would reach another's buffers.
func (s *session) check() error {
	if now, err := s.kernel.identity(s.fd); err != nil || now != s.file {
		return fmt.Errorf("the host closed descriptor %d, which was this gdr_t's open of %s; call gdr_open again: %w", s.fd, devicePath, unix.EBADF)
	}
	return nil
}

// ioctl makes the request code, whose struct is arg.
func ioctl[T any](s *session, name string, code uint32, arg *T) error {
	if err := s.check(); err != nil {
		return err
	}
	if err := s.kernel.ioctl(s.fd, code, unsafe.Pointer(arg)); err != nil {
		return fmt.Errorf("gdrdrv %s: %w", name, err)
	}
	return nil
}

// Pin pins the 64 KiB pages that the buffer touches.
//
// As the reference it sends flags and no token to a driver of 2.5 or later: persistent
// pinning refuses tokens, and NVIDIA's driver needs none. An older driver has no flags:
// a flag is EINVAL then, like a flag that the driver does not know.
//
// CUDA is called only for the caller's own bytes, once they are pinned.
func (s *session) Pin(req backend.PinRequest) (backend.Pin, error) {
	p := &pin{session: s}
	var err error
	if s.driver >= sincePinV2 {
		arg := pinBufferV2{addr: req.Addr, size: req.Size, flags: req.Flags}
		err = ioctl(s, "PIN_BUFFER_V2", iocPinBufferV2, &arg)
		p.handle = arg.handle
	} else if req.Flags != 0 {
		err = fmt.Errorf("gdrdrv %d.%d knows no pin flags (%#x), 2.5 and later do: %w", s.driver.major(), s.driver.minor(), req.Flags, unix.EINVAL)
	} else {
		arg := pinBuffer{addr: req.Addr, size: req.Size, p2pToken: req.Token, vaSpace: req.VASpace}
		err = ioctl(s, "PIN_BUFFER", iocPinBuffer, &arg)
		p.handle = arg.handle
	}
	if err != nil {
		return nil, err
	}
	if addr, size := req.Own(); size != 0 {
		s.sync(addr, size)
	}
	return p, nil
}

// Import refuses: gdrdrv pins by address alone.
func (s *session) Import(int) (backend.Pin, error) {
	return nil, fmt.Errorf("gdrdrv pins no descriptor; open with GDRCOPY_BACKEND=rm: %w", unix.ENOTSUP)
}

// Attribute is 0 where the driver is too old to know the attribute.
func (s *session) Attribute(a backend.Attr) (int, error) {
	var arg getAttr
	switch a {
	case backend.AttrPersistentMapping:
		arg.attr = attrPersistent
	case backend.AttrForcePCIe:
		arg.attr = attrForcePCIe
	default:
		return 0, nil
	}
	if s.driver < sincePinV2 {
		return 0, nil
	}
	err := ioctl(s, "GET_ATTR", iocGetAttr, &arg)
	return int(arg.value), err
}

func (s *session) Name() string { return Backend{}.Name() }

// Version is the driver's.
func (s *session) Version() (int, int) { return s.driver.major(), s.driver.minor() }

func (s *session) Close() error {
	if s.check() != nil {
		return nil // the driver has freed what the file had
	}
	return s.kernel.close(s.fd)
}

// pin is one handle of the driver. While it is mapped, va is not 0.
type pin struct {
	session   *session
	handle    uint64
	requested backend.MappingType // what the driver last was asked for
	va        uintptr
}

func (p *pin) Info() (backend.Info, error) {
	info, _, err := p.info()
	return info, err
}

// info asks for the buffer's data and the type of its mapping.
func (p *pin) info() (backend.Info, backend.MappingType, error) {
	s := p.session
	if s.driver >= sinceInfoV2 {
		arg := getInfoV2{handle: p.handle}
		err := ioctl(s, "GET_INFO_V2", iocGetInfoV2, &arg)
		return backend.Info{
			VA: arg.va, MappedSize: arg.mappedSize, PageSize: arg.pageSize,
			TMCycles: arg.tmCycles, CyclesPerMS: arg.tscKHz,
		}, backend.MappingType(arg.mappingType), err
	}
	arg := getInfo{handle: p.handle}
	err := ioctl(s, "GET_INFO", iocGetInfo, &arg)
	mapping := backend.None
	switch {
	case arg.mapped != 0 && arg.wcMapping != 0:
		mapping = backend.WC
	case arg.mapped != 0:
		mapping = backend.Caching
	}
	return backend.Info{
		VA: arg.va, MappedSize: arg.mappedSize, PageSize: arg.pageSize,
		TMCycles: arg.tmCycles, CyclesPerMS: arg.tscKHz,
	}, mapping, err
}

// Map fails with ENOTSUP where the driver does not map as the type want. A driver before
// 2.5 always chooses the type itself. There its choice must be want.
func (p *pin) Map(size uint64, want backend.MappingType) (uintptr, backend.MappingType, error) {
	s := p.session
	if size == 0 || p.va != 0 {
		return 0, backend.None, unix.EINVAL
	}
	if err := p.request(want); err != nil {
		return 0, backend.None, err
	}
	if err := s.check(); err != nil {
		return 0, backend.None, err
	}
	// The offset names the buffer, because a handle is a page number.
	va, err := s.kernel.mmap(s.fd, p.handle*uint64(unix.Getpagesize()), uintptr(size))
	if err != nil {
		return 0, backend.None, fmt.Errorf("mmap of gdrdrv: %w", err)
	}
	_, got, err := p.info()
	if err == nil && got == backend.None {
		err = fmt.Errorf("the GPU memory was freed while it was being mapped; let the free wait for the map: %w", unix.EAGAIN)
	} else if err == nil && want != backend.None && want != got {
		err = fmt.Errorf("mapping type %d was asked for, gdrdrv gave type %d; ask for that type, or for none: %w", want, got, unix.ENOTSUP)
	}
	if err != nil {
		return 0, backend.None, errors.Join(err, s.kernel.munmap(va, uintptr(size)))
	}
	p.va = va
	return va, got, nil
}

// request requests a mapping type of the driver. It requests None only to undo an
// earlier request.
func (p *pin) request(want backend.MappingType) error {
	if p.session.driver < sincePinV2 || want == p.requested {
		return nil
	}
	arg := reqMappingType{handle: p.handle, mappingType: uint32(want)}
	if err := ioctl(p.session, "REQ_MAPPING_TYPE", iocReqMappingType, &arg); err != nil {
		return err
	}
	p.requested = want
	return nil
}

func (p *pin) Unmap() error {
	if p.va == 0 {
		return unix.EINVAL
	}
	p.va = 0
	return nil
}

func (p *pin) CallbackFlag() (int, error) {
	arg := getCBFlag{handle: p.handle}
	err := ioctl(p.session, "GET_CB_FLAG", iocGetCBFlag, &arg)
	return int(arg.flag), err
}

// Export refuses: gdrdrv has no descriptor of a buffer.
func (p *pin) Export(uint32) (int, error) {
	return -1, fmt.Errorf("gdrdrv exports no buffer; open with GDRCOPY_BACKEND=rm: %w", unix.ENOTSUP)
}

// Object refuses: gdrdrv knows pages alone.
func (p *pin) Object() (backend.Object, error) {
	return backend.Object{}, fmt.Errorf("gdrdrv knows no memory objects; open with GDRCOPY_BACKEND=rm: %w", unix.ENOTSUP)
}

func (p *pin) Unpin() error {
	arg := unpinBuffer{handle: p.handle}
	return ioctl(p.session, "UNPIN_BUFFER", iocUnpinBuffer, &arg)
}
