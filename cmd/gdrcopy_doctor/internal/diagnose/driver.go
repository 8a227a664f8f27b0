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

// gpu says which GPUs there are, and which kinds of machine no backend serves.
func (e *examination) gpu() []Finding {
	inKernel := e.Driver.Version != "" || e.node("/dev/nvidiactl").Exists
	lent := len(e.GPUs) > 0 && len(e.CUDA.Devices) == 0 &&
		!slices.ContainsFunc(e.GPUs, func(g facts.GPU) bool { return !strings.HasPrefix(g.Driver, "vfio") })
	switch {
	case !e.worked && (e.isSaid("the GPU is lost") || e.isSaid("NVML answered 15")):
		return one("gpu", Fail, "A GPU is lost: the driver does not reach it any more.",
			"Look into dmesg for lines of NVRM (Xid), then reset the GPU (nvidia-smi --gpu-reset) or reboot.")
	case lent:
		return one("gpu", e.cause(), fmt.Sprintf("The driver %s has %s, to lend it to a virtual machine. NVIDIA's driver does not.", e.GPUs[0].Driver, plural(len(e.GPUs), "NVIDIA GPU")),
			"Run this in that machine. To have the GPU here: echo "+e.GPUs[0].PCI+" >/sys/bus/pci/drivers/"+e.GPUs[0].Driver+"/unbind as root, keep its ID from vfio-pci (ids= in /etc/modprobe.d), then modprobe nvidia.")
	case e.WSL && !inKernel:
		return one("gpu", e.cause(), "This is Linux on Windows (WSL). CUDA reaches the GPU through Windows, and GPU memory cannot be mapped.",
			"Use Linux itself. Here programs do without libgdrapi.")
	case e.Tegra && (!inKernel || !e.worked && e.isSaid("display driver of this Tegra")):
		return one("gpu", e.cause(), "This GPU (Tegra, Jetson) shares the CPU's memory, and has no driver that maps it.",
			"Allocate memory with cudaHostAlloc: the CPU and the GPU both see it, and libgdrapi is not needed.")
	case inKernel || len(e.CUDA.Devices) > 0:
	case e.Nouveau:
		return one("gpu", e.cause(), "The driver nouveau has the GPU, not NVIDIA's.",
			"Install NVIDIA's driver, keep nouveau from loading (blacklist nouveau in /etc/modprobe.d), and reboot.")
	case e.inContainer():
		return one("gpu", e.cause(), fmt.Sprintf("There is %s, but this %s container sees no driver of NVIDIA's.", plural(len(e.GPUs), "NVIDIA GPU"), e.Container),
			"Where nvidia-smi works on the machine itself: "+lowerFirst(e.giveGPU())+" Where it does not, load the driver there.")
	default:
		return one("gpu", e.cause(), "There is an NVIDIA GPU, but NVIDIA's kernel driver is not loaded.",
			"Install it, then: modprobe nvidia. If that is refused, read dmesg; with Secure Boot the module must be signed.")
	}
	var names []string
	for _, g := range e.GPUs {
		name := g.PCI
		if g.Model != "" {
			name = g.Model + " at " + g.PCI
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		for _, d := range e.CUDA.Devices {
			names = append(names, d.PCI)
		}
	}
	if len(names) == 0 {
		return one("gpu", OK, "There is an NVIDIA driver. Which GPUs it has, it does not say here.", "")
	}
	if e.CUDA.Simulated {
		return one("gpu", OK, "The driver is simulated (tests/doubles): GPU memory is the host's, and no time here is a GPU's.", "")
	}
	return one("gpu", OK, plural(len(names), "NVIDIA GPU")+": "+strings.Join(names, ", ")+".", "")
}

// driver compares the driver's part in the kernel with its part in user space.
func (e *examination) driver() []Finding {
	kernel, user := e.Driver.Version, userVersion(e.CUDA.Path)
	if kernel == "" {
		if e.CUDA.Load != "" || user == "" {
			return nil // gpu and cuda say it
		}
		return one("driver", OK, fmt.Sprintf("libcuda is of driver %s. The kernel does not say its version here.", user), "")
	}
	kind := "closed"
	if e.Driver.Open {
		kind = "open"
	}
	text := fmt.Sprintf("The kernel has NVIDIA driver %s (%s modules)", kernel, kind)
	switch {
	case numbers(kernel)[0] < leastDriver:
		return one("driver", e.cause(), text+fmt.Sprintf(", and %d is the first that the rm backend knows.", leastDriver),
			fmt.Sprintf("Update the driver to %d or later, or load gdrdrv.", leastDriver))
	case user == "":
		return one("driver", OK, text+".", "")
	case user == kernel:
		return one("driver", OK, text+", and libcuda is of the same.", "")
	case newer(user, kernel) || strings.Contains(e.CUDA.Path, "compat"):
		return one("driver", e.compatStatus(), text+fmt.Sprintf(", and libcuda is of %s (%s): a compatibility package.", user, e.CUDA.Path),
			"Take the compatibility package away where CUDA does not start with it: LD_LIBRARY_PATH, or the package cuda-compat.")
	}
	return one("driver", e.needed(), text+fmt.Sprintf(", and libcuda is of %s (%s), which is older.", user, e.CUDA.Path),
		"Install one version of both. After an update, reboot or load the new module. In a container, do not install a libcuda: the NVIDIA container toolkit lends the machine's.")
}

// compatStatus is that of a newer libcuda, which is right where CUDA starts.
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
	c := e.CUDA
	version := fmt.Sprintf("CUDA %d.%d", c.Version/1000, c.Version%1000/10)
	switch {
	case c.Died != "":
		return one("cuda", e.cause(), "The CUDA driver was asked in a process of its own: "+c.Died+".",
			cmp.Or(e.withoutLayers(""), "Run nvidia-smi, and look into dmesg for lines of NVRM. A reboot helps where the GPU has fallen off."))
	case c.Load != "" && len(e.GPUs) > 0 && !e.inContainer() && e.Driver.Version == "":
		return nil // without the kernel's part it is not missed: gpu says what to do
	case c.Load != "" && e.Container == apptainer:
		return one("cuda", e.cause(), "libcuda.so.1 does not load in this container: Apptainer lends the machine's with --nv. "+sentence(c.Load), e.giveGPU())
	case c.Load != "" && e.inContainer():
		return one("cuda", e.cause(), "libcuda.so.1 does not load in this container. "+sentence(c.Load),
			"Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility and the NVIDIA container toolkit: it lends the machine's libcuda.")
	case c.Load != "":
		return one("cuda", e.cause(), "libcuda.so.1 does not load. "+sentence(c.Load),
			"Install the driver's CUDA library (libcuda1 on Debian, libnvidia-compute on Ubuntu, nvidia-driver-cuda-libs among NVIDIA's RPMs), then run ldconfig.")
	case c.Init == cudaStub || strings.Contains(c.Path, "/stubs/"):
		return one("cuda", e.cause(), fmt.Sprintf("%s is the toolkit's stub, which is there for linking alone.", c.Path),
			"Take the folder stubs out of LD_LIBRARY_PATH and of the loader's configuration.")
	case c.Init == cudaNoDevice:
		return one("cuda", e.cause(), e.noDeviceCause(version), e.noDeviceAdvice())
	case c.Init == cudaNotReady:
		return one("cuda", e.cause(), version+": the system is not ready (802).",
			"Start NVIDIA's fabric manager, of the driver's own version: systemctl start nvidia-fabricmanager. In confidential computing, set the GPUs ready: nvidia-smi conf-compute -srs 1.")
	case c.Init == cudaMismatch:
		return one("cuda", e.cause(), version+": the driver's kernel part and libcuda are of different versions (803).",
			"Install one version of both, and reboot. In a container, remove its own libcuda.")
	case c.Init == cudaNoCompat:
		return one("cuda", e.cause(), version+": this GPU does not serve a CUDA compatibility package (804).",
			"Remove the package cuda-compat, or its folder from LD_LIBRARY_PATH. It is for data-center GPUs alone.")
	case c.Init == cudaUnavailable:
		return one("cuda", e.cause(), version+": the GPU is taken (46).",
			"Another process has it for itself: nvidia-smi -q -d COMPUTE shows the mode, nvidia-smi -c DEFAULT shares the GPU.")
	case c.Init == cudaUnknown:
		return one("cuda", e.cause(), version+" does not start: unknown error (999).",
			"Load nvidia-uvm (modprobe nvidia-uvm, nvidia-modprobe -u -c=0) and look into dmesg for lines of NVRM.")
	case c.Error != "":
		return one("cuda", e.cause(), version+" does not start. "+sentence(c.Error), "Run nvidia-smi, and look into dmesg for lines of NVRM.")
	}
	return one("cuda", OK, fmt.Sprintf("%s starts, with %s.", version, plural(len(c.Devices), "device")), "")
}

