package rm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// place is where device memory lies: an object of CUDA's client, and the offset in
// the object in bytes.
type place struct {
	client, object handle
	offset         uint64
}

// plus is the place n bytes further on; n may be negative.
func (p place) plus(n int64) (place, bool) {
	at := int64(p.offset) + n
	p.offset = uint64(at)
	return p, at >= 0
}

// Seen is what libcuda asked the kernel during a watched export. See capi/watch.h.
type Seen struct {
	Result   int32 // of cuMemGetHandleForAddressRange
	FD       int32 // what it gave, -1 for nothing
	Requests uint32
	Size     uint32 // of the request's struct, in bytes
	Client   uint32
	Object   uint32
	Offset   uint64
}

// Watch exports size bytes at addr as a dma-buf with the CUDA function at export. It
// notes what libcuda asks the kernel during that call. Where it cannot see that, it
// returns ENOTSUP and exports nothing. This thread must have a current context.
type Watch func(export uintptr, addr, size uint64) (Seen, error)

// finder finds the objects that device addresses lie in.
type finder struct {
	cuda  driver
	watch Watch // nil: none
	ipc   *agreement
}

// agreement is whether the IPC handles of this driver have the layout that this
// package knows. The layout is not documented.
type agreement struct{ state atomic.Int32 }

const (
	notCompared = iota
	agrees
	differs
)

// ipcOf is the agreement of the process, which has one driver.
var ipcOf agreement

// errNotWatched means that exports cannot be watched in this process.
var errNotWatched = errors.New("exports of this CUDA driver cannot be watched")

// errNotSaid means that CUDA refused an export before it asked the kernel. It does so
// for another process's memory, and for a page that begins before a small buffer,
// where nothing is allocated.
var errNotSaid = errors.New("CUDA does not say where memory lies")

// find gives the place of a host page of device memory. m describes the memory.
//
// There are two ways. The IPC handle of cuMemAlloc names the object in 0.3 us. A
// watched export takes 12 to 50 us (H100). find uses the handle once both have agreed.
func (f *finder) find(page uint64, m cuda.MemoryInfo) (place, error) {
	if m.Legacy && f.ipc.state.Load() == agrees {
		if p, err := f.byIPC(page, m); err == nil {
			return p, nil
		}
	}
	p, err := f.byExport(page)
	if err == nil {
		f.compare(page, m, p)
		return p, nil
	}
	silent := errors.Is(err, errNotWatched) || errors.Is(err, errNotSaid)
	if silent && m.Legacy && f.ipc.state.Load() != differs {
		// verify compares the bytes before the object is used.
		if p, err := f.byIPC(page, m); err == nil {
			return p, nil
		}
	}
	return place{}, err
}

// compare notes whether the IPC handle and the export give the same place for the page.
func (f *finder) compare(page uint64, m cuda.MemoryInfo, seen place) {
	if !m.Legacy || f.ipc.state.Load() != notCompared {
		return
	}
	p, err := f.byIPC(page, m)
	switch {
	case err != nil:
		log.Debugf("cuIpcGetMemHandle: %v", err)
	case p == seen:
		f.ipc.state.CompareAndSwap(notCompared, agrees)
	default:
		f.ipc.state.CompareAndSwap(notCompared, differs)
		log.Warnf("this CUDA driver's IPC handles are laid out in another way: each pin watches an export, which takes longer")
	}
}

// Words of an IPC handle.
const (
	ipcOffset = 7 // of the allocation in its object, in bytes
	ipcClient = 12
	ipcObject = 13
)

// byIPC reads the place out of the allocation's IPC handle.
func (f *finder) byIPC(page uint64, m cuda.MemoryInfo) (place, error) {
	words, err := f.cuda.IPCHandle(m.Start)
	if err != nil {
		return place{}, err
	}
	p := place{client: handle(words[ipcClient]), object: handle(words[ipcObject]), offset: uint64(words[ipcOffset])}
	p, ok := p.plus(int64(page - m.Start))
	if !ok || p.client == 0 || p.object == 0 {
		return place{}, fmt.Errorf("the IPC handle of %#x names no memory object: %w", m.Start, unix.ENOTSUP)
	}
	return p, nil
}

// byExport watches an export of the page. An export of a pool's memory fails, but its
// request names the object all the same.
func (f *finder) byExport(page uint64) (place, error) {
	export := f.cuda.ExportFunction()
	if f.watch == nil || export == 0 {
		return place{}, errNotWatched
	}
	seen, err := f.watch(export, page, hostPage)
	if err != nil {
		return place{}, fmt.Errorf("%w (%v)", errNotWatched, err)
	}
	fd, err := cuda.OwnExport(seen.Result, seen.FD)
	if err == nil {
		err = sys.Close(fd)
	}
	switch {
	case seen.Object != 0:
		return place{client: handle(seen.Client), object: handle(seen.Object), offset: seen.Offset}, nil
	case seen.Requests != 0:
		return place{}, fmt.Errorf("this CUDA driver exports memory with a request of %d bytes, which this library does not know; load gdrdrv, or use a libgdrapi that knows the driver: %w", seen.Size, unix.ENOTSUP)
	case errors.Is(err, cuda.ErrNotSupported):
		return place{}, fmt.Errorf("%w (%v)", errNotWatched, err)
	case errors.Is(err, unix.EMFILE), errors.Is(err, cuda.ErrOutOfMemory):
		return place{}, err
	case err == nil:
		return place{}, fmt.Errorf("%w (no request was seen)", errNotWatched)
	}
	return place{}, fmt.Errorf("%w at %#x, so it is not this process's own allocation (memory of cudaIpcOpenMemHandle is another process's: pin it there): %w (%v)", errNotSaid, page, unix.ENOTSUP, err)
}

// verifiedSet has the objects that verify has confirmed.
type verifiedSet struct {
	mu  sync.Mutex
	set map[[2]handle]bool
}

// maxVerified bounds the set's memory. A set of that many objects is emptied.
const maxVerified = 4096

func (v *verifiedSet) has(p place) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.set[[2]handle{p.client, p.object}]
}

func (v *verifiedSet) add(p place) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.set == nil || len(v.set) >= maxVerified {
		v.set = map[[2]handle]bool{}
	}
	v.set[[2]handle{p.client, p.object}] = true
}
