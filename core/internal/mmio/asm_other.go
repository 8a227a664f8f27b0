//go:build !amd64 && !arm64

package mmio

import (
	"sync/atomic"
	"unsafe"
)

// A machine without assembly of its own: accesses of Go's that no function inlines, and
// fences by an atomic store, which is a full one (SYNC on ppc64le).

const (
	wide      = false
	lineLoads = false
)

// at is the pointer to va, an address in a mapping.
func at[T any](va uintptr) *T { return *(**T)(unsafe.Pointer(&va)) }

//go:noinline
func store(va uintptr, v uint64, size int) {
	switch size {
	case 8:
		*at[uint64](va) = v
	case 4:
		*at[uint32](va) = uint32(v)
	case 2:
		*at[uint16](va) = uint16(v)
	default:
		*at[uint8](va) = uint8(v)
	}
}

//go:noinline
func load(va uintptr) uint64 { return *at[uint64](va) }

func storeLines(uintptr, *byte, int) { panic("mmio: no lines on this machine") }
func loadLines(*byte, uintptr, int)  { panic("mmio: no lines on this machine") }

var fenced atomic.Uint32

//go:noinline
func fullFence() { fenced.Store(0) }

func storeFence() { fullFence() }
func loadFence()  { fullFence() }
func linesFence() { fullFence() }
func endFence()   { fullFence() }
