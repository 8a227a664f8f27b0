package diagnose

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gdrapi/cmd/gdrcopy_doctor/internal/facts"

	"github.com/stretchr/testify/require"
)

// scene is a machine that a test changes.
type scene struct{ facts.Facts }

const pci = "0000:18:00.0"

// healthy is a machine on which all is well, with rm: an H200, driver 580, no gdrdrv.
func healthy() *scene {
	device := func(path string) facts.Node {
		return facts.Node{Path: path, Exists: true, Kind: "device", Mode: "0666", Owner: "0:0"}
	}
	library := func(name string) facts.Library {
		return facts.Library{Name: name, Path: "/usr/lib/libgdrapi.so.2.6", Ours: true, Version: "2.6"}
	}
	return &scene{facts.Facts{
		Nodes:  []facts.Node{device("/dev/nvidiactl"), device("/dev/nvidia-uvm"), {Path: "/dev/gdrdrv"}, device("/dev/nvidia0")},
		Driver: facts.Driver{Version: "580.159.04", Open: true},
		GPUs:   []facts.GPU{{PCI: pci, Model: "NVIDIA H200", BAR1: 256 << 30}},
		Env:    map[string]string{},
		Limits: facts.Limits{Files: 1 << 20, Memlock: facts.Unlimited, Space: facts.Unlimited},
		CUDA: facts.CUDA{Path: "/usr/lib/libcuda.so.580.159.04", Version: 13000,
			Devices: []facts.Device{{PCI: pci, DMABuf: 1, DMABufMmap: -1}}},
		NVML: facts.NVML{GPUs: []facts.ManagedGPU{{PCI: pci, BAR1Total: 256 << 30, BAR1Free: 255 << 30}}},
		Backends: []facts.Backend{
			{Name: "gdrdrv", Error: "there is no /dev/gdrdrv: no such file or directory", Errno: "ENOENT"},
			{Name: "dmabuf", Error: "the CUDA driver is 13.0: operation not supported", Errno: "ENOTSUP"},
			{Name: "rm"},
		},
		Libraries: []facts.Library{library("libgdrapi.so.2"), library("libgdrapi.so")},
		Trials:    []facts.Trial{{Of: library("libgdrapi.so.2"), Backend: "rm", GPUs: 1, Pool: facts.PoolWorks, WriteNS: 159, ReadNS: 1018}},
	}}
}

// broken is healthy, less that gdr_open finds a backend.
func broken() *scene {
	s := healthy()
	s.Trials = []facts.Trial{{Step: "gdr_open", Error: "NULL", Log: []string{"INFO: other", "ERR:  gdr_open: no backend opens (errno 19)"}}}
	s.backend("rm").Error, s.backend("rm").Errno = "RM_ALLOC of a client: NVRM is not well", "EIO"
	return s
}

// asked is broken, where the environment asks for a backend.
func asked(backend string) func() *scene {
	return func() *scene {
		s := broken()
		s.Env["GDRCOPY_BACKEND"] = backend
		return s
	}
}

func (s *scene) node(path string) *facts.Node {
	for i := range s.Nodes {
		if s.Nodes[i].Path == path {
			return &s.Nodes[i]
		}
	}
	s.Nodes = append(s.Nodes, facts.Node{Path: path})
	return &s.Nodes[len(s.Nodes)-1]
}

func (s *scene) backend(name string) *facts.Backend {
	for i := range s.Backends {
		if s.Backends[i].Name == name {
			return &s.Backends[i]
		}
	}
	panic("no backend " + name)
}

// dead is broken, and CUDA does not start.
func dead() *scene {
	s := broken()
	s.init(999)
	return s
}

// noDriver takes the driver away.
func (s *scene) noDriver() {
	s.Driver = facts.Driver{}
	s.Nodes = nil
	s.CUDA = facts.CUDA{Load: "cannot load the CUDA driver: no such device"}
	s.NVML = facts.NVML{Error: "cannot load NVML"}
}

// noNodes takes away what of the driver is in the kernel: CUDA works without.
func (s *scene) noNodes() {
	s.Driver, s.Nodes, s.GPUs = facts.Driver{}, nil, nil
	s.backend("rm").Error, s.backend("rm").Errno = "/dev/nvidiactl does not open", "ENOENT"
}

// oldModule has gdr_open take gdrdrv of that version.
func (s *scene) oldModule(version string) {
	s.gdrdrvNode()
	s.Gdrdrv = facts.Gdrdrv{Loaded: true, Version: version}
	s.Trials[0].Backend = "gdrdrv"
}

func (s *scene) gdrdrvNode() *facts.Node {
	n := s.node("/dev/gdrdrv")
	*n = facts.Node{Path: "/dev/gdrdrv", Exists: true, Kind: "device", Mode: "0600", Owner: "0:0"}
	return n
}

func (s *scene) init(result int) {
	s.CUDA.Init, s.CUDA.Error, s.CUDA.Devices = result, "cuInit: some result", nil
}

func (s *scene) consumer(c facts.Consumer) { s.Consumers = []facts.Consumer{c} }

func TestMachineThatWorks(t *testing.T) {
	r := Examine(healthy().Facts)
	require.Equal(t, Works, r.Verdict)
	require.Equal(t, "rm", r.Backend)
	require.Equal(t, "libgdrapi works here: gdr_open takes rm. It was tried on 1 GPU, with plain memory and memory of pools. "+
		"A write of 4 bytes takes 159 ns, a read 1.02 us.", r.Summary)
	require.Equal(t, []Backend{{Name: "gdrdrv"}, {Name: "dmabuf"}, {Name: "rm", Taken: true, Works: true, WriteNS: 159, ReadNS: 1018}}, r.Backends)
	for _, f := range r.Findings {
		require.Equal(t, OK, f.Status, "%+v", f)
	}
}

func TestSimulated(t *testing.T) {
	s := healthy()
	s.CUDA.Simulated = true
	r := Examine(s.Facts)
	require.Contains(t, r.Summary, "1 simulated GPU,")
	require.Contains(t, findingOf(t, r, "gpu").Cause, "The driver is simulated")
}

