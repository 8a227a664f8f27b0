package cuda

import (
	"runtime"
	"unsafe"

	"gdrapi/core/log"
)

// HostMemory is memory of this process that is page-locked for the copy engines of all
// GPUs.
//
// A registration lives in a context, and ends with it. HostMemory has the primary context
// of a device for that, and holds a reference to it until Unregister.
type HostMemory struct {
	driver  *Driver
	device  Device
	context Context
	addr    uintptr
}

// registerPortable is CU_MEMHOSTREGISTER_PORTABLE: the memory is page-locked in all
// contexts.
const registerPortable = 1

// RegisterHost page-locks the size bytes at addr, which may have any alignment. It
// initialises CUDA. The thread's current context does not change. Errors: EINVAL (no such
// memory), EEXIST (a byte of it is registered), ENODEV, and what else the driver answers.
func RegisterHost(addr uintptr, size uint64) (*HostMemory, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d, err := Load()
	if err != nil {
		return nil, err
	}
	if err := d.Init(); err != nil {
		return nil, err
	}
	dev, err := d.deviceInUse()
	if err != nil {
		return nil, err
	}
	m := &HostMemory{driver: d, device: dev, addr: addr}
	if m.context, err = d.primaryCtxRetain(dev); err != nil {
		return nil, err
	}
	if err := m.call(symMemHostRegister, addr, uintptr(size), registerPortable); err != nil {
		m.Release()
		return nil, err
	}
	return m, nil
}

// Unregister ends the page lock. It is called once. The memory may be gone.
func (m *HostMemory) Unregister() error {
	defer m.Release()
	return m.call(symMemHostUnregister, m.addr)
}

// call calls s in the context of m.
func (m *HostMemory) call(s symbol, args ...uintptr) error {
	return m.driver.withContext(m.context, func() error {
		defer m.driver.relaxCapture()()
		return m.driver.call(s, args...)
	})
}

// Release gives the context back. A registration that its context has ended with needs no
// more than that.
func (m *HostMemory) Release() {
	if err := m.driver.primaryCtxRelease(m.device); err != nil {
		log.Warnf("a reference to the primary context of CUDA device %d is lost: %v", m.device, err)
	}
}

// deviceInUse chooses a device that costs this process least: that of the thread's current
// context, or the first one whose primary context is active, or device 0. A context takes
// some hundred MiB of a GPU, so a process should get none on a GPU that it does not use.
func (d *Driver) deviceInUse() (Device, error) {
	if dev, err := d.ctxGetDevice(); err == nil {
		return dev, nil
	}
	count, err := d.DeviceCount()
	if err != nil {
		return 0, err
	}
	for ordinal := range count {
		dev, err := d.Device(ordinal)
		if err == nil && d.primaryIsActive(dev) {
			return dev, nil
		}
	}
	return d.Device(0)
}

func (d *Driver) primaryIsActive(dev Device) bool {
	var flags uint32
	var active int32
	err := d.call(symDevicePrimaryCtxGetState, uintptr(dev), uintptr(unsafe.Pointer(&flags)), uintptr(unsafe.Pointer(&active)))
	return err == nil && active != 0
}
