package rm

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// A pin asks CUDA nothing of memory that is heard: libcuda has told the kernel which object lies at
// its addresses. Any question about memory that another thread frees meanwhile may end the process
// inside libcuda, and the 64 KiB pages of UCX and libfabric hold memory of other threads.
//
//  1. Look: all of the range must be heard, and be of one GPU.
//  2. Duplicate the objects.
//  3. Look again. If an entry has another number, its memory was freed meanwhile: begin anew.

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

// errUnheard has a pin ask CUDA.
var errUnheard = errors.New("unheard")

// looks is how often a pin looks at memory that others free and make anew meanwhile.
const looks = 16

// pinHeard pins a buffer by what was heard, or returns errUnheard.
func (s *session) pinHeard(b buffer, flags uint32) (*pin, error) {
	if !s.listens.Swap(true) {
		s.ears.Listen(s.version) // libcuda may have been loaded since the open
	}
	for range looks {
		h, entries := s.ears.At(b.first, b.end)
		switch {
		case h.Gone && s.provenAny():
			return nil, fmt.Errorf("%d bytes at %#x are not all GPU memory: a part was freed: %w", b.end-b.first, b.first, unix.EINVAL)
		case !h.Heard:
			return nil, errUnheard
		}
		p, err := s.pinEntries(b, h, entries, flags)
		if _, now := s.ears.At(b.first, b.end); slices.EqualFunc(entries, now, func(a, b Heard) bool { return a.Number == b.Number }) {
			return p, s.refuse(entries, err)
		}
		if p != nil {
			_ = p.Unpin()
		}
	}
	return nil, fmt.Errorf("%d bytes at %#x are freed and made anew again and again: no other thread may free memory during its pin: %w", b.end-b.first, b.first, unix.EINVAL)
}

// refuse drops entries whose objects the driver refused to duplicate.
func (s *session) refuse(entries []Heard, err error) error {
	for _, e := range entries {
		if e.Parent = 0; errors.Is(err, errRefused) {
			s.ears.Keep(e)
		}
	}
	return err
}

// pinEntries pins the entries that all bytes of a buffer lie in.
func (s *session) pinEntries(b buffer, h Hearing, entries []Heard, flags uint32) (*pin, error) {
	g, err := s.gpuOf(h, entries)
	if err != nil {
		return nil, err
	}
	if err := g.checkFlags(flags); err != nil {
		return nil, err
	}
	if g.soc || !s.proven(g, byHearing) {
		return nil, errUnheard
	}
	p := &pin{gpu: g, ears: s.ears, first: b.first, size: b.end - b.first}
	for _, e := range entries {
		if err := p.addEntry(e, b); err != nil {
			_ = p.Unpin()
			return nil, err
		}
	}
	return p, nil
}

// addEntry adds the part of a buffer that lies in an entry.
func (p *pin) addEntry(heard Heard, b buffer) (err error) {
	first, end := max(heard.Base, b.first), min(heard.End, b.end)
	e := extent{
		client: handle(heard.Client), object: handle(heard.Object), from: handle(heard.Object),
		offset: heard.Offset + first - heard.Base, length: end - first,
	}
	if n := len(p.extents); n > 0 {
		last := &p.extents[n-1]
		if last.client == e.client && last.from == e.from && last.offset+last.length == e.offset {
			last.length += e.length
			return nil
		}
	}
	if e.object, err = p.gpu.duplicate(e); err == nil {
		p.extents = append(p.extents, e)
	}
	return err
}

// gpuOf gives the GPU that has the memory of all entries.
func (s *session) gpuOf(h Hearing, entries []Heard) (g *gpu, err error) {
	var last Heard
	for _, e := range entries {
		if g != nil && e.Parent != 0 && e.Parent == last.Parent && e.Client == last.Client {
			continue
		}
		of, err := s.gpuOfEntry(h, e)
		if err != nil {
			return nil, err
		}
		if g != nil && g != of {
			return nil, fmt.Errorf("the memory from %#x on is of another GPU than that before it; pin each on its own: %w", e.Base, unix.EINVAL)
		}
		g, last = of, e
	}
	return g, nil
}

// gpuOfEntry gives the GPU that has the memory: that of the device object which the memory is below. The
// GPU that it was mapped for first may be another one, and a duplicate for that would show other memory.
func (s *session) gpuOfEntry(h Hearing, e Heard) (_ *gpu, err error) {
	if e.Parent == 0 && e.GPU == 0 {
		err = s.learn(&e)
	}
	switch {
	case err != nil:
		return nil, err
	case s.devices() == 1:
		return s.gpu(0)
	case e.GPU == 0:
		e.GPU, err = s.gpuOfDevice(h, e)
	}
	if err != nil {
		return nil, err
	}
	return s.gpuWithID(e.GPU)
}

