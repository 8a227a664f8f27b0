// Package rm is the backend that maps GPU memory with requests to the resource manager
// (RM) of NVIDIA's kernel driver, on /dev/nvidiactl and /dev/nvidiaN. It maps any
// device memory that CUDA allocated in this process. It needs no other kernel module
// and no privilege. Drivers from 535 on have all of these requests.
//
// A pin duplicates CUDA's memory objects into a client of our own. So pinned memory
// stays alive after the program has freed it, and its mappings stay valid.
package rm

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// gpuPage is the unit of a pin in bytes, as on gdrdrv.
const gpuPage = 1 << 16

var hostPage = uint64(unix.Getpagesize())

// Backend is the rm backend.
type Backend struct {
	// Ears hear which memory object an address lies in. Without them (nil) the backend
	// asks CUDA.
	Ears Ears
	// Named is true where the user asked for this backend by name. Else it does not open
	// where a GPU is coherent with the CPU.
	Named bool
}

func (Backend) Name() string { return "rm" }

// Open makes a client, asks it for the GPUs, and closes it again. Success proves that
// the driver's requests have the sizes that this package knows. Open does not
// initialise CUDA and leaves no descriptor open. The first pin of the process opens
// the descriptors that stay.
//
// Where the backend is named it opens without CUDA, too: imported memory needs none.
func (b Backend) Open() (backend.Session, error) {
	cu, err := cuda.Load()
	if err != nil && !b.Named {
		return nil, err
	}
	noCUDA := err
	coherent, version, err := probe(cu)
	if err != nil {
		return nil, err
	}
	if coherent && !b.Named {
		return nil, errCoherent
	}
	if b.Ears == nil {
		b.Ears = deaf{}
	}
	b.Ears.Listen(version)
	return &session{cuda: cu, noCUDA: noCUDA, ears: b.Ears, version: version, onCoherent: coherent}, nil
}

func access(path string) error { return unix.Access(path, unix.R_OK|unix.W_OK) }

// shown gives the GPUs that CUDA has in this process, or nil where CUDA is not initialised.
func shown(cu *cuda.Driver) map[cuda.PCIAddress]bool {
	if cu == nil {
		return nil
	}
	n, err := cu.DeviceCount()
	if err != nil {
		return nil
	}
	gpus := map[cuda.PCIAddress]bool{}
	for i := range n {
		at, err := cu.PCIAddress(i)
		if err != nil {
			return nil
		}
		gpus[at] = true
	}
	return gpus
}

// probe finds out whether this process may use a GPU, and whether the backend can serve it.
// coherent: a GPU of this machine is coherent with the CPU. probe asks only what the driver
// knows with no GPU opened: the first open of a GPU's device may initialise the GPU, which
// takes seconds.
func probe(cu *cuda.Driver) (coherent bool, v Version, err error) {
	if hostPage > gpuPage {
		return false, v, fmt.Errorf("the kernel's pages are of %d bytes, and the GPU's of %d: %w", hostPage, gpuPage, unix.ENOTSUP)
	}
	c, err := newClient()
	if err != nil {
		return false, v, err
	}
	defer func() {
		if err := sys.CloseOwn(c.fd, c.file); err != nil {
			log.Warnf("close of %s: %v", controlPath, err)
		}
	}()
	// A sandbox may filter DUP_OBJECT out, the one request of a pin that CUDA starts without. The
	// driver has no object 0 to duplicate.
	if err := do(c, "DUP_OBJECT", nrDup, &dupArgs{client: c.root, parent: c.root, clientSource: c.root}, nil); err != nil {
		return false, v, err
	}
	cards, err := c.cards()
	if err != nil {
		return false, v, err
	}
	err = c.anyUsable(cards, access, func() map[cuda.PCIAddress]bool { return shown(cu) })
	return slices.ContainsFunc(cards, c.isCoherent), c.version(), err
}

type session struct {
	cuda       *cuda.Driver // nil: noCUDA says why
	noCUDA     error
	ears       Ears
	version    Version // the driver's
	listens    atomic.Bool
	onCoherent bool    // Open has seen a GPU that is coherent with the CPU
	client     *client // nil before the first pin; process.mu guards it
}

// buffer is a range to pin, in whole GPU pages.
type buffer struct {
	first, end uint64
	asked      uint64 // first requested byte inside an allocation
	last       uint64 // last requested byte inside an allocation
	memory     cuda.MemoryInfo
}

// Pin pins the 64 KiB pages that the buffer touches. It ignores Token and VASpace.
func (s *session) Pin(req backend.PinRequest) (backend.Pin, error) {
	b := buffer{
		first: req.Addr &^ (gpuPage - 1),
		end:   (req.Addr + req.Size + gpuPage - 1) &^ (gpuPage - 1),
		last:  req.Addr + req.Size - 1,
	}
	if b.end <= b.first {
		return nil, fmt.Errorf("%d bytes at %#x pass the end of the address space: %w", req.Size, req.Addr, unix.EINVAL)
	}
	if s.cuda == nil {
		return nil, fmt.Errorf("memory is pinned by its address only where CUDA is; pass a descriptor to gdr_pin_fd, or install CUDA's driver: %w (%v)", unix.ENOTSUP, s.noCUDA)
	}
	p, err := s.pinHeard(b, req.Flags)
	if !errors.Is(err, errUnheard) {
		if err == nil {
			s.cuda.SyncMemops(req.Own())
			b.count("heard", &pinsHeard)
		}
		return orNil(p, err)
	}
	log.Debugf("%d bytes at %#x: %v", b.end-b.first, b.first, err)
	h, _ := s.ears.At(b.first, b.end)
	addr, size := req.Sought()
	err = s.cuda.OnMemory(addr, size, func(m cuda.MemoryInfo, at uint64) (err error) {
		b := b
		b.memory, b.asked = m, at
		p, err = s.pin(b, req)
		return err
	})
	if err == nil {
		p.keep(h)
		b.count("asked for", &pinsAsked)
	}
	return orNil(p, err)
}

