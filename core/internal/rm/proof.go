package rm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// CUDA does not document what names its memory objects. This file finds out, once in a
// process for each GPU, whether they mean what this package thinks:
//
//  1. Two ways that name the same object and offset are both right: an IPC handle and a
//     request of the kernel have nothing in common but the memory that they are of.
//  2. Else a way is tried on memory of our own that has random bytes.
//  3. Where no such memory is to be had, bytes of the caller's memory are compared.
//
// An object that is imported from a file descriptor is what CUDA has exported.
//
// Nothing here waits for other work of the GPU, or loses a capture. What is allocated
// stays: to free it would wait for a kernel that runs.

// way is a way to find the object that an address lies in.
type way int

const (
	byIPC    way = iota // the IPC handle of cuMemAlloc's memory
	byExport            // a watched export, of any memory
	wayCount
)

func (w way) String() string {
	return [...]string{"IPC handles", "dma-buf exports"}[w]
}

// verdict is what is known of a way.
type verdict int32

const (
	untried verdict = iota
	right
	wrong
)

// proof has the verdicts for one GPU.
type proof struct {
	verdicts [wayCount]atomic.Int32
	tried    [wayCount]atomic.Bool // on memory of our own, of which there is one for each way
}

func (p *proof) of(w way) verdict { return verdict(p.verdicts[w].Load()) }

func (p *proof) set(w way, v verdict) {
	if p.verdicts[w].Swap(int32(v)) != int32(v) && v == wrong {
		log.Warnf("this NVIDIA driver differs from those that are known: its %v do not lead to the memory, and are not used", w)
	}
}

// proofOf gives the proof of a GPU. The caller holds process.mu.
func proofOf(gpu cuda.PCIAddress) *proof {
	if process.proofs == nil {
		process.proofs = map[cuda.PCIAddress]*proof{}
	}
	if process.proofs[gpu] == nil {
		process.proofs[gpu] = new(proof)
	}
	return process.proofs[gpu]
}

// errDiffers is for an extent that is not the memory's.
func errDiffers(w way, at uint64) error {
	return fmt.Errorf("this NVIDIA driver differs from those that are known: its %v do not lead to the memory at %#x; load gdrdrv: %w", w, at, unix.ENOTSUP)
}

// confirm returns nil where e, as w has found it, begins at the page. m describes the page's
// memory.
func (f *finder) confirm(w way, page uint64, m cuda.MemoryInfo, e extent) error {
	if m.Legacy && w == byExport && f.agree(page, m, e) {
		return nil
	}
	if f.gpu.proof.of(w) == untried {
		f.tryOnOwn(w)
	}
	switch f.gpu.proof.of(w) {
	case right:
		if m.Legacy && w == byExport {
			f.agree(page, m, e) // a difference is the handle's now
		}
		return nil
	case wrong:
		return errDiffers(w, page)
	}
	at := max(page, m.Start)
	e, _ = e.shifted(int64(at - page))
	same, err := f.compare(e, at, min(lineSize, m.End()-at))
	if err == nil && !same {
		err = errDiffers(w, page)
	}
	return err
}

// agree notes whether the IPC handle gives the extent that an export gave. Where they
// differ, or there is no handle, nothing is known of the export.
func (f *finder) agree(page uint64, m cuda.MemoryInfo, seen extent) bool {
	if f.gpu.proof.of(byIPC) == wrong {
		return false
	}
	e, err := f.findByIPC(page, m)
	if err != nil {
		log.Debugf("cuIpcGetMemHandle: %v", err)
		return false
	}
	if e == seen {
		f.gpu.proof.set(byIPC, right)
		f.gpu.proof.set(byExport, right)
		return true
	}
	if f.gpu.proof.of(byExport) == right {
		f.gpu.proof.set(byIPC, wrong)
	}
	return false
}

// ownSize is the size in bytes of our own memory: a few pages of the CPU's, in an object
// that others share.
const ownSize = 256 << 10

