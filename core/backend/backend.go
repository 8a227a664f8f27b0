// Package backend states what the core asks of a backend: one way to get the
// CPU a mapping of GPU memory. A new backend is one new folder beside this one
// and one line in the table of core.
package backend

// MappingType is the memory type of a CPU mapping; the values are those of
// enum gdr_mapping_type.
type MappingType uint32

const (
	None    MappingType = 0
	WC      MappingType = 1
	Caching MappingType = 2
	Device  MappingType = 3
)

// PinForcePCIe is GDR_PIN_FLAG_FORCE_PCIE, the one flag of a pin.
const PinForcePCIe uint32 = 1

// Attr is an attribute of an open backend; the values are those of enum
// gdr_attr.
type Attr int

const (
	AttrPersistentMapping Attr = 1
	AttrForcePCIe         Attr = 2
	AttrDMABufMmap        Attr = 3
)

// PinRequest says what to pin. Size is not 0 and Addr+Size does not wrap.
type PinRequest struct {
	Addr, Size uint64
	Token      uint64 // p2p_token; only a gdrdrv before 2.5 is given tokens
	VASpace    uint32
	Flags      uint32
}

// Info is what a backend knows of a pinned buffer. The core fills in whether
// it is mapped, and how.
type Info struct {
	VA          uint64 // GPU address that the mapping starts at
	MappedSize  uint64 // bytes that may be mapped
	PageSize    uint32 // bytes
	TMCycles    uint64 // cycles that pinning took, 0 where unknown
	CyclesPerMS uint32
}

// Backend opens sessions. Open may load libraries and talk to drivers; it must
// not initialise CUDA (cuInit), which would take CUDA from every child that the
// process forks later.
type Backend interface {
	Name() string
	Open() (Session, error)
}

// Session is one gdr_open of a backend. Its methods are called from many
// threads at once. Close comes after every Pin has been unpinned.
type Session interface {
	Pin(PinRequest) (Pin, error)
	Attribute(Attr) (int, error)
	Version() (major, minor int)
	Close() error
}

// Undecided is a Session that may not know yet whether it can pin: CUDA tells what
// a device can do only once it is initialised, which Open may not do.
type Undecided interface {
	Session
	// Undecided is true where only the first pin can tell.
	Undecided() bool
	// Serves tells whether a buffer can be pinned: nil, ENOTSUP where another
	// backend has to do it, or what is wrong with the request.
	Serves(PinRequest) error
}

// Pin is one pinned buffer. The core serialises the calls on one Pin.
type Pin interface {
	// Info describes the pinning; callable mapped or not.
	Info() (Info, error)
	// Map maps size bytes (a multiple of the host page, not past
	// Info.MappedSize rounded up to the host page) from Info.VA on. want is
	// None for the backend's own choice, else the one type to accept.
	Map(size uint64, want MappingType) (va uintptr, got MappingType, err error)
	// Unmap takes down what Map made. After it an access to the range faults.
	Unmap() error
	// CallbackFlag is 1 once the driver has revoked the buffer.
	CallbackFlag() (int, error)
	// Unpin frees the pinning; nothing is mapped by then.
	Unpin() error
}
