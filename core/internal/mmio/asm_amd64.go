package mmio

// lineLoads says whether loadLines works: streaming loads are of SSE4.1.
var lineLoads = features()&(1<<19) != 0

// features is ECX of CPUID's leaf 1.
func features() uint32
