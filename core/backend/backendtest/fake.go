// Package backendtest has a backend in memory, for tests. Nothing that ships imports it.
package backendtest

import (
	"slices"
	"sync"

	"gdrapi/core/backend"
	"gdrapi/core/internal/sys"
)

// Fake is a backend in memory. Tests can make its calls fail.
type Fake struct {
	mu    sync.Mutex
	Fail  map[string]error
	Calls []string
	Live  int                 // pins that are not unpinned yet
	Asked backend.PinRequest  // of the last pin
	Type  backend.MappingType // of each mapping
	Page  uint32
	VA    uintptr // of each mapping

	OnPin, OnMap, OnUnpin func() // called in Pin, Map and Unpin; nil: nothing
}

// Made lists the calls until now.
func (f *Fake) Made() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.Calls)
}

// Call notes a call, and gives the error that it shall have.
func (f *Fake) Call(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Calls = append(f.Calls, name)
	return f.Fail[name]
}

func (f *Fake) Name() string                          { return "fake" }
func (f *Fake) Open() (backend.Session, error)        { return f, f.Call("open") }
func (f *Fake) Attribute(a backend.Attr) (int, error) { return int(a), f.Call("attribute") }
func (f *Fake) Version() (int, int)                   { return backend.Major, backend.Minor }
func (f *Fake) Close() error                          { return f.Call("close") }

func (f *Fake) Pin(r backend.PinRequest) (backend.Pin, error) {
	if err := f.Call("pin"); err != nil {
		return nil, err
	}
	if f.OnPin != nil {
		f.OnPin()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Live++
	f.Asked = r
	return &fakePin{f: f, r: r}, nil
}

// Import pins a descriptor n as if it were memory at the address n.
func (f *Fake) Import(fd int) (backend.Pin, error) {
	return f.Pin(backend.PinRequest{Addr: uint64(fd), Size: 1 << 16})
}

type fakePin struct {
	f      *Fake
	r      backend.PinRequest
	mapped bool
}

func (p *fakePin) Info() (backend.Info, error) {
	start := p.r.Addr &^ (max(uint64(p.f.Page), 1) - 1)
	return backend.Info{VA: start, MappedSize: p.r.Addr + p.r.Size - start, PageSize: p.f.Page}, p.f.Call("info")
}

func (p *fakePin) Map(uint64, backend.MappingType) (uintptr, backend.MappingType, error) {
	if p.mapped {
		panic("mapped twice")
	}
	if err := p.f.Call("map"); err != nil {
		return 0, 0, err
	}
	if p.f.OnMap != nil {
		p.f.OnMap()
	}
	p.mapped = true
	NoMemory(p.f.VA)
	return p.f.VA, p.f.Type, nil
}

func (p *fakePin) Unmap() error {
	if !p.mapped {
		panic("unmapped twice")
	}
	p.mapped = false
	return p.f.Call("unmap")
}

func (p *fakePin) Export(flags uint32) (int, error) { return int(p.r.Addr), p.f.Call("export") }

func (p *fakePin) Object() (backend.Object, error) {
	return backend.Object{Offset: p.r.Addr, Length: p.r.Addr + p.r.Size, Count: 1}, p.f.Call("object")
}

func (p *fakePin) CallbackFlag() (int, error) { return 0, p.f.Call("flag") }

func (p *fakePin) Unpin() error {
	if p.mapped {
		panic("unpinned while mapped")
	}
	p.f.mu.Lock()
	p.f.Live--
	p.f.mu.Unlock()
	err := p.f.Call("unpin")
	if p.f.OnUnpin != nil {
		p.f.OnUnpin()
	}
	return err
}

// fakes has the address of each mapping of a Fake. Nothing is mapped there, or memory of the
// test's: the core unmaps nothing there.
var fakes sync.Map

// NoMemory says that an address is that of a mapping of a test's own fake.
func NoMemory(va uintptr) {
	leaveAlone()
	fakes.Store(va, true)
}

// leaveAlone has the memory functions of this process spare such addresses.
var leaveAlone = sync.OnceFunc(func() {
	real := sys.HostMemory()
	m := real
	m.Munmap = func(va, size uintptr) error {
		if _, fake := fakes.Load(va); fake {
			return nil
		}
		return real.Munmap(va, size)
	}
	sys.UseMemory(m)
})

// New makes a Fake in whose pins a page has 4096 bytes. Nothing lies behind its mappings.
func New() *Fake {
	return &Fake{Fail: map[string]error{}, Page: 4096, VA: 0x7000, Type: backend.WC}
}
