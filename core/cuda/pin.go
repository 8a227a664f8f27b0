package cuda

import (
	"errors"
	"fmt"

	"gdrapi/core/internal/sys"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// SyncMemops makes CUDA complete synchronous copies to and from the size bytes at addr before they
// return. So the CPU's mapping never shows bytes from before such a copy. The bytes are the
// caller's own: libcuda may fault on memory that another thread frees meanwhile. SyncMemops sets
// the attribute on each memory that has some of the bytes, as a whole. A size of 0 asks nothing.
//
// Memory of cuMemCreate has no such attribute (580.159.04 answers NOT_SUPPORTED): there the
// program synchronises. The flag of the same name that a context has is the program's: to set it
// ends captures.
//
// If the driver fails otherwise, a log line says so. The pinning is good all the same.
func (d *Driver) SyncMemops(addr, size uint64) {
	if size == 0 {
		return
	}
	err := d.Relaxed(func(d *Driver) error {
		return d.OnMemory(addr, size, func(m MemoryInfo, at uint64) (err error) {
			for found := true; found; m, at, found = d.nextMemory(max(m.End(), at+1), addr+size) {
				err = errors.Join(err, d.syncMemory(m, at))
			}
			return err
		})
	})
	if err != nil {
		log.Warnf("cannot set SYNC_MEMOPS on %#x, synchronise after each cuMemcpy before you read the mapping: %v", addr, err)
	}
}

// syncMemory is SyncMemops for the memory m at the address at. It makes no context for memory that
// has none of its own: that is of cuMemCreate, or of a pool, whose attribute the driver does not
// follow.
func (d *Driver) syncMemory(m MemoryInfo, at uint64) error {
	if m.Context == 0 && !d.HasPrimary(m.Ordinal) {
		if _, _, err := d.MemGetAddressRange(at); err != nil {
			return nil
		}
	}
	err := d.WithMemory(m, at, func(in *Driver) error {
		on := int32(1)
		return in.call(symPointerSetAttribute, &on, syncMemops, at)
	})
	if errors.Is(err, ErrNotSupported) || err != nil && !d.IsStill(m, at) { // the program may have freed it
		return nil
	}
	return err
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
	kept, err := d.KeepMemory(m, addr, fn)
	kept.Release()
	return err
}

// KeepMemory is WithMemory for memory that stays in use. Where it takes the fourth way, it
// returns a reference to the primary context, else nil: the next call takes the second way.
func (d *Driver) KeepMemory(m MemoryInfo, addr uint64, fn func(in *Driver) error) (kept *Primary, err error) {
	err = d.Relaxed(func(d *Driver) (err error) {
		if m.Context != 0 {
			// What MemoryAt read of memory that was freed meanwhile need not be a context: libcuda
			// faults in cuCtxPushCurrent then (580.159, H200).
			switch id, err := d.BufferID(addr); {
			case err != nil && !errors.Is(err, ErrInvalidValue):
				return err
			case id != m.ID:
				return fmt.Errorf("the memory at %#x was freed meanwhile: %w", addr, unix.EINVAL)
			}
			return d.lend(m.Context, fn)
		}
		if !d.HasPrimary(m.Ordinal) {
			if _, _, err := d.MemGetAddressRange(addr); err == nil {
				return fn(d)
			}
			if kept, err = d.RetainPrimary(m.Ordinal); err != nil {
				return err
			}
		}
		return d.WithPrimary(m.Ordinal, fn)
	})
	if err != nil {
		kept.Release()
		return nil, err
	}
	return kept, nil
}

// Primary is a reference to the primary context of a device, which is not current by that. The
// context stays until the last reference is released. A program may end it before, by
// cuDevicePrimaryCtxReset: that takes no reference away, so each one is released all the same.
type Primary struct {
	driver *Driver
	device Device
}

// RetainPrimary takes a reference to the primary context of a device, and makes the context
// where there is none.
func (d *Driver) RetainPrimary(ordinal int) (*Primary, error) {
	dev, _, err := d.retain(ordinal)
	if err != nil {
		return nil, err
	}
	return &Primary{&Driver{fn: d.fn}, dev}, nil // it outlasts a Relaxed of d's
}

func (d *Driver) retain(ordinal int) (dev Device, c Context, err error) {
	if dev, err = d.device(ordinal); err != nil {
		return 0, 0, err
	}
	if err = d.call(symDevicePrimaryCtxRetain, &c, dev); err != nil {
		return 0, 0, sys.ExplainFDs(err)
	}
	return dev, c, nil
}

// Release gives the reference back. It is called once. p may be nil.
func (p *Primary) Release() {
	if p == nil {
		return
	}
	if err := p.driver.call(symDevicePrimaryCtxRelease, p.device); err != nil {
		log.Warnf("a reference to the primary context of CUDA device %d is lost: %v", p.device, err)
	}
}

// WithPrimary is WithMemory in the primary context of a device.
func (d *Driver) WithPrimary(ordinal int, fn func(in *Driver) error) error {
	return d.Relaxed(func(d *Driver) error {
		dev, c, err := d.retain(ordinal)
		if err != nil {
			return err
		}
		defer (&Primary{d, dev}).Release()
		return d.lend(c, fn)
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

// HasPrimary reports whether the primary context of a device is active.
func (d *Driver) HasPrimary(ordinal int) bool {
	var flags uint32
	var active int32
	dev, err := d.device(ordinal)
	if err == nil {
		err = d.call(symDevicePrimaryCtxGetState, dev, &flags, &active)
	}
	return err == nil && active != 0
}
