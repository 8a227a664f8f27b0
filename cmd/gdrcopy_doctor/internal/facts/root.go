package facts

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"golang.org/x/sys/unix"
)

// Root is the folder that stands for the machine's /.
type Root string

func (r Root) path(p string) string { return filepath.Join(string(r), p) }

// text is a file without space at its ends, "" where it cannot be read.
func (r Root) text(p string) string {
	b, _ := os.ReadFile(r.path(p))
	return string(bytes.TrimSpace(b))
}

// linked is the name of the file that a link leads to, "" where there is none.
func (r Root) linked(p string) string {
	to, err := os.Readlink(r.path(p))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

func (r Root) exists(p string) bool { return unix.Access(r.path(p), unix.F_OK) == nil }

// names lists the names in a folder.
func (r Root) names(dir string) []string {
	entries, _ := os.ReadDir(r.path(dir))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Gather reads what files say. lookup is os.LookupEnv, or a test's.
func (r Root) Gather(lookup func(string) (string, bool)) Facts {
	getenv := func(name string) string { v, _ := lookup(name); return v }
	f := Facts{
		Nodes:     r.nodes(),
		Gdrdrv:    r.gdrdrv(),
		Driver:    r.driver(),
		GPUs:      r.gpus(),
		Nouveau:   r.exists("/sys/module/nouveau"),
		WSL:       r.exists("/dev/dxg"),
		Tegra:     r.exists("/dev/nvmap"),
		RDMA:      len(r.names("/dev/infiniband")) > 0,
		Container: r.container(getenv),
		Label:     r.label(),
		Env:       map[string]string{},
		Preload:   strings.FieldsFunc(r.text("/etc/ld.so.preload"), func(c rune) bool { return c == ':' || unicode.IsSpace(c) }),
		Limits:    ProcessLimits(),
	}
	for _, name := range variables {
		if v, set := lookup(name); set {
			f.Env[name] = v
		}
	}
	f.Skipped = r.skipped(r.loaderFolders(getenv))
	f.Consumers = r.consumers(r.libraryFolders(getenv))
	return f
}

// label is what a security module says of this process, "" for nothing that confines it.
func (r Root) label() string {
	label := strings.TrimRight(r.text("/proc/self/attr/current"), "\x00\n")
	if label == "unconfined" || label == "kernel" {
		return ""
	}
	return label
}

// variables are those that change what the library, CUDA or a consumer does. tests/man/api.sh
// sees that it has each of the library's.
var variables = []string{
	"GDRCOPY_ENABLE_LOGGING", "GDRCOPY_LOG_LEVEL", "GDRCOPY_BACKEND", "GDRCOPY_USE_DMABUF_MMAP", "GDRCOPY_COPY_IMPL",
	"LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
	"NCCL_GDRCOPY_ENABLE", "UCX_TLS", "FI_HMEM_CUDA_USE_GDRCOPY", "NVSHMEM_DISABLE_GDRCOPY",
}

// maxGPUs is how many /dev/nvidiaN are looked for.
const maxGPUs = 32

// nodes describes the device nodes. Of the GPUs' only those that are there are listed.
func (r Root) nodes() []Node {
	list := []Node{r.node("/dev/nvidiactl"), r.node("/dev/nvidia-uvm"), r.node("/dev/gdrdrv")}
	for i := range maxGPUs {
		if n := r.node("/dev/nvidia" + strconv.Itoa(i)); n.Exists {
			list = append(list, n)
		}
	}
	return list
}

func (r Root) node(path string) Node {
	n := Node{Path: path}
	info, err := os.Stat(r.path(path))
	if err != nil {
		return n
	}
	n.Exists = true
	n.Mode = fmt.Sprintf("%04o", info.Mode().Perm())
	switch {
	case info.Mode()&os.ModeCharDevice != 0:
		n.Kind = "device"
	case info.IsDir():
		n.Kind = "folder"
	default:
		n.Kind = "file"
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		n.Owner = fmt.Sprintf("%d:%d", st.Uid, st.Gid)
	}
	var fs unix.Statfs_t
	if err := unix.Access(r.path(path), unix.R_OK|unix.W_OK); err != nil {
		n.Access = err.Error()
	} else if n.Kind == "device" && unix.Statfs(r.path(path), &fs) == nil && fs.Flags&unix.ST_NODEV != 0 {
		n.Access = NoDev
	} else if n.Kind == "device" && strings.TrimRight(path, "0123456789") == path {
		// AppArmor refuses an open alone. That of a GPU's own node would wake the GPU.
		fd, err := unix.Open(r.path(path), unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err == nil {
			unix.Close(fd)
		} else if err == unix.EACCES || err == unix.EPERM {
			n.Access = err.Error()
		}
	}
	return n
}

func (r Root) gdrdrv() Gdrdrv {
	listed := strings.Contains("\n"+r.text("/proc/modules"), "\ngdrdrv ")
	return Gdrdrv{listed || r.exists("/sys/module/gdrdrv") || r.exists("/proc/driver/gdrdrv"), r.text("/sys/module/gdrdrv/version")}
}

// kernelModule matches the line of both kinds of NVIDIA's kernel modules.
var kernelModule = regexp.MustCompile(`NVRM version: +NVIDIA .*Kernel Module.*? +([0-9]+\.[0-9.]+)`)

func (r Root) driver() Driver {
	text := r.text("/proc/driver/nvidia/version")
	d := Driver{Open: strings.Contains(text, "Open Kernel Module")}
	if m := kernelModule.FindStringSubmatch(text); m != nil {
		d.Version = m[1]
	} else {
		d.Version = r.text("/sys/module/nvidia/version")
	}
	return d
}

const (
	vendorNVIDIA = "0x10de"
	classDisplay = "0x03" // the first byte: VGA and 3D controllers
)

func (r Root) gpus() []GPU {
	var list []GPU
	const devices = "/sys/bus/pci/devices"
	for _, pci := range r.names(devices) {
		dir := filepath.Join(devices, pci)
		if r.text(filepath.Join(dir, "vendor")) != vendorNVIDIA || !strings.HasPrefix(r.text(filepath.Join(dir, "class")), classDisplay) {
			continue
		}
		list = append(list, GPU{PCI: pci, Model: r.model(pci), Driver: r.linked(filepath.Join(dir, "driver")), BAR1: bar1(r.text(filepath.Join(dir, "resource")))})
	}
	return list
}

// model is the name that the driver has for a GPU.
func (r Root) model(pci string) string {
	for _, line := range strings.Split(r.text("/proc/driver/nvidia/gpus/"+pci+"/information"), "\n") {
		if name, ok := strings.CutPrefix(line, "Model:"); ok {
			return strings.TrimSpace(name)
		}
	}
	return ""
}

// bar1 is the size of a GPU's BAR1: the second line of the PCI device's resources has
// its first and last byte.
func bar1(resource string) uint64 {
	lines := strings.Split(resource, "\n")
	if len(lines) < 2 {
		return 0
	}
	var first, last uint64
	if n, _ := fmt.Sscanf(lines[1], "0x%x 0x%x", &first, &last); n != 2 || last <= first {
		return 0
	}
	return last - first + 1
}

// container says what kind of container this is. No single file shows all kinds.
func (r Root) container(getenv func(string) string) string {
	switch {
	case getenv("KUBERNETES_SERVICE_HOST") != "":
		return "Kubernetes"
	case getenv("APPTAINER_CONTAINER") != "" || getenv("SINGULARITY_CONTAINER") != "":
		return "Apptainer"
	case r.exists("/run/.containerenv"):
		return "Podman"
	case r.exists("/.dockerenv"):
		return "Docker"
	case getenv("container") != "":
		return getenv("container")
	}
	if kind := r.text("/run/systemd/container"); kind != "" {
		return kind
	}
	group := r.text("/proc/1/cgroup")
	for _, k := range []struct{ part, kind string }{
		{"kubepods", "Kubernetes"}, {"docker", "Docker"}, {"libpod", "Podman"}, {"lxc", "LXC"}, {"containerd", "containerd"},
	} {
		if strings.Contains(group, k.part) {
			return k.kind
		}
	}
	mounts := r.text("/proc/self/mountinfo")
	dev := devMount.FindAllStringSubmatch(mounts, -1)
	if mounts != "" && (dev == nil || dev[len(dev)-1][1] != "devtmpfs") {
		return "sandbox"
	}
	return ""
}

// devMount matches the line of mountinfo for /dev, with the file system's type.
var devMount = regexp.MustCompile(`(?m)^(?:\S+ ){4}/dev .* - (\S+) `)

// ProcessLimits are this process's, not the tree's.
func ProcessLimits() Limits {
	limit := func(of int) uint64 {
		v := unix.Rlimit{Cur: Unlimited}
		_ = unix.Getrlimit(of, &v)
		return v.Cur
	}
	return Limits{
		Files:   limit(unix.RLIMIT_NOFILE),
		Memlock: limit(unix.RLIMIT_MEMLOCK),
		Space:   limit(unix.RLIMIT_AS),
	}
}

// loaderFolders lists where the loader looks, in its order.
func (r Root) loaderFolders(getenv func(string) string) []string {
	list := filepath.SplitList(getenv("LD_LIBRARY_PATH"))
	list = append(list, r.loaderConf("/etc/ld.so.conf", 0)...)
	return append(list, "/lib", "/usr/lib", "/lib64", "/usr/lib64")
}

// libraryFolders lists where shared libraries lie: the loader's folders, and those of
// well-known packages.
func (r Root) libraryFolders(getenv func(string) string) []string {
	list := append(r.loaderFolders(getenv), "/usr/local/lib", "/usr/local/lib64")
	patterns := []string{
		"/usr/lib/*-linux-gnu*", "/opt/*/lib", "/opt/*/lib64", "/opt/*/*/lib", "/usr/local/*/lib",
		"/usr/lib/python3*/*-packages/nvidia/*/lib", "/usr/local/lib/python3*/*-packages/nvidia/*/lib",
	}
	if v := getenv("VIRTUAL_ENV"); v != "" {
		patterns = append(patterns, v+"/lib/python3*/site-packages/nvidia/*/lib")
	}
	for _, p := range patterns {
		list = append(list, r.glob(p)...)
	}
	for _, dir := range slices.Clone(list) {
		list = append(list, filepath.Join(dir, "ucx"))
		list = append(list, r.glob(filepath.Join(dir, "dpdk", "pmds-*"))...)
	}
	return list
}

// loaderConf reads the folders of a loader's configuration file and of those that it
// includes.
func (r Root) loaderConf(file string, depth int) []string {
	const maxDepth = 4
	var list []string
	for _, line := range strings.Split(r.text(file), "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		switch {
		case len(words) == 2 && words[0] == "include" && depth < maxDepth:
			for _, f := range r.glob(words[1]) {
				list = append(list, r.loaderConf(f, depth+1)...)
			}
		case len(words) == 1 && filepath.IsAbs(words[0]):
			list = append(list, words[0])
		}
	}
	return list
}

// glob is filepath.Glob below the root.
func (r Root) glob(pattern string) []string {
	found, _ := filepath.Glob(r.path(pattern))
	for i, f := range found {
		found[i] = "/" + strings.TrimPrefix(strings.TrimPrefix(f, filepath.Clean(string(r))), "/")
	}
	return found
}
