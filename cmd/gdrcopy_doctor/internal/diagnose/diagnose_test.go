package diagnose

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
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
func broken() *scene { return machine("broken") }

func (s *scene) backend(name string) *facts.Backend {
	return &s.Backends[slices.IndexFunc(s.Backends, func(b facts.Backend) bool { return b.Name == name })]
}

// noDriver takes the driver away.
func (s *scene) noDriver() { s.change("noDriver") }

// node puts a node into a state: missing, a kind, a mode, or what closes it. It is root's if there was none.
func (s *scene) node(path, state string) {
	i := slices.IndexFunc(s.Nodes, func(n facts.Node) bool { return n.Path == path })
	n := &s.Nodes[i]
	if !n.Exists {
		*n = facts.Node{Path: path, Exists: true, Kind: "device", Mode: "0600", Owner: "0:0"}
	}
	switch state {
	case "missing":
		n.Exists = false
	case "device", "file", "folder":
		n.Kind = state
	case "0660", "0666":
		n.Mode, n.Access = state, "permission denied"
	case "refused":
		n.Access = "permission denied"
	case "denied":
		n.Access = denied
	case "nodev":
		n.Access = facts.NoDev
	}
}

// words change a machine. The argument of one has + for spaces.
var words = map[string]func(s *scene, a string){
	"broken": func(s *scene, _ string) {
		s.Trials = []facts.Trial{{Step: "gdr_open", Error: "NULL", Log: []string{"INFO: other", "ERR:  gdr_open: no backend opens (errno 19)"}}}
		s.backend("rm").Error, s.backend("rm").Errno = "RM_ALLOC of a client: NVRM is not well", "EIO"
	},
	"noDriver": func(s *scene, _ string) {
		s.Driver, s.Nodes, s.NVML = facts.Driver{}, nil, facts.NVML{Error: "cannot load NVML"}
		s.CUDA = facts.CUDA{Load: "cannot load the CUDA driver: no such device"}
	},
	// What of the driver is in the kernel: CUDA works without.
	"noKernel": func(s *scene, _ string) {
		s.Driver, s.Nodes, s.GPUs = facts.Driver{}, nil, nil
		s.backend("rm").Error, s.backend("rm").Errno = "/dev/nvidiactl does not open", "ENOENT"
	},
	"WSL":      func(s *scene, _ string) { s.WSL = true },
	"Tegra":    func(s *scene, _ string) { s.Tegra = true },
	"nouveau":  func(s *scene, _ string) { s.Nouveau = true },
	"in":       func(s *scene, a string) { s.Container = a },
	"label":    func(s *scene, a string) { s.Label = a },
	"gpu":      func(s *scene, a string) { s.GPUs[0].Driver = a },
	"gpu2":     func(s *scene, a string) { s.GPUs = append(s.GPUs, facts.GPU{PCI: "0000:2a:00.0", Driver: a}) },
	"unlisted": func(s *scene, _ string) { s.GPUs = nil },
	"driver":   func(s *scene, a string) { s.Driver.Version = a },
	"closed":   func(s *scene, _ string) { s.Driver.Open = false },
	"libcuda":  func(s *scene, a string) { s.CUDA.Path = a },
	"cuda":     func(s *scene, a string) { s.CUDA.Version = int(integer(a)) },
	"init": func(s *scene, a string) {
		s.CUDA.Init, s.CUDA.Error, s.CUDA.Devices = int(integer(a)), "cuInit: some result", nil
	},
	"load":     func(s *scene, a string) { s.CUDA = facts.CUDA{Load: a} },
	"cudaDied": func(s *scene, a string) { s.CUDA = facts.CUDA{Died: a} },
	"dmabuf":   func(s *scene, a string) { s.CUDA.Devices[0].DMABuf = int(integer(a)) },
	"maps":     func(s *scene, _ string) { s.CUDA.Devices = append(s.CUDA.Devices, facts.Device{DMABufMmap: 1}) }, // a second device
	"coherent": func(s *scene, _ string) { s.CUDA.Devices[0].Coherent = 1 },
	"noGPU":    func(s *scene, _ string) { s.Nodes = s.Nodes[:3] }, // no node of one
	"module":   func(s *scene, a string) { s.Gdrdrv = facts.Gdrdrv{Loaded: true, Version: a} },
	"gdrdrv":   func(s *scene, a string) { s.refuses("gdrdrv", a) },
	"rm":       func(s *scene, a string) { s.refuses("rm", a) },
	"opens":    func(s *scene, a string) { *s.backend(a) = facts.Backend{Name: a} },
	"crashes":  func(s *scene, a string) { *s.backend(a) = facts.Backend{Name: a, Died: "it crashed"} },
	"takes":    func(s *scene, a string) { s.Trials[0].Backend = a },
	"step":     func(s *scene, a string) { s.Trials[0].Step = a },
	"died":     func(s *scene, a string) { s.Trials[0].Died = a },
	"edited":   func(s *scene, _ string) { s.Trials[0].Of.Edited = true },
	"said":     func(s *scene, a string) { s.Trials[0].Log = []string{a} },
	"tried":    func(s *scene, a string) { s.Trials = append(s.Trials, facts.Trial{Asked: a, Backend: a}) },
	"fails": func(s *scene, a string) {
		s.Trials = append(s.Trials, facts.Trial{Asked: a, Step: "gdr_map", Error: "no"})
	},
	"noTrial":  func(s *scene, _ string) { s.Trials = nil },
	"preload":  func(s *scene, a string) { s.Preload = []string{a} },
	"free":     func(s *scene, a string) { s.NVML.GPUs[0].BAR1Free = integer(a) },
	"total":    func(s *scene, a string) { s.NVML.GPUs[0].BAR1Total = integer(a) },
	"bar1":     func(s *scene, a string) { s.NVML.GPUs, s.GPUs[0].BAR1 = nil, integer(a) }, // by the bus
	"MIG":      func(s *scene, _ string) { s.NVML.GPUs[0].MIG = true },
	"hides":    func(s *scene, _ string) { s.NVML.Confidential = true },
	"nvml":     func(s *scene, a string) { s.NVML = facts.NVML{Error: a} },
	"nvmlDied": func(s *scene, a string) { s.NVML.Died = a },
	"files":    func(s *scene, a string) { s.Limits.Files = integer(a) },
	"locks":    func(s *scene, a string) { s.Limits.Memlock = integer(a) },
	"RDMA":     func(s *scene, _ string) { s.RDMA = true },
	"so2":      func(s *scene, a string) { s.Libraries[0].Error = a },
	"so":       func(s *scene, a string) { s.Libraries[1].Error = a },
	"theirs":   func(s *scene, a string) { s.Libraries[1].Ours, s.Libraries[1].Path = false, a },
	"beside":   func(s *scene, a string) { s.Libraries = append(s.Libraries, facts.Library{Name: a, Path: a}) },
	"consumer": func(s *scene, a string) { // NAME, what it wants and finds
		list := append(strings.Split(a, ","), "", "")
		c := facts.Consumer{Name: list[0], Finds: list[2]}
		if list[1] != "" {
			c.Wants = list[1:2]
		}
		s.Consumers = []facts.Consumer{c}
	},
}

