package rm

import (
	"fmt"

	"gdrapi/core/cuda"
	"gdrapi/core/nvml"
)

// bar1Use says how much of a GPU's BAR1 is in use. It needs NVML.
func bar1Use(at cuda.PCIAddress) string {
	const unknown = "run nvidia-smi -q -d MEMORY to see how much of BAR1 is in use"
	lib, err := nvml.Open()
	if err != nil {
		return unknown
	}
	defer lib.Close()
	gpu, err := lib.DeviceAt(at.String())
	if err != nil {
		return unknown
	}
	bar, err := gpu.BAR1()
	if err != nil {
		return unknown
	}
	return fmt.Sprintf("of %d MiB of BAR1 %d MiB are free", bar.Total>>20, bar.Free>>20)
}
