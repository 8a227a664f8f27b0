package gdrdrv

// This file has the ABI of /dev/gdrdrv: the ioctl codes and their structures. Most codes
// contain the size of a pointer instead of the structure's. Old binaries use these
// codes, so they cannot change.

const (
	iocPinBuffer      = 0xC028DA01
	iocUnpinBuffer    = 0xC008DA02
	iocGetCBFlag      = 0xC008DA03
	iocGetInfo        = 0xC008DA04
	iocGetInfoV2      = 0xC008DA05
	iocGetAttr        = 0xC008DA06
	iocPinBufferV2    = 0xC020DA07
	iocReqMappingType = 0xC008DA08
	iocGetVersion     = 0xC008DAFF
)

// version is major<<16 | minor.
type version uint32

const (
	apiVersion version = 2<<16 | 6 // this library's
	minDriver  version = 2 << 16   // the oldest driver that it works with

	sinceInfoV2 version = 2<<16 | 4
	sincePinV2  version = 2<<16 | 5 // GET_ATTR and REQ_MAPPING_TYPE came with it
)

func (v version) major() int { return int(v >> 16) }
func (v version) minor() int { return int(v & 0xffff) }

// Attributes of GET_ATTR.
const (
	attrPersistent = 1
	attrForcePCIe  = 2
)

type pinBuffer struct {
	addr, size, p2pToken uint64
	vaSpace              uint32
	_                    uint32
	handle               uint64 // out
}

type pinBufferV2 struct {
	addr, size uint64
	flags      uint32
	_          uint32
	handle     uint64 // out
}

type unpinBuffer struct {
	handle uint64
}

type getCBFlag struct {
	handle uint64
	flag   uint32 // out
	_      uint32
}

type getInfo struct {
	handle           uint64
	va, mappedSize   uint64 // out, like all below
	pageSize, tscKHz uint32
	tmCycles         uint64
	mapped           uint32
	wcMapping        uint32
}

type getInfoV2 struct {
	handle           uint64
	va, mappedSize   uint64 // out, like all below
	pageSize, tscKHz uint32
	tmCycles         uint64
	mappingType      uint32
	_                uint32
}

type getAttr struct {
	attr  uint32
	value uint32 // out
}

type reqMappingType struct {
	handle      uint64
	mappingType uint32
	_           uint32
}

type getVersion struct {
	driver version // out
	minAPI version // out
}
