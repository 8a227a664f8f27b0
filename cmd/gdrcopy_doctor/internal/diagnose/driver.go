package diagnose

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"gdrapi/cmd/gdrcopy_doctor/internal/facts"
)

// leastDriver is the first driver whose requests the rm backend knows.
const leastDriver = 535

// The results of cuInit that have an advice of their own.
const (
	cudaStub        = 34
	cudaUnavailable = 46
	cudaNoDevice    = 100
	cudaNotReady    = 802
	cudaMismatch    = 803
	cudaNoCompat    = 804
	cudaUnknown     = 999
)

// sharedMemory, withoutMIG and copyByCUDA are what to do, whoever says that it is so.
const (
	sharedMemory = "Allocate memory with cudaHostAlloc: the CPU and the GPU both see it, and libgdrapi is not needed."
	withoutMIG   = "Load gdrdrv, use a GPU that is not parted, or turn MIG off: nvidia-smi -mig 0."
	copyByCUDA   = "Let programs use cuMemcpy. To map memory, turn the mode off on the host."
)

// gpu says which GPUs there are, and which kinds of machine no backend serves.
func (e *examination) gpu() []Finding {
	var names []string
	for _, g := range e.GPUs {
		names = append(names, strings.TrimPrefix(g.Model+" at "+g.PCI, " at "))
	}
	if len(names) == 0 {
		for _, d := range e.CUDA.Devices {
			names = append(names, d.PCI)
		}
	}
	var lent facts.GPU // the first, if all are
	if len(e.GPUs) > 0 && len(e.CUDA.Devices) == 0 && !slices.ContainsFunc(e.GPUs, func(g facts.GPU) bool { return !strings.HasPrefix(g.Driver, "vfio") }) {
		lent = e.GPUs[0]
	}
	bad, gpus := e.cause(), plural(len(e.GPUs), "NVIDIA GPU")
	inKernel := e.Driver.Version != "" || e.node("/dev/nvidiactl").Exists
	driven := inKernel || len(e.CUDA.Devices) > 0
	return finding("gpu", []row{
		{!e.worked && (e.isSaid("the GPU is lost") || e.isSaid("NVML answered 15")), Fail, "A GPU is lost: the driver does not reach it any more.",
			"Look into dmesg for lines of NVRM (Xid), then reset the GPU (nvidia-smi --gpu-reset) or reboot."},
		{lent.Driver != "", bad, fmt.Sprintf("The driver %s has %s, to lend it to a virtual machine. NVIDIA's driver does not.", lent.Driver, gpus),
			"Run this in that machine. To have the GPU here: echo " + lent.PCI + " >/sys/bus/pci/drivers/" + lent.Driver + "/unbind as root, keep its ID from vfio-pci (ids= in /etc/modprobe.d), then modprobe nvidia."},
		{e.WSL && !inKernel, bad, "This is Linux on Windows (WSL). CUDA reaches the GPU through Windows, and GPU memory cannot be mapped.",
			"Use Linux itself. Here programs do without libgdrapi."},
		{e.Tegra && (!inKernel || !e.worked && e.isSaid("display driver of this Tegra")), bad,
			"This GPU (Tegra, Jetson) shares the CPU's memory, and has no driver that maps it.", sharedMemory},
		{!driven && e.Nouveau, bad, "The driver nouveau has the GPU, not NVIDIA's.",
			"Install NVIDIA's driver, keep nouveau from loading (blacklist nouveau in /etc/modprobe.d), and reboot."},
		{!driven && e.inContainer(), bad, fmt.Sprintf("There is %s, but this %s container sees no driver of NVIDIA's.", gpus, e.Container),
			"If nvidia-smi works on the machine itself: " + lowerFirst(e.giveGPU()) + " If it does not, load the driver there."},
		{!driven, bad, "There is an NVIDIA GPU, but NVIDIA's kernel driver is not loaded.",
			"Install it, then: modprobe nvidia. If that is refused, read dmesg; with Secure Boot the module must be signed."},
		{len(names) == 0, OK, "There is an NVIDIA driver. Which GPUs it has, it does not say here.", ""},
		{e.CUDA.Simulated, OK, "The driver is simulated (tests/doubles): GPU memory is the host's, and no time here is a GPU's.", ""},
		{true, OK, plural(len(names), "NVIDIA GPU") + ": " + strings.Join(names, ", ") + ".", ""},
	})
}

