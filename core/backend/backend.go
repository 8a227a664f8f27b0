// Package backend has the interface between the core and a backend. A backend is one
// way to map GPU memory for the CPU. A new backend is one new folder in core/internal and
// one line in the core's table.
package backend

// Major and Minor are the version of this library. Where there is no gdrdrv, they are the
// answer of Session.Version.
const Major, Minor = 2, 6

// MappingType is the memory type of a CPU mapping. The values are those of enum
// gdr_mapping_type.
type MappingType uint32

const (
	None    MappingType = 0
	WC      MappingType = 1
	Caching MappingType = 2
	Device  MappingType = 3
)

// PinForcePCIe is GDR_PIN_FLAG_FORCE_PCIE. A pin has no other flag.
const PinForcePCIe uint32 = 1

// ExportWhole is GDR_EXPORT_FLAG_WHOLE. An export has no other flag.
const ExportWhole uint32 = 1

// Attr is an attribute of an open backend. The values are those of enum gdr_attr. A new one is
// a line here and there, and a case in each backend whose answer is not 0.
type Attr int

const (
	AttrPersistentMapping Attr = 1 + iota
	AttrForcePCIe
	AttrDMABufMmap
	attrEnd
)

// IsKnown reports whether a is one of these.
func (a Attr) IsKnown() bool { return a > 0 && a < attrEnd }

// PinRequest says what to pin. Size is not 0 and Addr+Size does not wrap. The first Skip bytes
// and the last Tail only fill pages, and may be anybody's; those between are the caller's own.
// Skip+Tail is at most Size.
type PinRequest struct {
	Addr, Size uint64
	Skip, Tail uint64
	Token      uint64 // p2p_token; only a gdrdrv before 2.5 is given tokens
	VASpace    uint32
	Flags      uint32
}

// Own gives the bytes that are certainly the caller's. A size of 0: there are none.
func (r PinRequest) Own() (addr, size uint64) { return r.Addr + r.Skip, r.Size - r.Skip - r.Tail }

// Sought gives the bytes by which a backend that asks CUDA finds the memory: the caller's own, or
// all if there are none.
func (r PinRequest) Sought() (addr, size uint64) {
	if addr, size = r.Own(); size == 0 {
		return r.Addr, r.Size
	}
	return addr, size
}

// Info is a backend's description of a pinned buffer. The core adds whether the buffer
// is mapped, and how.
type Info struct {
	VA          uint64 // GPU address that the mapping starts at
	MappedSize  uint64 // bytes that may be mapped
	PageSize    uint32 // bytes
	TMCycles    uint64 // cycles that pinning took, 0 where unknown
	CyclesPerMS uint32
}

// Object says where a buffer lies in the driver's memory objects, in bytes. It begins at Offset in the
// first one, which has Length.
type Object struct {
	Offset, Length uint64
	Count          int // of objects
}

// Backend opens sessions. Open may load libraries and call drivers. It must not
// initialise CUDA (cuInit): a child that is forked after cuInit cannot use CUDA.
type Backend interface {
	Name() string
	Open() (Session, error)
}

// Session is one gdr_open of a backend. Many threads call its methods at once. Close is
// called after every Pin has been unpinned.
type Session interface {
	Name() string // of the backend
	Pin(PinRequest) (Pin, error)
	// Import pins what a descriptor of Pin.Export has, of this process or another. It does not
	// need CUDA, and leaves the descriptor to the caller.
	Import(fd int) (Pin, error)
	// Attribute answers a known attribute; 0 for one that the backend does not have.
	Attribute(Attr) (int, error)
	Version() (major, minor int)
	Close() error
}

// Tentative is a Session that cannot pin all device memory, so another backend stands by. Its Pin answers
// NotServed for what it cannot serve.
type Tentative interface {
	Session
	// ServesAny is nil where a device can be served, as far as CUDA can say it now. It is
	// ENOTSUP where none can. Any other error says that CUDA cannot say it yet: it says that
	// once it is initialised, and Open may not initialise it.
	ServesAny() error
}

// NotServed is in the error of a Pin or an Import where another backend may pin the buffer.
type NotServed struct{ Reason error }

func (e NotServed) Error() string { return e.Reason.Error() }
func (e NotServed) Unwrap() error { return e.Reason }

// Pin is one pinned buffer. The core serialises the calls on one Pin, but a Map or an Unmap may run beside
// Info, CallbackFlag, Object and Export: the host's mmap or munmap is called, so the core holds no lock.
type Pin interface {
	// Info describes the pinning. The buffer may be mapped or not.
	Info() (Info, error)
	// Map maps size bytes from Info.VA on, which is the address that was pinned. The buffer is
	// not mapped. size is a multiple of the host page, not 0, and at most Info.MappedSize rounded
	// up to the host page. With want None the backend chooses the type. Else it gives the type
	// want, or an error.
	Map(size uint64, want MappingType) (va uintptr, got MappingType, err error)
	// Unmap ends what Map made beside the range at va. The core has ended that. The buffer is
	// mapped.
	Unmap() error
	// CallbackFlag is 1 once the driver has revoked the buffer.
	CallbackFlag() (int, error)
	// Export gives a descriptor of the buffer, close-on-exec. With ExportWhole it is EPERM where
	// the descriptor gives more than the buffer.
	Export(flags uint32) (fd int, err error)
	// Object is ENOTSUP where what Export gives is no object that CUDA imports.
	Object() (Object, error)
	// Unpin frees the pinning. The buffer is not mapped.
	Unpin() error
}