// Where the loader finds no libgdrapi, only the tree that built one says that all is well.
func TestLibraryThatTheLoaderDoesNotFind(t *testing.T) {
	found, wants := facts.Consumer{Name: "UCX", Wants: []string{"libgdrapi.so.2"}, Finds: "/u/libgdrapi.so.2"}, facts.Consumer{Name: "DPDK", Wants: []string{"libgdrapi.so"}}
	for _, tc := range []struct {
		name     string
		beside   string
		built    bool
		consumer facts.Consumer
		status   Status
		summary  string
	}{
		{"none", "", false, found, Fail, "Begin with library: "},
		{"a folder of its own", "/opt/gdrapi/lib/libgdrapi.so.2.6", false, found, Fail, "Begin with library: "},
		{"the tree that built it", "/src/build/libgdrapi.so.2.6", true, found, Warn, "No program finds it yet: see the line library."},
		{"and a consumer wants one", "/src/build/libgdrapi.so.2.6", true, wants, Fail, "Begin with library: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := healthy()
			s.Libraries[0].Error, s.Libraries[1].Error = "No such file", "No such file"
			s.Beside, s.Built = facts.Library{Path: tc.beside, Ours: true}, tc.built
			s.consumer(tc.consumer)
			r := Examine(s.Facts)
			require.Equal(t, "library", r.Findings[0].ID)
			require.Equal(t, tc.status, r.Findings[0].Status)
			require.NotEmpty(t, r.Findings[0].Advice)
			require.Contains(t, r.Summary, tc.summary)
			require.Equal(t, tc.status == Fail, r.Verdict == Broken)
		})
	}
}

func TestMachineWithoutGPU(t *testing.T) {
	s := broken()
	s.noDriver()
	s.GPUs = nil
	r := Examine(s.Facts)
	require.Equal(t, NoGPU, r.Verdict)
	require.Equal(t, "There is no NVIDIA GPU here.", r.Summary)
	require.Equal(t, OK, findingOf(t, r, "library").Status, "what a consumer would get is said, too")
	require.Len(t, r.Findings, 2)
	require.Equal(t, []Backend{}, r.Backends, "an array in JSON, too")
	s.Container = "Docker"
	r = Examine(s.Facts)
	require.Equal(t, NoGPU, r.Verdict)
	require.Equal(t, Finding{"gpu", Fail, "This Docker container sees no NVIDIA GPU.", giveGPU}, r.Findings[0])
}

func TestHidesGPUs(t *testing.T) {
	for v, want := range map[string]bool{
		"": true, "-1": true, "-1,0": true, "none": true, "1": true, "0": false, "0,-1": false, " 0": false, "GPU-1": false, "MIG-1": false,
	} {
		s := healthy()
		s.Env["CUDA_VISIBLE_DEVICES"] = v
		require.Equal(t, want, (&examination{Facts: s.Facts}).hidesGPUs(), "%q", v)
	}
	require.False(t, (&examination{Facts: healthy().Facts}).hidesGPUs(), "not set")
}

