package rm

import (
	"errors"
	"fmt"

	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"

	"golang.org/x/sys/unix"
)

// Seen is what libcuda asked the kernel during a watched export.
type Seen struct {
	Result   int32 // of cuMemGetHandleForAddressRange
	FD       int32 // what it gave, -1 for nothing
	Requests uint32
	Size     uint32 // of the request's struct, in bytes
	Client   uint32
	Object   uint32
	Offset   uint64
}

// finder finds the extents of device memory, for one call of a session. It works in the
// memory's context.
type finder struct {
	cuda    *cuda.Driver
	session *session
	gpu     *gpu
}

// errNotWatched means that exports cannot be watched in this process.
var errNotWatched = errors.New("exports of this CUDA driver cannot be watched")

// errNotSaid means that CUDA refused an export before it asked the kernel. It does so
// for another process's memory, and for a page that begins before a small buffer,
// where nothing is allocated.
var errNotSaid = errors.New("CUDA does not say where memory lies")

// find gives the extent that begins at a host page of device memory. m describes the memory. If CUDA
// exports nothing there, the IPC handle names the object of cuMemAlloc's memory.
func (f *finder) find(page uint64, m cuda.MemoryInfo) (extent, error) {
	e, err := f.findByExport(page)
	switch silent := errors.Is(err, errNotWatched) || errors.Is(err, errNotSaid); {
	case silent && m.Legacy && f.session.proven(f.gpu, byIPC):
		return f.findByIPC(page, m)
	case errors.Is(err, errNotSaid) && !m.Legacy:
		return f.findBeside(page, m, err)
	}
	return e, err
}

// Words of an IPC handle.
const (
	ipcOffset = 7 // of the allocation in its object, in bytes
	ipcClient = 12
	ipcObject = 13
)

// findByIPC is find by the allocation's IPC handle. CUDA gives one for each address inside of an
// allocation, so it must still be this one.
func (f *finder) findByIPC(page uint64, m cuda.MemoryInfo) (extent, error) {
	words, err := f.cuda.IPCHandle(m.Start)
	if err != nil {
		return extent{}, err
	}
	if !f.cuda.IsStill(m, m.Start) {
		return extent{}, fmt.Errorf("the memory at %#x was freed: %w", m.Start, unix.EINVAL)
	}
	e := extent{
		client: handle(words[ipcClient]), object: handle(words[ipcObject]),
		offset: uint64(words[ipcOffset]),
	}
	e, ok := e.shifted(int64(page - m.Start))
	if !ok || e.client == 0 || e.object == 0 {
		return extent{}, fmt.Errorf("the IPC handle of %#x names no memory object: %w", m.Start, unix.ENOTSUP)
	}
	return e, nil
}

// findByExport is find by a watched export of the page. An export of a pool's memory fails, but
// its request names the object all the same.
func (f *finder) findByExport(page uint64) (extent, error) {
	export := f.cuda.ExportFunction()
	if export == 0 {
		return extent{}, errNotWatched
	}
	seen, err := f.session.ears.Watch(export, page, hostPage)
	if err != nil {
		return extent{}, fmt.Errorf("%w (%v)", errNotWatched, err)
	}
	fd, err := cuda.OwnExport(seen.Result, seen.FD)
	if err == nil {
		err = sys.Close(fd)
	}
	switch {
	case seen.Object != 0:
		return extent{client: handle(seen.Client), object: handle(seen.Object), offset: seen.Offset}, nil
	case seen.Requests != 0:
		return extent{}, fmt.Errorf("this CUDA driver exports memory with a request of %d bytes, which this library does not know; load gdrdrv, or use a libgdrapi that knows the driver: %w", seen.Size, unix.ENOTSUP)
	case errors.Is(err, cuda.ErrNotSupported):
		return extent{}, fmt.Errorf("%w (%v)", errNotWatched, err)
	case errors.Is(err, unix.EMFILE), errors.Is(err, cuda.ErrOutOfMemory):
		return extent{}, err
	case err == nil:
		return extent{}, fmt.Errorf("%w (no request was seen)", errNotWatched)
	}
	return extent{}, fmt.Errorf("%w at %#x, so it is not this process's own allocation (memory of cudaIpcOpenMemHandle is another process's: pin it there): %w (%v)", errNotSaid, page, unix.ENOTSUP, err)
}

// findBeside is findByExport for a page of a pool's that begins in free space, of which CUDA
// says nothing. It asks for the nearest page of the same object that begins in memory, by now perhaps
// the page itself. why is the error of findByExport.
func (f *finder) findBeside(page uint64, m cuda.MemoryInfo, why error) (extent, error) {
	for away := uint64(0); away < m.MappingSize; away += hostPage {
		for _, near := range []uint64{page + away, page - away} {
			if near < m.Mapping || near >= m.MappingEnd() {
				continue
			}
			there, err := f.cuda.MemoryAt(near)
			if err != nil {
				continue
			}
			e, err := f.findByExport(near)
			if err == nil {
				if e, ok := e.shifted(int64(page) - int64(near)); ok {
					return e, nil
				}
				return extent{}, why
			}
			if f.cuda.IsStill(there, near) {
				return extent{}, err
			}
		}
	}
	return extent{}, fmt.Errorf("the page at %#x begins in free space, and so does each page with memory of its pool; allocate %d bytes or more: %w (%v)", page, hostPage, unix.ENOTSUP, why)
}
