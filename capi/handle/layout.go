package handle

import (
	"sync/atomic"
	"unsafe"

	"gdrapi/capi/cache"
)

// The structs of this file are those of capi/copy/slot.h, field by field, because C's copies
// read this memory.

const (
	indexBits = 20
	genBits   = 32
	epochBits = 12

	slotCount = 1 << indexBits // handles that can exist at a time

	// MaxEpoch is the highest epoch that fits into a handle.
	MaxEpoch = 1<<epochBits - 1
)

const (
	slotType    = 3 // bits of a slot's state
	slotChanges = 4
	slotCounts  = 8
)

type slot struct {
	state atomic.Uint64
	key   atomic.Uint64
	va    atomic.Uint64
	len   atomic.Uint64
	cache atomic.Uint64
	_     [3]uint64
	held  cache.Range
}

// Shared is what C's copies are told, and where they find the table. It lies in memory of C's.
type Shared struct {
	slots atomic.Uint64
	mixed atomic.Uint32
	last  atomic.Uint32 // slot that can be read
}

// slotsIn lays the slots over mem, which lies outside of the Go heap: C reads it at a fixed
// address. No other function changes the type of that memory.
func slotsIn(mem []byte) *[slotCount]slot {
	return (*[slotCount]slot)(unsafe.Pointer(unsafe.SliceData(mem)))
}
