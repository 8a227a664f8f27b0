// Package facts holds what gdrcopy_doctor finds out about a machine. It judges
// nothing: package diagnose does.
//
// What lies in files is read below a root folder, so that tests can make a machine as a
// tree of files. What drivers and libraries answer, package probe fills in: it has that
// from its children as JSON.
package facts

// Facts is all that is known of a machine.
type Facts struct {
	Nodes     []Node
	Gdrdrv    Gdrdrv
	Driver    Driver
	GPUs      []GPU
	Nouveau   bool   // the module is loaded
	WSL       bool   // the GPU is reached through Windows
	Tegra     bool   // the GPU shares the CPU's memory
	RDMA      bool   // there is an RDMA network card
	Container string // what this process runs in: "" for none, sandbox for a /dev that is not the machine's
	Label     string // that a security module has for this process, such as docker-default (enforce)
	Env       map[string]string
	Preload   []string // of /etc/ld.so.preload
	Limits    Limits
	Consumers []Consumer

	CUDA      CUDA
	NVML      NVML
	Backends  []Backend
	Libraries []Library // those that the loader finds, by name or path
	Skipped   []Skipped // files of those names that the loader passes over
	Beside    Library   // the one beside this program, where the loader finds none
	Built     bool      // Beside lies in the tree that it was built in
	Trials    []Trial   // the first is without GDRCOPY_BACKEND set by the doctor
}

// Node is a device node.
type Node struct {
	Path   string
	Exists bool
	Kind   string // device, folder or file
	Mode   string // such as 0660
	Owner  string // user and group by number, such as 0:44
	Access string // "", or why it may not be read and written
}

// NoDev is Node.Access where the mount closes a node.
const NoDev = "its file system is mounted with nodev"

// Gdrdrv is the kernel module gdrdrv, as the kernel lists it.
type Gdrdrv struct {
	Loaded  bool
	Version string // "" where the module does not say
}

// Driver is the kernel part of NVIDIA's driver.
type Driver struct {
	Version string // "" where it is not loaded
	Open    bool   // the open kernel modules
}

// GPU is an NVIDIA GPU on the PCI bus.
type GPU struct {
	PCI    string
	Model  string // "" where the driver does not say
	Driver string // the kernel's driver that has it, such as nvidia or vfio-pci; "" for none
	BAR1   uint64 // bytes, 0 where that is not known
}

// Limits are the process's. Unlimited is the largest number.
type Limits struct {
	Files   uint64 // RLIMIT_NOFILE
	Memlock uint64 // RLIMIT_MEMLOCK, bytes
	Space   uint64 // RLIMIT_AS, bytes
}

// Unlimited is RLIM_INFINITY.
const Unlimited = ^uint64(0)

// Consumer is a library that uses libgdrapi, or could.
type Consumer struct {
	Name  string // UCX, NCCL, ...
	Path  string
	Wants []string // the names of libgdrapi that it has in it
	Finds string   // a libgdrapi beside it that it takes before the loader's; "" for none
}

// CUDA is what libcuda answers.
type CUDA struct {
	Died string `json:"died"` // how the child ended that asked, "" for well
	Load string `json:"load"` // why libcuda.so.1 does not load
	Path string `json:"path"` // of the file that was loaded
	// It is the simulated one of tests/doubles.
	Simulated bool     `json:"simulated"`
	Version   int      `json:"version"` // 1000 * major + 10 * minor
	Init      int      `json:"init"`    // the CUresult of cuInit
	Error     string   `json:"error"`   // of cuInit or of a later call
	Devices   []Device `json:"devices"`
}

// Device is what CUDA says of a device. An attribute that the driver does not know is
// -1.
type Device struct {
	PCI        string `json:"pci"`
	Coherent   int    `json:"coherent"`     // attribute 100: the CPU may cache its memory
	Integrated int    `json:"integrated"`   // attribute 18: its memory is the system's
	DMABuf     int    `json:"dma_buf"`      // attribute 124: dma-bufs are exported
	DMABufMmap int    `json:"dma_buf_mmap"` // attribute 152: they can be mapped
}

// NVML is what the management library answers.
type NVML struct {
	Died         string       `json:"died"`
	Error        string       `json:"error"`
	Confidential bool         `json:"confidential"`
	GPUs         []ManagedGPU `json:"gpus"`
}

// ManagedGPU is what NVML says of a GPU.
type ManagedGPU struct {
	PCI       string `json:"pci"`
	BAR1Total uint64 `json:"bar1_total"` // bytes; 0 where NVML does not say
	BAR1Free  uint64 `json:"bar1_free"`
	MIG       bool   `json:"mig"`
	VGPU      bool   `json:"vgpu"`
}

// Backend is what the open of a backend answers, in the library of this version.
type Backend struct {
	Name  string `json:"name"`
	Died  string `json:"died"`
	Error string `json:"error"` // "": it opens
	Errno string `json:"errno"` // such as ENODEV
}

// Library is what the loader finds for a name of libgdrapi.
type Library struct {
	Name    string `json:"name"` // or a path
	Died    string `json:"died"`
	Error   string `json:"error"`
	Path    string `json:"path"`
	Ours    bool   `json:"ours"` // it has gdr_get_backend
	Version string `json:"version"`
	Edited  bool   `json:"edited"` // as by patchelf
}

// Skipped is a file with a name of libgdrapi that lies in a folder of the loader's before the one that it
// takes, and that the loader passes over without a word.
type Skipped struct{ Path, Why string }

// Trial is one use of a libgdrapi: open, pin, map, write, read, compare.
type Trial struct {
	Of      Library  `json:"-"`       // the library that was tried
	Asked   string   `json:"asked"`   // the backend that the doctor asked for, "" for none
	Died    string   `json:"died"`    // how the child ended that tried, "" for well
	Step    string   `json:"step"`    // the call that failed, "" for none
	Error   string   `json:"error"`   // what it answered
	Log     []string `json:"log"`     // the library's lines
	Backend string   `json:"backend"` // that the library took
	GPUs    int      `json:"gpus"`    // on which all went well
	Pool    string   `json:"pool"`    // PoolWorks, or why memory of a pool does not, or "" where it was not tried
	WriteNS float64  `json:"write_ns"`
	ReadNS  float64  `json:"read_ns"`
}

// PoolWorks is Trial.Pool where all went well with memory of pools.
const PoolWorks = "works"

// Worked says whether all of it went well.
func (t Trial) Worked() bool { return t.Died == "" && t.Step == "" }
