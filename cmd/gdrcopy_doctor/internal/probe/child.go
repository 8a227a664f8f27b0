package probe

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"gdrapi/cmd/gdrcopy_doctor/internal/facts"
	"gdrapi/core"
	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/nvml"

	"golang.org/x/sys/unix"
)

// Child is what a child does. It gives the process's exit status.
func Child(args []string) int {
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "gdrcopy_doctor: a probe takes a name and an argument")
		return 2
	}
	var answer any
	switch name, argument := args[0], args[1]; name {
	case "cuda":
		answer = askCUDA()
	case "nvml":
		answer = askNVML()
	case "backend":
		answer = askBackend(argument)
	case "library":
		answer = askLibrary(argument)
	case "trial":
		answer = try(argument)
	default:
		fmt.Fprintf(os.Stderr, "gdrcopy_doctor: there is no probe %q\n", name)
		return 2
	}
	out := os.NewFile(answerFD, "answer")
	if err := json.NewEncoder(out).Encode(answer); err != nil {
		fmt.Fprintln(os.Stderr, "gdrcopy_doctor:", err)
		return 1
	}
	return 0
}

func askCUDA() facts.CUDA {
	var c facts.CUDA
	d, err := cuda.Load()
	if err != nil {
		c.Load = err.Error()
		return c
	}
	if l, err := load("libcuda.so.1"); err == nil {
		c.Path = l.file("cuInit")
		_, err = l.function("cuda_sim_live")
		c.Simulated = err == nil
	}
	if c.Version, err = d.Version(); err != nil {
		c.Error = err.Error()
		return c
	}
	if err := d.Init(); err != nil {
		c.Error = err.Error()
		c.Init = int(cuda.ErrUnknown)
		var r cuda.Result
		if errors.As(err, &r) {
			c.Init = int(r)
		}
		return c
	}
	n, err := d.DeviceCount()
	for i := 0; err == nil && i < n; i++ {
		var dev facts.Device
		dev, err = askDevice(d, i)
		c.Devices = append(c.Devices, dev)
	}
	if err != nil {
		c.Error = err.Error()
	}
	return c
}

func askDevice(d *cuda.Driver, ordinal int) (facts.Device, error) {
	var dev facts.Device
	if at, err := d.PCIAddress(ordinal); err == nil {
		dev.PCI = at.String()
	}
	const integrated cuda.DeviceAttribute = 18
	for _, a := range []struct {
		attribute cuda.DeviceAttribute
		value     *int
	}{{integrated, &dev.Integrated}, {cuda.HostPageTables, &dev.Coherent}, {cuda.DMABufSupported, &dev.DMABuf}, {cuda.DMABufMmapSupported, &dev.DMABufMmap}} {
		v, err := d.DeviceAttribute(a.attribute, ordinal)
		if errors.Is(err, cuda.ErrInvalidValue) {
			v, err = -1, nil // a driver that does not know the attribute
		}
		if err != nil {
			return dev, err
		}
		*a.value = v
	}
	return dev, nil
}

func askNVML() facts.NVML {
	var n facts.NVML
	lib, err := nvml.Open()
	if err != nil {
		n.Error = err.Error()
		return n
	}
	defer lib.Close()
	n.Confidential, _ = lib.ConfidentialComputing() // an older NVML does not know of it
	gpus, err := lib.Devices()
	if err != nil {
		n.Error = err.Error()
		return n
	}
	for _, gpu := range gpus {
		var m facts.ManagedGPU
		m.PCI, _ = gpu.PCI()
		bar, _ := gpu.BAR1()
		m.BAR1Total, m.BAR1Free = bar.Total, bar.Free
		m.MIG, _ = gpu.MIG()
		m.VGPU, _ = gpu.VGPU()
		n.GPUs = append(n.GPUs, m)
	}
	return n
}

func askBackend(name string) facts.Backend {
	answer := facts.Backend{Name: name}
	if err := tryOpen(name); err != nil {
		answer.Error, answer.Errno = err.Error(), unix.ErrnoName(core.Errno(err))
	}
	return answer
}

// tryOpen opens a backend. Where only CUDA can say whether it serves, it is opened again when
// CUDA is initialised.
func tryOpen(name string) error {
	// rm opens on some machines only where the user names it.
	all := core.Backends(core.Options{Backend: os.Getenv("GDRCOPY_BACKEND")})
	i := slices.IndexFunc(all, func(b backend.Backend) bool { return b.Name() == name })
	if i < 0 {
		return fmt.Errorf("there is no backend %q: %w", name, unix.EINVAL)
	}
	session, err := all[i].Open()
	if err != nil {
		return err
	}
	u, ok := session.(backend.Tentative)
	serves := !ok || u.ServesAny() == nil
	_ = session.Close()
	if serves {
		return nil
	}
	cu, err := cuda.Load()
	if err != nil {
		return err
	}
	if err := cu.Init(); err != nil {
		return err
	}
	if session, err = all[i].Open(); err == nil {
		_ = session.Close()
	}
	return err
}
