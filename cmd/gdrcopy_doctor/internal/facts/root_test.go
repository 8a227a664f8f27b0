package facts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// tree makes a machine of files. A text of the form "-> path" is a link, and one that is
// empty at a path with / at its end is a folder.
func tree(t *testing.T, files map[string]string) Root {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		at := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o700))
		switch {
		case name[len(name)-1] == '/':
			require.NoError(t, os.MkdirAll(at, 0o700))
		case len(text) > 3 && text[:3] == "-> ":
			require.NoError(t, os.Symlink(text[3:], at))
		default:
			require.NoError(t, os.WriteFile(at, []byte(text), 0o600))
		}
	}
	return Root(dir)
}

// env makes a lookup of a map.
func env(m map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, set := m[name]
		return v, set
	}
}

const (
	closed535 = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version:  gcc version 12.2.0\n"
	open580   = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder@U16)  Tue\n"
)

func TestNodes(t *testing.T) {
	r := tree(t, map[string]string{
		"dev/nvidiactl": "-> /dev/null", "dev/nvidia3": "-> /dev/null", "dev/gdrdrv/": "", "dev/nvidia-uvm": "no device",
		"dev/nvidia0": "", "dev/nvidia31": "", "dev/nvidia32": "",
	})
	var nodes []string
	for _, n := range r.Gather(env(nil)).Nodes {
		require.True(t, n.Exists)
		nodes = append(nodes, n.Path+" "+n.Kind)
		if n.Path == "/dev/nvidiactl" {
			require.Equal(t, Node{Path: n.Path, Exists: true, Kind: "device", Mode: "0666", Owner: "0:0"}, n)
		}
	}
	require.Equal(t, []string{"/dev/nvidiactl device", "/dev/nvidia-uvm file", "/dev/gdrdrv folder", "/dev/nvidia0 file",
		"/dev/nvidia3 device", "/dev/nvidia31 file"}, nodes)
}

func TestWhatConfinesAndWhatIsPreloaded(t *testing.T) {
	for label, want := range map[string]string{
		"system_u:system_r:container_t:s0:c1,c2\x00": "system_u:system_r:container_t:s0:c1,c2", "docker-default (enforce)\n": "docker-default (enforce)",
		"unconfined\n": "", "kernel\x00": "", "": "",
	} {
		r := tree(t, map[string]string{"proc/self/attr/current": label, "etc/ld.so.preload": "/a/libvgpu.so:/b.so\n /c.so\n"})
		f := r.Gather(env(nil))
		require.Equal(t, want, f.Label)
		require.Equal(t, []string{"/a/libvgpu.so", "/b.so", "/c.so"}, f.Preload)
	}
}

// Root may use any file, so root asks as another user: on a thread of its own, which
// ends with that user's rights.
func TestNodeWithoutAccess(t *testing.T) {
	r := tree(t, map[string]string{"dev/nvidiactl": "x", "dev/nvidia0": "x", "dev/nvidia1": "x"})
	require.NoError(t, os.Chmod(filepath.Dir(string(r)), 0o755))
	require.NoError(t, os.Chmod(r.path("dev"), 0o755))
	require.NoError(t, os.Chmod(r.path("dev/nvidiactl"), 0))
	require.NoError(t, os.Chmod(r.path("dev/nvidia0"), 0o666))
	require.NoError(t, os.Chmod(r.path("dev/nvidia1"), 0o444))
	answers := make(chan []Node)
	go func() {
		runtime.LockOSThread()
		const nobody = 65534
		if os.Getuid() == 0 {
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
				panic(errno)
			}
		}
		answers <- []Node{r.node("/dev/nvidiactl"), r.node("/dev/nvidia0"), r.node("/dev/nvidia1")}
	}()
	for i, n := range <-answers {
		require.True(t, n.Exists)
		require.Equal(t, []string{"0000", "0666", "0444"}[i], n.Mode)
		require.Equal(t, []string{"permission denied", "", "permission denied"}[i], n.Access)
	}
}

