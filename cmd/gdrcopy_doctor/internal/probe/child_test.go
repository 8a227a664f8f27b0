package probe

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gdrapi/cmd/gdrcopy_doctor/internal/facts"
	"gdrapi/core/backend"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fake is a machine with the libraries of testdata/fake.c, which note how they are called.
type fake struct{ folder, log string }

// newFake builds them, with the compiler's flags. libcuda lies as an installed one does, its version
// in its file's name. The others are links to the same file.
func newFake(t *testing.T, flags ...string) fake {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler: ", err)
	}
	f := fake{t.TempDir(), filepath.Join(t.TempDir(), "log")}
	file := filepath.Join(f.folder, "libcuda.so.580.1")
	out, err := exec.Command(cc, append(flags, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", file, "testdata/fake.c")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1", "libgdrapi.so.2"} {
		require.NoError(t, os.Symlink(filepath.Base(file), filepath.Join(f.folder, name)))
	}
	return f
}

// run has a child of this program ask, in an environment with these variables. The calls are those
// that the libraries met, in order.
func (f fake) run(t *testing.T, into any, env []string, probe, argument string) (calls []string) {
	t.Helper()
	require.NoError(t, os.WriteFile(f.log, nil, 0o600))
	env = append([]string{"LD_LIBRARY_PATH=" + f.folder, "FAKE_LOG=" + f.log}, env...)
	require.Equal(t, "", runner(t).child(into, new(head), env, probe, argument))
	text, err := os.ReadFile(f.log)
	require.NoError(t, err)
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// lose puts an empty file in the place of a library: it does not load.
func (f fake) lose(t *testing.T, name string) {
	t.Helper()
	at := filepath.Join(f.folder, name)
	require.NoError(t, os.Remove(at))
	require.NoError(t, os.WriteFile(at, nil, 0o600))
}

// only keeps the calls whose names begin so.
func only(calls []string, begins ...string) []string {
	return slices.DeleteFunc(slices.Clone(calls), func(c string) bool {
		return !slices.ContainsFunc(begins, func(b string) bool { return strings.HasPrefix(c, b) })
	})
}

// count is how many calls there are of a function.
func count(calls []string, name string) int {
	n := 0
	for _, c := range calls {
		if word, _, _ := strings.Cut(c, " "); word == name {
			n++
		}
	}
	return n
}

func TestAskCUDA(t *testing.T) {
	f := newFake(t)
	path := filepath.Join(f.folder, "libcuda.so.580.1")
	first := facts.Device{PCI: "0046:ab:0c.0", Coherent: 1000, Integrated: 180, DMABuf: 1240, DMABufMmap: 1520}
	second := facts.Device{PCI: "0047:ab:0c.0", Coherent: 1001, Integrated: 181, DMABuf: 1241, DMABufMmap: 1521}
	old, nameless, half := first, first, second
	old.DMABufMmap, nameless.PCI = -1, ""
	half.DMABuf, half.DMABufMmap = 0, 0
	for _, c := range []struct {
		fail string
		want facts.CUDA // without the path and the text of the error
		said string
	}{
		{"", facts.CUDA{Version: 13040, Devices: []facts.Device{first, second}}, ""},
		{"cuDriverGetVersion@1=36", facts.CUDA{}, "cuDriverGetVersion: "},
		{"cuInit@1=802", facts.CUDA{Version: 13040, Init: 802}, "cuInit: "},
		{"cuInit@1=3", facts.CUDA{Version: 13040, Init: 999}, "no such device"}, // it has no result of its own then
		{"cuDeviceGetCount@1=2", facts.CUDA{Version: 13040}, "cuDeviceGetCount: "},
		{"cuDeviceGet@1=101", facts.CUDA{Version: 13040, Devices: []facts.Device{{}}}, "cuDeviceGet: "},
		{"cuDeviceGetPCIBusId@1=1", facts.CUDA{Version: 13040, Devices: []facts.Device{nameless, second}}, ""},
		{"cuDeviceGetAttribute@4=1", facts.CUDA{Version: 13040, Devices: []facts.Device{old, second}}, ""},
		{"cuDeviceGetAttribute@7=46", facts.CUDA{Version: 13040, Devices: []facts.Device{first, half}}, "cuDeviceGetAttribute: "},
	} {
		var got facts.CUDA
		f.run(t, &got, []string{"FAKE_FAIL=" + c.fail}, "cuda", "")
		require.Contains(t, got.Error, c.said, c.fail)
		require.Equal(t, c.said == "", got.Error == "", "%s: %s", c.fail, got.Error)
		c.want.Path, c.want.Error = path, got.Error
		require.Equal(t, c.want, got, c.fail)
	}
	f.lose(t, "libcuda.so.1")
	var got facts.CUDA
	f.run(t, &got, nil, "cuda", "")
	require.Contains(t, got.Load, "libcuda.so.1")
	require.Equal(t, facts.CUDA{Load: got.Load}, got)
}

func TestAskNVML(t *testing.T) {
	f := newFake(t)
	first := facts.ManagedGPU{PCI: "00000040:AB:0C.0", BAR1Total: 1000, BAR1Free: 2000, MIG: true}
	second := facts.ManagedGPU{PCI: "00000041:AB:0C.0", BAR1Total: 1001, BAR1Free: 2001, VGPU: true}
	without := func(change func(*facts.ManagedGPU)) []facts.ManagedGPU {
		g := second
		change(&g)
		return []facts.ManagedGPU{first, g}
	}
	for _, c := range []struct {
		fail string
		want facts.NVML
	}{
		{"", facts.NVML{Confidential: true, GPUs: []facts.ManagedGPU{first, second}}},
		{"nvmlInit_v2@1=9", facts.NVML{Error: "nvmlInit_v2: NVML answered 9"}},
		{"nvmlDeviceGetCount_v2@1=999", facts.NVML{Confidential: true, Error: "nvmlDeviceGetCount_v2: NVML answered 999"}},
		{"nvmlDeviceGetHandleByIndex_v2@2=4", facts.NVML{Confidential: true, Error: "nvmlDeviceGetHandleByIndex_v2: NVML answered 4"}},
		// What it does not say of a GPU is left out.
		{"nvmlSystemGetConfComputeState@1=3", facts.NVML{GPUs: []facts.ManagedGPU{first, second}}},
		{"nvmlDeviceGetPciInfo_v3@2=3", facts.NVML{Confidential: true, GPUs: without(func(g *facts.ManagedGPU) { g.PCI = "" })}},
		{"nvmlDeviceGetBAR1MemoryInfo@2=3", facts.NVML{Confidential: true, GPUs: without(func(g *facts.ManagedGPU) { g.BAR1Total, g.BAR1Free = 0, 0 })}},
		{"nvmlDeviceGetMigMode@2=3", facts.NVML{Confidential: true, GPUs: without(func(*facts.ManagedGPU) {})}},
		{"nvmlDeviceGetVirtualizationMode@2=3", facts.NVML{Confidential: true, GPUs: without(func(g *facts.ManagedGPU) { g.VGPU = false })}},
	} {
		var got facts.NVML
		calls := f.run(t, &got, []string{"FAKE_FAIL=" + c.fail}, "nvml", "")
		require.Equal(t, c.want, got, c.fail)
		began := count(calls, "nvmlInit_v2")
		if strings.HasPrefix(c.fail, "nvmlInit") {
			began--
		}
		require.Equal(t, began, count(calls, "nvmlShutdown"), c.fail)
	}
	f.lose(t, "libnvidia-ml.so.1")
	var got facts.NVML
	f.run(t, &got, nil, "nvml", "")
	require.Contains(t, got.Error, "libnvidia-ml.so.1")
	require.Equal(t, facts.NVML{Error: got.Error}, got)

	f = newFake(t, "-DOLD") // it does not know of confidential computing
	got = facts.NVML{}
	f.run(t, &got, nil, "nvml", "")
	require.Equal(t, facts.NVML{GPUs: []facts.ManagedGPU{first, second}}, got)
}

// dmabuf opens before CUDA starts, and can say no more than that CUDA is new enough.
func TestAskBackend(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct {
		env         []string
		errno, said string
		last        string // of the calls that decide
	}{
		{nil, "", "", "cuDeviceGetCount"},
		{[]string{"FAKE_DEVICES=0"}, "ENOTSUP", "none of the 0 CUDA devices", "cuDeviceGetCount"},
		{[]string{"FAKE_FAIL=cuInit@1=100"}, "ENODEV", "cuInit: ", "cuInit 0"},
		{[]string{"FAKE_FAIL=cuDeviceGetCount@1=2"}, "ENOMEM", "cuDeviceGetCount: ", "cuDeviceGetCount"}, // not for want of cuInit
	} {
		var got facts.Backend
		calls := only(f.run(t, &got, c.env, "backend", "dmabuf"), "cuInit", "cuDeviceGetCount")
		require.Contains(t, got.Error, c.said)
		require.Equal(t, facts.Backend{Name: "dmabuf", Error: got.Error, Errno: c.errno}, got)
		require.Equal(t, c.errno == "", got.Error == "", got.Error)
		require.Equal(t, c.last, calls[len(calls)-1])
	}
	var got facts.Backend
	f.run(t, &got, nil, "backend", "carrier pigeon")
	require.Equal(t, facts.Backend{Name: "carrier pigeon", Error: `there is no backend "carrier pigeon": invalid argument`, Errno: "EINVAL"}, got)
	f.lose(t, "libcuda.so.1")
	got = facts.Backend{}
	f.run(t, &got, nil, "backend", "dmabuf")
	require.Contains(t, got.Error, "libcuda.so.1")
	require.Equal(t, "ENODEV", got.Errno)
}

// opens is a backend whose sessions a test makes, and the session of one that is decided.
type opens struct {
	backend.Backend
	opened, closed int
	session        func(*opens) (backend.Session, error)
}

func (o *opens) Open() (backend.Session, error) { o.opened++; return o.session(o) }

type decided struct {
	backend.Session
	of *opens
}

func (d decided) Close() error { d.of.closed++; return nil }

type maybe struct {
	decided
	tentative bool
}

func (m maybe) Tentative() bool  { return m.tentative }
func (m maybe) ServesAny() error { return nil }

// Only a session that cannot say yet is opened anew.
func TestOpenDecided(t *testing.T) {
	for _, c := range []struct {
		name    string
		session func(o *opens) (backend.Session, error)
		closed  int
	}{
		{"no session", func(*opens) (backend.Session, error) { return nil, unix.ENODEV }, 0},
		{"one that has decided", func(o *opens) (backend.Session, error) { return decided{of: o}, nil }, 0},
		{"one that could say", func(o *opens) (backend.Session, error) { return maybe{decided{of: o}, false}, nil }, 0},
		{"one that cannot say yet", func(o *opens) (backend.Session, error) { return maybe{decided{of: o}, true}, nil }, 1},
	} {
		o := &opens{session: c.session}
		session, err := openDecided(o)
		require.Equal(t, c.closed, o.closed, c.name)
		if c.closed > 0 {
			continue // what comes then is CUDA's answer, if there is a CUDA here
		}
		require.Equal(t, 1, o.opened, c.name)
		want, wantErr := c.session(o)
		require.Equal(t, want, session, c.name)
		require.Equal(t, wantErr, err, c.name)
	}
}

func TestAskLibrary(t *testing.T) {
	for flags, ours := range map[string]bool{"-DNEW": true, "-DOLD": false} {
		f := newFake(t, flags)
		var got facts.Library
		f.run(t, &got, nil, "library", "libgdrapi.so.2")
		require.Equal(t, facts.Library{Name: "libgdrapi.so.2", Path: filepath.Join(f.folder, "libcuda.so.580.1"), Ours: ours, Version: "7.11"}, got)
	}
}

// merge puts blocks of lines that repeat together.
func merge(lines []string, length int) []string {
	var merged []string
	for i := 0; i < len(lines); {
		n := 1
		for i+(n+1)*length <= len(lines) && slices.Equal(lines[i:i+length], lines[i+n*length:i+(n+1)*length]) {
			n++
		}
		if n == 1 {
			merged = append(merged, lines[i])
			i++
			continue
		}
		merged = append(merged, fmt.Sprintf("%d times: %s", n, strings.Join(lines[i:i+length], ", ")))
		i += n * length
	}
	return merged
}

// What a trial calls: each GPU and each kind of memory is tried, the first is timed, and all is given back.
func TestWhatATrialCalls(t *testing.T) {
	onGPU := func(ordinal int, plain, pool string, timed bool) []string {
		copies := func(at string) []string {
			_, addr, _ := strings.Cut(at, " ")
			list := []string{"gdr_pin_buffer " + addr + " 65536 0 0", "gdr_get_backend 16", "gdr_map 65536", "2 times: gdr_copy_to_mapping 256, gdr_copy_from_mapping 256"}
			if timed {
				list = append(list, "50 times: 100 times: gdr_runtime_get_version, 100 times: gdr_copy_to_mapping 4",
					"50 times: 100 times: gdr_runtime_get_version, 100 times: gdr_copy_from_mapping 4")
			}
			timed = false
			return append(list, "gdr_unmap 65536", "gdr_unpin_buffer")
		}
		raw, _, _ := strings.Cut(plain, " ")
		rawPool, _, _ := strings.Cut(pool, " ")
		return slices.Concat(
			[]string{fmt.Sprint("cuDeviceGet ", ordinal), fmt.Sprint("cuDevicePrimaryCtxRetain ", 70+ordinal), "cuCtxPushCurrent_v2", "cuMemAlloc_v2 131072"}, copies(plain),
			[]string{"cuMemAllocAsync 131072 (nil)", "cuStreamSynchronize (nil)"}, copies(pool),
			[]string{"cuMemFreeAsync " + rawPool + " (nil)", "cuStreamSynchronize (nil)", "cuMemFree_v2 " + raw, "cuCtxPopCurrent_v2", fmt.Sprint("cuDevicePrimaryCtxRelease_v2 ", 70+ordinal)},
		)
	}
	want := slices.Concat(
		[]string{"gdr_open", "gdr_get_backend 16", "cuInit 0", "cuDeviceGetCount"},
		onGPU(0, "0x100000200 0x100010000", "0x100000ff00 0x1000010000", true),
		onGPU(1, "0x200000200 0x200010000", "0x200000ff00 0x2000010000", false),
		[]string{"gdr_close"},
	)
	f := newFake(t)
	var got facts.Trial
	calls := f.run(t, &got, nil, "trial", "libgdrapi.so.2")
	require.Equal(t, want, merge(merge(calls, 1), 2))
	require.Positive(t, got.WriteNS)
	require.Positive(t, got.ReadNS)
	require.Equal(t, facts.Trial{Backend: "rm", GPUs: 2, Pool: facts.PoolWorks, WriteNS: got.WriteNS, ReadNS: got.ReadNS}, got)

	// A library without gdr_get_backend has one backend, and a driver without pools is not asked for them.
	f = newFake(t, "-DOLD")
	got = facts.Trial{}
	calls = f.run(t, &got, nil, "trial", "libgdrapi.so.2")
	require.Equal(t, facts.Trial{Backend: "gdrdrv", GPUs: 2, WriteNS: got.WriteNS, ReadNS: got.ReadNS}, got)
	require.Equal(t, 2, count(calls, "gdr_pin_buffer"))
	require.Equal(t, 2, count(calls, "cuMemFree_v2"))
}

// A trial says at which step it failed, and on which GPU, and gives back what it has.
func TestWhereATrialFails(t *testing.T) {
	const none, works = "", facts.PoolWorks
	f := newFake(t)
	for _, c := range []struct {
		fail       string
		step, said string
		gpus       int
		pool       string
	}{
		{"gdr_open@1=1", "gdr_open", "NULL", 0, none},
		{"cuInit@1=100", "cuInit", "cuInit: ", 0, none},
		{"cuDeviceGetCount@1=2", "cuInit", "cuDeviceGetCount: ", 0, none},
		{"cuDeviceGet@1=101", "trial", "cuDeviceGet: ", 0, none},
		{"cuDevicePrimaryCtxRetain@2=2", "trial", "on CUDA device 1: cuDevicePrimaryCtxRetain: ", 1, works},
		{"cuMemAlloc_v2@1=2", "cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", 0, none},
		{"cuMemAlloc_v2@2=2", "cuMemAlloc", "on CUDA device 1: CUDA_ERROR_OUT_OF_MEMORY", 1, works},
		{"gdr_pin_buffer@1=12", "gdr_pin_buffer", "cannot allocate memory", 0, none},
		{"gdr_pin_buffer@3=12", "gdr_pin_buffer", "on CUDA device 1: cannot allocate memory", 1, works},
		{"gdr_map@1=12", "gdr_map", "cannot allocate memory", 0, none},
		{"gdr_copy_to_mapping@2=5", "gdr_copy_to_mapping", "input/output error", 0, none},
		{"gdr_copy_from_mapping@2=5", "gdr_copy_from_mapping", "input/output error", 0, none},
		{"gdr_copy_to_mapping@5002=5", "gdr_copy_to_mapping", "input/output error", 0, none},
		{"gdr_copy_from_mapping@5002=5", "gdr_copy_from_mapping", "input/output error", 0, none},
		{"gdr_unmap@1=22", "gdr_unmap", "invalid argument", 0, none},
		{"gdr_unpin_buffer@1=22", "gdr_unpin_buffer", "invalid argument", 0, none},
		{"gdr_close@1=5", "gdr_close", "input/output error", 2, works},
		// What went wrong with memory of a pool is said, and the next GPU is tried without it.
		{"gdr_pin_buffer@2=22", "", "", 2, "gdr_pin_buffer: invalid argument"},
		{"gdr_map@2=12", "", "", 2, "gdr_map: cannot allocate memory"},
		{"gdr_pin_buffer@4=22", "", "", 2, "on CUDA device 1: gdr_pin_buffer: invalid argument"},
		// A GPU without pools is well.
		{"cuMemAllocAsync@2=801", "", "", 2, works},
		{"cuStreamSynchronize@1=2", "", "", 2, works},
	} {
		var got facts.Trial
		calls := f.run(t, &got, []string{"FAKE_FAIL=" + c.fail}, "trial", "libgdrapi.so.2")
		require.Equal(t, c.step, got.Step, c.fail)
		require.Contains(t, got.Error, c.said, c.fail)
		require.Equal(t, c.said == "", got.Error == "", c.fail)
		require.Equal(t, c.gpus, got.GPUs, c.fail)
		require.Equal(t, c.pool, got.Pool, c.fail)
		failed, _, _ := strings.Cut(c.fail, "@")
		for begin, end := range map[string]string{
			"gdr_open": "gdr_close", "gdr_pin_buffer": "gdr_unpin_buffer", "gdr_map": "gdr_unmap", "cuMemAlloc_v2": "cuMemFree_v2",
			"cuMemAllocAsync": "cuMemFreeAsync", "cuDevicePrimaryCtxRetain": "cuDevicePrimaryCtxRelease_v2", "cuCtxPushCurrent_v2": "cuCtxPopCurrent_v2",
		} {
			began := count(calls, begin)
			if failed == begin {
				began--
			}
			require.Equal(t, began, count(calls, end), "%s: %s", c.fail, end)
		}
	}
	for n, want := range map[string]facts.Trial{
		"0": {Step: "trial", Error: "cuDeviceGet: CUDA_ERROR_INVALID_DEVICE (101)", Backend: "dmabuf|rm"},
		"1": {GPUs: 1, Pool: works, Backend: "rm"},
	} {
		var got facts.Trial
		f.run(t, &got, []string{"FAKE_DEVICES=" + n}, "trial", "libgdrapi.so.2")
		got.WriteNS, got.ReadNS = 0, 0
		require.Equal(t, want, got)
	}
	var other facts.Trial
	f.run(t, &other, nil, "trial", "libc.so.6")
	require.Equal(t, "gdr_open", other.Step)
	require.Contains(t, other.Error, "gdr_open")
	for _, c := range []struct{ lost, step string }{{"libcuda.so.1", "cuInit"}, {"libgdrapi.so.2", "dlopen"}} {
		f.lose(t, c.lost)
		var got facts.Trial
		f.run(t, &got, nil, "trial", "libgdrapi.so.2")
		require.Equal(t, c.step, got.Step)
		require.Contains(t, got.Error, c.lost)
	}
}

// A child ends with 2 where it is not asked as a probe is, and with 1 where nobody gets its answer.
func TestChildsStatus(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	for _, c := range []struct {
		args   []string
		status int
		said   string
	}{
		{nil, 2, "gdrcopy_doctor: a probe takes a name and an argument\n"},
		{[]string{"cuda"}, 2, "gdrcopy_doctor: a probe takes a name and an argument\n"},
		{[]string{"library", "libc.so.6", "more"}, 2, "gdrcopy_doctor: a probe takes a name and an argument\n"},
		{[]string{"weather", ""}, 2, "gdrcopy_doctor: there is no probe \"weather\"\n"},
		{[]string{"library", "libc.so.6"}, 1, "gdrcopy_doctor: write answer: no space left on device\n"},
	} {
		var errs strings.Builder
		cmd := exec.Command(self, append([]string{Flag}, c.args...)...)
		cmd.Stderr, cmd.ExtraFiles = &errs, []*os.File{full}
		_ = cmd.Run()
		require.Equal(t, c.status, cmd.ProcessState.ExitCode(), c.args)
		require.Equal(t, c.said, errs.String())
	}
}

// All that is asked, in order, and where the answers go.
func TestAllThatIsAsked(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("ASKED", log)
	for _, c := range []struct {
		missing string // what the loader does not find
		libs    []string
		trials  []string
	}{
		{"-", []string{"library libgdrapi.so.2", "library libgdrapi.so", "library /u/libgdrapi.so.2"}, []string{"trial libgdrapi.so.2 as asked", "trial libgdrapi.so.2 gdrdrv"}},
		{"libgdrapi.so.2", []string{"library libgdrapi.so.2", "library libgdrapi.so", "library /u/libgdrapi.so.2", "library TOP/libgdrapi.so.2"}, []string{"trial TOP/libgdrapi.so.2 as asked", "trial TOP/libgdrapi.so.2 gdrdrv"}},
		{"libgdrapi.so", []string{"library libgdrapi.so.2", "library libgdrapi.so", "library /u/libgdrapi.so.2"}, []string{"trial libgdrapi.so.2 as asked", "trial libgdrapi.so.2 gdrdrv"}},
	} {
		t.Setenv("MISSING", c.missing)
		require.NoError(t, os.WriteFile(log, nil, 0o600))
		r := script(t, `case $2 in trial) echo "$2 $3 ${GDRCOPY_BACKEND:-as asked}" ;; *) echo "$2 $3" ;; esac >>"$ASKED"
			case $2$3 in
			cuda) echo '{"version": 1}' ;;
			nvml) echo '{"confidential": true}' ;;
			backenddmabuf) kill -BUS $$ ;;
			backendrm) echo '{"name": "rm", "error": "no"}' ;;
			backend*) echo "{\"name\": \"$3\"}" ;;
			library$MISSING) echo "{\"name\": \"$3\", \"error\": \"No such file\"}" ;;
			library*) echo "{\"name\": \"$3\", \"path\": \"$3\", \"ours\": true}" ;;
			trial*) echo '{"backend": "rm"}' ;;
			esac >&3`)
		t.Setenv("GDRCOPY_BACKEND", "")
		f := facts.Facts{Consumers: []facts.Consumer{{Name: "a"}, {Finds: "/u/libgdrapi.so.2"}, {Finds: "/u/libgdrapi.so.2"}}}
		r.All(&f)
		text, err := os.ReadFile(log)
		require.NoError(t, err)
		top := filepath.Dir(filepath.Dir(r.Program))
		asked := strings.Split(strings.TrimSpace(strings.ReplaceAll(string(text), top, "TOP")), "\n")
		require.Equal(t, slices.Concat([]string{"cuda ", "nvml ", "backend gdrdrv", "backend dmabuf", "backend rm"}, c.libs, c.trials), asked)
		require.Equal(t, facts.CUDA{Version: 1}, f.CUDA)
		require.Equal(t, facts.NVML{Confidential: true}, f.NVML)
		require.Equal(t, []facts.Backend{{Name: "gdrdrv"}, {Name: "dmabuf", Died: "it crashed (bus error)"}, {Name: "rm", Error: "no"}}, f.Backends)
		require.Len(t, f.Libraries, 3)
		require.Equal(t, c.missing == "libgdrapi.so.2", f.Beside.Path != "")
		require.Equal(t, []facts.Trial{{Backend: "rm"}, {Asked: "gdrdrv", Backend: "rm"}}, f.Trials)
	}
	// How each child died is noted where its answer would be.
	r := script(t, `kill -SEGV $$`)
	var f facts.Facts
	r.All(&f)
	const died = "it crashed (segmentation fault)"
	require.Equal(t, []string{died, died}, []string{f.CUDA.Died, f.NVML.Died})
	require.Equal(t, []facts.Backend{{Name: "gdrdrv", Died: died}, {Name: "dmabuf", Died: died}, {Name: "rm", Died: died}}, f.Backends)
	require.Equal(t, []facts.Library{{Name: "libgdrapi.so.2", Died: died}, {Name: "libgdrapi.so", Died: died}}, f.Libraries)
	require.Equal(t, facts.Library{}, f.Beside)
	require.Empty(t, f.Trials)
}
