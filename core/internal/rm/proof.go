package rm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// Two ways to find the object that an address lies in are tried before they are used, once in a process
// for each GPU: they are no interface of anybody's. Random bytes are written into memory of our own, and
// read through a window of the object. (A watched export needs no trial: its request is the kernel's
// interface. An object that is imported from a file descriptor is what CUDA has exported.)
//
// Nothing here waits for other work of the GPU, or loses a capture. What is allocated stays: to free it
// would wait for a kernel that runs.

// way is one of the two.
type way int

const (
	byHearing way = iota // what libcuda tells the kernel
	byIPC                // the IPC handle of cuMemAlloc's memory
	wayCount
)

func (w way) String() string {
	return [...]string{"requests of libcuda", "IPC handles"}[w]
}

// verdict is what is known of a way.
type verdict int32

const (
	untried verdict = iota
	right
	wrong
)

// proofs are those of one GPU.
type proofs [wayCount]proof

// proof is whether a way leads to the memory of one GPU.
type proof struct {
	verdict atomic.Int32
	now     atomic.Pointer[trial] // nil: none is under way
	failed  atomic.Int32          // trials that had memory
}

// trial is one under way, by a thread.
type trial struct {
	thread int
	done   chan struct{}
}

func (p *proof) of() verdict { return verdict(p.verdict.Load()) }

const (
	ownSize    = 2 << 20 // an object of its own
	trialLimit = 5 * time.Second
	maxTrials  = 4  // each leaves its memory
	lineSize   = 64 // bytes that are compared at one offset
)

// proves reports whether a way leads to the memory of a GPU. That is tried once; other threads wait. A
// thread that a hook of CUDA's calls has led back here does not.
func (s *session) proves(g *gpu, w way) bool {
	p := &g.proofs[w]
	if v := p.of(); v != untried {
		return v == right
	}
	mine := &trial{unix.Gettid(), make(chan struct{})}
	if p.now.CompareAndSwap(nil, mine) {
		defer close(mine.done)
		defer p.now.Store(nil)
		if p.of() == untried {
			s.try(g, w)
		}
	} else if other := p.now.Load(); other != nil && other.thread != mine.thread {
		select {
		case <-other.done:
		case <-time.After(trialLimit):
		}
	}
	return p.of() == right
}

// try finds the verdict. If there is no memory for that, there is none yet.
func (s *session) try(g *gpu, w way) {
	p := &g.proofs[w]
	err := s.cuda.WithPrimary(g.ordinal, func(in *cuda.Driver) error {
		addr, err := in.MemAlloc(ownSize)
		if err != nil {
			return err
		}
		same, err := s.showsOwn(in, g, w, addr)
		if err != nil && p.failed.Add(1) < maxTrials {
			return err
		}
		v := wrong
		if same {
			v = right
		}
		p.verdict.Store(int32(v))
		if w == byHearing && same {
			process.proven.Store(true)
		} else if w == byHearing {
			s.ears.Stop()
		}
		if v == wrong && err == nil {
			log.Warnf("this NVIDIA driver differs from the known ones: its %v do not lead to the memory, and are not used", w)
		}
		return err
	})
	if err != nil {
		log.Debugf("the driver's %v could not be tried: %v", w, err)
	}
}

// showsOwn reports whether a way leads to our own memory at addr: it shows random bytes at several offsets.
func (s *session) showsOwn(in *cuda.Driver, g *gpu, w way, addr uint64) (same bool, err error) {
	e, err := s.ownExtent(in, g, w, addr)
	if err != nil {
		return false, err
	}
	object, err := g.duplicate(e)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, g.client.free(g.device, object)) }()
	for _, off := range []uint64{0, hostPage + 64, ownSize/2 + 3<<12 - 64, ownSize - 64} {
		want := make([]byte, lineSize)
		for i := 0; i < len(want); i += 8 {
			binary.NativeEndian.PutUint64(want[i:], rand.Uint64())
		}
		if err := in.WriteOut(addr+off, want); err != nil {
			return false, err
		}
		got, err := g.read(object, e.offset+off, lineSize)
		if err != nil || !bytes.Equal(got, want) {
			return false, err
		}
	}
	return true, nil
}

// ownExtent is what a way finds for our own memory at addr.
func (s *session) ownExtent(in *cuda.Driver, g *gpu, w way, addr uint64) (extent, error) {
	if w == byIPC {
		m, err := in.MemoryAt(addr)
		if err != nil {
			return extent{}, err
		}
		return objectByIPC(in, addr, m)
	}
	h, entries := s.ears.At(addr, addr+ownSize)
	if !h.Heard || len(entries) != 1 {
		return extent{}, errUnheard
	}
	if of, err := s.owner(h, entries[0]); err != nil || of != g {
		return extent{}, fmt.Errorf("memory of the GPU at %v is not heard to be that: %w", g.at, errors.Join(errUnheard, err))
	}
	return entries[0].extent(addr, addr+ownSize), nil
}

// read reads n bytes of an object of our client, through a mapping of their page.
func (g *gpu) read(object handle, offset, n uint64) ([]byte, error) {
	page := offset &^ (hostPage - 1)
	p := &pin{gpu: g, extents: []extent{{object: object, offset: page, length: hostPage}}}
	va, _, err := p.mapFirst(uintptr(hostPage))
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	load(b, va+uintptr(offset-page))
	return b, errors.Join(sys.Munmap(va, uintptr(hostPage)), p.closeWindows())
}

// load reads GPU memory at va, whole words from the start of one on: each load crosses the PCIe bus. va is a
// number, not a pointer, because a mapping is not Go's memory. load turns it into a pointer.
func load(b []byte, va uintptr) {
	for ; len(b) > 0; b, va = b[8:], va+8 {
		binary.NativeEndian.PutUint64(b, *(*uint64)(sys.Pointer(va)))
	}
}