func TestDriver(t *testing.T) {
	for text, want := range map[string]Driver{closed535: {Version: "535.183.01"}, open580: {Version: "580.159.04", Open: true}, "something else\n": {}} {
		require.Equal(t, want, tree(t, map[string]string{"proc/driver/nvidia/version": text}).driver(), text)
	}
	require.Equal(t, Driver{Version: "550.1"}, tree(t, map[string]string{"sys/module/nvidia/version": "550.1\n"}).driver())
}

func TestGdrdrv(t *testing.T) {
	require.Equal(t, Gdrdrv{true, "2.6"}, tree(t, map[string]string{"sys/module/gdrdrv/version": "2.6\n"}).gdrdrv())
	require.Equal(t, Gdrdrv{Loaded: true}, tree(t, map[string]string{"sys/module/gdrdrv/": ""}).gdrdrv())
	require.Equal(t, Gdrdrv{Loaded: true}, tree(t, map[string]string{"proc/modules": "nvidia 1 0 - Live 0x0\ngdrdrv 32768 0 - Live 0x0 (OE)\n"}).gdrdrv())
	require.Equal(t, Gdrdrv{Loaded: true}, tree(t, map[string]string{"proc/driver/gdrdrv/params": ""}).gdrdrv())
	require.Equal(t, Gdrdrv{}, tree(t, map[string]string{"proc/modules": "gdrdrv_other 1 0\n"}).gdrdrv())
}

func TestGPUs(t *testing.T) {
	const at = "sys/bus/pci/devices/"
	r := tree(t, map[string]string{
		at + "0000:18:00.0/vendor": "0x10de\n", at + "0000:18:00.0/class": "0x030200\n",
		at + "0000:18:00.0/resource": "0x00000000aa000000 0x00000000aaffffff 0x0000000000040200\n0x0000208000000000 0x000020bfffffffff 0x000000000014220c\n",
		at + "0000:18:00.0/driver":   "-> ../../../bus/pci/drivers/nvidia",
		at + "0000:19:00.0/vendor":   "0x10de\n", at + "0000:19:00.0/class": "0x030000\n", at + "0000:19:00.0/resource": "odd\n",
		at + "0000:1a:00.0/vendor": "0x10de\n", at + "0000:1a:00.0/class": "0x040300\n", // the sound of a GPU
		at + "0000:1b:00.0/vendor": "0x8086\n", at + "0000:1b:00.0/class": "0x030000\n",
		"proc/driver/nvidia/gpus/0000:18:00.0/information": "Model: \t\t NVIDIA H200\nIRQ: 3\n",
	})
	require.Equal(t, []GPU{{"0000:18:00.0", "NVIDIA H200", "nvidia", 256 << 30}, {"0000:19:00.0", "", "", 0}}, r.gpus())
}

// The second line is BAR1's: its first byte, its last one and flags.
func TestBAR1(t *testing.T) {
	for resource, want := range map[string]uint64{
		"": 0, "0x10 0x1f 0x4": 0, "0x0 0xff 0x4\n0x10 0x1f 0x4\n0x0 0xfff 0x4": 16, "a\n0x10": 0, "a\n0x10 odd": 0, "a\nodd": 0,
		"a\n0x0000000000000000 0x0000000000000000 0x0": 0, "a\n0x1f 0x10 0x4": 0, "a\n0x2000000000 0x3fffffffff 0x14220c": 128 << 30,
	} {
		require.Equal(t, want, bar1(resource), "%q", resource)
	}
}

func TestKindsOfMachine(t *testing.T) {
	f := tree(t, map[string]string{"dev/dxg": "", "dev/nvmap": "", "sys/module/nouveau/": "", "dev/infiniband/uverbs0": ""}).Gather(env(nil))
	require.True(t, f.WSL)
	require.True(t, f.Tegra)
	require.True(t, f.Nouveau)
	require.True(t, f.RDMA)
}

