// Package tools has the tests of the installed programs: their arguments, exit statuses
// and figures, and that none of them takes a failed call or a wrong copy for well. They run
// on the simulated driver, as users run them.
package tools

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// build is the folder that make builds in; the simulated driver is in LD_LIBRARY_PATH.
var build = os.Getenv("BUILD")

func TestMain(m *testing.M) {
	if build == "" {
		fmt.Println("tests of tools: not run, make check-tools runs them")
		return
	}
	os.Exit(m.Run())
}

// ended is a program that has ended.
type ended struct {
	status    int
	out, errs string
}

// run runs a command line, whose first word is a tool without its gdrcopy_, with variables.
func run(line string, variables ...string) ended {
	var out, errs bytes.Buffer
	words := strings.Fields(line)
	cmd := exec.Command(filepath.Join(build, "bin", "gdrcopy_"+words[0]), words[1:]...)
	cmd.Env = append(os.Environ(), variables...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	return ended{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// spoilt is run where the library, or CUDA, fails as SPOIL says.
func spoilt(line, plan string) ended {
	return run(line, "LD_PRELOAD="+filepath.Join(build, "tests/libspoil.so"), "SPOIL="+plan)
}

// hidden gives the way to a copy of a library that lacks functions.
func hidden(t *testing.T, library string, names ...string) string {
	text, err := os.ReadFile(filepath.Join(build, library))
	require.NoError(t, err)
	for _, name := range names {
		// Its first letter: the linker may have put another name, as free, into its end.
		text = bytes.ReplaceAll(text, []byte(name+"\x00"), []byte("_"+name[1:]+"\x00"))
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(library)), text, 0o700))
	return "LD_LIBRARY_PATH=" + dir + ":" + os.Getenv("LD_LIBRARY_PATH")
}

// good is a run that did well and said nothing of errors.
func (e ended) good(t *testing.T, line string) {
	t.Helper()
	require.Equal(t, 0, e.status, "%s: %s", line, e.errs)
	require.Empty(t, e.errs, line)
	require.NotEmpty(t, e.out, line)
}

// oneLine is a run that failed with that status and one line on standard error, which has the words.
func (e ended) oneLine(t *testing.T, line string, status int, words string) {
	t.Helper()
	require.Equal(t, status, e.status, "%s: %s", line, e.errs)
	require.Equal(t, 1, strings.Count(e.errs, "\n"), "%s: %s", line, e.errs)
	require.Contains(t, e.errs, words, line)
	require.Empty(t, e.out, line)
}

var (
	benchmarks = []string{"copybw", "copylat", "apiperf", "pplat"}
	all        = append(slices.Clone(benchmarks), "sanity", "report")
)

// Short runs of the benchmarks that need no kernel.
var short = map[string]string{
	"copybw":         "copybw -s 4K --budget 8",
	"copylat":        "copylat -s 16 --budget 8",
	"copylat used":   "copylat --mode used -s 16 --budget 8",
	"copylat offset": "copylat -s 64 -o 65537 --budget 8",
	"apiperf":        "apiperf -s 64K -n 5",
}

// What is no argument is refused in one line that names --help, whatever the machine.
func TestBadArguments(t *testing.T) {
	lines := []string{
		"copybw -d 0 -s 0", "copybw -s 1025G", "copybw -s 1KK", "copybw -s -1", "copybw -o -1", "copybw -w 0", "copybw -r 0", "copybw -M wcx",
		"copybw -a ext2", "copybw --backend other", "copybw --backend vulkan", "copybw --json --csv", "copybw -s 4096 -o 4096",
		"copybw -s 4096 -c 8192 -o 64", "copybw --budget 0", "copylat --mode used -w 1", "copylat --mode used -C", "copylat --mode used --compat", "copylat --mode many",
		"apiperf -n 0", "apiperf -s 1x", "pplat -s 6", "pplat -s 2G", "pplat -m 2", "pplat -D both", "pplat -B 0", "pplat -B 8193", "pplat -T 1025",
		"pplat -t 0", "pplat -u 86401", "sanity -d 1z", "sanity -t no_such_case", "sanity --skip no_such_case",
	}
	for _, tool := range all {
		lines = append(lines, tool+" -Z", tool+" --no-such-option", tool+" more", tool+" -d")
	}
	for _, tool := range append(slices.Clone(benchmarks), "sanity") {
		lines = append(lines, tool+" -d first")
	}
	for _, line := range lines {
		tool, _, _ := strings.Cut(line, " ")
		run(line).oneLine(t, line, 2, "; see 'gdrcopy_"+tool+" --help'")
	}
}

// Where there is no GPU, or not that one, one line says so.
func TestNoGPU(t *testing.T) {
	none := []string{"CUDA_SIM_DEVICES=0", "CUDA_SIM_FAIL=cuInit=100"}
	if _, err := os.Stat("/dev/nvidiactl"); err != nil { // else the machine has a libcuda of its own
		none = append(none, "LD_LIBRARY_PATH=")
	}
	for _, tool := range append(slices.Clone(benchmarks), "sanity") {
		for _, args := range []string{"", " -d 7"} {
			for _, v := range none {
				e := run(tool+args, v)
				require.Equal(t, 77, e.status, "%s %s", tool+args, v)
				require.Regexp(t, "driver|GPU", e.errs, "%s %s", tool+args, v)
			}
		}
		e := run(tool + " -d 2")
		e.oneLine(t, tool, 2, "there is no GPU 2: CUDA sees 2; see")
	}
	run("pplat -t 10").oneLine(t, "pplat", 77, "needs a real GPU")
}

// --help and --version, of which the latter is one line for all, also in the library's file.
func TestHelpAndVersion(t *testing.T) {
	shape := regexp.MustCompile(`^gdrcopy_\w+ (?:with libgdrapi )?\d+\.\d+\.\d+\S* \(commit \S+, go\S+, backends gdrdrv dmabuf rm\)\n$`)
	for _, tool := range append(slices.Clone(all), "doctor") {
		for _, option := range []string{" --help", " -h", " --version", " -V"} {
			e := run(tool + option)
			e.good(t, tool+option)
			if strings.ContainsAny(option, "vV") && !strings.Contains(option, "help") {
				require.Regexp(t, shape, e.out)
			}
		}
	}
	library, err := os.ReadFile(filepath.Join(build, "libgdrapi.so.2"))
	require.NoError(t, err)
	_, line, _ := strings.Cut(strings.TrimSpace(run("copybw --version").out), " with ")
	require.Contains(t, string(library), line+"\x00")
}

// What cannot be written is a failure.
func TestFullDisk(t *testing.T) {
	lines := []string{"sanity -l", "sanity -t basic*", "sanity --help", "report --version", "doctor --help", short["copybw"], short["apiperf"] + " --json",
		short["copylat"] + " --csv"}
	for _, line := range lines {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		require.NoError(t, err)
		var errs bytes.Buffer
		words := strings.Fields(line)
		cmd := exec.Command(filepath.Join(build, "bin", "gdrcopy_"+words[0]), words[1:]...)
		cmd.Stdout, cmd.Stderr = full, &errs
		require.Error(t, cmd.Run(), line)
		full.Close()
		require.Equal(t, 1, cmd.ProcessState.ExitCode(), line)
		require.Contains(t, strings.ToLower(errs.String()), "no space left", line)
	}
}

// A measurement of --json.
type result struct {
	Tool, Data, Build, GPU, Memory, Backend, Mapping, Libgdrapi string
	Results                                                     []struct {
		Op, Who, Mode                 string
		Size, Threads, Batch, Samples int
		P0                            float64 `json:"p0_ns"`
		P50                           float64 `json:"p50_ns"`
		Bandwidth                     float64 `json:"gb_per_s"`
	}
}

func measured(t *testing.T, line string, variables ...string) result {
	t.Helper()
	e := run(line+" --json", variables...)
	e.good(t, line)
	var r result
	require.NoError(t, json.Unmarshal([]byte(e.out), &r), line)
	require.NotEmpty(t, r.Results, line)
	return r
}

// The figures of --json hold together, --csv has the same ones, and the plain text has the facts.
func TestFigures(t *testing.T) {
	for name, line := range short {
		r := measured(t, line)
		tool, _, _ := strings.Cut(line, " ")
		require.Equal(t, []string{"gdrcopy_" + tool, "Simulated GPU 0", "ext", "dmabuf", "Write Combining", "2.6"},
			[]string{r.Tool, r.GPU, r.Memory, r.Backend, r.Mapping, r.Libgdrapi}, name)
		require.Regexp(t, "^verified", r.Data, name)
		var figures []string
		for _, f := range r.Results {
			require.True(t, f.Samples >= 1 && f.Batch >= 1 && f.Threads >= 1, "%s: %+v", name, f)
			require.True(t, 0 <= f.P0 && f.P0 <= f.P50, "%s: %+v", name, f)
			if f.Bandwidth > 0 && f.P50 > 1 { // both are rounded
				require.InDelta(t, float64(f.Size)/f.P50, f.Bandwidth, 0.0001+0.01*f.Bandwidth, "%s: %+v", name, f)
			}
			figures = append(figures, strings.Join([]string{f.Op, f.Who, f.Mode, fmt.Sprint(f.Size), fmt.Sprint(f.Threads)}, ","))
		}
		e := run(line + " --csv")
		e.good(t, line)
		rows, err := csv.NewReader(strings.NewReader(e.out)).ReadAll()
		require.NoError(t, err, name)
		require.Equal(t, strings.Split("tool,op,who,mode,size,threads,batch,samples,p0_ns,p50_ns,gb_per_s", ","), rows[0], name)
		var same []string
		for _, row := range rows[1:] {
			same = append(same, strings.Join(row[1:6], ","))
		}
		require.ElementsMatch(t, figures, same, name)
		e = run(line)
		e.good(t, line)
		if tool != "copybw" {
			require.Contains(t, e.out, "# backend: dmabuf\n", name)
		}
	}
}

// The options that say how much is measured.
func TestHowMuch(t *testing.T) {
	for _, f := range measured(t, "copylat -s 64 -r 1 -w 1").Results {
		require.Equal(t, 1, f.Samples*f.Batch, "%+v", f)
	}
	for _, f := range measured(t, "apiperf -s 64K -n 1").Results {
		require.Equal(t, 1, f.Samples, "%+v", f)
	}
	for most, want := range map[string][]int{"1": {0, 65536}, "1048575": {0, 65536}, "16M": {0, 65536, 1 << 20, 16 << 20}} {
		var sizes []int
		for _, f := range measured(t, "apiperf -w 0 -n 1 -s "+most).Results {
			sizes = append(sizes, f.Size)
		}
		slices.Sort(sizes)
		require.Equal(t, want, slices.Compact(sizes), most)
	}
	// NVIDIA's: -l is each power of two up to -c or -s.
	var sizes []string
	for _, m := range regexp.MustCompile(`(?m)^writing test, size=(\d+) offset=4 `).FindAllStringSubmatch(run("copybw -l -s 100 -o 4 -w 10 -r 10").out, -1) {
		sizes = append(sizes, m[1])
	}
	require.Equal(t, []string{"1", "2", "4", "8", "16", "32", "64"}, sizes)
}

// --backend sets the library's variable, and what the library answers is shown.
func TestBackend(t *testing.T) {
	e := run("copybw -s 64 -w 1 -r 1 --backend dmabuf", "LD_PRELOAD="+filepath.Join(build, "tests/libspoil.so"), "SPOIL=open:tell:1")
	require.Equal(t, "GDRCOPY_BACKEND=dmabuf\n", e.errs)
	require.Equal(t, "Caching", measured(t, "copylat -s 4 --budget 5", "CUDA_SIM_COHERENT=1", "GDRCOPY_BACKEND=dmabuf").Mapping)
}

// Each call of CUDA's, and each of the library's, that fails ends the tool: status 1, and one
// line that names it.
func TestFailedCalls(t *testing.T) {
	for _, line := range []string{"copybw -s 256 -w 1 -r 1 -a cumemalloc", "apiperf -s 1 -n 1 -w 0 -a cumemalloc"} {
		for _, call := range []string{"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuMemAlloc_v2", "cuMemcpyHtoD_v2",
			"cuMemcpyDtoH_v2", "cuMemFree_v2"} {
			if call == "cuMemcpyHtoD_v2" && strings.HasPrefix(line, "apiperf") {
				continue // it makes none
			}
			said := strings.TrimSuffix(call, "_v2")
			if said == "cuMemAlloc" {
				said = "(999)"
			}
			run(line, "CUDA_SIM_FAIL="+call+"=999@1").oneLine(t, line+" "+call, 1, said)
		}
		for call, name := range map[string]string{"pin": "gdr_pin_buffer", "map": "gdr_map", "unmap": "gdr_unmap", "unpin": "gdr_unpin_buffer",
			"close": "gdr_close", "to": "Input/output error", "from": "Input/output error", "open": "gdr_open"} {
			spoilt(line, call+":refuse:1").oneLine(t, line+" "+call, 1, name)
		}
	}
	for _, call := range []string{"cache_open", "get", "put", "cache_close"} {
		spoilt(short["apiperf"], call+":refuse:1").oneLine(t, call, 1, "gdr_cache_")
	}
}

// Each copy that is wrong, or that moved nothing, is noticed.
func TestBadCopies(t *testing.T) {
	plans := map[string][]string{
		"copybw":       {"to:flip:1", "to:nothing:1", "from:flip:1", "from:nothing:1", "to:refuse:40", "from:refuse:40"},
		"copylat":      {"to:flip:1", "to:nothing:1", "from:flip:1", "from:nothing:1", "to:refuse:40", "from:refuse:40", "to:flip:all"},
		"copylat used": {"from:flip:1", "from:nothing:1", "from:refuse:40"},
		"apiperf":      {"to:flip:1", "to:nothing:2", "from:flip:16", "to_v:flip:1", "from_v:nothing:1"},
	}
	for name, list := range plans {
		for _, plan := range list {
			e := spoilt(short[name], plan)
			e.oneLine(t, name+" "+plan, 1, "")
			require.Regexp(t, "byte|wrong|is not in GPU memory|Input/output error", e.errs, "%s %s", name, plan)
		}
	}
	for _, plan := range []string{"to:flip:others", "from:flip:others", "to:refuse:others", "to:refuse:60"} {
		spoilt("copybw -s 4K -w 40 -r 40 --threads 2", plan).oneLine(t, plan, 1, "")
	}
	dir := t.TempDir()
	e := spoilt("report --size 64 --budget 5 -o "+dir, "to:flip:1")
	require.Equal(t, 1, e.status)
	require.Contains(t, e.errs, "gdrcopy_copylat failed")
}

// Drivers and libraries that lack calls: the tool says so, or goes on without.
func TestOlderOnes(t *testing.T) {
	for _, name := range []string{"cuMemCreate", "cuMemSetAccess"} {
		run(short["copybw"], hidden(t, "doubles/libcuda.so.1", name)).oneLine(t, name, 77, "libcuda.so.1 has no "+name)
	}

	// NVIDIA's library has none of the extensions.
	other := func(names ...string) string { return hidden(t, "libgdrapi.so.2", names...) }
	extensions := []string{"gdr_get_backend", "gdr_ext_version", "gdr_mem_alloc", "gdr_mem_get_device_ptr", "gdr_mem_free",
		"gdr_copy_to_mapping_v", "gdr_copy_from_mapping_v", "gdr_cache_open"}
	theirs := other(extensions...)
	require.Equal(t, "dmabuf", measured(t, short["copybw"]+" -a cumemcreate", theirs).Backend)
	require.NotContains(t, run(short["apiperf"]+" -a cumemalloc --csv", theirs).out, "gdr_cache")
	run(short["copybw"], theirs).oneLine(t, "ext", 2, "this libgdrapi has no gdr_mem_alloc: choose -a cumemalloc or -a cumemcreate")
	require.Equal(t, "gdrcopy_copybw with libgdrapi 2.6 of another maker\n", run("copybw --version", theirs).out)
	require.Contains(t, run("sanity -t type_strings", other("gdr_get_backend", "gdr_ext_version")).out, "# libgdrapi 2.6, backend dmabuf (driver 2.6), persistent mappings\n")
}

// gdrcopy_sanity lists, picks and skips cases. One that fails or crashes is named, and the others run.
func TestSanity(t *testing.T) {
	every := strings.Fields(run("sanity -l").out)
	require.Subset(t, every, strings.Fields(run("sanity -l -t fork_first,basic*").out))
	e := run("sanity -v -d 0 -e -t fork* --skip fork_o*")
	e.good(t, "sanity")
	require.Contains(t, e.out, "\n1..4\n")
	require.Contains(t, e.out, " - fork_opens_again # SKIP asked\n")
	require.True(t, strings.HasSuffix(e.out, "\n3 passed, 0 failed, 1 skipped\nTotal: 4, Passed: 3, Failed: 0, Waived: 1\n"), e.out)
	require.NotRegexp(t, "passed|Passed", run("sanity -s -t fork_first").out)
	for _, plan := range []string{"to:flip:1", "from:flip:1", "to:nothing:all", "from:refuse:1", "pin:refuse:1", "map:refuse:1", "unmap:refuse:1", "to:crash:1"} {
		e := spoilt("sanity -t basic*,versions,many_small,sub_ranges", plan)
		bad := regexp.MustCompile(`(?m)^not ok \d+ - (\w+)`).FindAllStringSubmatch(e.out, -1)
		require.Equal(t, 1, e.status, plan)
		require.NotEmpty(t, bad, plan)
		require.Contains(t, e.out, fmt.Sprintf(" %d failed, ", len(bad)), plan)
		require.Contains(t, e.out, " - versions\n", plan)
		for _, b := range bad {
			require.Contains(t, e.out, "#   "+b[1], plan)
		}
	}
	// NVIDIA's lines of GDRCopy 2.4 to 2.6, tests/testsuites/testsuite.cpp.
	e = spoilt("sanity --compat -t basic_v2,versions,type_strings --skip versions", "to:flip:1")
	require.Equal(t, 1, e.status)
	require.Equal(t, "Total: 3, Passed: 1, Failed: 1, Waived: 1\n\nList of failed tests:\n    basic_v2\n\nList of waived tests:\n    versions\n", e.out)
	e = run("sanity --compat -v -t versions")
	require.Equal(t, "Total: 1, Passed: 1, Failed: 0, Waived: 0\n", e.out)
	require.Regexp(t, "(?s)^&&&& RUNNING versions\n.*&&&& PASSED versions\n", e.errs)
	require.Empty(t, run("sanity --compat -s -t versions").out)
	require.Contains(t, spoilt("sanity -t basic_v2", "to:crash:1").out, "crashed: signal 6")
	e = run("sanity", "GDRCOPY_BACKEND=nonesuch")
	require.Equal(t, 1, e.status)
	require.Contains(t, e.out, "Bail out! CUDA does not work, or gdr_open fails: set GDRCOPY_ENABLE_LOGGING=1 to see why\n")
}

// What NVIDIA's programs of GDRCopy 2.4 to 2.6 take, each option with values, is taken here. A mapping type may be
// one that this backend has not.
var reference = map[string][]string{
	"sanity": {"-h", "-l", "-v -t basic*", "-s -t basic_cumemalloc", "-d 0 -t basic*", "-e -t basic*"},
	"copybw": {"-h", "-l -s 4096", "-s 65536", "-c 4096", "-o 64 -s 4096", "-w 10 -r 10 -s 4096", "-d 0 -s 4096",
		"-a cuMemAlloc -s 4096", "-a cuMemCreate -s 4096", "-M default -s 4096", "-M wc -s 4096", "-M cache -s 4096", "-M device -s 4096"},
	"copylat": {"-h", "-s 64", "-w 10 -r 10 -s 64", "-c -s 64", "-C -s 64", "-d 0 -s 64",
		"-a cuMemAlloc -s 64", "-a cuMemCreate -s 64", "-M default -s 64", "-M wc -s 64", "-M cache -s 64", "-M device -s 64"},
	"apiperf": {"-h", "-s 65536", "-w 10 -s 65536", "-n 10 -s 65536", "-d 0 -s 65536",
		"-a cuMemAlloc -s 65536", "-a cuMemCreate -s 65536", "-M default -s 65536", "-M wc -s 65536", "-M cache -s 65536", "-M device -s 65536"},
	"pplat": {"-h", "-t 10", "-u 10", "-d 0", "-s 0", "-s 64", "-m 0", "-m 1 -s 64", "-B 8 -s 64", "-T 1024 -s 64", "-B 8 -T 1024", "-G gpumem", "-G hostmem",
		"-C gpumem", "-C hostmem", "-D gpumem -s 64", "-D hostmem -s 64", "-a cuMemAlloc", "-a cuMemCreate", "-M default", "-M wc", "-M cache", "-M device"},
}

func TestReferenceFlags(t *testing.T) {
	for tool, options := range reference {
		for _, option := range options {
			line := tool + " " + option
			switch {
			case option == "-h":
			case tool == "copybw", tool == "copylat":
				line += " --budget 5"
			case tool == "apiperf" && !strings.Contains(option, "-n"):
				line += " -n 3"
			}
			e := run(line)
			switch {
			case tool == "pplat" && option != "-h":
				e.oneLine(t, line, 77, "needs a real GPU")
			case e.status != 0 && regexp.MustCompile("-M (cache|device)|-C").MatchString(option):
				e.oneLine(t, line, 1, "")
			default:
				e.good(t, line)
			}
		}
	}
}

// A terminal has a line of progress, which is gone at the end. Nothing else has.
func TestProgress(t *testing.T) {
	for _, kind := range []string{"xterm", "dumb"} {
		for _, line := range []string{"copylat -s 16 --budget 20", "copybw -l -c 8 -w 1 -r 1", "apiperf -s 1M -n 1 -w 0", "sanity -t fork_*"} {
			cmd := exec.Command("script", "-qec", filepath.Join(build, "bin", "gdrcopy_"+line), "/dev/null")
			cmd.Env = append(os.Environ(), "TERM="+kind)
			out, err := cmd.Output()
			require.NoError(t, err, "%s: %s", line, out)
			progress := regexp.MustCompile(`\[K\[#* *\] \d+ of \d+`).FindIndex(out)
			require.Equal(t, kind == "xterm", progress != nil, "%s on %s", line, kind)
			last := out[bytes.LastIndexByte(bytes.TrimSpace(out), '\n')+1:]
			require.NotContains(t, string(last), " left", line)
		}
	}
}

// The formats of the lines that NVIDIA's programs of these names print (NVIDIA/gdrcopy fcec3ce, tests/*.cpp), in their
// order. A C++ stream's number is %g. What stands between "(" and ")+" comes once or more.
var (
	head   = []string{"(", "GPU id:%d; name: %s; Bus id: %04x:%02x:%02x", ")+", "selecting device %d"}
	mapped = []string{"map_d_ptr: %p", "info.va: %x", "info.mapped_size: %d", "info.page_size: %d", "info.mapped: %d", "info.wc_mapping: %d",
		"page offset: %d"}
	end    = []string{"unmapping buffer", "unpinning buffer", "closing gdrdrv"}
	median = "Size(B) \t Median Time(us) \t Min. Time(us)"
	theirs = map[string][]string{
		"copybw -s 4K -l --budget 2": slices.Concat(head,
			[]string{"testing size: %d", "rounded size: %d", "gpu alloc fn: %s", "device ptr: %x"}, mapped,
			[]string{"user-space pointer:%p", "(", "writing test, size=%d offset=%d num_iters=%d", "write BW: %gMB/s",
				"reading test, size=%d offset=%d num_iters=%d", "read BW: %gMB/s", ")+"}, end),
		"copylat -s 64 -c --budget 2": slices.Concat(head,
			[]string{"device ptr: 0x%x", "allocated size: %d", "gpu alloc fn: %s"},
			sizes("cuMemcpy_H2D", "\t\t"), sizes("cuMemcpy_D2H", "\t\t"), []string{"", ""}, mapped,
			[]string{"user-space pointer: %p", "use cold cache: %s"},
			sizes("gdr_copy_to_mapping", "\t\t\t"), sizes("gdr_copy_from_mapping", "\t\t\t"), end),
		"apiperf -s 1M -n 3": slices.Concat(head, []string{"device ptr: 0x%x", "allocated size: %d",
			"(", "Size(B)\tpin.Time(us)\tmap.Time(us)\tget_info.Time(us)\tunmap.Time(us)\tunpin.Time(us)",
			"%d\t%f\t%f\t%f\t%f\t%f", "", ")+", "closing gdrdrv"}),
	}
	values = map[string]string{"%d": `\d+`, "%8d": ` {0,7}\d+`, "%x": "[0-9a-f]+", "%04x": "[0-9a-f]{4}", "%02x": "[0-9a-f]{2}",
		"%p": "0x[0-9a-f]+", "%s": ".+", "%f": `\d+\.\d{6}`, "%11.4f": ` {0,5}\d+\.\d{4}`, "%g": `\d+(\.\d+)?(e[-+]\d+)?`}
	verb = regexp.MustCompile(`%[0-9.]*[a-z]`)
)

// sizes are the lines of one test of copylat's.
func sizes(test, tabs string) []string {
	return []string{"", test + " num iters for each size: %d", "Test " + tabs + " " + median,
		"(", test + " \t %8d \t %11.4f \t %11.4f", ")+"}
}

// --compat prints NVIDIA's lines, and no other.
func TestCompat(t *testing.T) {
	for line, forms := range theirs {
		want := "^"
		for _, form := range forms {
			switch form {
			case "(", ")+":
				want += form
				continue
			}
			verbs := verb.FindAllString(form, -1)
			for i, text := range verb.Split(form, -1) {
				want += regexp.QuoteMeta(text)
				if i < len(verbs) {
					want += values[verbs[i]]
				}
			}
			want += "\n"
		}
		e := run(line + " --compat")
		e.good(t, line)
		require.Regexp(t, want+"$", e.out, line)
	}
}