// orNil is p, or a nil backend.Pin with err.
func orNil(p *pin, err error) (backend.Pin, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}

// checkFlags refuses what a GPU cannot do.
func (g *gpu) checkFlags(flags uint32) error {
	if (g.coherent || g.soc) && flags&backend.PinForcePCIe != 0 {
		return fmt.Errorf("the rm backend cannot force a mapping through PCIe on a GPU that is coherent with the CPU: %w", unix.EINVAL)
	}
	return nil
}

// pin pins a buffer that CUDA is asked for.
func (s *session) pin(b buffer, req backend.PinRequest) (*pin, error) {
	if !b.memory.Legacy && b.last >= min(b.memory.MappingEnd(), b.memory.End()) {
		if err := s.checkLast(&b); err != nil {
			return nil, err
		}
	}
	g, err := s.gpu(b.memory.Ordinal)
	if err != nil {
		return nil, err
	}
	if err := g.checkFlags(req.Flags); err != nil {
		return nil, err
	}
	p := &pin{gpu: g, ears: s.ears, first: b.first, size: b.end - b.first}
	p.context, err = s.cuda.KeepMemory(b.memory, b.asked, func(in *cuda.Driver) (err error) {
		f := finder{cuda: in, session: s, gpu: g}
		if p.extents, err = f.extents(b); err == nil {
			in.SyncMemops(req.Own())
		}
		return err
	})
	if err != nil {
		_ = p.Unpin()
		return nil, err
	}
	return p, nil
}

// checkLast looks for memory at the last byte. That may lie past the end of the allocation, on
// its last GPU page. Then the first byte of that page stands for it: no object ends inside of a
// GPU page.
func (s *session) checkLast(b *buffer) error {
	_, err := s.cuda.MemoryAt(b.last)
	if errors.Is(err, unix.EINVAL) {
		b.last = max(b.end-gpuPage, b.asked)
		_, err = s.cuda.MemoryAt(b.last)
	}
	return err
}

func (s *session) Attribute(a backend.Attr) (int, error) {
	switch a {
	case backend.AttrPersistentMapping:
		return 1, nil
	case backend.AttrForcePCIe:
		// Without NVLink-C2C each mapping goes through PCIe. On arm64 a GPU that Open did not
		// know may turn out to have it.
		if coherent, known := s.coherent(); coherent || !known && runtime.GOARCH == "arm64" {
			return 0, nil
		}
		return 1, nil
	}
	return 0, nil
}

// coherent reports whether a GPU is coherent with the CPU. known is false where Open and the
// pins until now have seen none.
func (s *session) coherent() (coherent, known bool) {
	if s.onCoherent {
		return true, true
	}
	process.mu.Lock()
	defer process.mu.Unlock()
	if s.client == nil {
		return false, false
	}
	gpus := s.client.all()
	for _, g := range gpus {
		coherent = coherent || g.coherent || g.soc
	}
	return coherent, len(gpus) > 0
}

func (s *session) Name() string { return Backend{}.Name() }

// Version is that of a gdrdrv that cannot force PCIe (2.4), where a GPU is coherent with the
// CPU. aws-ofi-nccl asks nothing else before it counts on a mapping through PCIe.
func (s *session) Version() (int, int) {
	if coherent, _ := s.coherent(); coherent {
		return 2, 4
	}
	return backend.Major, backend.Minor
}

// pin is a range of GPU pages. While it is mapped, it has windows.
type pin struct {
	gpu         *gpu
	ears        Ears          // nil: imported
	context     *cuda.Primary // nil: none, or somebody else keeps a context of the memory
	first, size uint64        // whole GPU pages
	extents     []extent      // in objects of our client
	windows     []window
}

// Info gives the GPU pages that are pinned, as gdrdrv does.
func (p *pin) Info() (backend.Info, error) {
	return backend.Info{VA: p.first, MappedSize: p.size, PageSize: gpuPage}, nil
}

func (p *pin) Map(size uint64, want backend.MappingType) (uintptr, backend.MappingType, error) {
	if err := p.moved(); err != nil {
		return 0, backend.None, err
	}
	va, got, err := p.mapFirst(uintptr(size))
	if err != nil {
		return 0, backend.None, err
	}
	if want != backend.None && want != got {
		err := fmt.Errorf("mapping type %d was asked for, the NVIDIA driver gave type %d; ask for that, or for none: %w", want, got, unix.EINVAL)
		return 0, backend.None, errors.Join(err, sys.Munmap(va, uintptr(size)), p.closeWindows())
	}
	return va, got, nil
}

func (p *pin) Unmap() error { return p.closeWindows() }

// CallbackFlag is always 0: no one revokes a duplicate.
func (p *pin) CallbackFlag() (int, error) { return 0, nil }

// Unpin frees our objects. When one fails, it goes on with the next.
func (p *pin) Unpin() error {
	var err error
	for _, extent := range p.extents {
		err = errors.Join(err, p.gpu.free(extent.object))
	}
	p.context.Release()
	return err
}
