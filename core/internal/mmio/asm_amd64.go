package mmio

import "golang.org/x/sys/cpu"

// lineLoads says whether loadLines works: streaming loads are of SSE4.1.
var lineLoads = cpu.X86.HasSSE41

// loadLines loads n bytes, which are whole lines. va is a multiple of a line. Loads of 32
// bytes read a long range a third faster than loads of 16 (an H200's mapping).
func loadLines(p *byte, va uintptr, n int) {
	if cpu.X86.HasAVX2 {
		loadLinesAVX2(p, va, n)
	} else {
		loadLinesSSE(p, va, n)
	}
}

//go:noescape
func loadLinesSSE(p *byte, va uintptr, n int)

//go:noescape
func loadLinesAVX2(p *byte, va uintptr, n int)