func integer(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// refuses has a backend not open: ERRNO, or ERRNO,TEXT.
func (s *scene) refuses(name, how string) {
	errno, text, _ := strings.Cut(how, ",")
	b := s.backend(name)
	b.Errno, b.Error = errno, cmp.Or(text, b.Error)
}

// whole are the words that stand for several: a backend is asked for by the environment; CUDA does not start.
var whole = strings.NewReplacer("asked:", "broken GDRCOPY_BACKEND=", "dead", "broken init:999")

// change runs a script: words, NODE:STATE and VARIABLE=VALUE.
func (s *scene) change(script string) {
	for _, word := range strings.Fields(whole.Replace(script)) {
		name, a, _ := strings.Cut(word, ":")
		variable, value, set := strings.Cut(word, "=")
		switch {
		case strings.HasPrefix(word, "/dev/"):
			s.node(name, a)
		case set:
			s.Env[variable] = value
		default:
			words[name](s, strings.ReplaceAll(a, "+", " "))
		}
	}
}

// machine is healthy, less what the script says.
func machine(script string) *scene {
	s := healthy()
	s.change(script)
	return s
}

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
	const found, wants = "consumer:UCX,libgdrapi.so.2,/u/libgdrapi.so.2", "consumer:DPDK,libgdrapi.so"
	for _, c := range []struct {
		beside   string
		built    bool
		consumer string
		status   Status
		summary  string
	}{
		{"", false, found, Fail, "Begin with library: "},
		{"/opt/gdrapi/lib/libgdrapi.so.2.6", false, found, Fail, "Begin with library: "},
		{"/src/build/libgdrapi.so.2.6", true, found, Warn, "No program finds it yet: see the line library."},
		{"/src/build/libgdrapi.so.2.6", true, wants, Fail, "Begin with library: "},
	} {
		s := machine("so2:No+such+file so:No+such+file " + c.consumer)
		s.Beside, s.Built = facts.Library{Path: c.beside, Ours: true}, c.built
		r := Examine(s.Facts)
		require.Equal(t, "library", r.Findings[0].ID, c)
		require.Equal(t, c.status, r.Findings[0].Status, c)
		require.NotEmpty(t, r.Findings[0].Advice, c)
		require.Contains(t, r.Summary, c.summary, c)
		require.Equal(t, c.status == Fail, r.Verdict == Broken, c)
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
		s.Env["CUDA_VISIBLE_DEVICES"] = v // it may have spaces
		require.Equal(t, want, (&examination{Facts: s.Facts}).hidesGPUs(), "%q", v)
	}
	require.False(t, (&examination{Facts: healthy().Facts}).hidesGPUs(), "not set")
}