// driver compares the driver's part in the kernel with its part in user space. If neither is there,
// gpu and cuda say it.
func (e *examination) driver() []Finding {
	kernel, user := e.Driver.Version, userVersion(e.CUDA.Path)
	kind := "closed"
	if e.Driver.Open {
		kind = "open"
	}
	text := fmt.Sprintf("The kernel has NVIDIA driver %s (%s modules)", kernel, kind)
	libcuda := fmt.Sprintf(", and libcuda is of %s (%s)", user, e.CUDA.Path)
	return finding("driver", []row{
		{kernel == "" && e.CUDA.Load == "" && user != "", OK, fmt.Sprintf("libcuda is of driver %s. The kernel does not say its version here.", user), ""},
		{kernel != "" && numbers(kernel)[0] < leastDriver, e.cause(), text + fmt.Sprintf(", and %d is the first that the rm backend knows.", leastDriver),
			fmt.Sprintf("Update the driver to %d or later, or load gdrdrv.", leastDriver)},
		{kernel != "" && user == "", OK, text + ".", ""},
		{kernel != "" && user == kernel, OK, text + ", and libcuda is of the same.", ""},
		{kernel != "" && (newer(user, kernel) || strings.Contains(e.CUDA.Path, "compat")), e.compatStatus(), text + libcuda + ": a compatibility package.",
			"Take the compatibility package away if CUDA does not start with it: LD_LIBRARY_PATH, or the package cuda-compat."},
		{kernel != "", e.needed(), text + libcuda + ", which is older.",
			"Install one version of both. After an update, reboot or load the new module. In a container, do not install a libcuda: the NVIDIA container toolkit lends the machine's."},
	})
}

// compatStatus is that of a newer libcuda, which is right if CUDA starts.
func (e *examination) compatStatus() Status {
	if e.CUDA.Error == "" {
		return OK
	}
	return e.cause()
}

// userVersion is the driver version in the name of libcuda's file.
func userVersion(file string) string {
	v, ok := strings.CutPrefix(path.Base(file), "libcuda.so.")
	if !ok || !strings.Contains(v, ".") {
		return ""
	}
	return v
}

// numbers are those of a version.
func numbers(version string) (all []int) {
	for _, text := range strings.Split(version, ".") {
		n, _ := strconv.Atoi(text)
		all = append(all, n)
	}
	return all
}

// newer compares versions number by number.
func newer(a, b string) bool { return slices.Compare(numbers(a), numbers(b)) > 0 }

// cuda says whether CUDA starts.
func (e *examination) cuda() []Finding {
	c, bad, said := e.CUDA, e.cause(), sentence(e.CUDA.Load)
	version := fmt.Sprintf("CUDA %d.%d", c.Version/1000, c.Version%1000/10)
	load := c.Load != "" && (len(e.GPUs) == 0 || e.inContainer() || e.Driver.Version != "")
	v, chosen := e.Env["CUDA_VISIBLE_DEVICES"]
	return finding("cuda", []row{
		{c.Died != "", bad, "The CUDA driver was asked in a process of its own: " + c.Died + ".",
			cmp.Or(e.withoutLayers(""), "Run nvidia-smi, and look into dmesg for lines of NVRM. If the GPU has fallen off, a reboot helps.")},
		{load && e.Container == apptainer, bad, "libcuda.so.1 does not load in this container: Apptainer lends the machine's with --nv. " + said, e.giveGPU()},
		{load && e.inContainer(), bad, "libcuda.so.1 does not load in this container. " + said,
			"Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility and the NVIDIA container toolkit: it lends the machine's libcuda."},
		{load, bad, "libcuda.so.1 does not load. " + said,
			"Install the driver's CUDA library (libcuda1 on Debian, libnvidia-compute on Ubuntu, nvidia-driver-cuda-libs among NVIDIA's RPMs), then run ldconfig."},
		{c.Init == cudaStub || strings.Contains(c.Path, "/stubs/"), bad, c.Path + " is the toolkit's stub, which is there only for linking.",
			"Take the folder stubs out of LD_LIBRARY_PATH and of the loader's configuration."},
		{c.Init == cudaNoDevice && chosen, bad, fmt.Sprintf("%s has no device (100), with CUDA_VISIBLE_DEVICES=%s.", version, v),
			"Unset CUDA_VISIBLE_DEVICES, or let it name a GPU that is here."},
		{c.Init == cudaNoDevice && e.inContainer(), bad, version + " has no device (100).",
			e.giveGPU() + " If it was given and is gone since: start the container anew, for systemd may have taken the device rules back."},
		{c.Init == cudaNoDevice, bad, version + " has no device (100).", "Run nvidia-smi. If it lists no GPU, look into dmesg for lines of NVRM."},
		{c.Init == cudaNotReady, bad, version + ": the system is not ready (802).",
			"Start NVIDIA's fabric manager, of the driver's own version: systemctl start nvidia-fabricmanager. In confidential computing, set the GPUs ready: nvidia-smi conf-compute -srs 1."},
		{c.Init == cudaMismatch, bad, version + ": the driver's kernel part and libcuda are of different versions (803).",
			"Install one version of both, and reboot. In a container, remove its own libcuda."},
		{c.Init == cudaNoCompat, bad, version + ": this GPU does not serve a CUDA compatibility package (804).",
			"Remove the package cuda-compat, or its folder from LD_LIBRARY_PATH. It is only for data-center GPUs."},
		{c.Init == cudaUnavailable, bad, version + ": the GPU is taken (46).",
			"Another process has it for itself: nvidia-smi -q -d COMPUTE shows the mode, nvidia-smi -c DEFAULT shares the GPU."},
		{c.Init == cudaUnknown, bad, version + " does not start: unknown error (999).",
			"Load nvidia-uvm (modprobe nvidia-uvm, nvidia-modprobe -u -c=0) and look into dmesg for lines of NVRM."},
		{c.Load == "" && c.Error != "", bad, version + " does not start. " + sentence(c.Error), "Run nvidia-smi, and look into dmesg for lines of NVRM."},
		{c.Load == "", OK, fmt.Sprintf("%s starts, with %s.", version, plural(len(c.Devices), "device")), ""}, // else gpu says what to do
	})
}