// causes has each cause that the texts know. Those that begin with broken are FAIL where
// the library does not work.
var causes = []struct {
	name          string
	from          func() *scene
	change        func(*scene)
	id            string
	status        Status
	cause, advice string // parts of the texts
}{
	// gpu
	{"WSL", broken, func(s *scene) { s.noDriver(); s.WSL = true }, "gpu", Fail, "WSL", "Linux itself"},
	{"Tegra", broken, func(s *scene) { s.noDriver(); s.Tegra = true }, "gpu", Fail, "shares the CPU's memory", "cudaHostAlloc"},
	{"WSL, where CUDA works", broken, func(s *scene) { s.noNodes(); s.WSL = true }, "gpu", Fail, "WSL", "Linux itself"},
	{"Tegra, where CUDA works", broken, func(s *scene) { s.noNodes(); s.Tegra = true }, "gpu", Fail, "Tegra, Jetson", "cudaHostAlloc"},
	{"Tegra with a display's driver", broken, func(s *scene) {
		s.Tegra, s.CUDA.Path = true, "/usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1"
		s.backend("rm").Errno, s.backend("rm").Error = "ENODEV", "the NVIDIA display driver of this Tegra has no GPU that computes"
	}, "gpu", Fail, "Tegra, Jetson", "cudaHostAlloc"},
	{"Apptainer without the machine's nodes", broken, func(s *scene) { s.noDriver(); s.Container = apptainer }, "gpu", Fail, "this Apptainer container", "apptainer exec --nv"},
	{"container without the GPU", broken, func(s *scene) { s.noDriver(); s.Container = "Podman" }, "gpu", Fail, "is 1 NVIDIA GPU, but this Podman container", "itself: give the container the GPU: docker run --gpus all"},
	{"vfio", broken, func(s *scene) { s.noDriver(); s.GPUs[0].Driver = "vfio-pci" }, "gpu", Fail, "The driver vfio-pci has 1 NVIDIA GPU", "in that machine"},
	{"vfio beside NVIDIA's driver", broken, func(s *scene) { s.init(100); s.GPUs[0].Driver = "vfio-pci" }, "gpu", Fail, "The driver vfio-pci has", pci},
	{"one of two GPUs is lent", healthy, func(s *scene) { s.GPUs = append(s.GPUs, facts.GPU{PCI: "0000:2a:00.0", Driver: "vfio-pci"}) }, "gpu", OK, "2 NVIDIA GPUs", ""},
	{"nouveau", broken, func(s *scene) { s.noDriver(); s.Nouveau = true }, "gpu", Fail, "nouveau has the GPU", "blacklist nouveau"},
	{"no driver", broken, (*scene).noDriver, "gpu", Fail, "kernel driver is not loaded", "Secure Boot"},

	// driver
	{"both parts", healthy, nil, "driver", OK, "NVIDIA driver 580.159.04 (open modules), and libcuda is of the same", ""},
	{"old driver", broken, func(s *scene) { s.Driver.Version = "525.60.13" }, "driver", Fail, "535 is the first", "Update the driver to 535"},
	{"compat package that fails", broken, func(s *scene) { s.CUDA.Path = "/opt/libcuda.so.580.160"; s.init(804) }, "driver", Fail, "compatibility package", "Take the compatibility package away"},
	{"libcuda that is older", dead, func(s *scene) { s.CUDA.Path = "/usr/lib/libcuda.so.570.1" }, "driver", Fail, "570.1 (/usr/lib/libcuda.so.570.1), which is older", "reboot"},

	// cuda
	{"CUDA starts", healthy, nil, "cuda", OK, "CUDA 13.0 starts, with 1 device.", ""},
	{"the stub by its error", broken, func(s *scene) { s.CUDA.Path = "/opt/libcuda.so"; s.init(34) }, "cuda", Fail, "/opt/libcuda.so is the toolkit's stub", "LD_LIBRARY_PATH"},
	{"no libcuda in a container", broken, func(s *scene) { s.CUDA = facts.CUDA{Load: "not found"}; s.Container = "Docker" }, "cuda", Fail, "in this container. Not found.", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"},
	{"Apptainer without --nv", broken, func(s *scene) {
		s.Container, s.CUDA, s.NVML = apptainer, facts.CUDA{Load: "not found"}, facts.NVML{Error: "cannot load NVML"}
	}, "cuda", Fail, "Apptainer lends the machine's with --nv. Not found.", "apptainer exec --nv"},
	{"a crash of CUDA beside a layer", broken, func(s *scene) {
		s.CUDA, s.Preload = facts.CUDA{Died: "it crashed (SIGSEGV)"}, []string{"/usr/local/vgpu/libvgpu.so"}
	}, "cuda", Fail, "it crashed", "without /etc/ld.so.preload=/usr/local/vgpu/libvgpu.so (HAMi): if"},
	{"no libcuda", broken, func(s *scene) { s.CUDA = facts.CUDA{Load: "libcuda.so.1: no such file"} }, "cuda", Fail, "does not load. libcuda.so.1: no such file.", "libcuda1 on Debian"},
	{"no device in a container", broken, func(s *scene) { s.init(100); s.Container = "Docker" }, "cuda", Fail, "no device (100)", "systemd"},
	{"no device", broken, func(s *scene) { s.init(100) }, "cuda", Fail, "no device (100)", "nvidia-smi"},
	{"compat refused", broken, func(s *scene) { s.init(804) }, "cuda", Fail, "(804)", "cuda-compat"},
	{"exclusive mode", broken, func(s *scene) { s.init(46) }, "cuda", Fail, "taken (46)", "nvidia-smi -c DEFAULT"},
	{"unknown error", broken, func(s *scene) { s.init(999) }, "cuda", Fail, "unknown error (999)", "modprobe nvidia-uvm"},

	// attributes
	{"attributes", healthy, func(s *scene) { s.CUDA.Devices = append(s.CUDA.Devices, facts.Device{DMABuf: 0, DMABufMmap: 1}) }, "attributes", OK, "124 (dma-bufs are exported): 1, 0; attribute 152 (they can be mapped): not known to the driver, 1", ""},

	// device-nodes
	{"nodes", healthy, nil, "device-nodes", OK, "the nodes of 1 GPU are there", ""},
	{"no nvidiactl", dead, func(s *scene) { s.node("/dev/nvidiactl").Exists = false }, "device-nodes", Fail, "no /dev/nvidiactl", "nvidia-modprobe -c=0"},
	{"no uvm", dead, func(s *scene) { s.node("/dev/nvidia-uvm").Exists = false }, "device-nodes", Fail, "no /dev/nvidia-uvm", "modprobe nvidia-uvm"},
	{"no uvm, and yet it works", healthy, func(s *scene) { s.node("/dev/nvidia-uvm").Exists = false }, "device-nodes", Warn, "no /dev/nvidia-uvm", "modprobe nvidia-uvm"},
	{"no uvm in a container", dead, func(s *scene) { s.node("/dev/nvidia-uvm").Exists = false; s.Container = "Docker" }, "device-nodes", Fail, "no /dev/nvidia-uvm", "--device /dev/nvidia-uvm"},
	{"no nvidia0", dead, func(s *scene) { s.Nodes = s.Nodes[:3] }, "device-nodes", Fail, "no /dev/nvidia0", "nvidia-modprobe"},
	{"no nvidia0 in a container", dead, func(s *scene) { s.Nodes = s.Nodes[:3]; s.Container = "Docker" }, "device-nodes", Fail, "no /dev/nvidia0", "--gpus all"},
	{"a folder", dead, func(s *scene) { s.node("/dev/nvidiactl").Kind = "folder" }, "device-nodes", Fail, "is a folder, not a device", "load the driver first"},
	{"no access", dead, func(s *scene) {
		*s.node("/dev/nvidia0") = facts.Node{Path: "/dev/nvidia0", Exists: true, Kind: "device", Mode: "0660", Owner: "0:44", Access: "permission denied"}
	}, "device-nodes", Fail, "permission denied (mode 0660, owner 0:44)", "NVreg_DeviceFileMode=0666"},
	{"a security module, in a container", dead, func(s *scene) {
		s.node("/dev/nvidiactl").Access, s.Container, s.Label = "permission denied", "Podman", "system_u:system_r:container_t:s0"
	}, "device-nodes", Fail, "a security module (SELinux, AppArmor) refuses, which has the label system_u:system_r:container_t:s0 for", "podman run or docker run --security-opt label=disable"},
	{"a security module, in a service", dead, func(s *scene) { s.node("/dev/nvidia0").Access = "permission denied" }, "device-nodes", Fail, "its mode (0666) lets everybody, and a security module", "grep -i denied"},
	{"a mount without devices", dead, func(s *scene) { s.node("/dev/nvidia0").Access = facts.NoDev }, "device-nodes", Fail, "mounted with nodev", "--dev-bind"},
	{"rules of a job", dead, func(s *scene) { s.node("/dev/nvidia0").Access = denied }, "device-nodes", Fail, "device rules of this job or service", "--gres=gpu:1 of Slurm"},
	{"a /dev of its own", dead, func(s *scene) { s.node("/dev/nvidiactl").Exists, s.Container = false, "sandbox" }, "device-nodes", Fail, "no /dev/nvidiactl", "the machine's own /dev"},

	// container
	{"no container", healthy, nil, "container", OK, "no container", ""},
	{"container that is void", broken, func(s *scene) { s.Container = "Docker"; s.Env["NVIDIA_VISIBLE_DEVICES"] = "void" }, "container", Fail, "NVIDIA_VISIBLE_DEVICES=void", "--gpus all"},
	{"capabilities not set", broken, func(s *scene) { s.Container = "Docker" }, "container", Warn, "is not set", "compute,utility"},
	{"capabilities that begin as the right ones", dead, func(s *scene) { s.Container = "Docker"; s.Env["NVIDIA_DRIVER_CAPABILITIES"] = "computer,utility" }, "container", Fail, "without compute", "compute,utility"},

	// backend-gdrdrv
	{"module not loaded", healthy, nil, "backend-gdrdrv", OK, "gdrdrv is not loaded", ""},
	{"module not loaded, and asked for", asked("gdrdrv"), nil, "backend-gdrdrv", Fail, "gdrdrv is not loaded", "Install the module"},
	{"module without node", asked("gdrdrv"), func(s *scene) { s.Gdrdrv.Loaded = true }, "backend-gdrdrv", Fail, "is loaded, but there is no /dev/gdrdrv", "mknod -m 666"},
	{"module without node in a container", asked("gdrdrv"), func(s *scene) { s.Gdrdrv.Loaded = true; s.Container = "Docker" }, "backend-gdrdrv", Fail, "this container has no /dev/gdrdrv", "--device /dev/gdrdrv"},
	{"node is closed in a container", asked("gdrdrv"), func(s *scene) {
		s.Gdrdrv.Loaded, s.Container = true, "Docker"
		s.gdrdrvNode().Access = "permission denied"
	}, "backend-gdrdrv", Fail, "permission denied (mode 0600, owner 0:0)", "a rule of udev"},
	{"node is a folder", asked("gdrdrv"), func(s *scene) { s.gdrdrvNode().Kind = "folder" }, "backend-gdrdrv", Fail, "is a folder", "before the container starts"},
	{"node is a file, and the module is asked for", asked("gdrdrv"), func(s *scene) { s.gdrdrvNode().Kind = "file" }, "backend-gdrdrv", Fail, "is a file", "Leave it there"},
	{"node without module", asked("gdrdrv"), func(s *scene) { s.gdrdrvNode(); s.backend("gdrdrv").Errno = "ENXIO" }, "backend-gdrdrv", Fail, "the module is not loaded", "modprobe gdrdrv"},
	{"node that the container may not open", asked("gdrdrv"), func(s *scene) { s.gdrdrvNode(); s.backend("gdrdrv").Errno = "EPERM" }, "backend-gdrdrv", Fail, "may not open", "Let it pass"},
	{"node that a security module closes", asked("gdrdrv"), func(s *scene) {
		s.gdrdrvNode().Mode, s.node("/dev/gdrdrv").Access, s.Container = "0666", "permission denied", "Docker"
	}, "backend-gdrdrv", Fail, "/dev/gdrdrv may not be used: its mode (0666)", "apparmor=unconfined"},
	{"node that rules leave out of a container", asked("gdrdrv"), func(s *scene) { s.gdrdrvNode().Access, s.Container = denied, "Docker" }, "backend-gdrdrv", Fail, "device rules of this container", "not enough to mount the node"},
	{"module of another version", asked("gdrdrv"), func(s *scene) {
		s.gdrdrvNode()
		s.backend("gdrdrv").Errno = "ENOTSUP"
		s.Gdrdrv = facts.Gdrdrv{Loaded: true, Version: "1.3"}
	}, "backend-gdrdrv", Fail, "gdrdrv (1.3) and this library do not fit", "of one version"},
	{"another driver's node", asked("gdrdrv"), func(s *scene) { s.gdrdrvNode(); s.backend("gdrdrv").Errno = "ENOTTY" }, "backend-gdrdrv", Fail, "does not answer as gdrdrv does", "what else made this node"},
	{"module before 2.5", healthy, func(s *scene) { s.oldModule("2.4") }, "backend-gdrdrv", Warn, "The module is of version 2.4. Before 2.5 it knows no pin flags, so aws-ofi-nccl does not use GIN. A write", "Load gdrdrv 2.5 or later."},
	{"module before 2.5, where rm works", healthy, func(s *scene) {
		s.oldModule("1.10")
		s.Trials = append(s.Trials, facts.Trial{Asked: "rm", Backend: "rm"})
	}, "backend-gdrdrv", Warn, "version 1.10", "Or set GDRCOPY_BACKEND=rm: rm works here"},

	// backend-dmabuf
	{"CUDA before 13.3", asked("dmabuf"), nil, "backend-dmabuf", Fail, "CUDA is 13.0, and 13.3 is the first", "both parts"},
	{"no libcuda for dmabuf", asked("dmabuf"), func(s *scene) { s.CUDA = facts.CUDA{Load: "x"} }, "backend-dmabuf", Fail, "libcuda.so.1 does not load", "line cuda"},
	{"no export, kind not known", asked("dmabuf"), func(s *scene) { s.CUDA.Version, s.CUDA.Devices[0].DMABuf, s.Driver = 13030, 0, facts.Driver{} }, "backend-dmabuf", Fail, "attribute 124 is 0", "Turing"},
	{"no export, closed", asked("dmabuf"), func(s *scene) { s.CUDA.Version, s.CUDA.Devices[0].DMABuf, s.Driver.Open = 13030, 0, false }, "backend-dmabuf", Fail, "attribute 124 is 0", "Install the open ones"},

	// backend-rm
	{"rm taken", healthy, nil, "backend-rm", OK, "Taken, and it works. A write of 4 bytes takes 159 ns", ""},
	{"rm on a coherent machine", broken, func(s *scene) {
		s.backend("rm").Error, s.backend("rm").Errno = "a GPU of this machine is coherent with the CPU", "ENOTSUP"
	}, "backend-rm", Fail, "Not taken: A GPU of this machine is coherent", "Or set GDRCOPY_BACKEND=rm for programs"},
	{"rm taken and broken", healthy, func(s *scene) { s.Trials[0].Step = "gdr_map" }, "backend-rm", Warn, "Taken, but it does not work", "line trial"},
	{"no libcuda for rm", broken, func(s *scene) { s.CUDA = facts.CUDA{Load: "x"} }, "backend-rm", Fail, "libcuda.so.1 does not load", "line cuda"},
	{"nvidiactl is a file, for rm", broken, func(s *scene) { s.node("/dev/nvidiactl").Kind = "file" }, "backend-rm", Fail, "/dev/nvidiactl cannot be used", "line device-nodes"},
	{"rm in a container that has all", broken, func(s *scene) { s.Container = "Docker" }, "backend-rm", Fail, "NVRM is not well", "dmesg"},
	{"no nvidiactl for rm", broken, func(s *scene) { s.node("/dev/nvidiactl").Exists = false }, "backend-rm", Fail, "there is no /dev/nvidiactl", "line device-nodes"},
	{"no nvidiactl, nor a driver, for rm", broken, func(s *scene) { s.Driver, s.node("/dev/nvidiactl").Exists = facts.Driver{}, false }, "backend-rm", Fail, "there is no /dev/nvidiactl", "nvidia-smi"},
	{"no nvidiactl for rm in a container", broken, func(s *scene) { s.node("/dev/nvidiactl").Exists = false; s.Container = "Docker" }, "backend-rm", Fail, "there is no /dev/nvidiactl", "line device-nodes"},
	{"nvidiactl closed", broken, func(s *scene) { s.node("/dev/nvidiactl").Access = "permission denied" }, "backend-rm", Fail, "cannot be used", "device-nodes"},
	{"device rules", broken, func(s *scene) { s.backend("rm").Errno = "EPERM" }, "backend-rm", Fail, "NVRM is not well", "gVisor"},
	{"MIG by the driver", broken, func(s *scene) {
		s.backend("rm").Errno, s.backend("rm").Error = "ENOTSUP", "the GPU 0000:18:00.0 is divided into instances (MIG)"
	}, "backend-rm", Fail, "(MIG)", "nvidia-smi -mig 0"},
	{"confidential computing by the driver", broken, func(s *scene) {
		s.backend("rm").Errno, s.backend("rm").Error = "ENOTSUP", "confidential computing is on"
	}, "backend-rm", Fail, "Confidential computing is on", "cuMemcpy"},
	{"a Tegra's display", broken, func(s *scene) {
		s.backend("rm").Errno, s.backend("rm").Error = "ENODEV", "the NVIDIA display driver of this Tegra has no GPU that computes"
	}, "backend-rm", Fail, "this Tegra", "cudaHostAlloc"},
	{"large pages", broken, func(s *scene) {
		s.backend("rm").Errno, s.backend("rm").Error = "ENOTSUP", "the kernel's pages are of 131072 bytes"
	}, "backend-rm", Fail, "pages", "64 KiB or less"},
	{"unknown driver", broken, func(s *scene) { s.backend("rm").Errno = "ENOTSUP" }, "backend-rm", Fail, "NVRM is not well", "knows this driver"},
	{"no descriptors", broken, func(s *scene) { s.backend("rm").Errno = "EMFILE" }, "backend-rm", Fail, "NVRM is not well", "ulimit -n"},

	// library
	{"library", healthy, nil, "library", OK, "/usr/lib/libgdrapi.so.2.6, version 2.6, this project's", ""},
	{"library of another machine", broken, func(s *scene) { s.Trials = nil; s.Libraries[0].Error = "libgdrapi.so.2: wrong ELF class" }, "library", Fail, "libgdrapi.so.2: wrong ELF class.", "architecture"},

	// trial
	{"a crash", healthy, func(s *scene) { s.Trials[0].Died = "it crashed (SIGSEGV)" }, "trial", Fail, "/usr/lib/libgdrapi.so.2.6 was tried. It crashed (SIGSEGV).", "Please report it"},
	{"a crash beside a preload", healthy, func(s *scene) {
		s.Trials[0].Died, s.Env["LD_PRELOAD"] = "it crashed (SIGSEGV)", "/x/libtool.so"
	}, "trial", Fail, "was tried", "Try it without LD_PRELOAD=/x/libtool.so. If it crashes then, too: please report it"},
	{"a crash beside a layer", healthy, func(s *scene) {
		s.Trials[0].Died, s.Preload = "it crashed (SIGSEGV)", []string{"/x/libnvshare.so"}
	}, "trial", Fail, "was tried", "Try it without /etc/ld.so.preload=/x/libnvshare.so (nvshare): if it runs then, the crash is a matter of that layer"},
	{"a crash of a file that was edited", healthy, func(s *scene) { s.Trials[0].Died, s.Trials[0].Of.Edited = "it crashed (SIGSEGV)", true }, "trial", Fail, "was tried", "as it was built"},
	{"trial", healthy, nil, "trial", OK, "all well on rm", ""},
	{"no backend", broken, nil, "trial", Fail, "It failed at gdr_open: NULL. The library says: gdr_open: no backend opens (errno 19)", "line backend-rm"},
	{"trial cannot load", healthy, func(s *scene) { s.Trials[0].Step = "dlopen" }, "trial", Fail, "It failed at dlopen", "report it"},
	{"trial without memory", healthy, func(s *scene) { s.Trials[0].Step = "cuMemAlloc" }, "trial", Fail, "It failed at cuMemAlloc", "full"},
	{"trial cannot pin", healthy, func(s *scene) { s.Trials[0].Step, s.NVML.GPUs[0].BAR1Free = "gdr_pin_buffer", 0 }, "trial", Fail, "It failed at gdr_pin_buffer", "line bar1"},
	{"trial cannot pin, and nothing says why", healthy, func(s *scene) { s.Trials[0].Step = "gdr_pin_buffer" }, "trial", Fail, "It failed at gdr_pin_buffer", "Do what the library says."},

	// environment
	{"forced", healthy, func(s *scene) { s.Env["GDRCOPY_BACKEND"] = "rm" }, "environment", OK, "GDRCOPY_BACKEND=rm forces", ""},
	{"forced, and its driver crashes", asked("rm"), func(s *scene) {
		*s.backend("rm") = facts.Backend{Name: "rm", Died: "it crashed"}
		*s.backend("gdrdrv") = facts.Backend{Name: "gdrdrv"}
	}, "environment", Fail, "GDRCOPY_BACKEND=rm forces a backend that does not open here, and gdrdrv would", "takes gdrdrv"},

	// preload
	{"a preload that harms nothing", healthy, func(s *scene) { s.Env["LD_PRELOAD"] = "/x/libgdrapi.so.2 /x/libtool.so" }, "preload", OK, "has LD_PRELOAD=/x/libtool.so.", ""},
	{"a layer that makes memory managed", healthy, func(s *scene) {
		s.Trials[0].Step, s.Preload = "gdr_pin_buffer", []string{"/usr/local/vgpu/libvgpu.so"}
	}, "preload", Fail, "/etc/ld.so.preload=/usr/local/vgpu/libvgpu.so (HAMi) changes it", "gdr_mem_alloc"},
	{"managed memory by something unknown", healthy, func(s *scene) {
		s.Trials[0].Step, s.Trials[0].Log = "gdr_pin_buffer", []string{"ERR:  0x7f is managed memory, which moves"}
	}, "preload", Fail, "something between this program and CUDA changes it", "gdr_mem_alloc"},

	// bar1
	{"BAR1", healthy, nil, "bar1", OK, "of 262144 MiB of BAR1 261120 MiB are free", ""},
	{"BAR1 small by the bus", healthy, func(s *scene) { s.NVML.GPUs, s.GPUs[0].BAR1 = nil, 256<<20 }, "bar1", Warn, "GPU 0000:18:00.0: BAR1 has 256 MiB. No more", "Resizable BAR"},

	// memory, mig, vgpu, confidential-computing
	{"a coherent GPU", healthy, func(s *scene) { s.CUDA.Devices[0].Coherent = 1 }, "memory", OK, "The CPU may cache the memory of GPU 0000:18:00.0 (as on GH200 and GB200)", ""},
	{"MIG", healthy, func(s *scene) { s.NVML.GPUs[0].MIG = true }, "mig", OK, "GPU 0000:18:00.0 is parted into instances (MIG), and the trial went well", ""},
	{"MIG that fails", broken, func(s *scene) { s.NVML.GPUs[0].MIG = true }, "mig", Warn, "GPU 0000:18:00.0 is parted into instances (MIG). rm does not", "nvidia-smi -mig 0"},

	// limits
	{"limits", healthy, nil, "limit-files", OK, "A process may have 1048576 descriptors.", ""},
	{"descriptors that ran out", broken, func(s *scene) { s.Limits.Files = 100; s.NVML.Died = "pipe2: too many open files" }, "limit-files", Fail, "may have 100 descriptors", "ulimit -n"},
	{"descriptors that ran out, and yet it works", healthy, func(s *scene) { s.Limits.Files = 100; s.NVML.Died = "pipe2: too many open files" }, "limit-files", Warn, "may have 100 descriptors", "ulimit -n"},
	{"any memory", healthy, nil, "limit-memlock", OK, "any amount", ""},
	{"little memory, RDMA", healthy, func(s *scene) { s.Limits.Memlock = 8 << 20; s.RDMA = true }, "limit-memlock", Warn, "8192 KiB", "ulimit -l"},

	// consumer
	{"no consumer", healthy, nil, "consumer", OK, "No consumer", ""},
	{"UCX told not to", healthy, func(s *scene) {
		s.consumer(facts.Consumer{Name: "UCX", Wants: []string{"libgdrapi.so.2"}})
		s.Env["UCX_TLS"] = "rc,cuda_copy"
	}, "consumer", Warn, "UCX_TLS=rc,cuda_copy leaves it out", "gdr_copy"},
	{"built without", healthy, func(s *scene) { s.consumer(facts.Consumer{Name: "libfabric"}) }, "consumer", Warn, "built without GDRCopy", "a build with GDRCopy"},
	{"libfabric told not to", healthy, func(s *scene) {
		s.consumer(facts.Consumer{Name: "libfabric", Wants: []string{"libgdrapi.so"}})
		s.Env["FI_HMEM_CUDA_USE_GDRCOPY"] = "False"
	}, "consumer", Warn, "FI_HMEM_CUDA_USE_GDRCOPY=false turns it off", "Unset"},
	{"no library for a consumer", healthy, func(s *scene) {
		s.consumer(facts.Consumer{Name: "DPDK", Wants: []string{"libgdrapi.so"}})
		s.Libraries[1].Error = "x"
	}, "consumer", Warn, "wants libgdrapi.so, which the loader does not find", "library-name"},
	{"NVIDIA's library for a consumer", healthy, func(s *scene) {
		s.consumer(facts.Consumer{Name: "DPDK", Wants: []string{"libgdrapi.so"}})
		s.Libraries[1].Ours, s.Libraries[1].Path = false, "/opt/libgdrapi.so.2.5"
	}, "consumer", Warn, "not this project's", "line library-name"},
	{"a library beside a consumer", healthy, func(s *scene) {
		s.consumer(facts.Consumer{Name: "UCX", Wants: []string{"libgdrapi.so.2"}, Finds: "/u/libgdrapi.so.2"})
		s.Libraries = append(s.Libraries, facts.Library{Name: "/u/libgdrapi.so.2", Path: "/u/libgdrapi.so.2"})
	}, "consumer", Warn, "/u/libgdrapi.so.2, which is beside it", "Remove that file"},

	// Several things are wrong, or one with all that follows from it: what begins.
	{"vfio has the GPU, and NVIDIA's driver is loaded", broken, func(s *scene) {
		s.GPUs[0].Driver = "vfio-pci"
		s.Nodes = s.Nodes[:3]
		s.init(100)
	}, "gpu", Fail, "vfio-pci has", ""},
	{"a variable that forces a backend, and no driver", broken, func(s *scene) { s.noDriver(); s.Env["GDRCOPY_BACKEND"] = "rm" }, "gpu", Fail, "not loaded", ""},
	{"a container that asks for no computing", broken, func(s *scene) {
		s.Container = "Docker"
		s.Env["NVIDIA_DRIVER_CAPABILITIES"] = "utility"
		s.CUDA = facts.CUDA{Load: "libcuda.so.1: cannot open shared object file"}
	}, "container", Fail, "without compute", ""},
	{"nodes that are closed to the user", broken, func(s *scene) {
		s.node("/dev/nvidiactl").Access = "permission denied"
		s.init(999)
	}, "device-nodes", Fail, "/dev/nvidiactl may not be used", ""},
	{"the driver was updated and not loaded anew", broken, func(s *scene) {
		s.CUDA.Path = "/usr/lib/libcuda.so.570.1"
		s.init(803)
	}, "driver", Fail, "which is older", ""},
	{"a driver that is too old", broken, func(s *scene) {
		s.Driver.Version, s.CUDA.Path = "470.1", "/usr/lib/libcuda.so.470.1"
		s.backend("rm").Errno = "ENOTSUP"
	}, "driver", Fail, "535 is the first", ""},
	{"CUDA_VISIBLE_DEVICES, and no nvidia-uvm", broken, func(s *scene) {
		s.Env["CUDA_VISIBLE_DEVICES"] = ""
		s.node("/dev/nvidia-uvm").Exists = false
		s.init(100)
	}, "cuda", Fail, "CUDA_VISIBLE_DEVICES=", ""},
	{"no node of the GPU that CUDA_VISIBLE_DEVICES names", broken, func(s *scene) {
		s.Env["CUDA_VISIBLE_DEVICES"] = "0"
		s.Nodes = s.Nodes[:3]
		s.init(100)
	}, "device-nodes", Fail, "no /dev/nvidia0", ""},
	{"two parts of a driver that do not fit, and no nvidia-uvm", broken, func(s *scene) {
		s.CUDA.Path = "/usr/lib/libcuda.so.1"
		s.node("/dev/nvidia-uvm").Exists = false
		s.init(803)
	}, "cuda", Fail, "different versions (803)", ""},
	{"a GPU that is lost, and no nvidia-uvm", broken, func(s *scene) {
		s.node("/dev/nvidia-uvm").Exists = false
		s.init(999)
		s.NVML = facts.NVML{Error: "nvmlDeviceGetHandleByIndex_v2: NVML answered 15"}
	}, "gpu", Fail, "A GPU is lost", ""},
	{"confidential computing", broken, func(s *scene) {
		s.NVML.Confidential = true
		s.backend("rm").Errno, s.backend("rm").Error = "ENOTSUP", "confidential computing is on"
	}, "confidential-computing", Fail, "hides its memory", ""},
	{"a BAR1 that is full", broken, func(s *scene) {
		s.NVML.GPUs[0].BAR1Free = 0
		*s.backend("rm") = facts.Backend{Name: "rm"}
		s.Trials = []facts.Trial{{Backend: "rm", Step: "gdr_map", Error: "cannot allocate memory"}}
	}, "bar1", Fail, "0 MiB are free", ""},
}

// behind has the findings that come before that of a row: what is told first is what to do first.
var behind = map[string]string{
	"no libcuda for dmabuf": "cuda", "no libcuda for rm": "cuda", "library of another machine": "backend-rm",
	"no backend": "backend-rm", "trial cannot pin": "bar1",
}

func TestCauses(t *testing.T) {
	for _, c := range causes {
		t.Run(c.name, func(t *testing.T) {
			s := c.from()
			if c.change != nil {
				c.change(s)
			}
			r := Examine(s.Facts)
			f := findingOf(t, r, c.id)
			require.Equal(t, c.status, f.Status, "%+v", f)
			require.Contains(t, f.Cause, c.cause)
			require.Contains(t, f.Advice, c.advice)
			if c.status == Fail {
				require.Equal(t, Broken, r.Verdict)
				first := r.Findings[slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Status == Fail })]
				require.Equal(t, cmp.Or(behind[c.name], c.id), first.ID, "%+v", r.Findings)
				require.Equal(t, "libgdrapi does not work here. Begin with "+first.ID+": "+first.Cause, r.Summary)
			}
			for _, f := range r.Findings {
				require.True(t, strings.HasSuffix(f.Cause, ".") || strings.HasSuffix(f.Cause, ")"), f.Cause)
				require.True(t, f.Advice == "" || strings.HasSuffix(f.Advice, "."), f.Advice)
				require.Equal(t, f.Status != OK, f.Advice != "", "%+v", f)
				for _, id := range linesNamed(f.Cause + f.Advice) {
					require.NotEqual(t, OK, findingOf(t, r, id).Status, "%+v", f)
				}
			}
		})
	}
}

