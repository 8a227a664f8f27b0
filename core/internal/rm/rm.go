// Package rm is the backend that maps GPU memory with requests to the resource manager
// (RM) of NVIDIA's kernel driver, on /dev/nvidiactl and /dev/nvidiaN. It maps any
// device memory that CUDA allocated in this process. It needs no other kernel module
// and no privilege. Drivers from 535 on have all of these requests.
//
// A pin duplicates CUDA's memory objects into a client of our own. So pinned memory
// stays alive after the program has freed it, and its mappings stay valid.
package rm

import (
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
	return slices.ContainsFunc(gpus, func(g *gpu) bool { return g.coherent || g.soc }), len(gpus) > 0
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