func TestContainer(t *testing.T) {
	for _, c := range []struct {
		want  string
		files map[string]string
		env   map[string]string
	}{
		{"", map[string]string{"proc/1/cgroup": "0::/init.scope\n"}, nil},
		{"Kubernetes", nil, map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1"}},
		{"Kubernetes", map[string]string{"proc/1/cgroup": "0::/kubepods.slice/x\n"}, nil},
		{"Apptainer", nil, map[string]string{"APPTAINER_CONTAINER": "/a.sif"}},
		{"Apptainer", nil, map[string]string{"SINGULARITY_CONTAINER": "/a.sif"}},
		{"Kubernetes", map[string]string{".dockerenv": ""}, map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1"}},
		{"Podman", map[string]string{"run/.containerenv": ""}, nil},
		{"Podman", map[string]string{"proc/1/cgroup": "0::/machine.slice/libpod-0a.scope\n"}, nil},
		{"containerd", map[string]string{"proc/1/cgroup": "0::/system.slice/containerd.service\n"}, nil},
		{"Docker", map[string]string{".dockerenv": ""}, nil},
		{"Docker", map[string]string{"proc/1/cgroup": "1:name=systemd:/docker/0a\n"}, nil},
		{"lxc", nil, map[string]string{"container": "lxc"}},
		{"systemd-nspawn", map[string]string{"run/systemd/container": "systemd-nspawn\n"}, nil},
		{"LXC", map[string]string{"proc/1/cgroup": "0::/lxc/a\n"}, nil},
		// A /dev of the machine's, one that hides it, and a plain folder.
		{"", map[string]string{"proc/self/mountinfo": "23 26 0:6 / /dev rw - devtmpfs devtmpfs rw\n24 23 0:22 / /dev/shm rw - tmpfs tmpfs rw\n"}, nil},
		{"sandbox", map[string]string{"proc/self/mountinfo": "23 26 0:6 / /dev rw - devtmpfs devtmpfs rw\n41 23 0:32 / /dev rw shared:1 - tmpfs tmpfs rw\n"}, nil},
		{"sandbox", map[string]string{"proc/self/mountinfo": "26 1 254:0 / / rw - ext4 /dev/vda rw\n"}, nil},
		// What says more comes first.
		{"Kubernetes", nil, map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "APPTAINER_CONTAINER": "/a.sif"}},
		{"Apptainer", map[string]string{"run/.containerenv": ""}, map[string]string{"APPTAINER_CONTAINER": "/a.sif"}},
		{"Podman", map[string]string{"run/.containerenv": "", ".dockerenv": ""}, nil},
		{"Docker", map[string]string{".dockerenv": ""}, map[string]string{"container": "oci"}},
		{"oci", map[string]string{"run/systemd/container": "systemd-nspawn\n"}, map[string]string{"container": "oci"}},
		{"rkt", map[string]string{"run/systemd/container": "rkt\n", "proc/1/cgroup": "0::/docker/a\n"}, nil},
		{"Kubernetes", map[string]string{"proc/1/cgroup": "1:a:/kubepods/a\n2:b:/docker/containerd/a\n"}, nil},
		{"Docker", map[string]string{"proc/1/cgroup": "1:a:/containerd/a\n2:b:/docker/a\n"}, nil},
	} {
		require.Equal(t, c.want, tree(t, c.files).Gather(env(c.env)).Container, "%v", c)
	}
}

// An empty CUDA_VISIBLE_DEVICES hides all GPUs: it is not the same as none.
func TestEnvironment(t *testing.T) {
	f := tree(t, nil).Gather(env(map[string]string{"CUDA_VISIBLE_DEVICES": "", "GDRCOPY_BACKEND": "rm", "HOME": "/root"}))
	require.Equal(t, map[string]string{"CUDA_VISIBLE_DEVICES": "", "GDRCOPY_BACKEND": "rm"}, f.Env)
	// Those of drivers and consumers; tests/man/api.sh has the library's.
	others := map[string]string{}
	for _, name := range []string{"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
		"NVIDIA_DRIVER_CAPABILITIES", "NCCL_GDRCOPY_ENABLE", "UCX_TLS", "FI_HMEM_CUDA_USE_GDRCOPY", "NVSHMEM_DISABLE_GDRCOPY"} {
		others[name] = "x" + name
	}
	require.Equal(t, others, tree(t, nil).Gather(env(others)).Env)
}

func TestLibraryFolders(t *testing.T) {
	r := tree(t, map[string]string{
		"etc/ld.so.conf":             "# first\ninclude /etc/ld.so.conf.d/*.conf\n/late # of the list\n/two words\n",
		"etc/ld.so.conf.d/cuda.conf": "/usr/local/cuda/lib64\n",
		"etc/ld.so.conf.d/loop.conf": "include /etc/ld.so.conf\n",
		"usr/lib/x86_64-linux-gnu/":  "",
		"opt/hpcx/lib64/":            "", "opt/a/lib/": "", "opt/hpcx/ucx/lib/": "", "opt/hpcx/ucx/more/lib/": "", "usr/local/cuda/lib/": "",
		"usr/lib/dpdk/pmds-23.0/":                                    "",
		"usr/lib/python3/dist-packages/nvidia/nccl/lib/":             "",
		"usr/local/lib/python3.11/site-packages/nvidia/nvshmem/lib/": "",
		"v/lib/python3.12/site-packages/nvidia/nccl/lib/":            "",
	})
	get := func(name string) string {
		return map[string]string{"LD_LIBRARY_PATH": "/mine:/more", "VIRTUAL_ENV": "/v"}[name]
	}
	want := []string{
		"/mine", "/more", "/usr/local/cuda/lib64", "/late", "/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64",
		"/usr/lib/x86_64-linux-gnu", "/opt/a/lib", "/opt/hpcx/lib64", "/opt/hpcx/ucx/lib", "/usr/local/cuda/lib",
		"/usr/lib/python3/dist-packages/nvidia/nccl/lib", "/usr/local/lib/python3.11/site-packages/nvidia/nvshmem/lib",
		"/v/lib/python3.12/site-packages/nvidia/nccl/lib",
	}
	for _, dir := range want {
		want = append(want, filepath.Join(dir, "ucx"))
		if dir == "/usr/lib" {
			want = append(want, "/usr/lib/dpdk/pmds-23.0")
		}
	}
	// The loader's order; a configuration that includes itself repeats what it has.
	var got []string
	for _, dir := range r.libraryFolders(get) {
		if !slices.Contains(got, dir) {
			got = append(got, dir)
		}
	}
	require.Equal(t, want, got)
}

func TestConsumers(t *testing.T) {
	r := tree(t, map[string]string{
		"usr/lib/ucx/libuct_cuda_gdrcopy.so.0.0.0":       "\x00libgdrapi.so.2\x00",
		"usr/lib/ucx/libuct_cuda_gdrcopy.so.0":           "-> libuct_cuda_gdrcopy.so.0.0.0",
		"usr/lib/libuct.so.0":                            "",
		"usr/lib/libnccl.so.2":                           "x\x00libgdrapi.so\x00libgdrapi.so\x00libgdrapi.so.2.6\x00",
		"usr/lib/libmpi.so.40":                           "",
		"usr/lib/libfabric.so.1":                         "libgdrapi.so not a name",
		"usr/lib/libnccl-net.so":                         "-> nowhere",
		"opt/nvshmem/lib/nvshmem_transport_ibrc.so.3":    "libgdrapi.so.2\x00",
		"usr/lib/dpdk/pmds-23.0/librte_gpu_cuda.so.23.0": "libgdrapi.so\x00",
	})
	require.Equal(t, []Consumer{
		{Name: "UCX", Path: "/usr/lib/ucx/libuct_cuda_gdrcopy.so.0", Wants: []string{"libgdrapi.so.2"}},
		{Name: "NCCL", Path: "/usr/lib/libnccl.so.2", Wants: []string{"libgdrapi.so", "libgdrapi.so.2.6"}},
		{Name: "libfabric", Path: "/usr/lib/libfabric.so.1"},
		{Name: "NVSHMEM", Path: "/opt/nvshmem/lib/nvshmem_transport_ibrc.so.3", Wants: []string{"libgdrapi.so.2"}},
		{Name: "Open MPI", Path: "/usr/lib/libmpi.so.40"},
		{Name: "DPDK", Path: "/usr/lib/dpdk/pmds-23.0/librte_gpu_cuda.so.23.0", Wants: []string{"libgdrapi.so"}},
	}, r.Gather(env(nil)).Consumers)

	for file, name := range map[string]string{
		"libuct_cuda_gdrcopy.so": "UCX", "libuct.so": UCXWithout, "libnccl.so.2.27": "NCCL", "libnccl-net-ofi.so": "aws-ofi-nccl",
		"libnccl-net.so": "aws-ofi-nccl", "libfabric.so": "libfabric", "nvshmem_transport_ucx.so": "NVSHMEM",
		"libmpi.so": OpenMPI, "librte_gpu_cuda.so": "DPDK",
	} {
		require.Equal(t, []Consumer{{Name: name, Path: "/lib/" + file}}, tree(t, map[string]string{"lib/" + file: ""}).Gather(env(nil)).Consumers)
	}
}

// A configuration that includes itself ends.
func TestLoaderConf(t *testing.T) {
	files := map[string]string{"relative.conf": "/hidden\n"}
	for i := range 7 {
		files[fmt.Sprintf("%d.conf", i)] = fmt.Sprintf("/folder%d\nrelative/folder\nother /relative.conf\ninclude /%d.conf\n", i, i+1)
	}
	require.Equal(t, []string{"/folder0", "/folder1", "/folder2", "/folder3", "/folder4"}, tree(t, files).loaderConf("/0.conf", 0))
}

// A consumer that is a real library: the name is in its dynamic section or in its
// constants, and it has folders of its own.
func TestConsumerOfELF(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler: ", err)
	}
	r := tree(t, map[string]string{
		"lib.c": "int gdr_open;\n", "usr/lib/mine/libgdrapi.so.2": "", "usr/lib/second/libgdrapi.so.2": "",
		"dl.c": "const char *name(void) { return \"libgdrapi.so\"; }\nchar said[] = \"libgdrapi.so.9\"; /* no constant */\n",
	})
	build := func(args ...string) {
		out, err := exec.Command(cc, append([]string{"-shared", "-fPIC"}, args...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	stub := r.path("stub.so")
	build("-o", stub, "-Wl,-soname,libgdrapi.so.2", r.path("lib.c"))
	build("-o", r.path("usr/lib/libuct_cuda_gdrcopy.so.0"), "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN/none:$ORIGIN/mine:${ORIGIN}/second", r.path("lib.c"), stub)
	build("-o", r.path("usr/lib/libnccl.so.2"), r.path("dl.c"))
	build("-o", r.path("usr/lib/libfabric.so.1"), "-Wl,--no-as-needed,--disable-new-dtags,-rpath,$ORIGIN/second", r.path("lib.c"), stub)
	require.Equal(t, []Consumer{
		{Name: "UCX", Path: "/usr/lib/libuct_cuda_gdrcopy.so.0", Wants: []string{"libgdrapi.so.2"}, Finds: "/usr/lib/mine/libgdrapi.so.2"},
		{Name: "NCCL", Path: "/usr/lib/libnccl.so.2", Wants: []string{"libgdrapi.so"}},
		{Name: "libfabric", Path: "/usr/lib/libfabric.so.1", Wants: []string{"libgdrapi.so.2"}, Finds: "/usr/lib/second/libgdrapi.so.2"},
	}, r.Gather(env(nil)).Consumers)
}