// linesNamed are the findings that a text tells the reader to look at.
func linesNamed(text string) []string {
	var ids []string
	for _, m := range regexp.MustCompile(`\blines? ([a-z0-9-]+[a-z0-9])`).FindAllStringSubmatch(text, -1) {
		if m[1] != "of" { // of a log
			ids = append(ids, m[1])
		}
	}
	return ids
}

// The manual page has each name of a finding, and no other.
func TestManualHasTheFindings(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/man/man1/gdrcopy_doctor.1")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n.Sh FINDINGS\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n.Sh ")
	var documented []string
	for _, m := range regexp.MustCompile(`(?m)^\.It Li ([a-z0-9-]+)$`).FindAllStringSubmatch(section, -1) {
		documented = append(documented, m[1])
	}
	code := ""
	for _, file := range []string{"backends.go", "diagnose.go", "driver.go", "machine.go"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		code += string(text)
	}
	for _, id := range documented {
		if strings.HasPrefix(id, "backend-") {
			id = "backend-"
		}
		require.Contains(t, code, `"`+id+`"`)
	}
	for _, c := range causes {
		s := c.from()
		if c.change != nil {
			c.change(s)
		}
		for _, f := range Examine(s.Facts).Findings {
			require.Contains(t, documented, f.ID)
		}
	}
}