// tryOnOwn finds out whether a way is right, on memory of our own. It leaves the verdict
// untried where no such memory is to be had, the way fails with an error, or another thread is at it.
func (f *finder) tryOnOwn(w way) {
	if f.gpu.proof.tried[w].Swap(true) {
		return
	}
	addr, err := f.cuda.MemAlloc(ownSize)
	if err != nil {
		log.Debugf("no memory to try the driver's %v on: %v", w, err)
		f.gpu.proof.tried[w].Store(false)
		return
	}
	m, err := f.cuda.MemoryAt(addr)
	if err != nil {
		log.Debugf("memory of the library's own at %#x: %v", addr, err)
		return
	}
	page := addr &^ (hostPage - 1)
	if seen, err := f.findByExport(page); err == nil && f.agree(page, m, seen) {
		return
	}
	same, err := f.showsOwn(w, m, addr)
	switch {
	case err != nil:
		log.Debugf("the driver's %v, tried on memory of the library's own: %v", w, err)
	case same:
		f.gpu.proof.set(w, right)
	default:
		f.gpu.proof.set(w, wrong)
	}
}

// showsOwn writes random bytes at several offsets in our own memory at addr, and reports
// whether the extents that w finds for them show them.
func (f *finder) showsOwn(w way, m cuda.MemoryInfo, addr uint64) (bool, error) {
	for _, off := range []uint64{0, hostPage + 64, ownSize/2 + 3<<12 - 64, ownSize - 64} {
		want := make([]byte, lineSize)
		for i := 0; i < len(want); i += 8 {
			binary.NativeEndian.PutUint64(want[i:], rand.Uint64())
		}
		if err := f.cuda.WriteOut(addr+off, want); err != nil {
			return false, err
		}
		got, err := f.readBy(w, m, addr+off, lineSize)
		if err != nil || !bytes.Equal(got, want) {
			return false, err
		}
	}
	return true, nil
}

// readBy reads n bytes at an address of our own memory, through a window of the extent that w
// finds.
func (f *finder) readBy(w way, m cuda.MemoryInfo, at, n uint64) (_ []byte, err error) {
	e, err := f.findBy(w, at&^(hostPage-1), m)
	if err != nil {
		return nil, err
	}
	object, err := f.gpu.duplicate(e)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.gpu.free(object)) }()
	return f.gpu.read(object, e.offset+at%hostPage, n)
}

// findBy is find by one way.
func (f *finder) findBy(w way, page uint64, m cuda.MemoryInfo) (extent, error) {
	if w == byIPC {
		return f.findByIPC(page, m)
	}
	return f.findByExport(page)
}

// lineSize is the number of bytes that are compared at one offset.
const lineSize = 64

// compare reports whether the first n bytes of an extent can be those at an address of the
// caller's. Anybody may be writing them meanwhile. So they are read through a window and
// by the GPU's copy in turns. They differ only where a word was the same in all reads of
// one side, and the same in all reads of the other, and is not the same in both.
func (f *finder) compare(e extent, addr, n uint64) (same bool, err error) {
	object, err := f.gpu.duplicate(e)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.gpu.free(object)) }()
	const rounds = 8
	var mapped, copied [rounds][]byte
	for i := range rounds {
		if mapped[i], err = f.gpu.read(object, e.offset, n); err != nil {
			return false, err
		}
		copied[i] = make([]byte, n)
		if err = f.cuda.ReadBack(copied[i], addr); err != nil {
			return false, err
		}
		if bytes.Equal(mapped[i], copied[i]) {
			return true, nil
		}
	}
	for at := uint64(0); at < n; at += 8 {
		end := min(at+8, n)
		steady := true
		for i := 1; i < rounds; i++ {
			steady = steady && bytes.Equal(mapped[i][at:end], mapped[0][at:end]) && bytes.Equal(copied[i][at:end], copied[0][at:end])
		}
		if steady && !bytes.Equal(mapped[0][at:end], copied[0][at:end]) {
			return false, nil
		}
	}
	return true, nil
}

// read reads n bytes of an object of our client, through a window of their page.
func (g *gpu) read(object handle, offset, n uint64) ([]byte, error) {
	page := offset &^ (hostPage - 1)
	w, fd, err := g.openWindow(extent{object: object, offset: page, length: hostPage})
	if err != nil {
		return nil, err
	}
	va, err := sys.Mmap(fd, 0, uintptr(hostPage))
	_ = sys.Close(fd)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mmap of GPU memory: %w", err), g.closeWindow(w))
	}
	b := make([]byte, n)
	load(b, va+uintptr(offset-page))
	return b, errors.Join(sys.Munmap(va, uintptr(hostPage)), g.closeWindow(w))
}
