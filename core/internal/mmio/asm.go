//go:build amd64 || arm64

package mmio

// wide says that this machine has storeLines and loadLines.
const wide = true

// store stores the lowest size bytes of v, which are 1, 2, 4 or 8. va is a multiple of size.
//
//go:noescape
func store(va uintptr, v uint64, size int)

// load loads 8 bytes. va is a multiple of 8.
//
//go:noescape
func load(va uintptr) uint64

// storeLines stores n bytes, which are whole lines. va is a multiple of a line.
//
//go:noescape
func storeLines(va uintptr, p *byte, n int)

// The fences: after a write; after a write while mappings of several
// types are live; before a read by words; before a read by lines; after a read.
func storeFence()
func fullFence()
func loadFence()
func linesFence()
func endFence()