func findingOf(t *testing.T, r Report, id string) Finding {
	t.Helper()
	for _, f := range r.Findings {
		if f.ID == id {
			return f
		}
	}
	t.Fatalf("no finding %q in %+v", id, r.Findings)
	return Finding{}
}

func TestNewer(t *testing.T) {
	require.True(t, newer("580.10", "580.9"))
	require.False(t, newer("580.9", "580.10"))
	require.True(t, newer("580.9.1", "580.9"))
	require.False(t, newer("535.129.03", "550.54.15"))
	require.True(t, newer("550.54.15", "535.129.03"))
	require.False(t, newer("580.9", "580.9"))
}

// What is enough, and one less.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		from   func() *scene
		id     string
		enough uint64
		change func(s *scene, n uint64)
		ok     Status
		less   Status
	}{
		{healthy, "bar1", 64 << 20, func(s *scene, n uint64) { s.NVML.GPUs[0].BAR1Free = n }, OK, Warn},
		{healthy, "bar1", 1 << 30, func(s *scene, n uint64) { s.NVML.GPUs[0].BAR1Total = n }, OK, Warn},
		{healthy, "bar1", 1 << 30, func(s *scene, n uint64) { s.NVML.GPUs, s.GPUs[0].BAR1 = nil, n }, OK, Warn},
		{healthy, "limit-files", 1024, func(s *scene, n uint64) { s.Limits.Files = n }, OK, Warn},
		{healthy, "limit-memlock", 64 << 20, func(s *scene, n uint64) { s.Limits.Memlock, s.RDMA = n, true }, OK, Warn},
		{broken, "limit-files", 64, func(s *scene, n uint64) { s.Limits.Files = n }, Warn, Fail},
		{broken, "bar1", 64 << 20, func(s *scene, n uint64) { s.NVML.GPUs[0].BAR1Free = n }, OK, Fail},
		{broken, "driver", 535, func(s *scene, n uint64) { s.Driver.Version = fmt.Sprint(n, ".99"); s.CUDA.Path = "" }, OK, Fail},
	} {
		for n, want := range map[uint64]Status{c.enough: c.ok, c.enough - 1: c.less} {
			s := c.from()
			c.change(s, n)
			require.Equal(t, want, findingOf(t, Examine(s.Facts), c.id).Status, "%s: %d", c.id, n)
		}
	}
	for space, want := range map[uint64]bool{1536 << 20: false, 1536<<20 - 1: true} {
		s := healthy()
		s.Limits.Space = space
		require.Equal(t, want, TooLittleSpace(s.Facts))
	}
}

