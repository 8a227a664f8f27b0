package rm

import (
	"fmt"
	"unsafe"

	"gdrapi/core/cuda"

	"github.com/ebitengine/purego"
)

// bar1Use says how much of a GPU's BAR1 is in use, if NVML is there to tell.
func bar1Use(at cuda.PCIAddress) string {
	const unknown = "run nvidia-smi -q -d MEMORY to see how much of BAR1 is in use"
	lib, err := purego.Dlopen("libnvidia-ml.so.1", purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return unknown
	}
	defer purego.Dlclose(lib)
	if !nvml(lib, "nvmlInit_v2") {
		return unknown
	}
	defer nvml(lib, "nvmlShutdown")
	q := new(struct {
		id               [32]byte
		device           uintptr
		total, free, use uint64 // nvmlBAR1Memory_t, in bytes
	})
	copy(q.id[:], at.String())
	if !nvml(lib, "nvmlDeviceGetHandleByPciBusId_v2", uintptr(unsafe.Pointer(&q.id)), uintptr(unsafe.Pointer(&q.device))) ||
		!nvml(lib, "nvmlDeviceGetBAR1MemoryInfo", q.device, uintptr(unsafe.Pointer(&q.total))) {
		return unknown
	}
	return fmt.Sprintf("of %d MiB of BAR1 %d MiB are free", q.total>>20, q.free>>20)
}

// nvml calls a function of NVML and tells whether it went well. What the arguments
// point to stays in place and alive for as long as it runs.
//
//go:uintptrescapes
func nvml(lib uintptr, name string, args ...uintptr) bool {
	fn, err := purego.Dlsym(lib, name)
	if err != nil {
		return false
	}
	r, _, _ := purego.SyscallN(fn, args...)
	return int32(r) == 0
}
