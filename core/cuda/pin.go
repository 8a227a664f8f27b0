package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// DeviceOf gives the ordinal of the device that the memory at addr is on, or
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

// SetSyncMemops makes synchronous copies to and from the allocation at addr
// complete before they return, so that the CPU's mapping of it never shows
// bytes from before such a copy. It needs a current context.
//
// The driver has no such setting for memory of cuMemCreate (580.159.04 says
// NOT_SUPPORTED). The current context has one, for all of its copies (CUDA
// 12.1); so there that is set. Where neither can be, a line in the log says so:
// the pinning is good, and a caller that synchronises loses nothing.
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

// WithDevice calls fn on a thread whose current context is one of the device's:
// the thread's own where it is, else the device's primary context, which is
// given back before WithDevice returns. Another device's context will not do:
// the driver finds neither address ranges nor attributes of VMM memory in it.
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
	if err := d.ctxPushCurrent(primary); err != nil {
		return err
	}
	defer d.popBorrowed(current)
	return fn()
}

// popBorrowed leaves the thread with the context that it had, or none.
func (d *Driver) popBorrowed(current Context) {
	err := d.ctxPopCurrent()
	if err == nil {
		return
	}
	// Next best: the thread's stack of contexts keeps one too many.
	if d.ctxSetCurrent(current) != nil {
		log.Warnf("a primary context stays current on this thread: %v", err)
	}
}