// causes has each cause that the texts know, as a script. What begins with broken is FAIL.
var causes = []struct {
	script        string
	status        Status
	id            string
	cause, advice string // parts of the texts
}{
	{"broken noDriver WSL", Fail, "gpu", "WSL", "Linux itself"},
	{"broken noKernel Tegra", Fail, "gpu", "Tegra, Jetson", "cudaHostAlloc"},
	{"broken Tegra libcuda:/tegra/libcuda.so.1.1 rm:ENODEV,the+NVIDIA+display+driver+of+this+Tegra+has+no+GPU+that+computes", Fail, "gpu", "Tegra, Jetson", "cudaHostAlloc"},
	{"broken noDriver in:Apptainer", Fail, "gpu", "this Apptainer container", "apptainer exec --nv"},
	{"broken noDriver gpu:vfio-pci", Fail, "gpu", "The driver vfio-pci has 1 NVIDIA GPU", "in that machine"},
	{"gpu2:vfio-pci", OK, "gpu", "2 NVIDIA GPUs", ""},
	{"broken noDriver nouveau", Fail, "gpu", "nouveau has the GPU", "blacklist nouveau"},
	{"broken noDriver", Fail, "gpu", "kernel driver is not loaded", "Secure Boot"},
	{"broken unlisted init:999", OK, "gpu", "There is an NVIDIA driver. Which GPUs it has, it does not say here.", ""},

	{"", OK, "driver", "NVIDIA driver 580.159.04 (open modules), and libcuda is of the same", ""},
	{"broken libcuda:/opt/libcuda.so.580.160 init:804", Fail, "driver", "compatibility package", "Take the compatibility package away"},
	{"dead libcuda:/usr/lib/libcuda.so.570.1", Fail, "driver", "570.1 (/usr/lib/libcuda.so.570.1), which is older", "reboot"},

	{"", OK, "cuda", "CUDA 13.0 starts, with 1 device.", ""},
	{"broken libcuda:/opt/libcuda.so init:34", Fail, "cuda", "/opt/libcuda.so is the toolkit's stub", "LD_LIBRARY_PATH"},
	{"broken load:not+found in:Docker", Fail, "cuda", "in this container. Not found.", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"},
	{"broken load:not+found in:Apptainer nvml:cannot+load+NVML", Fail, "cuda", "Apptainer lends the machine's with --nv. Not found.", "apptainer exec --nv"},
	{"broken cudaDied:it+crashed+(SIGSEGV) preload:/usr/local/vgpu/libvgpu.so", Fail, "cuda", "it crashed", "without /etc/ld.so.preload=/usr/local/vgpu/libvgpu.so (HAMi): if"},
	{"broken load:libcuda.so.1:+no+such+file", Fail, "cuda", "does not load. libcuda.so.1: no such file.", "libcuda1 on Debian"},
	{"broken init:100 in:Docker", Fail, "cuda", "no device (100)", "systemd"},
	{"broken init:100", Fail, "cuda", "no device (100)", "nvidia-smi"},
	{"broken init:804", Fail, "cuda", "(804)", "cuda-compat"},
	{"broken init:46", Fail, "cuda", "taken (46)", "nvidia-smi -c DEFAULT"},
	{"broken init:3", Fail, "cuda", "CUDA 13.0 does not start. cuInit: some result.", "nvidia-smi"},
	{"broken init:999", Fail, "cuda", "unknown error (999)", "modprobe nvidia-uvm"},

	{"maps", OK, "attributes", "124 (dma-bufs are exported): 1, 0; attribute 152 (they can be mapped): not known to the driver, 1", ""},

	{"", OK, "device-nodes", "the nodes of 1 GPU are there", ""},
	{"dead /dev/nvidiactl:missing", Fail, "device-nodes", "no /dev/nvidiactl", "nvidia-modprobe -c=0"},
	{"dead /dev/nvidia-uvm:missing", Fail, "device-nodes", "no /dev/nvidia-uvm", "modprobe nvidia-uvm"},
	{"dead /dev/nvidia-uvm:missing in:Docker", Fail, "device-nodes", "no /dev/nvidia-uvm", "--device /dev/nvidia-uvm"},
	{"dead noGPU", Fail, "device-nodes", "no /dev/nvidia0", "nvidia-modprobe"},
	{"dead /dev/nvidiactl:refused in:Podman label:container:s0", Fail, "device-nodes", "a security module (SELinux, AppArmor) refuses, which has the label container:s0 for", "podman run or docker run --security-opt label=disable"},
	{"dead /dev/nvidia0:refused", Fail, "device-nodes", "its mode (0666) lets everybody, and a security module", "grep -i denied"},
	{"dead /dev/nvidia0:nodev", Fail, "device-nodes", "mounted with nodev", "--dev-bind"},
	{"dead /dev/nvidia0:denied", Fail, "device-nodes", "device rules of this job or service", "--gres=gpu:1 of Slurm"},
	{"dead /dev/nvidiactl:missing in:sandbox", Fail, "device-nodes", "no /dev/nvidiactl", "the machine's own /dev"},

	{"broken in:Docker NVIDIA_VISIBLE_DEVICES=void", Fail, "container", "NVIDIA_VISIBLE_DEVICES=void", "--gpus all"},
	{"broken in:Docker", Warn, "container", "is not set", "compute,utility"},

	{"asked:gdrdrv module", Fail, "backend-gdrdrv", "is loaded, but there is no /dev/gdrdrv", "mknod -m 666"},
	{"asked:gdrdrv module in:Docker", Fail, "backend-gdrdrv", "this container has no /dev/gdrdrv", "--device /dev/gdrdrv"},
	{"asked:gdrdrv module in:Docker /dev/gdrdrv:refused", Fail, "backend-gdrdrv", "permission denied (mode 0600, owner 0:0)", "a rule of udev"},
	{"asked:gdrdrv /dev/gdrdrv:folder", Fail, "backend-gdrdrv", "is a folder", "before the container starts"},
	{"asked:gdrdrv /dev/gdrdrv:file", Fail, "backend-gdrdrv", "is a file", "Leave it there"},
	{"asked:gdrdrv /dev/gdrdrv:file module", Fail, "backend-gdrdrv", "is loaded, but /dev/gdrdrv is a file", "rm /dev/gdrdrv"},
	{"asked:gdrdrv /dev/gdrdrv:denied in:Docker", Fail, "backend-gdrdrv", "device rules of this container", "not enough to mount the node"},
	{"asked:gdrdrv /dev/gdrdrv:device gdrdrv:ENOTSUP module:1.3", Fail, "backend-gdrdrv", "gdrdrv (1.3) and this library do not fit", "of one version"},
	{"/dev/gdrdrv:device module:2.4 takes:gdrdrv", Warn, "backend-gdrdrv", "The module is of version 2.4. Before 2.5 it knows no pin flags, so aws-ofi-nccl does not use GIN. A write", "Load gdrdrv 2.5 or later."},
	{"/dev/gdrdrv:device module:1.10 takes:gdrdrv tried:rm", Warn, "backend-gdrdrv", "version 1.10", "Or set GDRCOPY_BACKEND=rm: rm works here"},
	{"takes:gdrdrv step:gdr_pin_buffer", Fail, "backend-gdrdrv", "Taken, but it does not work: the module gdrdrv is not loaded.", "Install the module"},
	{"opens:gdrdrv", OK, "backend-gdrdrv", "Not taken, for another one comes first. It opens, but was not tried.", ""},
	{"opens:gdrdrv tried:gdrdrv", OK, "backend-gdrdrv", "Not taken, for another one comes first. It works, and GDRCOPY_BACKEND=gdrdrv takes it. A write", ""},
	{"opens:gdrdrv fails:gdrdrv", OK, "backend-gdrdrv", "Not taken. It opens, but does not work. It failed at gdr_map: no.", ""},
	{"crashes:gdrdrv", Warn, "backend-gdrdrv", "Its driver was asked in a process of its own: it crashed.", "dmesg"},

	{"asked:dmabuf", Fail, "backend-dmabuf", "CUDA is 13.0, and 13.3 is the first", "both parts"},
	{"asked:dmabuf load:x", Fail, "backend-dmabuf", "libcuda.so.1 does not load", "line cuda"},
	{"asked:dmabuf cuda:13030 dmabuf:0 driver:", Fail, "backend-dmabuf", "attribute 124 is 0", "Turing"},
	{"asked:dmabuf cuda:13030 dmabuf:0 closed", Fail, "backend-dmabuf", "attribute 124 is 0", "Install the open ones"},

	{"", OK, "backend-rm", "Taken, and it works. A write of 4 bytes takes 159 ns", ""},
	{"noTrial so2:x", OK, "backend-rm", "gdr_open of this version takes it. It was not tried", ""},
	{"broken rm:ENOTSUP,a+GPU+of+this+machine+is+coherent+with+the+CPU", Fail, "backend-rm", "Not taken: A GPU of this machine is coherent", "Or set GDRCOPY_BACKEND=rm for programs"},
	{"step:gdr_map", Warn, "backend-rm", "Taken, but it does not work", "line trial"},
	{"broken load:x", Fail, "backend-rm", "libcuda.so.1 does not load", "line cuda"},
	{"broken /dev/nvidiactl:file", Fail, "backend-rm", "/dev/nvidiactl cannot be used", "line device-nodes"},
	{"broken driver: /dev/nvidiactl:missing", Fail, "backend-rm", "there is no /dev/nvidiactl", "nvidia-smi"},
	{"broken /dev/nvidiactl:missing in:Docker", Fail, "backend-rm", "there is no /dev/nvidiactl", "line device-nodes"},
	{"broken /dev/nvidiactl:refused", Fail, "backend-rm", "cannot be used", "device-nodes"},
	{"broken rm:ENOTSUP,the+GPU+0000:18:00.0+is+divided+into+instances+(MIG)", Fail, "backend-rm", "(MIG)", "nvidia-smi -mig 0"},
	{"broken rm:ENOTSUP,confidential+computing+is+on", Fail, "backend-rm", "Confidential computing is on", "cuMemcpy"},
	{"broken rm:ENODEV,the+NVIDIA+display+driver+of+this+Tegra+has+no+GPU+that+computes", Fail, "backend-rm", "this Tegra", "cudaHostAlloc"},
	{"broken rm:ENOTSUP,the+kernel's+pages+are+of+131072+bytes", Fail, "backend-rm", "pages", "64 KiB or less"},

	{"broken noTrial so2:libgdrapi.so.2:+wrong+ELF+class", Fail, "library", "libgdrapi.so.2: wrong ELF class.", "architecture"},

	{"died:it+crashed+(SIGSEGV)", Fail, "trial", "/usr/lib/libgdrapi.so.2.6 was tried. It crashed (SIGSEGV).", "Please report it"},
	{"died:it+crashed+(SIGSEGV) LD_PRELOAD=/x/libtool.so", Fail, "trial", "was tried", "Try it without LD_PRELOAD=/x/libtool.so. If it crashes then, too: please report it"},
	{"died:it+crashed+(SIGSEGV) preload:/x/libnvshare.so", Fail, "trial", "was tried", "Try it without /etc/ld.so.preload=/x/libnvshare.so (nvshare): if it runs then, the crash is a matter of that layer"},
	{"died:it+crashed+(SIGSEGV) edited", Fail, "trial", "was tried", "as it was built"},
	{"broken", Fail, "trial", "It failed at gdr_open: NULL. The library says: gdr_open: no backend opens (errno 19)", "line backend-rm"},
	{"step:dlopen", Fail, "trial", "It failed at dlopen", "report it"},
	{"step:cuMemAlloc", Fail, "trial", "It failed at cuMemAlloc", "full"},
	{"step:gdr_pin_buffer", Fail, "trial", "It failed at gdr_pin_buffer", "Do what the library says."},

	{"GDRCOPY_BACKEND=rm", OK, "environment", "GDRCOPY_BACKEND=rm forces", ""},
	{"broken GDRCOPY_COPY_IMPL=odd said:ERR:++GDRCOPY_COPY_IMPL+is+odd", Fail, "environment", "The library refuses GDRCOPY_COPY_IMPL=odd. GDRCOPY_COPY_IMPL is odd.", "gdrapi(3)"},
	{"asked:rm crashes:rm opens:gdrdrv", Fail, "environment", "GDRCOPY_BACKEND=rm forces a backend that does not open here, and gdrdrv would", "takes gdrdrv"},

	{"LD_PRELOAD=/x/libgdrapi.so.2:/x/libtool.so", OK, "preload", "has LD_PRELOAD=/x/libtool.so.", ""},
	{"step:gdr_pin_buffer preload:/usr/local/vgpu/libvgpu.so", Fail, "preload", "/etc/ld.so.preload=/usr/local/vgpu/libvgpu.so (HAMi) changes it", "gdr_mem_alloc"},
	{"step:gdr_pin_buffer said:ERR:++0x7f+is+managed+memory,+which+moves", Fail, "preload", "something between this program and CUDA changes it", "gdr_mem_alloc"},

	{"", OK, "bar1", "of 262144 MiB of BAR1 261120 MiB are free", ""},

	{"coherent", OK, "memory", "The CPU may cache the memory of GPU 0000:18:00.0 (as on GH200 and GB200)", ""},
	{"MIG", OK, "mig", "GPU 0000:18:00.0 is parted into instances (MIG), and the trial went well", ""},
	{"broken MIG", Warn, "mig", "GPU 0000:18:00.0 is parted into instances (MIG). rm does not", "nvidia-smi -mig 0"},
	{"broken hides rm:ENOTSUP,confidential+computing+is+on", Fail, "confidential-computing", "hides its memory", ""},

	{"broken files:100 nvmlDied:pipe2:+too+many+open+files", Fail, "limit-files", "may have 100 descriptors", "ulimit -n"},
	{"files:100 nvmlDied:pipe2:+too+many+open+files", Warn, "limit-files", "may have 100 descriptors", "ulimit -n"}, // and yet it works
	{"", OK, "limit-memlock", "any amount", ""},

	{"", OK, "consumer", "No consumer", ""},
	{"consumer:UCX+without+its+transport", Warn, "consumer", "UCX (): its transport for libgdrapi, libuct_cuda_gdrcopy.so, is not there.", "--with-gdrcopy"},
	{"consumer:NCCL,libgdrapi.so", OK, "consumer", "with NCCL_GDRCOPY_ENABLE=1 it takes /usr/lib/libgdrapi.so.2.6.", ""},
	{"consumer:libfabric", Warn, "consumer", "built without GDRCopy", "a build with GDRCopy"},
	{"consumer:libfabric,libgdrapi.so FI_HMEM_CUDA_USE_GDRCOPY=False", Warn, "consumer", "FI_HMEM_CUDA_USE_GDRCOPY=false turns it off", "Unset"},
	{"consumer:DPDK,libgdrapi.so so:x", Warn, "consumer", "wants libgdrapi.so, which the loader does not find", "library-name"},
	{"consumer:DPDK,libgdrapi.so theirs:/opt/libgdrapi.so.2.5", Warn, "consumer", "not this project's", "line library-name"},
	{"consumer:UCX,libgdrapi.so.2,/u/libgdrapi.so.2 beside:/u/libgdrapi.so.2", Warn, "consumer", "/u/libgdrapi.so.2, which is beside it", "Remove that file"},

	// Several things are wrong, or one with all that follows from it: what begins.
	{"broken in:Docker NVIDIA_DRIVER_CAPABILITIES=utility load:libcuda.so.1:+cannot+open", Fail, "container", "without compute", ""},
	{"broken CUDA_VISIBLE_DEVICES= /dev/nvidia-uvm:missing init:100", Fail, "cuda", "CUDA_VISIBLE_DEVICES=", ""},
	{"broken CUDA_VISIBLE_DEVICES=0 noGPU init:100", Fail, "device-nodes", "no /dev/nvidia0", ""},
	{"broken libcuda:/usr/lib/libcuda.so.1 /dev/nvidia-uvm:missing init:803", Fail, "cuda", "different versions (803)", ""},
	{"broken /dev/nvidia-uvm:missing init:999 nvml:nvmlDeviceGetHandleByIndex+v2:+NVML+answered+15", Fail, "gpu", "A GPU is lost", ""},
}

// behind has the findings that come before that of a row: what is told first is what to do first.
var behind = map[string]string{
	"backend-dmabuf asked:dmabuf load:x": "cuda", "backend-rm broken load:x": "cuda", "trial broken": "backend-rm",
	"library broken noTrial so2:libgdrapi.so.2:+wrong+ELF+class": "backend-rm",
}

func TestCauses(t *testing.T) {
	for _, c := range causes {
		t.Run(c.script+" "+c.id, func(t *testing.T) {
			r := Examine(machine(c.script).Facts)
			f := findingOf(t, r, c.id)
			require.Equal(t, c.status, f.Status, "%+v", f)
			require.Contains(t, f.Cause, c.cause)
			require.Contains(t, f.Advice, c.advice)
			if c.status == Fail {
				require.Equal(t, Broken, r.Verdict)
				first := r.Findings[slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Status == Fail })]
				require.Equal(t, cmp.Or(behind[c.id+" "+c.script], c.id), first.ID, "%+v", r.Findings)
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
		for _, f := range Examine(machine(c.script).Facts).Findings {
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
}

// What is enough, and one less.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		script, id string
		enough     int
		ok, less   Status
	}{
		{"free:", "bar1", 64 << 20, OK, Warn},
		{"total:", "bar1", 1 << 30, OK, Warn},
		{"bar1:", "bar1", 1 << 30, OK, Warn},
		{"files:", "limit-files", 1024, OK, Warn},
		{"RDMA locks:", "limit-memlock", 64 << 20, OK, Warn},
		{"broken files:", "limit-files", 64, Warn, Fail},
		{"broken free:", "bar1", 64 << 20, OK, Fail},
		{"broken libcuda: driver:", "driver", 535, OK, Fail},
	} {
		for n, want := range map[int]Status{c.enough: c.ok, c.enough - 1: c.less} {
			require.Equal(t, want, findingOf(t, Examine(machine(c.script+fmt.Sprint(n)).Facts), c.id).Status, "%s%d", c.script, n)
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
		{"UCX", "UCX_TLS", "^sm", false}, {"UCX", "UCX_TLS", "^all", false}, {"UCX", "UCX_TLS", "all", false}, {"UCX", "UCX_TLS", "", false},
		{"UCX", "UCX_TLS", "cuda", false}, {"UCX", "UCX_TLS", "cuda_copy", true},
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
		s := machine("broken /dev/gdrdrv:device gdrdrv:" + errno + ",said rm:" + errno)
		e := examination{Facts: s.Facts}
		require.Contains(t, e.refusal(*s.backend("gdrdrv")).cause, want[0], errno)
		require.Contains(t, e.refusal(*s.backend("rm")).advice, want[1], errno)
	}
}