// learn asks the kernel what the object of an entry is, and below which device.
func (s *session) learn(e *Heard) error {
	class, err := s.info(*e, infoClass)
	if errors.Is(err, unix.ENOTSUP) {
		s.ears.Stop() // a sandbox does not let the question pass
	}
	if err == nil && class == classMemory {
		e.Parent, err = s.info(*e, infoParent)
	}
	if e.Parent == 0 {
		return fmt.Errorf("%w: the object at %#x is of class %#x (%v)", errUnheard, e.Base, class, err)
	}
	s.ears.Keep(*e)
	return nil
}

// ask makes a control request as libcuda's client of an entry, on libcuda's file. The host may have closed
// its descriptor since.
func ask[T any](s *session, e Heard, what string, object handle, command uint32, params *T) error {
	process.mu.Lock()
	own, err := s.hold()
	process.mu.Unlock()
	if err != nil {
		return err
	}
	if !sys.SameDevice(e.Control, own.fd) {
		return fmt.Errorf("descriptor %d is no open of %s any more: %w", e.Control, controlPath, unix.EBADF)
	}
	libcuda := &client{ioctl: own.ioctl, fd: e.Control, root: handle(e.Client)}
	return control(libcuda, what, object, command, params)
}

// info answers an index of handleInfo of the object.
func (s *session) info(e Heard, index uint32) (uint32, error) {
	info := handleInfo{object: handle(e.Object), index: index}
	err := ask(s, e, "GET_HANDLE_INFO", handle(e.Client), controlHandleInfo, &info)
	return uint32(info.result), err
}

// owners are the IDs of GPUs, by a client of libcuda's and its device object. They are right while
// Hearing.Clients is clients.
type owners struct {
	clients uint32
	ids     map[[2]uint32]uint32
}

// gpuOfDevice is the driver's ID of the GPU that an entry's parent is a device of; seldom it is a subdevice.
func (s *session) gpuOfDevice(h Hearing, e Heard) (uint32, error) {
	key := [2]uint32{e.Client, e.Parent}
	known := process.owners.Load()
	if known == nil || known.clients != h.Clients {
		known = &owners{clients: h.Clients, ids: map[[2]uint32]uint32{}}
	}
	if id, ok := known.ids[key]; ok {
		return id, nil
	}
	sub := subdevice{}
	if err := ask(s, e, "FIND_SUBDEVICE_HANDLE", handle(e.Parent), controlSubdevice, &sub); err != nil {
		sub.object = handle(e.Parent)
	}
	id := new(uint32)
	if err := ask(s, e, "GPU_GET_ID", sub.object, controlGPUID, id); err != nil {
		return 0, fmt.Errorf("%w: %v", errUnheard, err)
	}
	ids := maps.Clone(known.ids)
	ids[key] = *id
	process.owners.Store(&owners{h.Clients, ids})
	return *id, nil
}

// gpuWithID gives the device object of a GPU, by the driver's ID of it.
func (s *session) gpuWithID(id uint32) (*gpu, error) {
	g, at, err := s.cardWithID(id)
	if g != nil || err != nil {
		return g, err
	}
	for i := range s.devices() {
		of, err := s.cuda.PCIAddress(i)
		if err != nil {
			return nil, err
		}
		if of == at {
			return s.gpu(i)
		}
	}
	return nil, fmt.Errorf("CUDA shows no GPU at %v: %w", at, unix.ENODEV)
}

// cardWithID gives our device object, or else where the GPU is.
func (s *session) cardWithID(id uint32) (*gpu, cuda.PCIAddress, error) {
	process.mu.Lock()
	defer process.mu.Unlock()
	c, err := s.hold()
	if err != nil {
		return nil, cuda.PCIAddress{}, err
	}
	for _, g := range c.gpus {
		if g.id == id {
			return g, g.at, nil
		}
	}
	cards, err := c.cards()
	if err != nil {
		return nil, cuda.PCIAddress{}, err
	}
	for _, card := range cards {
		if card.gpuID == id {
			return nil, card.at(), nil
		}
	}
	return nil, cuda.PCIAddress{}, fmt.Errorf("the driver lists no GPU with the ID %#x: %w", id, unix.ENODEV)
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

// keep has the memory of a pin that CUDA was asked for be heard, if nothing has ended since h.
func (p *pin) keep(h Hearing) {
	at := p.first
	for _, e := range p.extents {
		if e.from != 0 {
			p.ears.Learn(h, Heard{Base: at, End: at + e.length, Offset: e.offset, Client: uint32(e.client), Object: uint32(e.from), GPU: p.gpu.id})
		}
		at += e.length
	}
}

// moved returns EIO where the buffer's addresses are heard with another client than the pin's objects
// were of: CUDA has made the memory anew, as cuda-checkpoint does, and the pin still has the old memory.
func (p *pin) moved() error {
	if p.ears == nil || p.gpu.proof[byHearing].of() != right {
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

// Pins of this process by what was heard, and by questions.
var pinsHeard, pinsAsked atomic.Uint64

// count says of a pin whether it was heard or asked for.
func (b buffer) count(how string, n *atomic.Uint64) {
	n.Add(1)
	log.Debugf("rm: %d bytes at %#x were %s; pins of this process: %d heard, %d asked for", b.end-b.first, b.first, how, pinsHeard.Load(), pinsAsked.Load())
}
