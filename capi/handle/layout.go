package handle

import (
	"sync/atomic"
	"unsafe"
)

// The structs of this file are those of capi/copy/slot.h, field by field, because the C
// copy routines read this memory. TestLayout compares the two files.

const (
	indexBits = 20
	genBits   = 32
	epochBits = 12

	slotCount    = SlotCount
	hazardCount  = 1 << 16
	hazardLevels = 3
	hazardNames  = 3

	// The number of a copy of many pieces has its count of names in the lowest bits.
	manyShift = 2
	manyNames = 1<<manyShift - 1

	// SlotCount is the number of handles that can exist at a time.
	SlotCount = 1 << indexBits

	// MaxEpoch is the highest epoch that fits into a handle.
	MaxEpoch = 1<<epochBits - 1
)

type slot struct {
	key   atomic.Uint64
	va    uint64
	len   uint64
	typ   uint32
	_     uint32
	cache atomic.Uint64
	_     [3]uint64
}

type hazard struct {
	owner atomic.Uint32
	_     uint32
	busy  [hazardLevels]atomic.Uint64
	names [hazardNames]atomic.Uint64
	self  atomic.Uint64
}

type header struct {
	epoch       uint32
	fenced      atomic.Uint32
	hazardsUsed atomic.Uint32
	mixed       atomic.Uint32
	slots       uint64
	hazards     uint64
}

const (
	lineBytes   = 64
	headerBytes = 4096
	slotBytes   = slotCount * unsafe.Sizeof(slot{})
	hazardBytes = hazardCount * unsafe.Sizeof(hazard{})
	tableBytes  = headerBytes + slotBytes + hazardBytes
)

// view lays the table's structs over mem. mem is page aligned and has tableBytes bytes.
// It lies outside of the Go heap, because C reads it at a fixed address. No other
// function changes the type of that memory.
//
// The header is the last line of its page. slot.h says why.
func view(mem []byte) (*header, *[slotCount]slot, *[hazardCount]hazard) {
	base := unsafe.Pointer(unsafe.SliceData(mem))
	slots := unsafe.Add(base, headerBytes)
	hazards := unsafe.Add(slots, slotBytes)
	h := (*header)(unsafe.Add(base, headerBytes-lineBytes))
	h.slots = uint64(uintptr(slots))
	h.hazards = uint64(uintptr(hazards))
	return h, (*[slotCount]slot)(slots), (*[hazardCount]hazard)(hazards)
}
