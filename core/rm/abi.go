package rm

// This file has the requests of NVIDIA's resource manager that this backend makes.
// They are the same in open-gpu-kernel-modules 535, 550, 570, 580 and 595. A
// request's number contains the size of its struct. So a driver with another struct
// answers EINVAL. A test compares sizes and offsets with C.

// handle names a client, or an object of a client. 0 names nothing.
type handle uint32

// request is _IOWR('F', nr, size).
func request(nr, size uintptr) uint32 {
	const readWrite, magic = 3, 'F'
	return uint32(readWrite<<30 | size<<16 | magic<<8 | nr)
}

const (
	nrFree        = 0x29
	nrControl     = 0x2A
	nrAlloc       = 0x2B
	nrDup         = 0x34
	nrMapMemory   = 0x4E
	nrUnmapMemory = 0x4F
	nrCardInfo    = 200
	nrRegisterFD  = 201
)

// Classes of objects.
const (
	classRoot   = 0x41 // a client
	classDevice = 0x80
)

// Controls: commands of nrControl, each with a struct of its own.
const (
	controlGPUIDInfo = 0x205  // of a client: gpuIDInfo
	controlImportFD  = 0x3D06 // of a client: importFD
)

// importTypeMemory is the kind of importFD.
const importTypeMemory = 1

// vaModePrivate is the mode of a device's address space. Our address space is not used.
const vaModePrivate = 2

// status is an NV_STATUS.
type status uint32

type allocArgs struct {
	root, parent, object handle // object: in and out
	class                uint32
	params               uint64 // address
	rights               uint64
	paramsSize, flags    uint32
	status               status
	_                    uint32
}

type freeArgs struct {
	root, parent, object handle
	status               status
}

type controlArgs struct {
	client, object handle
	command, flags uint32
	params         uint64 // address
	paramsSize     uint32
	status         status
}

type dupArgs struct {
	client, parent, object     handle // object: in and out
	clientSource, objectSource handle
	flags                      uint32
	status                     status
}

type mapArgs struct {
	client, device, memory handle
	_                      uint32
	offset, length         uint64 // in the object, in bytes
	linear                 uint64 // out: names the mapping to unmapArgs
	status                 status
	flags                  uint32 // in and out: cacheType
	fd                     int32  // a fresh one of the GPU's device
	_                      uint32
}

// cacheType is how the CPU's mapping is cached. The driver writes it into flags.
func (m *mapArgs) cacheType() uint32 { return m.flags >> 23 & 7 }

const (
	cacheTypeCached        = 0
	cacheTypeUncached      = 1
	cacheTypeWriteCombined = 2
	cacheTypeWriteBack     = 5
)

type unmapArgs struct {
	client, device, memory handle
	_                      uint32
	linear                 uint64
	status                 status
	flags                  uint32
}

// maxCards is the number of cardInfo entries. The driver wants room for each GPU.
const maxCards = 32

type cardInfo struct {
	valid  uint8
	_      [3]uint8
	domain uint32
	bus    uint8
	slot   uint8
	_      [6]uint8
	gpuID  uint32
	_      [36]uint8
	minor  uint32 // of /dev/nvidiaN
	_      [12]uint8
}

type registerFD struct {
	control int32
}

type gpuIDInfo struct {
	gpuID          uint32
	flags          uint32
	deviceInstance uint32 // out, like all below
	_              [5]uint32
}

type deviceParams struct {
	deviceInstance uint32
	clientShare    handle
	_              [2]handle
	flags          uint32
	_              uint32
	_              [3]uint64
	vaMode         uint32
	_              uint32
}

type importFD struct {
	fd             int32
	kind           uint32
	device, parent handle
	object         handle // out
}