// attributes are what decides about the backend dmabuf.
func (e *examination) attributes() []Finding {
	var exports, maps []string
	for _, d := range e.CUDA.Devices {
		exports, maps = append(exports, attribute(d.DMABuf)), append(maps, attribute(d.DMABufMmap))
	}
	return finding("attributes", []row{{len(e.CUDA.Devices) > 0, OK, fmt.Sprintf("Of each device, attribute 124 (dma-bufs are exported): %s; attribute 152 (they can be mapped): %s.",
		strings.Join(exports, ", "), strings.Join(maps, ", ")), ""}})
}

func attribute(v int) string {
	if v < 0 {
		return "not known to the driver"
	}
	return strconv.Itoa(v)
}

// nodes looks at the device nodes of NVIDIA's driver.
func (e *examination) nodes() []Finding {
	if e.Driver.Version == "" && !e.node("/dev/nvidiactl").Exists {
		return nil // without the driver there are none
	}
	var gpus int
	var findings []Finding
	s := e.nodeStatus()
	for _, n := range e.Nodes {
		if strings.TrimLeft(strings.TrimPrefix(n.Path, "/dev/nvidia"), "0123456789") == "" {
			gpus++
		}
		if n.Path == "/dev/gdrdrv" {
			continue // backend-gdrdrv says it
		}
		findings = append(findings, finding("device-nodes", []row{
			{!n.Exists, s, fmt.Sprintf("There is no %s.", n.Path), e.makeNodes(n.Path)},
			{n.Kind != "device", s, fmt.Sprintf("%s is a %s, not a device.", n.Path, n.Kind),
				"Remove it. If the device was missing when the container started, a container runtime has made it: load the driver first."},
			e.closed(n, s, "Let the user into the group of the node, or load the module nvidia with NVreg_DeviceFileMode=0666."),
		})...)
	}
	return append(findings, finding("device-nodes", []row{
		{gpus == 0, s, "There is no /dev/nvidia0, nor a node of another GPU.", e.makeNodes("/dev/nvidia0")},
		{len(findings) == 0, OK, fmt.Sprintf("/dev/nvidiactl, /dev/nvidia-uvm and the nodes of %s are there, and may be used.", plural(gpus, "GPU")), ""},
	})...)
}

// nodeStatus is needed, except if CUDA fails for a reason that no node gives. CUDA makes missing nodes itself
// if it starts.
func (e *examination) nodeStatus() Status {
	c := e.CUDA
	if c.Died != "" || c.Load != "" || c.Init == cudaNoDevice && e.hidesGPUs() || slices.Contains([]int{cudaStub, cudaUnavailable, cudaNotReady, cudaMismatch, cudaNoCompat}, c.Init) {
		return Warn
	}
	return e.needed()
}

