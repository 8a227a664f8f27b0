// Package nvml asks NVIDIA's management library, libnvidia-ml.so.1, about GPUs. It
// loads the library at run time. The library need not be installed: a container has it
// only with the driver capability utility.
//
// The structures and numbers are those of NVML's ABI. The names of its functions carry
// the ABI's version.
package nvml

import (
	"bytes"
	"fmt"

	"gdrapi/core/dl"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// Result is an nvmlReturn_t other than success.
type Result int32

func (r Result) Error() string { return fmt.Sprintf("NVML answered %d", int32(r)) }

// Library is an NVML that is loaded and initialised. Only one goroutine may use it at a
// time.
type Library struct{ handle uintptr }

// Open loads and initialises NVML. It returns ENODEV where NVML is not installed.
func Open() (*Library, error) {
	handle, err := dl.Open("libnvidia-ml.so.1")
	if err != nil {
		return nil, fmt.Errorf("cannot load NVML: %w (%v)", unix.ENODEV, err)
	}
	l := &Library{handle}
	if err := l.call("nvmlInit_v2"); err != nil {
		_ = purego.Dlclose(handle)
		return nil, err
	}
	return l, nil
}

// Close ends the use of NVML and unloads it.
func (l *Library) Close() {
	_ = l.call("nvmlShutdown")
	_ = purego.Dlclose(l.handle)
}

// call calls a function of NVML.
func (l *Library) call(name string, args ...any) error {
	fn, err := purego.Dlsym(l.handle, name)
	if err != nil {
		return fmt.Errorf("NVML has no %s: %w", name, unix.ENOTSUP)
	}
	if r := Result(int32(dl.Call(fn, args...))); r != 0 {
		return fmt.Errorf("%s: %w", name, r)
	}
	return nil
}

// Device is a GPU. It is valid until its Library is closed.
type Device struct {
	library *Library
	handle  uintptr
}

// At opens NVML and calls ask with the GPU at a PCI address, in the form 0000:18:00.0.
func At(pci string, ask func(Device) error) error {
	l, err := Open()
	if err != nil {
		return err
	}
	defer l.Close()
	gpu, err := l.deviceAt(pci)
	if err != nil {
		return err
	}
	return ask(gpu)
}

func (l *Library) deviceAt(pci string) (Device, error) {
	id := append([]byte(pci), 0)
	d := Device{library: l}
	err := l.call("nvmlDeviceGetHandleByPciBusId_v2", &id[0], &d.handle)
	return d, err
}

// Devices lists the GPUs that this process may see.
func (l *Library) Devices() ([]Device, error) {
	var n uint32
	if err := l.call("nvmlDeviceGetCount_v2", &n); err != nil {
		return nil, err
	}
	list := make([]Device, n)
	for i := range list {
		list[i].library = l
		if err := l.call("nvmlDeviceGetHandleByIndex_v2", i, &list[i].handle); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// pciInfo is nvmlPciInfo_t, 68 bytes.
type pciInfo struct {
	_     [16]byte  // the bus ID in an older form
	_     [5]uint32 // domain, bus, device, deviceID, subsystemID
	busID [32]byte
}

// PCI is the GPU's PCI address, in the form 00000000:18:00.0.
func (d Device) PCI() (string, error) {
	var p pciInfo
	err := d.library.call("nvmlDeviceGetPciInfo_v3", d.handle, &p)
	text, _, _ := bytes.Cut(p.busID[:], []byte{0})
	return string(text), err
}

// BAR1 is the size of a GPU's BAR1 and the free part of it, in bytes.
type BAR1 struct{ Total, Free uint64 }

// BAR1 gives the size of the GPU's BAR1 and the free part of it.
func (d Device) BAR1() (BAR1, error) {
	var m struct{ total, free, used uint64 } // nvmlBAR1Memory_t
	err := d.library.call("nvmlDeviceGetBAR1MemoryInfo", d.handle, &m)
	return BAR1{m.total, m.free}, err
}

// MIG reports whether the GPU is divided into instances (multi-instance GPU).
func (d Device) MIG() (bool, error) {
	var current, pending uint32
	err := d.library.call("nvmlDeviceGetMigMode", d.handle, &current, &pending)
	return current != 0, err
}

// VGPU reports whether the GPU is a virtual one: a part of a GPU that this virtual machine has.
func (d Device) VGPU() (bool, error) {
	const vgpu = 2 // of nvmlGpuVirtualizationMode_t
	var mode int32
	err := d.library.call("nvmlDeviceGetVirtualizationMode", d.handle, &mode)
	return mode == vgpu, err
}

// ConfidentialComputing reports whether the GPUs hide their memory from the host.
func (l *Library) ConfidentialComputing() (bool, error) {
	var s struct{ environment, feature, devTools uint32 } // nvmlConfComputeSystemState_t
	err := l.call("nvmlSystemGetConfComputeState", &s)
	return s.feature != 0, err
}