// What gdr_open of this version would take, where no library could be tried.
func TestChoice(t *testing.T) {
	for _, c := range []struct{ asked, open, died, want string }{
		{"", "gdrdrv rm", "", "gdrdrv"}, {"", "rm", "", "rm"}, {"", "", "", ""},
		{"rm", "gdrdrv rm", "", "rm"}, {"dmabuf", "gdrdrv rm", "", ""},
		{"", "gdrdrv rm", "gdrdrv", "rm"}, {"rm", "gdrdrv rm", "rm", ""},
	} {
		s := healthy()
		s.Trials, s.Env["GDRCOPY_BACKEND"] = nil, c.asked
		for i := range s.Backends {
			b := &s.Backends[i]
			*b = facts.Backend{Name: b.Name, Error: "x"}
			if slices.Contains(strings.Fields(c.open), b.Name) {
				b.Error = ""
			}
			if b.Name == c.died {
				b.Died = "it crashed"
			}
		}
		e := examination{Facts: s.Facts}
		require.Equal(t, c.want, e.choice(), "%+v", c)
	}
}

func TestAllowsGDRCopy(t *testing.T) {
	for tls, want := range map[string]bool{
		"all": true, "cuda": true, "gdr_copy": true, "rc,gdr_copy": true, "rc": false, "cuda_copy": false,
		"^gdr_copy": false, "^rc": true, "^all": true,
	} {
		require.Equal(t, want, allowsGDRCopy(tls), tls)
	}
}

