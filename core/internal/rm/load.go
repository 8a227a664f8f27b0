package rm

import (
	"encoding/binary"
	"unsafe"
)

// load reads len(b) bytes of GPU memory at va. It reads aligned words where it can,
// because each load crosses the PCIe bus. va is a number, not a pointer, because a
// mapping is not Go's memory. load turns it into a pointer.
func load(b []byte, va uintptr) {
	for len(b) >= 8 && va%8 == 0 {
		binary.NativeEndian.PutUint64(b, *(*uint64)(mapped(va)))
		b, va = b[8:], va+8
	}
	for i := range b {
		b[i] = *(*byte)(mapped(va + uintptr(i)))
	}
}

// mapped is the pointer to va, an address in a mapping. go vet accepts an address that
// comes from no Go pointer only with this indirection.
func mapped(va uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&va)) }