// hidesGPUs says whether CUDA_VISIBLE_DEVICES leaves no GPU: CUDA reads it up to the first entry that names none.
func (e *examination) hidesGPUs() bool {
	v, set := e.Env["CUDA_VISIBLE_DEVICES"]
	first, _, _ := strings.Cut(v, ",")
	n, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil {
		return set && !strings.HasPrefix(first, "GPU-") && !strings.HasPrefix(first, "MIG-")
	}
	return n < 0 || len(e.GPUs) > 0 && n >= len(e.GPUs)
}

// denied is Node.Access where rules close a node; its mode gives EACCES.
const denied = "operation not permitted"

// closed is why a node may not be opened; byMode is what to do if its mode is why.
func (e *examination) closed(n facts.Node, s Status, byMode string) row {
	mode, _ := strconv.ParseUint(n.Mode, 8, 32)
	label := ""
	if e.Label != "" {
		label = ", which has the label " + e.Label + " for this process"
	}
	byModule := mode&6 == 6 && n.Access != ""
	module := fmt.Sprintf("%s may not be used: its mode (%s) lets everybody, and a security module (SELinux, AppArmor) refuses%s.", n.Path, n.Mode, label)
	return first([]row{
		{n.Access == facts.NoDev, s, n.Path + " may not be opened: " + n.Access + ".", "Mount it with dev: bwrap --dev-bind /dev /dev, mount -o remount,dev."},
		{n.Access == denied && e.inContainer(), s, n.Path + " may not be opened: the device rules of this container leave it out.", "Start the container with --device " + n.Path + ": it is not enough to mount the node."},
		{n.Access == denied, s, n.Path + " may not be opened: the device rules of this job or service leave it out.", "Ask for the GPU where it is started: --gres=gpu:1 of Slurm, DeviceAllow=" + n.Path + " rw of systemd."},
		{byModule && e.inContainer(), s, module, unconfine},
		{byModule, s, module, "The kernel's log names the rule (journalctl -k | grep -i denied): have the policy, or the program's profile, allow reading and writing " + n.Path + "."},
		{n.Access != "", s, fmt.Sprintf("%s may not be used by this user: %s (mode %s, owner %s).", n.Path, n.Access, n.Mode, n.Owner), byMode},
	})
}

// unconfine is how a container opens a node that a security module closes.
const unconfine = "SELinux: podman run or docker run --security-opt label=disable; or for all containers, as root: setsebool -P container_use_devices on. " +
	"AppArmor: podman run or docker run --security-opt apparmor=unconfined."

func (e *examination) makeNodes(path string) string {
	switch {
	case e.inContainer() && path == "/dev/nvidia0":
		return e.giveGPU()
	case e.inContainer():
		return e.giveGPU() + " Or give it the node itself: --device " + path + "."
	case path == "/dev/nvidia-uvm":
		return "As root: modprobe nvidia-uvm, then nvidia-modprobe -u -c=0."
	}
	return "As root: nvidia-modprobe -c=0, or nvidia-smi, which make the nodes."
}

// container looks at what a container was started with.
func (e *examination) container() []Finding {
	const start = "Start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
	text, given := fmt.Sprintf("This is a container (%s)", e.Container), e.Env["NVIDIA_DRIVER_CAPABILITIES"]
	visible, with := e.Env["NVIDIA_VISIBLE_DEVICES"], text+" with NVIDIA_DRIVER_CAPABILITIES="+given
	lacks := func(c string) bool {
		list := strings.Split(given, ",")
		return given != "" && !slices.Contains(list, c) && !slices.Contains(list, "all")
	}
	return finding("container", []row{
		{!e.inContainer(), OK, "This is no container.", ""},
		{(visible == "void" || visible == "none") && !e.worked, Fail, text + " with NVIDIA_VISIBLE_DEVICES=" + visible + ", so it has no GPU.", e.giveGPU()},
		{given == "" && (e.worked || e.Container == apptainer), OK, text + ".", ""},
		{given == "", Warn, text + ". NVIDIA_DRIVER_CAPABILITIES is not set, which gives it only utility with some runtimes.", start + "."},
		{lacks("compute"), e.needed(), with + ": without compute it has no libcuda.", start + "."},
		{lacks("utility"), Warn, with + ": without utility it has no NVML and no nvidia-smi.", start + ", if you want to know how much of BAR1 is in use."},
		{true, OK, with + ".", ""},
	})
}
