package rm

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"gdrapi/core/internal/sys"

	"golang.org/x/sys/unix"
)

// A pin asks CUDA nothing of memory that is heard: libcuda has told the kernel which object lies at
// its addresses. Any question about memory that another thread frees meanwhile may end the process
// inside libcuda, and the 64 KiB pages of UCX and libfabric hold memory of other threads.

// Version is a driver's: 580, 159, 4. Of one that is not known all are 0.
type Version [3]int

// Heard is a range of addresses that lies in one memory object, as libcuda has told the kernel.
type Heard struct {
	Base, End      uint64
	Number         uint64 // no other entry ever has it
	Offset         uint64 // of Base in the object, in bytes
	Client, Object uint32
	Control        int    // libcuda's descriptor of the client
	Parent         uint32 // the object is a GPU's memory, and below this device; 0: not known
	GPU            uint32 // the driver's ID of the GPU; 0: the parent tells
}

// Hearing is what is known of a range. If it is neither heard nor gone, it is unheard.
type Hearing struct {
	Heard   bool   // all of it
	Gone    bool   // the end of a part was heard, and no map since
	Clients uint32 // another number after the handles of a client's devices may be others'
	Ends    uint64 // another number after anything has ended
}

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

// Ears hear what libcuda tells the kernel. Only libgdrapi.so has some. Their methods are thread-safe.
type Ears interface {
	// Listen begins, where libcuda is loaded and the driver is known. It may be called again.
	Listen(driver Version)
	// At says what lies from first to before end. If all of it is heard, there are entries, in the
	// order of addresses.
	At(first, end uint64) (Hearing, []Heard)
	// Keep keeps an entry's Parent, where the entry stands still. If that is 0 it drops the entry.
	Keep(e Heard)
	// Learn adds an entry, unless something has ended since h or is heard there.
	Learn(h Hearing, e Heard)
	// Stop has all be unheard from now on.
	Stop()
	// Watch exports size bytes at addr as a dma-buf with the CUDA function at export. It notes what
	// libcuda asks the kernel during that call. Where it cannot see that, it returns ENOTSUP and
	// exports nothing. This thread must have a current context.
	Watch(export uintptr, addr, size uint64) (Seen, error)
}

// deaf hears nothing.
type deaf struct{}

func (deaf) Listen(Version)                        {}
func (deaf) At(_, _ uint64) (_ Hearing, _ []Heard) { return }
func (deaf) Keep(Heard)                            {}
func (deaf) Learn(Hearing, Heard)                  {}
func (deaf) Stop()                                 {}

func (deaf) Watch(uintptr, uint64, uint64) (Seen, error) { return Seen{}, unix.ENOTSUP }

// hear finds the objects by what was heard, or returns errUnheard. If found.gpu is set, the caller believes what is
// heard, and also that memory is gone, only once that GPU's proof is made.
func (s *session) hear(r pages) (f found, err error) {
	f.pages = r
	h, entries := s.ears.At(r.first, r.end)
	switch {
	case h.Gone:
		f.gpu, err = s.anyToProve()
	case h.Heard:
		f.entries = entries
		f.gpu, err = s.ownerOfAll(h, entries)
	default:
		err = errUnheard
	}
	if err != nil {
		return f, err
	}
	if h.Gone {
		return f, fmt.Errorf("%d bytes at %#x are not all GPU memory: a part was freed: %w", r.end-r.first, r.first, unix.EINVAL)
	}
	for _, e := range entries {
		f.add(e.extent(r.first, r.end))
	}
	return f, nil
}

// extent is the part of an entry that lies from first to before end.
func (e Heard) extent(first, end uint64) extent {
	first, end = max(e.Base, first), min(e.End, end)
	return extent{client: handle(e.Client), from: handle(e.Object), offset: e.Offset + first - e.Base, length: end - first}
}

// anyToProve gives a GPU to prove by that libcuda is heard, if possible one that has a primary context. It gives
// none if that is proven on some GPU.
func (s *session) anyToProve() (*gpu, error) {
	if process.proven.Load() {
		return nil, nil
	}
	n := 0
	for i := range s.devices() {
		if s.cuda.HasPrimary(i) {
			n = i
			break
		}
	}
	g, err := s.gpuAt(n)
	if err != nil {
		err = errUnheard
	}
	return g, err
}

// ownerOfAll gives the GPU that has the memory of all entries.
func (s *session) ownerOfAll(h Hearing, entries []Heard) (g *gpu, err error) {
	for i, e := range entries {
		if i > 0 && e.Parent != 0 && e.Parent == entries[i-1].Parent && e.Client == entries[i-1].Client {
			continue
		}
		of, err := s.owner(h, e)
		if err != nil {
			return nil, err
		}
		if g != nil && g != of {
			return nil, fmt.Errorf("the memory from %#x on is on another GPU than the memory before it; pin each part by itself: %w", e.Base, unix.EINVAL)
		}
		g = of
	}
	return g, nil
}

