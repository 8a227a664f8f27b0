package cuda

import (
	"errors"

	"gdrapi/core/log"
)

// SetSyncMemops makes CUDA complete synchronous copies to and from memory before they
// return. So the CPU's mapping never shows bytes from before such a copy. It does so for m,
// the memory at the address at, and for all other memory before end. SetSyncMemops needs
// the context of m, see WithMemory.
//
// Memory of cuMemCreate has no such attribute (580.159.04 answers NOT_SUPPORTED): there the
// program synchronises, as docs/ordering.md says. The flag of the same name that a context
// has is the program's: to set it ends captures.
//
// Where the driver fails otherwise, a log line says so. The pinning is good all the same.
func (d *Driver) SetSyncMemops(m MemoryInfo, at, end uint64) {
	set := func(in *Driver) error {
		on := int32(1)
		return in.call(symPointerSetAttribute, &on, SyncMemops, at)
	}
	err := set(d)
	for {
		if err != nil && !errors.Is(err, ErrNotSupported) {
			// The program may have freed it meanwhile.
			if id, gone := d.BufferID(at); gone == nil && id == m.ID {
				log.Warnf("the CUDA driver cannot set SYNC_MEMOPS for %#x; synchronise after each cuMemcpy before you read the mapping: %v", at, err)
			}
		}
		if m.End() >= end {
			return
		}
		var found bool
		if m, at, found = d.nextMemory(max(m.End(), at+1), end); !found {
			return
		}
		err = d.WithMemory(m, at, set)
	}
}

// WithMemory calls fn with a context current in which CUDA knows the memory at addr, which
// m describes. fn's calls are those of one Relaxed. What was current before is current
// again afterwards. WithMemory does not ask what it is: a program may leave a context
// current that it has destroyed, and libcuda faults in some calls then. It takes
//
//  1. the context that the memory was allocated in. Memory of cuMemAlloc has one;
//  2. else the device's primary context, if it is active;
//  3. else the current context, if it knows the address: to make a primary context takes
//     0.2 s and 500 MB;
//  4. else the primary context, for the time of the call.
func (d *Driver) WithMemory(m MemoryInfo, addr uint64, fn func(in *Driver) error) error {
	return d.Relaxed(func(d *Driver) error {
		if m.Context != 0 {
			return d.lend(m.Context, fn)
		}
		dev, err := d.device(m.Ordinal)
		if err != nil {
			return err
		}
		if !d.primaryIsActive(dev) {
			if _, _, err := d.MemGetAddressRange(addr); err == nil {
				return fn(d)
			}
		}
		return d.WithPrimary(m.Ordinal, fn)
	})
}

// WithPrimary is WithMemory in the primary context of a device.
func (d *Driver) WithPrimary(ordinal int, fn func(in *Driver) error) error {
	return d.Relaxed(func(d *Driver) error {
		dev, err := d.device(ordinal)
		if err != nil {
			return err
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
		return d.lend(primary, fn)
	})
}

// lend calls fn with c in place of the thread's current context.
func (d *Driver) lend(c Context, fn func(in *Driver) error) error {
	if err := d.call(symCtxPushCurrent, c); err != nil {
		return err
	}
	defer func() {
		if err := d.call(symCtxPopCurrent, &c); err != nil {
			log.Warnf("a context of the library's choice stays current on this thread: %v", err)
		}
	}()
	return fn(d)
}

func (d *Driver) primaryIsActive(dev Device) bool {
	var flags uint32
	var active int32
	err := d.call(symDevicePrimaryCtxGetState, dev, &flags, &active)
	return err == nil && active != 0
}
