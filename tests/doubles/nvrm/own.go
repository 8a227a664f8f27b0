package nvrm

import (
	"strings"

	"golang.org/x/sys/unix"
)

// The requests that the real driver does not have. The simulated libcuda makes them; so does share (0x35), whose real
// request has more fields. CUDA's ordinals are the GPUs of CARD_INFO in the order of their PCI addresses.

// info: the client may be another process's, where the object is shared.
func (d *Driver) info(q *request) error {
	o, err := d.ownMemory(q)
	if c := d.Client(q.arg.u32("client")); err != nil && c != nil {
		if other := c.Object(q.arg.u32("object")); other != nil && other.shared {
			o, err = other, nil
		}
	}
	if err != nil {
		return err
	}
	q.arg.put64("size", o.Memory.Size)
	q.arg.put32("gpu_id", o.GPU.ID)
	return nil
}

func (d *Driver) stats(q *request) error {
	g := d.gpuByID(q.arg.u32("gpu_id"))
	clear(q.arg.from("status"))
	if g == nil {
		return InvalidArgument
	}
	q.arg.put64("total", gpuMemory)
	q.arg.put64("used", g.used)
	return nil
}

// mmap answers what mmap(length, fd, offset) maps. The caller closes out_fd. If the process may have
// no more descriptors out_fd is fd itself, and fd's file is gone. ENOTTY: the file is none of this driver's. Where the address is not 0
// mmap maps nothing and answers that address, as drivers before 595 do on a lost GPU.
func (d *Driver) mmap(q *request) error {
	const page = 4096 // of this machine
	a, f := q.arg, q.file
	length, offset := a.u64("length"), a.u64("offset")
	a.put32("address", 0)
	if f.Kind == DMABuf {
		switch {
		case f.length == 0:
			return unix.ENODEV // the real driver gives 524
		case offset%page != 0 || length > f.length || offset > f.length-length:
			return errInvalid
		}
		return givePages(q, f.memory, f.offset+offset)
	}
	// [nvidia_mmap_helper]
	memory, m := d.Mapped(f)
	if m == nil || offset != 0 {
		return errInvalid
	}
	failure := d.Fault(f, "MMAP_STATUS")
	if failure == 0 && f.Kind == Device && d.lost(q) {
		failure = int32(GPUIsLost)
	}
	if failure != 0 && d.Version >= 595 {
		return unix.ENODEV
	}
	if failure != 0 {
		a.put32("address", uint32(failure))
		return nil
	}
	pages := (length + page - 1) / page * page
	if f.Kind == Device && pages != m.Length {
		return unix.ENXIO
	}
	if pages > memory.Size-m.Offset {
		return unix.ERANGE
	}
	return givePages(q, memory, m.Offset)
}

func givePages(q *request, m *Memory, offset uint64) error {
	there, err := q.Give(m.FD, true)
	// A dma-buf's descriptor is used again, a GPU's is not.
	if err == unix.EMFILE && q.file.Kind != DMABuf {
		there, err = q.Replace(m.FD)
	}
	if err != nil {
		return err
	}
	q.arg.put64("offset", offset)
	q.arg.put32("out_fd", uint32(int32(there)))
	return nil
}

// holds says whether the file keeps memory alive, as a dma-buf and an exported object do. ENOTTY: a dma-buf of the kernel's.
func (d *Driver) holds(q *request) error {
	if q.file.memory == nil && q.file.exports == nil {
		return unix.ENODATA
	}
	return nil
}

// live counts what the caller's process has by files that cuda has not marked
func (d *Driver) live(q *request) error {
	var objects, mappings uint32
	for _, c := range d.Clients {
		if c.File.CUDA || !q.IsOf(c.Process) {
			continue
		}
		for _, o := range c.Objects {
			if o.Memory != nil {
				objects++
			}
			mappings += uint32(len(o.Mappings))
		}
	}
	q.arg.put32("objects", objects)
	q.arg.put32("mappings", mappings)
	return nil
}

// fail makes a rule of NVRM_SIM_FAIL: result 0 drops the name's rules, nth 0 is every call
func (d *Driver) fail(q *request) error {
	name, _, ended := strings.Cut(string(q.arg.bytes[:32]), "\x00")
	if !ended || !d.Fail(name, int32(q.arg.u32("result")), uint64(q.arg.u32("nth"))) {
		return errInvalid
	}
	return nil
}

// cuda marks a file as the simulated libcuda's, whose requests NVRM_SIM_FAIL does not fail.
func (d *Driver) cuda(q *request) error {
	q.file.CUDA = true
	return nil
}