// attributes are what decides about the backend dmabuf.
func (e *examination) attributes() []Finding {
	var exports, maps []string
	for _, d := range e.CUDA.Devices {
		exports, maps = append(exports, attribute(d.DMABuf)), append(maps, attribute(d.DMABufMmap))
	}
	if exports == nil {
		return nil
	}
	return one("attributes", OK, fmt.Sprintf("Of each device, attribute 124 (dma-bufs are exported): %s; attribute 152 (they can be mapped): %s.",
		strings.Join(exports, ", "), strings.Join(maps, ", ")), "")
}

func attribute(v int) string {
	if v < 0 {
		return "not known to the driver"
	}
	return strconv.Itoa(v)
}

func (e *examination) noDeviceCause(version string) string {
	if v, ok := e.Env["CUDA_VISIBLE_DEVICES"]; ok {
		return fmt.Sprintf("%s has no device (100), with CUDA_VISIBLE_DEVICES=%s.", version, v)
	}
	return version + " has no device (100)."
}

func (e *examination) noDeviceAdvice() string {
	_, chosen := e.Env["CUDA_VISIBLE_DEVICES"]
	switch {
	case chosen:
		return "Unset CUDA_VISIBLE_DEVICES, or let it name a GPU that is here."
	case e.inContainer():
		return e.giveGPU() + " If it was given and is gone since: start the container anew, for systemd may have taken the device rules back."
	}
	return "Run nvidia-smi. If it lists no GPU, look into dmesg for lines of NVRM."
}

