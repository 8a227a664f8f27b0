package core

import (
	"cmp"
	"fmt"

	"gdrapi/core/backend"

	"golang.org/x/sys/unix"
)

// ExportWhole has Export refuse a buffer that is not all of its memory objects.
const ExportWhole = backend.ExportWhole

// Export gives a file descriptor of the buffer, close-on-exec, which keeps the memory. Device.PinFD
// pins it, in any process that gets it. The caller closes it. On rm it gives whole memory objects: with
// cudaMalloc up to 2 MiB, in which other allocations may lie. flags is 0 or ExportWhole. Errors:
// EINVAL (other flags), EPERM (ExportWhole, and there is more in the objects), ENOTSUP (not on this
// backend, or the buffer has too many objects), EMFILE.
func (b *Buffer) Export(flags uint32) (fd int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.may(toAsk); err != nil {
		return -1, err
	}
	if flags&^ExportWhole != 0 {
		return -1, fmt.Errorf("export flags %#x; pass 0 or GDR_EXPORT_FLAG_WHOLE: %w", flags, unix.EINVAL)
	}
	return b.pin.Export(flags)
}

// Object says where a buffer lies in the driver's memory objects, in bytes.
type Object = backend.Object

// Object says where the buffer is in what Export gives. Where Count is 1,
// cuMemImportFromShareableHandle takes the descriptor: it gives an object of Length bytes, and the
// buffer's first pinned page is at Offset. Errors: ENOTSUP (not on rm).
func (b *Buffer) Object() (Object, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.may(toAsk); err != nil {
		return Object{}, err
	}
	return b.pin.Object()
}

// PinFD pins what a descriptor of Export has. It needs no CUDA, and the caller may close the
// descriptor. The buffer's GPU addresses are those of the process that exported it; on dmabuf they
// count from 0. On rm it pins what cuMemExportToShareableHandle gives, too: the whole object, with
// addresses that count from 0. Errors: EINVAL (the descriptor is of something else; on dmabuf also of rm's), ENOTSUP
// (on gdrdrv; on rm a dma-buf, a memory pool's descriptor, or memory of a GPU in MIG mode), ENODEV (this process does not
// have the GPU), ENOMEM, EMFILE.
func (d *Device) PinFD(fd int) (*Buffer, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	pin, err := d.session.Import(fd)
	if err != nil {
		d.leave()
		return nil, err
	}
	info, err := pin.Info()
	if err != nil {
		defer d.leave()
		return nil, cmp.Or(err, pin.Unpin())
	}
	return d.addBuffer(pin, info.VA)
}
