package rm

import (
	"errors"
	"fmt"
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

// pages are the whole GPU pages of a request, from first to before end.
type pages struct {
	backend.PinRequest
	first, end uint64
}

// extent is a part of a memory object, without a gap. A client of the driver's names the object by a
// handle. A buffer lies in one extent or more.
type extent struct {
	client, from   handle // CUDA's client and object; 0: the memory was imported
	object         handle // of our client: the duplicate of from, or the import; 0: there is none yet
	offset, length uint64 // in the object, in bytes
	space          uint32 // of an import: spaceVideo or spaceSystem; 0: the object is asked for it
}

// found says which memory objects pages lie in.
type found struct {
	pages
	gpu     *gpu // that has the memory
	extents []extent

	entries []Heard // nil: CUDA was asked

	at      uint64 // the first address of memory; 0: CUDA was not asked
	memory  cuda.MemoryInfo
	before  Hearing       // of the time before the question
	context *cuda.Primary // nil: none, or somebody else keeps a context of the memory
}

// add adds an extent behind the others. Neighbours in one object of CUDA's are one extent.
func (f *found) add(e extent) {
	if n := len(f.extents); n > 0 && e.from != 0 {
		last := &f.extents[n-1]
		if last.client == e.client && last.from == e.from && last.offset+last.length == e.offset {
			last.length += e.length
			return
		}
	}
	f.extents = append(f.extents, e)
}

var (
	errUnheard = errors.New("unheard") // CUDA is asked
	errChanged = errors.New("changed") // the pin begins anew
)

// attempts is how often a pin begins at memory that others free and make anew meanwhile.
const attempts = 16

// Pin pins the 64 KiB pages that the buffer touches. It ignores Token and VASpace.
func (s *session) Pin(req backend.PinRequest) (backend.Pin, error) {
	r := pages{req, req.Addr &^ (gpuPage - 1), (req.Addr + req.Size + gpuPage - 1) &^ (gpuPage - 1)}
	if r.end <= r.first {
		return nil, fmt.Errorf("%d bytes at %#x pass the end of the address space: %w", req.Size, req.Addr, unix.EINVAL)
	}
	if s.cuda == nil {
		return nil, fmt.Errorf("a pin by address needs CUDA; pass a descriptor to gdr_pin_fd, or install CUDA's driver: %w (%v)", unix.ENOTSUP, s.noCUDA)
	}
	if !s.listens.Swap(true) {
		s.ears.Listen(s.version) // libcuda may have been loaded since the open
	}
	for range attempts {
		p, err := s.attempt(r)
		if err == nil {
			s.cuda.SyncMemops(req.Own())
			return p, nil
		}
		if !errors.Is(err, errChanged) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%d bytes at %#x were freed during each of %d tries; let no other thread free memory during its pin: %w", r.end-r.first, r.first, attempts, unix.EINVAL)
}

// attempt makes a pin in three steps:
//
//  1. Hear which objects the pages lie in, or ask CUDA.
//  2. Duplicate the objects.
//  3. Check that the pages still lie in those. Else the attempt ends with errChanged.
func (s *session) attempt(r pages) (*pin, error) {
	f, err := s.hear(r)
	if f.gpu != nil && (f.gpu.soc || !s.proves(f.gpu, byHearing)) {
		err = errUnheard
	}
	if err != nil {
		err = s.check(&f, nil, err)
	}
	if errors.Is(err, errUnheard) {
		log.Debugf("%d bytes at %#x: %v", r.end-r.first, r.first, err)
		f, err = s.ask(r)
	}
	if err != nil {
		return nil, err
	}
	p, err := s.duplicate(&f)
	if err = s.check(&f, p, err); err != nil {
		_ = p.Unpin()
		return nil, err
	}
	p.count(&f)
	return p, nil
}

// duplicate makes the pin of what was found. After an error the caller unpins it.
func (s *session) duplicate(f *found) (*pin, error) {
	p := &pin{gpu: f.gpu, ears: s.ears, context: f.context, first: f.first, size: f.end - f.first, extents: f.extents}
	if (f.gpu.coherent || f.gpu.soc) && f.Flags&backend.PinForcePCIe != 0 {
		return p, fmt.Errorf("the rm backend cannot force a mapping through PCIe on a GPU that is coherent with the CPU: %w", unix.EINVAL)
	}
	for i := range p.extents {
		e := &p.extents[i]
		if e.object != 0 {
			continue
		}
		object, err := f.gpu.duplicate(*e)
		if err != nil {
			return p, err
		}
		e.object = object
	}
	return p, nil
}

// check gives err, that of the steps before. It gives errChanged if the pages do not lie in the
// memory that was found any more, and EINVAL if the memory ends before the pages do.
func (s *session) check(f *found, p *pin, err error) error {
	if f.entries != nil {
		_, now := s.ears.At(f.first, f.end)
		if !slices.EqualFunc(f.entries, now, func(a, b Heard) bool { return a.Number == b.Number }) {
			return errChanged
		}
		for _, e := range f.entries {
			if e.Parent = 0; errors.Is(err, errRefused) {
				s.ears.Keep(e)
			}
		}
		return err
	}
	if f.at == 0 {
		return err
	}
	if err == nil {
		err = p.checkEnd(f.memory)
	}
	if err != nil && !s.cuda.IsStill(f.memory, f.at) {
		return errChanged
	}
	return err
}

// pin is a range of GPU pages. While it is mapped, it has windows.
type pin struct {
	gpu         *gpu
	ears        Ears          // nil: imported
	context     *cuda.Primary // nil: none, or somebody else keeps a context of the memory
	first, size uint64        // whole GPU pages
	extents     []extent      // with objects of our client
	windows     []window
}

// checkEnd checks a pin that ends past the last GPU page of its memory. Only the driver knows whether
// the object has those bytes.
func (p *pin) checkEnd(m cuda.MemoryInfo) error {
	if !m.Legacy || p.first+p.size <= (m.End()+gpuPage-1)&^(gpuPage-1) {
		return nil
	}
	last := p.extents[len(p.extents)-1]
	size, err := p.gpu.sizeOf(last.object)
	if err == nil && size < last.offset+last.length {
		err = fmt.Errorf("%d bytes at %#x end past the memory there (%d bytes at %#x): %w", p.size, p.first, m.Size, m.Start, unix.EINVAL)
	}
	return err
}

// Pins of this process by what was heard, and by questions.
var pinsHeard, pinsAsked atomic.Uint64

// count counts a pin. Memory that CUDA was asked for is heard from then on, if nothing has ended since.
func (p *pin) count(f *found) {
	how, n := "heard", &pinsHeard
	if f.entries == nil {
		how, n = "asked for", &pinsAsked
		at := p.first
		for _, e := range p.extents {
			if e.from != 0 {
				p.ears.Learn(f.before, Heard{Base: at, End: at + e.length, Offset: e.offset, Client: uint32(e.client), Object: uint32(e.from), GPU: p.gpu.id})
			}
			at += e.length
		}
	}
	n.Add(1)
	log.Debugf("rm: %d bytes at %#x were %s; pins of this process: %d heard, %d asked for", p.size, p.first, how, pinsHeard.Load(), pinsAsked.Load())
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

// moved returns EIO where the buffer's addresses are heard with another client than the pin's objects
// were of: CUDA has made the memory anew, as cuda-checkpoint does, and the pin still has the old memory.
func (p *pin) moved() error {
	if p.ears == nil || p.gpu.proofs[byHearing].of() != right {
		return nil
	}
	at := p.first
	for _, e := range p.extents {
		_, entries := p.ears.At(at, at+e.length)
		for _, now := range entries {
			if e.client != 0 && handle(now.Client) != e.client {
				return fmt.Errorf("CUDA has made the memory at %#x anew since it was pinned, as cuda-checkpoint does: unpin before a checkpoint, and pin again after it: %w", now.Base, unix.EIO)
			}
		}
		at += e.length
	}
	return nil
}

func (p *pin) Unmap() error { return p.closeWindows() }

// CallbackFlag is always 0: no one revokes a duplicate.
func (p *pin) CallbackFlag() (int, error) { return 0, nil }

// Unpin frees our objects. When one fails, it goes on with the next.
func (p *pin) Unpin() error {
	var err error
	for _, e := range p.extents {
		if e.object != 0 {
			err = errors.Join(err, p.gpu.client.free(p.gpu.device, e.object))
		}
	}
	p.context.Release()
	return err
}
