package mmio

const lineLoads = true

// loadLines loads n bytes, which are whole lines. va is a multiple of a line.
//
//go:noescape
func loadLines(p *byte, va uintptr, n int)