// What turns a consumer's use of the library off, and what does not.
func TestSettings(t *testing.T) {
	for _, tc := range []struct {
		consumer, variable, value string
		off                       bool
	}{
		{"NVSHMEM", "NVSHMEM_DISABLE_GDRCOPY", "1", true}, {"NVSHMEM", "NVSHMEM_DISABLE_GDRCOPY", "true", true},
		{"NVSHMEM", "NVSHMEM_DISABLE_GDRCOPY", "0", false}, {"NVSHMEM", "NVSHMEM_DISABLE_GDRCOPY", "False", false},
		{"NVSHMEM", "NVSHMEM_DISABLE_GDRCOPY", "", false},
		{"libfabric", "FI_HMEM_CUDA_USE_GDRCOPY", "0", true}, {"libfabric", "FI_HMEM_CUDA_USE_GDRCOPY", "No", true},
		{"libfabric", "FI_HMEM_CUDA_USE_GDRCOPY", "false", true}, {"libfabric", "FI_HMEM_CUDA_USE_GDRCOPY", "1", false},
		{"UCX", "UCX_TLS", "rc,sm", true}, {"UCX", "UCX_TLS", "rc,gdr_copy", false}, {"UCX", "UCX_TLS", "^gdr_copy", true},
		{"UCX", "UCX_TLS", "^sm", false}, {"UCX", "UCX_TLS", "all", false}, {"UCX", "UCX_TLS", "", false},
		{"NCCL", "UCX_TLS", "rc", false},
	} {
		e := examination{Facts: facts.Facts{Env: map[string]string{tc.variable: tc.value}}}
		said, advice := e.setting(tc.consumer)
		require.Equal(t, tc.off, said != "", "%+v", tc)
		require.Equal(t, tc.off, advice != "", "%+v", tc)
	}
}

