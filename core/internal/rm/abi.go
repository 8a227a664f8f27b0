package rm

// This file has the requests of NVIDIA's resource manager that this backend makes.
// They are the same in open-gpu-kernel-modules 535, 550, 570, 580 and 595. A
// request's number contains the size of its struct. So a driver with another struct
// answers EINVAL. TestLayout has the sizes and offsets of NVIDIA's headers.

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
	nrVersion     = 210
)

// Classes of objects.
const (
	classMemory       = 0x40 // of a GPU
	classRoot         = 0x41 // a client
	classDevice       = 0x80
	classConfidential = 0xCB33 // of the system: confidential computing
)

// Controls: commands of nrControl, each with a struct of its own.
const (
	controlChipset       = 0x104      // of a client: chipset
	controlAttached      = 0x201      // of a client: attached
	controlGPUIDInfo     = 0x205      // of a client: gpuIDInfo
	controlHandleInfo    = 0xD02      // of a client: handleInfo
	controlSubdevice     = 0x800293   // of a device: subdevice
	controlGPUID         = 0x20800142 // of a subdevice: the GPU's ID, a uint32
	controlActiveDevices = 0x288      // of a client: activeDevices; from 550 on
	controlImportFD      = 0x3D06     // of a client: importFD
	controlExportInfo    = 0x3D08     // of a client: exportInfo
	controlExportObjects = 0x3D0B     // of a client: exportObjects
	controlImportObjects = 0x3D0C     // of a client: importObjects
	controlSurfaceInfo   = 0x410110   // of memory: surfaceInfo
	controlPageSize      = 0x410118   // of memory: the size of its pages, a uint64
	controlConfidential  = 0xCB330101 // of a classConfidential: confidential
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
	_                    uint64 // rights
	paramsSize           uint32
	_                    uint32 // flags
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
	_                          uint32 // flags
	status                     status
}

type mapArgs struct {
	client, device, memory handle
	_                      uint32
	offset, length         uint64 // in the object, in bytes
	linear                 uint64 // out: names the mapping to unmapArgs
	status                 status
	flags                  uint32 // in and out: answer
	fd                     int32  // a fresh one of the GPU's device
	_                      uint32
}

// answer is what MAP_MEMORY says of a window, in two fields of its flags. Together they
// tell through which aperture the CPU reaches the memory.
type answer struct {
	mapping uint32 // bits 16:15
	cache   uint32 // bits 25:23: how the CPU caches it
}

func (m *mapArgs) answer() answer {
	return answer{mapping: m.flags >> 15 & 3, cache: m.flags >> 23 & 7}
}

var (
	answerBAR1          = answer{mapping: 2, cache: 2} // write-combined
	answerBAR1Registers = answer{mapping: 2, cache: 1} // uncached
	answerCoherent      = answer{mapping: 0, cache: 6} // through the link of a coherent CPU
	answerSystemMemory  = answer{mapping: 1, cache: 6} // surfaceInfo says how it is cached
)

type unmapArgs struct {
	client, device, memory handle
	_                      uint32
	linear                 uint64
	status                 status
	_                      uint32 // flags
}

// maxCards is the number of cardInfo entries. The driver wants room for each GPU.
const maxCards = 32

type cardInfo struct {
	valid  uint8
	_      [3]uint8
	domain uint32
	bus    uint8
	slot   uint8
	_      [2]uint8
	vendor uint16
	device uint16
	gpuID  uint32
	_      [28]uint8
	fbSize uint64 // of BAR1, in bytes; 0: the GPU has none, or is not on PCI
	minor  uint32 // of /dev/nvidiaN
	_      [12]uint8
}

type registerFD struct {
	control int32
}

type gpuIDInfo struct {
	gpuID          uint32
	flags          uint32
	deviceInstance uint32 // out, like flags and all below
	_              [5]uint32
}

// Flags in gpuIDInfo.flags.
const (
	idSOC = 1 << 5 // the GPU's memory is the system's
	idATS = 1 << 6 // the GPU reads the CPU's page tables. A GPU whose memory the CPU may cache does.
)

// attached has the IDs of the GPUs that some process has open, and noGPU in the rest.
type attached [32]uint32

const noGPU = 0xFFFFFFFF

const (
	noInstance       = 0xFFFFFFFF // in activeDevices: the GPU itself
	maxActiveDevices = 256
)

// activeDevices lists each GPU, or in its place each of its instances (MIG). A GPU that is
// divided and has no instance is not listed.
type activeDevices struct {
	n    uint32
	list [maxActiveDevices]struct {
		gpuID, instance, compute uint32
	}
}

// confidential is what the driver knows of confidential computing. 535 has no
// multiGPUMode.
type confidential struct {
	before550
	multiGPUMode uint8 // 1: protected PCIe. feature is 0 then.
}

type before550 struct {
	_       [3]uint8
	feature uint8 // 0: off
	_       uint8
}

type chipset struct {
	_     [148]uint8
	flags uint32
}

// chipsetUnaligned in chipset.flags: BAR1 is not Device memory on arm64. From 590 on.
const chipsetUnaligned = 1 << 1

type handleInfo struct {
	object handle
	index  uint32
	result uint64 // out
}

// Indexes of handleInfo.
const (
	infoParent = 1
	infoClass  = 2
)

type subdevice struct {
	_      uint32
	object handle // out
}

type surfaceInfo struct {
	n    uint32
	_    uint32
	list uint64 // address of n surfaceItem
}

type surfaceItem struct {
	index, data uint32
}

// Indexes of surfaceItem. 535 has no 2 and no 3, in which 590 has the size's halves.
const (
	surfacePages = 7 // of surfacePage bytes each, of the whole object
	surfaceAttr  = 8 // bits 31:29: how the memory is cached
	surfaceSpace = 9 // where the memory is: spaceSystem or spaceVideo
)

const surfacePage = 4096

const (
	spaceSystem = 1
	spaceVideo  = 2
)

type version struct {
	command uint32   // versionQuery
	_       uint32   // reply
	text    [64]byte // "580.159.04"
}

const versionQuery = '2'

type deviceParams struct {
	deviceInstance uint32
	clientShare    handle
	_              [2]handle
	_              uint32 // flags
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

// exportMetadata is the number of bytes that a file with exported objects has for its exporter.
const exportMetadata = 64

type exportObjects struct {
	fd       int32  // a fresh one of /dev/nvidiactl
	device   handle // of all objects
	most     uint16
	metadata [exportMetadata]byte
	objects  [512]handle
	n        uint16
	_        uint16 // index
}

type importObjects struct {
	fd      int32
	parent  handle
	objects [128]handle // out
	kinds   [128]uint8  // out
	n       uint16
	_       uint16 // index
}

// Values of importObjects.kinds; other memory has larger ones.
const (
	importNone   = 0
	importVideo  = 1
	importSystem = 2
)

type exportInfo struct {
	fd             int32
	deviceInstance uint32 // out, like all below
	mig            uint32 // instance of the GPU, or noInstance
	most           uint16 // objects that there is room for
	metadata       [exportMetadata]byte
}

// exportInfo535 is that of 535.
type exportInfo535 struct {
	fd             int32
	deviceInstance uint32
	most           uint16
	metadata       [exportMetadata]byte
}
