// Package mmio copies between Go's memory and a mapping of GPU memory. The accesses and the
// fences are assembly: no compiler splits, merges or drops one, and the Go runtime cannot
// interrupt one.
package mmio

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"

	"gdrapi/core/backend"
)

// lineBytes is a line: what a write-combining buffer holds, and what the fastest accesses
// move. wordBytes is the largest access that every mapping type takes.
const (
	lineBytes = 64
	wordBytes = 8
)

// How much one call of the assembly moves. The Go runtime waits for it, when it wants to
// stop all goroutines. A write takes some 10 us then, and a read some 50.
const (
	writeBytes = 64 << 10
	readBytes  = 4 << 10
)

// live counts the mappings of each type. mixed is true while those of more than one type
// are live. Writes then have a full fence: a later read of a cached mapping may pass a write
// that still is in a write-combining buffer.
var (
	counts sync.Mutex // guards live, and changes of mixed: the last change sees all
	live   [4]int32
	mixed  atomic.Bool
)

// Count counts the mappings of a type up or down by by.
func Count(typ backend.MappingType, by int32) {
	counts.Lock()
	defer counts.Unlock()
	live[typ&3] += by
	types := 0
	for _, n := range live {
		if n > 0 {
			types++
		}
	}
	mixed.Store(types > 1)
}

// Mixed reports whether mappings of more than one type are live.
func Mixed() bool { return mixed.Load() }

// Write writes p to the mapping of that type at va. All of it is on its way to the device
// when Write returns, before any later store of the caller's.
func Write(va uintptr, p []byte, typ backend.MappingType) {
	// A fence is for what its own CPU has stored. The kernel fences when it moves a thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for len(p) > 0 {
		n := min(lines(va, len(p), typ), writeBytes)
		if n > 0 {
			storeLines(va, &p[0], n)
		} else {
			n = piece(va, len(p))
			store(va, word(p[:n]), n)
		}
		va, p = va+uintptr(n), p[n:]
	}
	if Mixed() {
		fullFence()
	} else {
		storeFence()
	}
}

// Read reads p from the mapping of that type at va. It sees what the device wrote before
// anything that the caller has read already, and what the caller does next comes after it.
// It reads whole aligned words or lines, as each load of such memory is a round trip.
func Read(p []byte, va uintptr, typ backend.MappingType) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if byWords(va, len(p), typ) {
		loadFence()
		readWords(p, va)
	} else {
		linesFence()
		readLines(p, va, typ)
	}
	endFence()
}

// byWords reports whether n bytes at va are read by words: where lines may not be, and where
// one word has them.
func byWords(va uintptr, n int, typ backend.MappingType) bool {
	return !lineLoads || typ == backend.Device || va%wordBytes+uintptr(n) <= wordBytes
}

func readWords(p []byte, va uintptr) {
	for len(p) > 0 {
		skip := va % wordBytes
		var b [wordBytes]byte
		binary.NativeEndian.PutUint64(b[:], load(va-skip))
		n := copy(p, b[skip:])
		va, p = va+uintptr(n), p[n:]
	}
}

func readLines(p []byte, va uintptr, typ backend.MappingType) {
	for len(p) > 0 {
		n := min(lines(va, len(p), typ), readBytes)
		if n > 0 {
			loadLines(&p[0], va, n)
		} else {
			var b [lineBytes]byte
			skip := va % lineBytes
			loadLines(&b[0], va-skip, lineBytes)
			n = copy(p, b[skip:])
		}
		va, p = va+uintptr(n), p[n:]
	}
}

// lines is how many of n bytes at va are whole lines from va on.
func lines(va uintptr, n int, typ backend.MappingType) int {
	if !wide || typ == backend.Device || va%lineBytes != 0 {
		return 0
	}
	return n &^ (lineBytes - 1)
}

// piece is the size of the largest naturally aligned access that begins n bytes at va.
func piece(va uintptr, n int) int {
	size := wordBytes
	for va%uintptr(size) != 0 || size > n {
		size /= 2
	}
	return size
}

// word is the number that a store of p's 1, 2, 4 or 8 bytes stores.
func word(p []byte) uint64 {
	switch len(p) {
	case 8:
		return binary.NativeEndian.Uint64(p)
	case 4:
		return uint64(binary.NativeEndian.Uint32(p))
	case 2:
		return uint64(binary.NativeEndian.Uint16(p))
	}
	return uint64(p[0])
}