// The errnos by which one cause may come.
func TestErrnos(t *testing.T) {
	for errno, want := range map[string][2]string{ // of gdrdrv, of rm
		"ENXIO": {"the module is not loaded", "dmesg"}, "ENODEV": {"the module is not loaded", "dmesg"},
		"EPERM": {"may not open /dev/gdrdrv", "gVisor"}, "EACCES": {"may not open /dev/gdrdrv", "gVisor"},
		"ENOTSUP": {"do not fit", "Leave the sandbox"},
		"ENOTTY":  {"does not answer as gdrdrv does", "dmesg"}, "EINVAL": {"does not answer as gdrdrv does", "dmesg"},
		"EMFILE": {"said.", "ulimit -n"}, "ENFILE": {"said.", "ulimit -n"}, "EIO": {"said.", "dmesg"},
	} {
		s := broken()
		s.gdrdrvNode()
		*s.backend("gdrdrv") = facts.Backend{Name: "gdrdrv", Error: "said", Errno: errno}
		s.backend("rm").Errno = errno
		e := examination{Facts: s.Facts}
		require.Contains(t, e.refusal(*s.backend("gdrdrv")).cause, want[0], errno)
		require.Contains(t, e.refusal(*s.backend("rm")).advice, want[1], errno)
	}
}