// nodes looks at the device nodes of NVIDIA's driver.
func (e *examination) nodes() []Finding {
	if e.Driver.Version == "" && !e.node("/dev/nvidiactl").Exists {
		return nil // without the driver there are none
	}
	var gpus int
	var findings []Finding
	for _, n := range e.Nodes {
		if n.Path == "/dev/gdrdrv" {
			continue // backend-gdrdrv says it
		}
		if strings.TrimLeft(strings.TrimPrefix(n.Path, "/dev/nvidia"), "0123456789") == "" {
			gpus++
		}
		if f, bad := e.badNode(n); bad {
			findings = append(findings, f)
		}
	}
	if gpus == 0 {
		findings = append(findings, Finding{"device-nodes", e.nodeStatus(), "There is no /dev/nvidia0, nor a node of another GPU.", e.makeNodes("/dev/nvidia0")})
	}
	if findings != nil {
		return findings
	}
	return one("device-nodes", OK, fmt.Sprintf("/dev/nvidiactl, /dev/nvidia-uvm and the nodes of %s are there, and may be used.", plural(gpus, "GPU")), "")
}

// nodeStatus is needed, but where CUDA fails for a reason that no node gives. It makes missing ones itself
// where it starts.
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

func (e *examination) badNode(n facts.Node) (Finding, bool) {
	f := Finding{ID: "device-nodes", Status: e.nodeStatus()}
	switch {
	case !n.Exists:
		f.Cause = fmt.Sprintf("There is no %s.", n.Path)
		f.Advice = e.makeNodes(n.Path)
	case n.Kind != "device":
		f.Cause = fmt.Sprintf("%s is a %s, not a device.", n.Path, n.Kind)
		f.Advice = "Remove it. A container runtime makes one where the device was missing when the container started: load the driver first."
	case n.Access != "":
		f.Cause, f.Advice = e.closed(n, "Let the user into the group of the node, or load the module nvidia with NVreg_DeviceFileMode=0666.")
	default:
		return f, false
	}
	return f, true
}

