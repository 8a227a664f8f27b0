package rm

import (
	"fmt"
	"sync/atomic"
	"time"

	"gdrapi/core/cuda"
	"gdrapi/core/nvml"
)

// bar1Full is the error of a window that BAR1 has no room for. Its text says how full BAR1
// is. To ask takes milliseconds, and starts NVML. So NVML is asked when the text is wanted, for
// the log, and once a second at most: a cache that makes room gets many of these errors.
type bar1Full struct {
	err error
	at  cuda.PCIAddress
}

func (e *bar1Full) Unwrap() error { return e.err }

func (e *bar1Full) Error() string {
	use := askNVIDIASMI
	now := time.Now().UnixNano()
	if last := bar1Asked.Load(); now-last >= int64(time.Second) && bar1Asked.CompareAndSwap(last, now) {
		use = bar1Use(e.at)
	}
	return fmt.Sprintf("%v (%s)", e.err, use)
}

var bar1Asked atomic.Int64 // when, in nanoseconds

const askNVIDIASMI = "run nvidia-smi -q -d MEMORY to see how much of BAR1 is in use"

// bar1Use says how much of a GPU's BAR1 is in use. It needs NVML.
func bar1Use(at cuda.PCIAddress) string {
	var bar nvml.BAR1
	err := nvml.At(at.String(), func(gpu nvml.Device) (err error) {
		bar, err = gpu.BAR1()
		return err
	})
	if err != nil {
		return askNVIDIASMI
	}
	return fmt.Sprintf("of %d MiB of BAR1 %d MiB are free", bar.Total>>20, bar.Free>>20)
}
