package rm

import (
	"errors"
	"fmt"

	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

var (
	// errNotWatched means that exports cannot be watched in this process.
	errNotWatched = errors.New("exports of this CUDA driver cannot be watched")

	// errNotSaid means that CUDA refused an export before it asked the kernel. It does so
	// for another process's memory, and for a page that begins before a small buffer,
	// where nothing is allocated.
	errNotSaid = errors.New("CUDA does not say where memory lies")
)

// question asks CUDA about the memory of pages. It works in a context that knows the memory.
type question struct {
	*found
	session *session
	cuda    *cuda.Driver
	last    uint64 // requested byte inside an allocation
}

// ask finds the objects of unheard memory by questions to CUDA.
func (s *session) ask(r pages) (f found, err error) {
	before, _ := s.ears.At(r.first, r.end)
	addr, size := r.Sought()
	err = s.cuda.OnMemory(addr, size, func(m cuda.MemoryInfo, at uint64) (err error) {
		f = found{pages: r, memory: m, at: at, before: before}
		last, err := s.lastByte(&f)
		if err != nil {
			return err
		}
		if f.gpu, err = s.gpuAt(m.Ordinal); err != nil {
			return err
		}
		f.context, err = s.cuda.KeepMemory(m, at, func(in *cuda.Driver) error {
			return (&question{&f, s, in, last}).ask()
		})
		return err
	})
	return f, err
}

// lastByte gives the last requested byte. That may lie past the end of the allocation, on its last GPU
// page. Then the first byte of that page stands for it: no object ends inside of a GPU page.
func (s *session) lastByte(f *found) (uint64, error) {
	last := f.Addr + f.Size - 1
	if f.memory.Legacy || last < min(f.memory.MappingEnd(), f.memory.End()) {
		return last, nil
	}
	_, err := s.cuda.MemoryAt(last)
	if errors.Is(err, unix.EINVAL) {
		last = max(f.end-gpuPage, f.at)
		_, err = s.cuda.MemoryAt(last)
	}
	return last, err
}

// ask finds all objects, in the order of addresses.
func (q *question) ask() error {
	err := q.askForEach()
	switch {
	case errors.Is(err, errNotWatched) && q.memory.Legacy:
		return fmt.Errorf("%w, and CUDA gives no IPC handle, as in the guest of a vGPU; load gdrdrv: %w", err, unix.ENOTSUP)
	case errors.Is(err, errNotWatched):
		return q.importAll()
	}
	return err
}

// askForEach finds the objects in which the memory lies.
func (q *question) askForEach() error {
	page := q.at &^ (hostPage - 1)
	e, err := q.object(page, q.memory)
	if err != nil {
		return err
	}
	e, ok := e.shifted(int64(q.first) - int64(page))
	if !ok {
		return fmt.Errorf("%#x lies before the memory that %#x is in: %w", q.first, q.at, unix.EINVAL)
	}
	end := q.memory.MappingEnd()
	if q.memory.Legacy {
		end = q.end // checkEnd asks the driver where the object ends
	} else if q.memory.MappingSize == 0 {
		return fmt.Errorf("the CUDA driver does not say where the memory object at %#x ends; install a driver of 535 or later: %w", q.at, unix.ENOTSUP)
	}
	e.length = min(end, q.end) - q.first
	q.add(e)
	for end <= q.last {
		m, err := q.cuda.MemoryAt(end)
		if err != nil {
			return err
		}
		if e, err = q.object(end, m); err != nil {
			return err
		}
		next := m.MappingEnd()
		if next <= end {
			return fmt.Errorf("the CUDA driver maps %d bytes at %#x to the address %#x: %w", m.MappingSize, m.Mapping, end, unix.EIO)
		}
		e.length = min(next, q.end) - end
		q.add(e)
		end = next
	}
	return nil
}

// object gives the extent, of length 0, that begins at a host page of memory that m describes. If CUDA
// exports nothing there, the IPC handle names the object of cuMemAlloc's memory.
func (q *question) object(page uint64, m cuda.MemoryInfo) (extent, error) {
	e, err := q.byExport(page)
	switch silent := errors.Is(err, errNotWatched) || errors.Is(err, errNotSaid); {
	case silent && m.Legacy && q.session.proves(q.gpu, byIPC):
		return objectByIPC(q.cuda, page, m)
	case errors.Is(err, errNotSaid) && !m.Legacy:
		return q.byNeighbour(page, m, err)
	}
	return e, err
}

// byExport is object by a watched export of the page. An export of a pool's memory fails, but
// its request names the object all the same.
func (q *question) byExport(page uint64) (extent, error) {
	export := q.cuda.ExportFunction()
	if export == 0 {
		return extent{}, errNotWatched
	}
	seen, err := q.session.ears.Watch(export, page, hostPage)
	if err != nil {
		return extent{}, fmt.Errorf("%w (%v)", errNotWatched, err)
	}
	fd, err := cuda.OwnExport(seen.Result, seen.FD)
	if err == nil {
		err = sys.Close(fd)
	}
	switch {
	case seen.Object != 0:
		return extent{client: handle(seen.Client), from: handle(seen.Object), offset: seen.Offset}, nil
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

// byNeighbour is byExport for a page of a pool's that begins in free space, of which CUDA
// says nothing. It asks for the nearest page of the same object that begins in memory, by now perhaps
// the page itself. why is the error of byExport.
func (q *question) byNeighbour(page uint64, m cuda.MemoryInfo, why error) (extent, error) {
	for away := uint64(0); away < m.MappingSize; away += hostPage {
		for _, near := range []uint64{page + away, page - away} {
			if near < m.Mapping || near >= m.MappingEnd() {
				continue
			}
			there, err := q.cuda.MemoryAt(near)
			if err != nil {
				continue
			}
			e, err := q.byExport(near)
			if err == nil {
				if e, ok := e.shifted(int64(page) - int64(near)); ok {
					return e, nil
				}
				return extent{}, why
			}
			if q.cuda.IsStill(there, near) {
				return extent{}, err
			}
		}
	}
	return extent{}, fmt.Errorf("the page at %#x begins in free space, and so does each page with memory of its pool; allocate %d bytes or more: %w (%v)", page, hostPage, unix.ENOTSUP, why)
}

// shifted is e from n bytes further on; n may be negative. It is false where the object has no
// such offset.
func (e extent) shifted(n int64) (extent, bool) {
	offset := int64(e.offset) + n
	e.offset = uint64(offset)
	return e, offset >= 0
}

// Words of an IPC handle.
const (
	ipcOffset = 7 // of the allocation in its object, in bytes
	ipcClient = 12
	ipcObject = 13
)

// objectByIPC is question.object by the allocation's IPC handle. CUDA gives one for each address inside of
// an allocation, so it must still be this one.
func objectByIPC(in *cuda.Driver, page uint64, m cuda.MemoryInfo) (extent, error) {
	words, err := in.IPCHandle(m.Start)
	if err != nil {
		return extent{}, err
	}
	if !in.IsStill(m, m.Start) {
		return extent{}, fmt.Errorf("the memory at %#x was freed: %w", m.Start, unix.EINVAL)
	}
	e := extent{client: handle(words[ipcClient]), from: handle(words[ipcObject]), offset: uint64(words[ipcOffset])}
	e, ok := e.shifted(int64(page - m.Start))
	if !ok || e.client == 0 || e.from == 0 {
		return extent{}, fmt.Errorf("the IPC handle of %#x names no memory object: %w", m.Start, unix.ENOTSUP)
	}
	return e, nil
}

// importAll gives our client VMM memory by its file descriptors, one allocation at a
// time. It needs no watched export. The memory must be exportable as a file descriptor.
func (q *question) importAll() (err error) {
	q.extents = nil
	defer func() {
		if err != nil {
			_ = (&pin{gpu: q.gpu, extents: q.extents}).Unpin()
		}
	}()
	for at := q.first; at < q.end; {
		base, length, err := q.cuda.MemGetAddressRange(at)
		if err != nil {
			return err
		}
		object, err := q.importAt(at)
		if err != nil {
			return err
		}
		end := min(base+length, q.end)
		q.add(extent{object: object, offset: at - base, length: end - at})
		at = end
	}
	return nil
}

// importAt imports the VMM allocation that is mapped at an address.
func (q *question) importAt(at uint64) (handle, error) {
	h, err := q.cuda.MemRetainAllocationHandle(at)
	if err != nil {
		return 0, fmt.Errorf("%w, and the memory at %#x has no allocation handle; load gdrdrv: %w (%v)", errNotWatched, at, unix.ENOTSUP, err)
	}
	defer func() {
		if err := q.cuda.MemRelease(h); err != nil {
			log.Warnf("a reference to the GPU memory at %#x is lost: %v", at, err)
		}
	}()
	fd, err := q.cuda.MemExport(h)
	if errors.Is(err, cuda.ErrInvalidValue) {
		err = fmt.Errorf("%w (%v)", unix.ENOTSUP, err)
	}
	if err != nil {
		return 0, fmt.Errorf("%w, and the memory at %#x cannot be exported; create it with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, or load gdrdrv: %w", errNotWatched, at, err)
	}
	object, err := q.gpu.importMemory(fd)
	return object, errors.Join(err, sys.Close(fd))
}