// denied is Node.Access where rules close a node; its mode gives EACCES.
const denied = "operation not permitted"

// closed says why a node may not be opened, and what to do; byMode is for one that its mode closes.
func (e *examination) closed(n facts.Node, byMode string) (cause, advice string) {
	switch {
	case n.Access == facts.NoDev:
		return n.Path + " may not be opened: " + n.Access + ".", "Mount it with dev: bwrap --dev-bind /dev /dev, mount -o remount,dev."
	case n.Access == denied && e.inContainer():
		return n.Path + " may not be opened: the device rules of this container leave it out.", "Start the container with --device " + n.Path + ": to mount the node alone is not enough."
	case n.Access == denied:
		return n.Path + " may not be opened: the device rules of this job or service leave it out.", "Ask for the GPU where it is started: --gres=gpu:1 of Slurm, DeviceAllow=" + n.Path + " rw of systemd."
	}
	if mode, _ := strconv.ParseUint(n.Mode, 8, 32); mode&6 == 6 {
		return e.confined(n)
	}
	return fmt.Sprintf("%s may not be used by this user: %s (mode %s, owner %s).", n.Path, n.Access, n.Mode, n.Owner), byMode
}

// unconfine is how a container opens a node that a security module closes.
const unconfine = "SELinux: podman run or docker run --security-opt label=disable; or for all containers, as root: setsebool -P container_use_devices on. " +
	"AppArmor: podman run or docker run --security-opt apparmor=unconfined."

// confined is closed of a node that its mode opens to everybody.
func (e *examination) confined(n facts.Node) (cause, advice string) {
	label := ""
	if e.Label != "" {
		label = ", which has the label " + e.Label + " for this process"
	}
	cause = fmt.Sprintf("%s may not be used: its mode (%s) lets everybody, and a security module (SELinux, AppArmor) refuses%s.", n.Path, n.Mode, label)
	if e.inContainer() {
		return cause, unconfine
	}
	return cause, "The kernel's log names the rule (journalctl -k | grep -i denied): have the policy, or the program's profile, allow reading and writing " + n.Path + "."
}

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
	if !e.inContainer() {
		return one("container", OK, "This is no container.", "")
	}
	text := fmt.Sprintf("This is a container (%s)", e.Container)
	visible := e.Env["NVIDIA_VISIBLE_DEVICES"]
	if (visible == "void" || visible == "none") && !e.worked {
		return one("container", Fail, text+" with NVIDIA_VISIBLE_DEVICES="+visible+", so it has no GPU.", e.giveGPU())
	}
	capabilities := e.Env["NVIDIA_DRIVER_CAPABILITIES"]
	if capabilities == "" {
		if e.worked || e.Container == apptainer {
			return one("container", OK, text+".", "")
		}
		return one("container", Warn, text+". NVIDIA_DRIVER_CAPABILITIES is not set, which gives it utility alone with some runtimes.",
			"Start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility.")
	}
	text += " with NVIDIA_DRIVER_CAPABILITIES=" + capabilities
	has := func(c string) bool {
		list := strings.Split(capabilities, ",")
		return slices.Contains(list, c) || slices.Contains(list, "all")
	}
	switch {
	case !has("compute"):
		return one("container", e.needed(), text+": without compute it has no libcuda.", "Start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility.")
	case !has("utility"):
		return one("container", Warn, text+": without utility it has no NVML and no nvidia-smi.",
			"Start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility, if you want to know how much of BAR1 is in use.")
	}
	return one("container", OK, text+".", "")
}