// owner gives the GPU that has the memory: that of the device object which the memory is below. The
// GPU that it was mapped for first may be another one, and a duplicate for that would show other memory.
func (s *session) owner(h Hearing, e Heard) (_ *gpu, err error) {
	if e.Parent == 0 && e.GPU == 0 {
		if err := s.learnParent(&e); err != nil {
			return nil, err
		}
	}
	if s.devices() == 1 {
		return s.gpuAt(0)
	}
	if e.GPU == 0 {
		if e.GPU, err = s.gpuOfParent(h, e); err != nil {
			return nil, err
		}
	}
	return s.gpuWithID(e.GPU)
}

// learnParent asks the kernel what the object of an entry is, and below which device.
func (s *session) learnParent(e *Heard) error {
	var class uint32
	libcuda, err := s.libcuda(*e)
	if err == nil {
		class, err = libcuda.handleInfo(handle(e.Object), infoClass)
	}
	if errors.Is(err, unix.ENOTSUP) {
		s.ears.Stop() // a sandbox does not let the question pass
	}
	if err == nil && class == classMemory {
		e.Parent, err = libcuda.handleInfo(handle(e.Object), infoParent)
	}
	if e.Parent == 0 {
		return fmt.Errorf("%w: the object at %#x is of class %#x (%v)", errUnheard, e.Base, class, err)
	}
	s.ears.Keep(*e)
	return nil
}

// libcuda is libcuda's client of an entry, on libcuda's file. The host may have closed its descriptor since.
func (s *session) libcuda(e Heard) (*client, error) {
	own, err := s.hold()
	if err != nil {
		return nil, err
	}
	if !sys.SameDevice(e.Control, own.fd) {
		return nil, fmt.Errorf("descriptor %d is no open of %s any more: %w", e.Control, controlPath, unix.EBADF)
	}
	return &client{ioctl: own.ioctl, fd: e.Control, root: handle(e.Client)}, nil
}

// owners are the IDs of GPUs, by a client of libcuda's and its device object. They are right while
// Hearing.Clients is clients.
type owners struct {
	clients uint32
	ids     map[[2]uint32]uint32
}

// gpuOfParent is the driver's ID of the GPU that an entry's parent is a device of; seldom it is a subdevice.
func (s *session) gpuOfParent(h Hearing, e Heard) (uint32, error) {
	key := [2]uint32{e.Client, e.Parent}
	known := process.owners.Load()
	if known == nil || known.clients != h.Clients {
		known = &owners{clients: h.Clients, ids: map[[2]uint32]uint32{}}
	}
	if id, ok := known.ids[key]; ok {
		return id, nil
	}
	id := new(uint32)
	libcuda, err := s.libcuda(e)
	if err == nil {
		sub := subdevice{}
		if err := control(libcuda, "FIND_SUBDEVICE_HANDLE", handle(e.Parent), controlSubdevice, &sub); err != nil {
			sub.object = handle(e.Parent)
		}
		err = control(libcuda, "GPU_GET_ID", sub.object, controlGPUID, id)
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %v", errUnheard, err)
	}
	ids := maps.Clone(known.ids)
	ids[key] = *id
	process.owners.Store(&owners{h.Clients, ids})
	return *id, nil
}

// gpuWithID gives the device object of a GPU, by the driver's ID of it.
func (s *session) gpuWithID(id uint32) (*gpu, error) {
	ordinals := process.ordinals.Load()
	if ordinals == nil {
		c, err := s.hold()
		if err != nil {
			return nil, err
		}
		cards, err := c.cards()
		if err != nil {
			return nil, err
		}
		ordinals = &map[uint32]int{}
		for i := range s.devices() {
			at, err := s.cuda.PCIAddress(i)
			if err != nil {
				return nil, err
			}
			if of := slices.IndexFunc(cards, func(card cardInfo) bool { return card.at() == at }); of >= 0 {
				(*ordinals)[cards[of].gpuID] = i
			}
		}
		process.ordinals.Store(ordinals)
	}
	if i, shown := (*ordinals)[id]; shown {
		return s.gpuAt(i)
	}
	return nil, fmt.Errorf("CUDA shows no GPU with the driver's ID %#x: %w", id, unix.ENODEV)
}

// devices is the number of GPUs that CUDA shows. It does not change.
func (s *session) devices() int {
	if n := process.devices.Load(); n != 0 {
		return int(n)
	}
	n, _ := s.cuda.DeviceCount()
	process.devices.Store(int32(n))
	return n
}
