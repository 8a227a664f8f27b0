package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// DeviceOf gives the ordinal of the device that has the memory at addr. It returns
// EINVAL where addr is no device pointer.
func (d *Driver) DeviceOf(addr uint64) (int, error) {
	ordinal, err := d.PointerAttribute(DeviceOrdinal, addr)
	switch {
	case errors.Is(err, ErrNotInitialized):
		return 0, notInitialized(addr, err)
	case errors.Is(err, ErrInvalidValue):
		return 0, fmt.Errorf("%#x is no CUDA device pointer (%w)", addr, err)
	case err != nil:
		return 0, err
	case ordinal < 0:
		return 0, fmt.Errorf("%#x is on no CUDA device: %w", addr, unix.EINVAL)
	}
	return ordinal, nil
}

// SetSyncMemops makes CUDA complete synchronous copies to and from the allocation at
// addr before they return. So the CPU's mapping never shows bytes from before such a
// copy. SetSyncMemops needs a current context.
//
// It tries two settings:
//
//  1. That of the allocation. Memory of cuMemCreate has none (580.159.04 answers
//     NOT_SUPPORTED).
//  2. That of the current context, for all copies of the context (CUDA 12.1).
//
// Where both fail, a log line says so. The pinning is good all the same; a caller then
// synchronises by itself.
func (d *Driver) SetSyncMemops(addr uint64) {
	err := d.setPointerAttribute(SyncMemops, addr, 1)
	if errors.Is(err, ErrNotSupported) {
		err = d.setCtxSyncMemops()
	}
	if err != nil {
		log.Warnf("the CUDA driver cannot set SYNC_MEMOPS for %#x; synchronise after each cuMemcpy before you read the mapping: %v", addr, err)
	}
}

// ctxSyncMemops is CU_CTX_SYNC_MEMOPS.
const ctxSyncMemops = 0x80

func (d *Driver) setCtxSyncMemops() error {
	var flags uint32
	if err := d.call(symCtxGetFlags, uintptr(unsafe.Pointer(&flags))); err != nil || flags&ctxSyncMemops != 0 {
		return err
	}
	return d.call(symCtxSetFlags, uintptr(flags|ctxSyncMemops))
}

// WithDevice calls fn on a thread whose current context is of the device. That is the
// thread's own context where it is of the device. Else it is the device's primary
// context, which WithDevice releases before it returns. Another device's context does
// not serve: in it the driver finds neither address ranges nor attributes of VMM memory.
func (d *Driver) WithDevice(ordinal int, fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	current, err := d.CtxGetCurrent()
	if err != nil {
		return err
	}
	dev, err := d.Device(ordinal)
	if err != nil {
		return err
	}
	if current != 0 {
		if of, err := d.ctxGetDevice(); err == nil && of == dev {
			return fn()
		}
	}
	primary, err := d.primaryCtxRetain(dev)
	if err != nil {
		return err
	}
	defer func() {
		if err := d.primaryCtxRelease(dev); err != nil {
			log.Warnf("a reference to the primary context of CUDA device %d is lost: %v", ordinal, err)
		}
	}()
	return d.lend(primary, current, fn)
}

// lend calls fn with c in place of the thread's current context.
func (d *Driver) lend(c, current Context, fn func() error) error {
	if err := d.ctxPushCurrent(c); err != nil {
		return err
	}
	defer d.popBorrowed(current)
	return fn()
}

// popBorrowed gives the thread back the context that it had, or none.
func (d *Driver) popBorrowed(current Context) {
	err := d.ctxPopCurrent()
	if err == nil {
		return
	}
	// Then the thread's stack of contexts keeps one context too many.
	if d.ctxSetCurrent(current) != nil {
		log.Warnf("a primary context stays current on this thread: %v", err)
	}
}
