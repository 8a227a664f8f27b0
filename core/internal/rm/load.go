package rm

import (
	"encoding/binary"

	"gdrapi/core/internal/sys"
)

// load reads len(b) bytes of GPU memory at va. It reads aligned words where it can,
// because each load crosses the PCIe bus. va is a number, not a pointer, because a
// mapping is not Go's memory. load turns it into a pointer.
func load(b []byte, va uintptr) {
	for len(b) >= 8 && va%8 == 0 {
		binary.NativeEndian.PutUint64(b, *(*uint64)(sys.Pointer(va)))
		b, va = b[8:], va+8
	}
	for i := range b {
		b[i] = *(*byte)(sys.Pointer(va + uintptr(i)))
	}
}
