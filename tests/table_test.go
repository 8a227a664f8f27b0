// SPDX-License-Identifier: MIT

// Package tests has the table of all test programs. Each group is a test, so that
//
//	go test ./tests -run ext/cache/rm
//
// builds what ext/cache needs and runs it on the backend rm. package suite says what a
// line of the table may hold. build/suite -l prints it with what each group and program
// holds the library to. In Cmd, Env and Make, $B is the build folder, $TOP the
// top of the tree, $BACKEND the backend; $GO and $MAKE are these commands.
package tests

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	. "gdrapi/tests/suite"
)

// The backends that need no kernel. rm is simulated on x86-64 alone.
var all = []string{"dmabuf", "rm"}

func TestMain(m *testing.M) { Main(m, table) }

func Test(t *testing.T) { Run(t) }

// The groups that take longest come first: programs start in this order.
var table = []Group{
	{Name: "copy", Holds: "a copy of any size and alignment touches no byte beside; a store fence ends a write; a flag is one store; each routine, instruction by instruction", Rows: []Program{
		{Name: "routines", Cmd: cmd("$B/bin/copy_test")},
		{Name: "data", Cmd: cmd("$B/bin/data_test")},
		{Name: "fences", Cmd: cmd("$B/bin/fences")},
	}},

	{Name: "guest", Holds: "the host stays as it was: lazy, fork-safe, invisible, thread-safe", Rows: guests},

	{Name: "ext", Holds: "what gdrapi_ext.h adds, which calls of CUDA are made, and how long contexts live", Rows: exts},

	{Name: "sanity", Holds: "each function of gdrapi.h: any range, kind of memory, mapping type, token, flag, errno; on old drivers, and on machines that differ", Rows: []Program{
		sanity(Program{Name: "plain", On: all}),
		sanity(Program{Name: "captured", On: all, Env: captured, Make: cmd("$B/beside_preload.so")}),
		sanity(Program{Name: "coherent", On: cmd("dmabuf"), Env: cmd("CUDA_SIM_COHERENT=1")}),
		// An older driver, and one that exports nothing; what is taken unasked; dma-bufs
		// of a driver, whose ranges may overlap.
		sanity(Program{Name: "535", On: cmd("rm"), Env: cmd("NVRM_SIM_DRIVER=535", "NVRM_SIM_DEVICES=1")}),
		sanity(Program{Name: "ipc", On: cmd("rm"), Env: cmd("CUDA_SIM_DMABUF=0")}),
		sanity(Program{Name: "unasked", Sim: RMDriver}),
		sanity(Program{Name: "grace", On: cmd("rm"), Env: cmd("NVRM_SIM_MACHINE=grace")}),
		sanity(Program{Name: "gb10", On: cmd("rm"), Env: cmd("NVRM_SIM_MACHINE=gb10")}),
		sanity(Program{Name: "driver", On: cmd("dmabuf"), Sim: RMDriver,
			Env: cmd("CUDA_SIM_DRIVER_VERSION=13030", "CUDA_SIM_DMABUF_MMAP=1")}),
	}},

	{Name: "doctor", Holds: "the doctor names the cause and a way out; docs/troubleshooting.md has each line of the log", Rows: []Program{
		{Name: "program", Cmd: cmd("tests/doctor/doctor.sh", "$B"), Needs: cmd("python3"),
			Make: cmd("doubles", "lib", "$B/bin/gdrcopy_doctor", "$B/beside_preload.so")},
		goTest(Program{Name: "texts", Sim: Plain}, "./cmd/gdrcopy_doctor/...", "./tests/doctor/..."),
	}},

	{Name: "go", Holds: "the core: which backend is taken, what is said where none is; each backend; Go programs", Rows: []Program{
		goTest(Program{Name: "core", Sim: Plain}, "./core/...", "./capi/cache", "./capi/handle", "./capi/guest"),
		// As a Go program without cgo uses it, on each simulated driver.
		{Name: "library", Cmd: cmd("$B/bin/core_test", "-test.v", "-test.run", "^(TestLibrary|TestMemoryThatNeedsTheWatch|Example)"),
			Count: GoTest, On: all},
		{Name: "pages", Cmd: cmd("$B/bin/core_rm_test", "-test.v", "-test.run", "^TestHostPagesOf64KiB"), Count: GoTest, Sim: RMDriver,
			Env: cmd("NVRM_SIM_PAGE=65536")},
		{Name: "example", Cmd: cmd("$B/examples/go"), Sim: Plain, Count: Status},
		goTest(Program{Name: "report"}, "./cmd/gdrcopy_report/..."),
		goTest(Program{Name: "keep"}, "./cmd/gdrcopy_keep/..."),
	}},

	{Name: "suite", Holds: "the runner: nothing that broke looks green", Rows: []Program{goTest(Program{Name: "runner", Make: cmd("tools", "doubles", "$B/bin/badinput")}, "./tests/suite/...")}},

	{Name: "abi", Holds: "names, layouts, C++, no other library, glibc 2.31, pkg-config, README's program", Rows: []Program{
		{Name: "layout", Sim: Plain},
		{Name: "cpp", Sim: Plain},
		{Name: "symbols", Cmd: append(cmd("tests/c/abi/symbols.sh", "$B/libgdrapi.so.2", "$B/libvkgdr.so"), tools...), Make: cmd("all"), Needs: cmd("readelf")},
		{Name: "readme", Cmd: cmd("tests/fresh/readme.sh", "$B/root", "/usr/lib"), Make: cmd("root"), Sim: Plain, Needs: cmd("pkg-config")},
	}},

	{Name: "badinput", Holds: "each function answers what no caller should pass with its errno, and a log line under its name", Rows: []Program{
		{Name: "plain", Cmd: cmd("$B/bin/badinput"), On: all},
		{Name: "captured", Cmd: cmd("$B/bin/badinput"), On: all, Env: captured, Make: cmd("$B/beside_preload.so")},
	}},

	{Name: "capi", Holds: "the environment; memory at a limit; calls go one way: one file of C calls Go, one of Go calls C; which Go the build takes", Rows: []Program{
		{Name: "environment", Cmd: cmd("$B/bin/env_test")},
		{Name: "reserve", Cmd: cmd("$B/bin/reserve_test")},
		{Name: "circles", Cmd: cmd("tests/capi/circles.sh", "$B"), Make: cmd("tools")},
		{Name: "goroot", Cmd: cmd("tests/capi/goroot.sh")},
	}},

	{Name: "rm", Holds: "rm maps each kind of CUDA memory; a pin of what was heard asks nothing; each call of the drivers fails once; drivers that differ; other libraries that watch", Rows: []Program{
		{Name: "memory", On: cmd("rm")},
		// dmabuf is taken, and rm pins what has no dma-buf.
		{Name: "memory_133", Cmd: cmd("$B/bin/rm_memory"), Sim: RMDriver,
			Env: cmd("BESIDE_DMABUF=1", "CUDA_SIM_DRIVER_VERSION=13030", "CUDA_SIM_DMABUF_MMAP=1")},
		{Name: "libraries", On: cmd("rm"), Env: cmd("OURS=$B/libgdrapi.so.2", "COPY=$B/watched/libgdrapi_copy.so", "GOLIB=$B/watched/golib.so"),
			Make: cmd("$B/watched/libgdrapi_copy.so", "$B/watched/golib.so")},
		// The same with a file that a packager has edited.
		{Name: "edited", Cmd: cmd("tests/rm/edited.sh", "$B"), On: cmd("rm"), Make: cmd("$B/bin/rm_libraries"), Needs: cmd("patchelf", "readelf")},
		{Name: "faults", On: all, Cases: Guest},
		// Requests are laid out as before 550, and as from 590 on.
		{Name: "heard", On: cmd("rm"), Cases: Guest},
		{Name: "heard_535", Cmd: cmd("$B/bin/rm_heard"), On: cmd("rm"), Env: cmd("NVRM_SIM_DRIVER=535")},
		{Name: "heard_590", Cmd: cmd("$B/bin/rm_heard"), On: cmd("rm"), Env: cmd("NVRM_SIM_DRIVER=590")},
		// The driver says nothing of MIG; and the CPU caches the memory.
		{Name: "share_535", Cmd: cmd("$B/bin/ext_share"), On: cmd("rm"), Env: append(cmd("NVRM_SIM_DRIVER=535", "NVRM_SIM_DEVICES=1"), rmMmap),
			Make: cmd("doubles", "$B/doubles/rm_mmap.so")},
		{Name: "share_mig", Cmd: cmd("$B/bin/ext_share", "a descriptor of CUDA's, or of another backend"), On: cmd("rm"),
			Env: cmd("NVRM_SIM_MACHINE=mig,pcie", "NVRM_SIM_DEVICES=2")},
		{Name: "share_grace", Cmd: cmd("$B/bin/ext_share"), On: cmd("rm"), Env: append(cmd("NVRM_SIM_MACHINE=grace"), rmMmap),
			Make: cmd("doubles", "$B/doubles/rm_mmap.so")},
		{Name: "descriptor_535", Cmd: cmd("$B/bin/ext_descriptor"), On: cmd("rm"), Env: cmd("NVRM_SIM_DRIVER=535")},
		{Name: "descriptor_grace", Cmd: cmd("$B/bin/ext_descriptor"), On: cmd("rm"), Env: cmd("NVRM_SIM_MACHINE=grace")},
		{Name: "descriptor_gb10", Cmd: cmd("$B/bin/ext_descriptor"), On: cmd("rm"), Env: cmd("NVRM_SIM_MACHINE=gb10")},
		{Name: "machines", Sim: Plain},
		{Name: "hear", Cmd: cmd("$B/bin/hear_test")},
	}},

	{Name: "install", Holds: "what is installed works in any prefix, and goes again; recipes for NVIDIA's", Rows: []Program{
		{Name: "prefixes", Cmd: cmd("tests/install/install.sh"), Make: cmd("all", "root"), Sim: Plain, Needs: cmd("pkg-config", "readelf")},
		// The kernel module's scripts; stand-ins are what they call.
		{Name: "kmod", Cmd: cmd("tests/kmod/scripts.sh")},
	}},

	{Name: "tools", Holds: "the tools' options, statuses and figures; a wrong copy is noticed", Rows: []Program{
		goTest(Program{Name: "programs", Sim: Plain, Env: cmd("BUILD=$B"), Make: cmd("tools", "$B/tests/libspoil.so"), Needs: cmd("script")},
			"./tests/tools"),
	}},

	{Name: "consumers_quick", Holds: "the calls that NCCL, DPDK, aws-ofi-nccl, NVSHMEM, NIXL and TensorRT-LLM make", Rows: []Program{
		{Name: "calls", Cmd: cmd("$B/bin/guest_consumers"), On: all, Cases: Guest},
	}},

	{Name: "vkgdr", Holds: "vkgdr's interface", Rows: []Program{
		{Name: "test", On: all},
		{Name: "installed", Cmd: cmd("tests/vkgdr/installed.sh", "$B/root", "/usr/lib"), Make: cmd("root"), Sim: Plain,
			Needs: cmd("pkg-config")},
	}},

	{Name: "examples", Holds: "the examples run, and say what they should", Rows: []Program{
		{Name: "programs", Cmd: cmd("tests/examples/examples.sh", "$B/examples"), Make: cmd("examples", "$B/bin/demo", "$B/tests/libspoil.so"), On: all},
		{Name: "mailbox", Cmd: cmd("$B/examples/mailbox_test"), On: all},
	}},

	// From here on: what make check does not run.

	{Name: "man", Holds: "the manual pages have each function, option, errno and prototype", When: All, Rows: []Program{
		{Name: "lint", Cmd: cmd("tests/man/lint.sh"), Needs: cmd("mandoc")},
		{Name: "html", Cmd: cmd("tests/man/html.sh"), Needs: cmd("mandoc")},
		{Name: "api", Cmd: cmd("tests/man/api.sh", "$B"), Sim: Plain, Make: cmd("all")},
		{Name: "tools", Cmd: append(cmd("tests/man/tools.sh"), tools...), Make: cmd("tools")},
		{Name: "kmod", Cmd: cmd("tests/man/kmod.sh")},
	}},

	{Name: "docs", Holds: "the pages' links, files and commands; docs/ordering.md's C and PTX", When: All, Rows: []Program{
		{Name: "paths", Cmd: cmd("tests/docs/paths.sh")},
		{Name: "commands", Cmd: cmd("tests/docs/commands.sh", "$B"), Sim: Plain, Make: cmd("all")},
	}},

	{Name: "python", Holds: "the Python packages: arrays, caches, lanes, shared memory", When: All, Rows: []Program{
		{Name: "types", Cmd: cmd("sh", "-c", "cd python && mypy --strict --cache-dir=/dev/null gdrapi gdrapi_build.py && "+
			"cd ../vkgdr/python && mypy --strict --cache-dir=/dev/null vkgdr"), Count: Status, Needs: cmd("mypy")},
		{Name: "wheel", Cmd: cmd("tests/packages/wheel.sh", "$B/wheel"), Make: cmd("wheel"), Needs: cmd("readelf")},
		{Name: "pytest", Cmd: cmd("sh", "-c", pytest("pytest-3: not found", "tests/python --ignore=tests/python/gpu")),
			On: all, Make: cmd("lib", "vkgdr", "$B/bin/gdrcopy_keep"), Env: cmd("PYTHONPATH=$TOP/python:$TOP/vkgdr/python:$TOP/tests/python/doubles", "PYTHONDONTWRITEBYTECODE=1")},
		{Name: "grace", Cmd: cmd("sh", "-c", pytest("pytest-3: not found", "tests/python/test_lane.py tests/python/test_generated.py tests/python/test_small.py")),
			On: cmd("rm"), Make: cmd("lib"), Env: cmd("NVRM_SIM_MACHINE=grace", "PYTHONPATH=$TOP/python", "PYTHONDONTWRITEBYTECODE=1")},
	}},

	// The C side under the sanitizers and valgrind, the Go side under the race detector.
	// Valgrind must see that the simulated libcuda replaces mmap on rm.
	{Name: "memory", Holds: "the sanitizers, valgrind and the race detector find nothing", When: All, Rows: []Program{
		{Name: "copy", Cmd: cmd("$B/asan/bin/copy_test")},
		{Name: "badinput", Cmd: cmd("$B/asan/bin/badinput"), On: all, Tree: "asan",
			Env: cmd("ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0")},
		{Name: "valgrind", Cmd: cmd("tests/valgrind.sh", "$B/bin/badinput"), Make: cmd("$B/bin/badinput"), On: all,
			Needs: cmd("valgrind")},
		// Its children end beside threads that they do not have, in which LeakSanitizer would look.
		{Name: "hear", Cmd: cmd("$B/asan/bin/hear_test"), Env: cmd("ASAN_OPTIONS=detect_leaks=0")},
		goTest(Program{Name: "race", Sim: Plain}, "-race", "./core/...", "./capi/cache", "./capi/handle"),
	}},

	{Name: "tsan", Holds: "the data plane has no data race, each copy routine", When: All, Rows: append(tsans,
		Program{Name: "hear", Cmd: cmd("$B/tsan/bin/hear_test")})},

	{Name: "cross", Holds: "the copy routines of arm64 and ppc64le", When: All, Rows: []Program{
		{Name: "arm64", Cmd: cmd("qemu-aarch64", "$B/static-arm64/bin/copy_test"), Make: cmd("$B/static-arm64/bin/copy_test"), Needs: cmd("qemu-aarch64")},
		{Name: "ppc64le", Cmd: cmd("qemu-ppc64le", "$B/static-ppc64le/bin/copy_test"), Make: cmd("$B/static-ppc64le/bin/copy_test"),
			Needs: cmd("qemu-ppc64le")},
	}},

	{Name: "fuzz", Holds: "any sequence of calls, and of failing driver calls: the errno and bytes of a model, nothing left", When: All, Rows: fuzzers("20", 0)},
	{Name: "fuzz_long", Holds: "the same, as long as FUZZ_SECONDS says", When: Named, Rows: fuzzers(env("FUZZ_SECONDS", "1800"), -1)},

	{Name: "counts", Holds: "a copy of 64 bytes takes so many instructions", When: All, Rows: []Program{
		{Name: "callgrind", Cmd: cmd("tests/callgrind/counts.sh", "$B"), Needs: cmd("valgrind")},
	}},

	{Name: "go_oldest", Holds: "the oldest Go that go.mod allows makes a library that works", When: All, Rows: otherGo("go-oldest")},

	{Name: "release", Holds: "one version everywhere, and what a release refuses", When: All, Rows: []Program{{Name: "version", Cmd: cmd("tests/packages/version.sh"), Needs: cmd("dpkg", "git")}}},

	{Name: "offline", Holds: "the source tarball builds without a network", When: All, Rows: []Program{{Name: "build", Cmd: cmd("tests/packages/offline.sh"), Needs: cmd("python3"), Limit: time.Hour}}},

	{Name: "lint", Holds: "the static checks", When: All, Rows: []Program{{Name: "lint", Cmd: cmd("$MAKE", "-s", "lint"), Count: Status}}},

	{Name: "kmod_static", Holds: "the module passes sparse, checkpatch and shellcheck", When: All, Rows: []Program{{Name: "checks", Cmd: cmd("tests/vm/static.sh", "$B/vm"), Limit: time.Hour}}},
	{Name: "vm", Holds: "the module: any caller, any driver, no crash; the library on it, and with a card (kmod_test -l)", When: All, Chain: true, Rows: vms("6.1")},
	{Name: "vm_all", Holds: "the same on 6.1, 6.12 and 7.2, and with newer and closed drivers", When: Named, Chain: true, Rows: slices.Concat(vms("6.1", "6.12", "7.2"), []Program{
		vm("kmod_6.1_newer", "", "-t", "900", "-n", "newer", "6.1"),
		vm("kmod_6.1_570", "", "-t", "900", "-n", "570", "6.1"),
		vm("kmod_6.1_proprietary", "GDR_MAKE=SIM_PROPRIETARY=y", "-t", "900", "6.1"),
	})},
	{Name: "vm_arm64", Holds: "the same on an emulated arm64 machine", When: Named, Chain: true, Rows: vmsArm64(words("VMKERNELS", "6.1"))},
	{Name: "vm_debug", Holds: "the same with KASAN, KCSAN, kmemleak and lockdep", When: Named, Chain: true, Rows: vmsDebug(words("VMDEBUG", "6.1-kasan 6.1-kcsan"))},
	{Name: "vm_card", Holds: "a capture card's frames for 10 minutes, each of three ways", When: Named, Rows: []Program{noLimit(vm("long", "", append(vmCard,
		"-i", "-e", "CARD_ONLY=1", "-e", "CARD_PERIOD=8000", "-e", "CARD_FRAMES=75000", "-t", "7200", "6.1")...))}},
	{Name: "kmod_matrix", Holds: "the module builds on old and new kernels, with old and new headers", When: Named, Rows: []Program{{Name: "builds", Cmd: cmd("tests/vm/matrix.sh", "$B/vm"), Limit: 2 * time.Hour}}},
	{Name: "kmod_dkms", Holds: "DKMS builds it after the driver", When: Named, Rows: []Program{{Name: "dkms", Cmd: cmd("tests/vm/dkms.sh", "$B/vm"), Limit: 2 * time.Hour}}},

	// Ubuntu's own Go can build no library: there setup.sh takes the newest that is known, which .ci/run has nowhere else.
	{Name: "fresh_quick", Holds: "README.md on each system that it names; make check whole on one, a part of it on the others", When: All, Chain: true,
		Rows: []Program{fresh("bookworm", "part"), fresh("trixie", "part"), fresh("noble", "whole")}},
	{Name: "fresh", Holds: "README.md on each system that it names; make check whole, as root and as a user", When: Named, Chain: true,
		Rows: []Program{fresh("bookworm", "users"), fresh("trixie", "users"), fresh("noble", "users")}},

	// Consumers of Debian's sources, built with the library. Open MPI's is over that UCX.
	{Name: "consumers", Holds: "UCX, libfabric and Open MPI pass their own tests with the library", When: Named, Chain: true, Rows: []Program{
		consumer("ucx"), consumer("libfabric"), consumer("openmpi"),
	}},

	{Name: "packages", Holds: "packages: the same bytes twice, installed, used, removed", When: Named, Chain: true, Rows: []Program{
		{Name: "build", Cmd: cmd("tests/packages/build.sh", "$B/packages"), Make: cmd("all"), Limit: time.Hour,
			Needs: cmd("cmake", "cpio", "debootstrap", "dh", "dpkg-buildpackage", "lintian", "python3", "rpm2cpio", "rpmbuild")},
		{Name: "find", Cmd: cmd("tests/packages/find.sh", "$B/packages"), Sim: Plain},
		{Name: "again", Cmd: cmd("tests/packages/again.sh", "$B/packages"), Limit: time.Hour},
		{Name: "install", Cmd: cmd("tests/packages/install.sh", "$B/packages"), Make: cmd("doubles"), Limit: time.Hour},
		containers,
	}},
	{Name: "containers", Holds: "the CDI spec and the pods are valid", When: Named, Rows: []Program{containers}},

	{Name: "stress", Holds: "the guest programs at their full length", When: Named, Rows: slices.Concat(long("guest", guests), long("", tsans))},

	{Name: "arch", Holds: "the library on another machine, emulated: ARCH=arm64 or ppc64le", When: Named, Rows: emulated(env("ARCH", "arm64"))},

	// A real GPU, with the driver that this machine has. tests/gpu/check.sh runs it where
	// there is neither make nor Go.
	{Name: "gpu", Holds: "all of it on a real GPU, with its driver; a word to a kernel and back; when a lane's tensors may be written again", When: Named, Chain: true, Rows: gpu},
}

var guests = []Program{
	{Name: "hosts", Holds: "a host may close all descriptors and reuse their numbers, and change its environment after the open; errno stays; a privileged program takes nothing from its environment", On: all, Cases: Guest},
	{Name: "footprint", Holds: "limits and modes stay; no thread runs when idle; gdr_open takes less than 8 MB; memory stays flat", On: all, Cases: Guest},
	{Name: "signals", Holds: "dispositions, masks and alternate stacks stay; no thread of the library takes a signal; cancellation, siglongjmp, 64 KiB of stack; SIGSYS, SIGFPE and their like, sent to threads inside, run on the host's stack", On: all, Cases: Guest},
	{Name: "limits", Holds: "few threads, mappings, little memory, SCHED_FIFO, mlockall, no GPU: it opens, or an errno", On: all, Cases: Guest},
	{Name: "threads", Holds: "any call from any thread by a model; 64 threads open first at once; threads that call once leave nothing", On: all, Cases: Guest},
	{Name: "fork", Holds: "a child opens in full, whatever its parent was doing; inherited handles are EACCES; grandchildren", On: all, Cases: Guest},
	{Name: "loader", Holds: "a fork while threads are in the loader; gdr_open in a constructor", On: all, Cases: Guest},
	{Name: "fds", Holds: "out of descriptors is an errno, and back", On: all, Cases: Guest},
	{Name: "hooks", Holds: "a hook of mmap or munmap calls any function, or setresuid, or waits for a thread that does", On: all, Cases: Guest},
	{Name: "lazy", Holds: "loading starts nothing; dlclose and dlopen again; a preloaded copy, whose names come first; the file is gone", On: all, Cases: Guest},
}

// For a program without libcuda, which has the simulated driver's mmap.
const rmMmap = "RM_MMAP=$B/doubles/rm_mmap.so"

var exts = []Program{
	{Name: "race", Holds: "copies beside unmap, unpin and close of other mappings, and through stale handles: no byte of another mapping", On: all, Cases: Guest},
	{Name: "bytes", Holds: "gdr_pin_bytes; SYNC_MEMOPS is set on own bytes, and on no others", On: all, Cases: Guest},
	{Name: "cache", Holds: "a cache has no hit after a free; flush, close, limits", On: all, Cases: Guest},
	{Name: "many", Holds: "gdr_copy_to_mapping_v and gdr_copy_from_mapping_v", On: all, Cases: Guest},
	{Name: "export", Holds: "gdr_mem_export_dmabuf", On: all, Cases: Guest},
	// A dma-buf says whose it is only on the simulated driver.
	{Name: "share", Holds: "gdr_export_fd and gdr_pin_fd: a process without CUDA, any descriptor; the memory outlives all but the last pin", On: all, Cases: Guest, Sim: RMDriver, Env: cmd(rmMmap, "CUDA_SIM_DRIVER_VERSION=13030", "CUDA_SIM_DMABUF_MMAP=1"),
		Make: cmd("doubles", "$B/doubles/rm_mmap.so")},
	// What CUDA imports and exports; a dma-buf is neither.
	{Name: "descriptor", Holds: "gdr_get_object; what CUDA imports and exports; any label", On: cmd("rm"), Cases: Guest},
	{Name: "beside", Holds: "no capture of a stream is lost beside the library", On: all, Cases: Guest},
	{Name: "calls", Holds: "which calls of CUDA each function makes", On: all, Cases: Guest},
	{Name: "contexts", Holds: "how long a primary context is kept, and whose references are", On: all, Cases: Guest},
}

var tsans = []Program{
	{Name: "copy", Cmd: cmd("$B/tsan/bin/data_test")},
	{Name: "cache", Cmd: cmd("$B/tsan/bin/cache_test")},
}

// otherGo is what the library of another Go must pass. make names it, and its folder.
func otherGo(name string) (rows []Program) {
	for _, p := range []string{"badinput", "guest_fork", "guest_lazy", "guest_limits", "guest_signals"} {
		rows = append(rows, Program{Name: p, Cmd: cmd("$B/bin/" + p), Make: cmd(name), On: all, Tree: name})
	}
	return rows
}

// The CDI spec and the pods against their schemas.
var containers = Program{Name: "containers", Cmd: cmd("tests/packages/containers.sh"), Needs: cmd("python3")}

// fresh is a system of README.md, and how much of make check runs there.
func fresh(system, how string) Program {
	return Program{Name: system, Cmd: cmd("tests/fresh/fresh.sh", system, how), Limit: -1}
}

var tools = cmd("$B/bin/gdrcopy_sanity", "$B/bin/gdrcopy_copybw", "$B/bin/gdrcopy_copylat", "$B/bin/gdrcopy_apiperf",
	"$B/bin/gdrcopy_pplat", "$B/bin/gdrcopy_report", "$B/bin/gdrcopy_doctor", "$B/bin/gdrcopy_keep")

func cmd(words ...string) []string { return words }

func env(name, otherwise string) string { return cmp.Or(os.Getenv(name), otherwise) }

func words(name, otherwise string) []string { return strings.Fields(env(name, otherwise)) }

// captured has a capture of a stream open beside the program, the whole time.
var captured = cmd("LD_PRELOAD=$B/beside_preload.so")

func sanity(p Program) Program {
	p.Cmd = append(cmd("$B/bin/gdrcopy_sanity"), p.Cmd...)
	p.Cases = Option
	return p
}

// goTest leaves go vet to make lint.
func goTest(p Program, args ...string) Program {
	p.Cmd = append(cmd("$GO", "test", "-vet=off", "-v", "-count=1"), args...)
	p.Count = GoTest
	return p
}

// pytest is a shell's way to the first python3 that has what the tests import: Debian's has
// it where another one is before it in PATH. Without one it runs otherwise.
func pytest(otherwise, args string) string {
	return "for p in python3 /usr/bin/python3; do $p -c 'import hypothesis, numpy, pip, pytest' 2>/dev/null && " +
		"exec $p -m pytest -q -p no:cacheprovider " + args + "; done; echo '" + otherwise + "'; exit 127"
}

func noLimit(p Program) Program {
	p.Limit = -1
	return p
}

// long makes programs of a group run at their full length.
func long(group string, programs []Program) []Program {
	var longer []Program
	for _, p := range programs {
		if len(p.Cmd) == 0 {
			p.Cmd = cmd("$B/bin/" + group + "_" + p.Name)
		}
		p.Cmd = append(slices.Clone(p.Cmd), "--long")
		if group == "" {
			p.Name = "tsan_" + p.Name
		}
		longer = append(longer, noLimit(p))
	}
	return longer
}

// fuzzers run for seconds.
func fuzzers(seconds string, limit time.Duration) []Program {
	return []Program{{
		Name: "abi", On: all, Tree: "fuzz", Limit: limit, Make: cmd("$B/fuzz/bin/abi_fuzz"), Env: cmd("ASAN_OPTIONS=detect_leaks=0"),
		Cmd: cmd("tests/fuzz/fuzz.sh", "$B/fuzz/bin/abi_fuzz", seconds, "$B/fuzz/$BACKEND"),
	}}
}

func consumer(name string) Program {
	return Program{Name: name, Cmd: cmd("tests/consumers/"+name+".sh", "$B"), Sim: Plain, Limit: 2 * time.Hour,
		Make: cmd("consumers-root", "$B/front/libgdrapi.so", "$B/doubles/libcudart.so")}
}

// What a virtual machine is given.
var (
	vmLibs   = cmd("-f", "$B/libgdrapi.so.2:/lib", "-f", "$B/doubles/libcuda.so.1:/lib")
	vmFiles  = slices.Concat(cmd("-f", "$B/bin/gdrcopy_sanity", "-f", "$B/bin/badinput"), vmLibs)
	vmSanity = slices.Concat(cmd("-j", "tests/vm/job-sanity.sh"), vmFiles)
	vmDoctor = slices.Concat(cmd("-j", "tests/vm/job-doctor.sh", "-f", "$B/bin/gdrcopy_doctor", "-f", "/usr/bin/setpriv"), vmLibs)
	vmCard   = slices.Concat(cmd("-j", "tests/vm/job-card.sh", "-f", "$B/examples/capture"), vmLibs)
)

// vm is one run of a virtual machine. All runs need the same programs.
func vm(name, variable string, args ...string) Program {
	p := Program{
		Name: name, Cmd: append(cmd("tests/vm/run.sh"), args...), Limit: time.Hour,
		Env:  cmd("GDRAPI_VM_BUILD=$B/vm"),
		Make: cmd("tools", "doubles", "$B/bin/badinput", "$B/examples/capture"),
	}
	if variable != "" {
		p.Env = append(p.Env, variable)
	}
	return p
}

func vms(kernels ...string) []Program {
	var all []Program
	for _, k := range kernels {
		all = append(all,
			vm("kmod_"+k, "", "-t", "900", k),
			vm("sanity_"+k, "", slices.Concat(vmSanity, cmd("-t", "900", k))...),
			vm("card_"+k, "", slices.Concat(vmCard, cmd("-t", "900", k))...),
			vm("doctor_"+k, "", slices.Concat(vmDoctor, cmd("-t", "900", k))...))
	}
	return all
}

func vmsDebug(kernels []string) []Program {
	var all []Program
	for _, k := range kernels {
		end := cmd("-M", "2048", "-t", "3600", k)
		all = append(all,
			noLimit(vm("kmod_"+k, "", end...)),
			noLimit(vm("sanity_"+k, "", slices.Concat(vmSanity, end)...)),
			noLimit(vm("card_"+k, "", slices.Concat(vmCard, end)...)))
	}
	return all
}

// On an emulated arm64 machine there run also guests that qemu-user cannot run in full.
func vmsArm64(kernels []string) []Program {
	guests := cmd("-f", "$B/bin/guest_fork", "-f", "$B/bin/guest_fds")
	var all []Program
	for _, k := range kernels {
		all = append(all,
			vm("kmod_"+k, "", "-t", "1800", k),
			vm("sanity_"+k, "", slices.Concat(vmSanity, guests, cmd("-t", "1800", k))...))
	}
	for i := range all {
		all[i].Cmd = in("arm64", all[i].Cmd)
		all[i].Env = cmd("VM_ARCH=arm64", "GDRAPI_VM_BUILD=$B/arm64/vm")
		all[i].Make = cmd("vm-arm64-programs")
		all[i].Needs = cmd("aarch64-linux-gnu-gcc", "qemu-system-aarch64")
	}
	return all
}

// in has the files of the build folder in a folder of it.
func in(folder string, words []string) []string {
	var moved []string
	for _, w := range words {
		moved = append(moved, strings.ReplaceAll(w, "$B/", "$B/"+folder+"/"))
	}
	return moved
}

// emulated are the programs on another machine. The backend is dmabuf: rm's simulated
// driver needs seccomp's notifications, which qemu-user does not have. The guests' own
// number of rounds takes too long here.
func emulated(arch string) []Program {
	tree := "$B/" + arch
	run := tree + "/emulate" // the emulator, with its arguments
	sim := cmd("LD_LIBRARY_PATH="+tree+"/doubles:"+tree, "GUEST_SCALE=0.05")
	var programs []Program
	add := func(p Program) {
		p.Sim, p.Make, p.Built, p.Limit = Plain, cmd("arch-programs"), true, time.Hour
		p.Env = append(slices.Clone(sim), p.Env...)
		programs = append(programs, p)
	}
	on := func(name, program string, variables []string, backends ...string) {
		add(Program{Name: name, On: backends, Env: variables,
			Cmd: cmd("tests/arch/emulated.sh", tree+"/bin/"+program, run)})
	}
	add(Program{Name: "abi_layout", Cmd: cmd(run, tree+"/bin/abi_layout")})
	for _, p := range []string{"badinput", "gdrcopy_sanity", "vkgdr_test"} {
		on(p, p, nil, "dmabuf")
	}
	on("sanity_coherent", "gdrcopy_sanity", cmd("CUDA_SIM_COHERENT=1"), "dmabuf")
	for _, p := range exts {
		on("ext_"+p.Name, "ext_"+p.Name, nil, "dmabuf")
	}
	for _, p := range guests {
		on("guest_"+p.Name, "guest_"+p.Name, nil, "dmabuf")
	}
	add(Program{Name: "go_library", Cmd: cmd(run, tree+"/bin/core_test", "-test.v", "-test.run", "^(TestLibrary|Example)"), Count: GoTest,
		Env: cmd("GDRCOPY_BACKEND=dmabuf")})
	// Those that start no program and compile none.
	add(goTest(Program{Name: "go", Env: cmd("GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=1", "CC="+compilers[arch])}, "-exec", run,
		"./core", "./capi/cache", "./capi/handle", "./core/internal/gdrdrv", "./core/internal/mmio", "./cmd/gdrcopy_report/..."))
	return programs
}

var compilers = map[string]string{"arm64": "aarch64-linux-gnu-gcc", "ppc64le": "powerpc64le-linux-gnu-gcc"}

// A name begins with the part that check.sh takes it by. Times are of an H100.
var gpu = func() []Program {
	var programs []Program
	add := func(name string, command ...string) *Program {
		programs = append(programs, Program{Name: name, Cmd: command, Built: true, Limit: 3 * time.Minute})
		return &programs[len(programs)-1]
	}
	lib := "LD_LIBRARY_PATH=$B:" + os.Getenv("LD_LIBRARY_PATH")
	// What the library does: 100 s.
	add("api/sanity", "$B/bin/gdrcopy_sanity")
	add("api/doctor", "tests/doctor/gpu.sh", "$B")
	add("api/badinput", "$B/bin/badinput")
	add("api/rm_memory", "$B/bin/rm_memory")
	for _, p := range exts {
		// calls counts what the simulated driver is asked.
		if p.Name != "calls" {
			add("api/ext_"+p.Name, "$B/bin/ext_"+p.Name)
		}
	}
	add("api/copy", "$B/bin/copy_test")
	add("api/vkgdr", "$B/bin/vkgdr_test")
	// A word to a kernel and back, and data with it, which both sides verify.
	for _, args := range [][]string{{"pplat"}, {"pplat_data", "-s", "4096"}, {"pplat_by_gpu", "-s", "4096", "-m", "1", "-G", "hostmem"}} {
		add("api/"+args[0], append(cmd("$B/bin/gdrcopy_pplat", "-t", "1000"), args[1:]...)...).Count = Status
	}
	// No read shows what was there before the flag that it read.
	add("api/litmus", "$B/bin/copy_litmus", "-t", "2000000", "--threads", "4").Count = Status
	add("api/gvisor", "tests/gpu/gvisor.sh", "$B")
	add("api/examples", "env", lib, "tests/examples/examples.sh", "$B/examples", "gpu")
	// What it is in its host: 170 s, and 200 s.
	for _, p := range guests {
		part := "guest/"
		if p.Name == "signals" {
			part = "signals/"
		}
		add(part+p.Name, "$B/bin/guest_"+p.Name)
	}
	// 120 s.
	add("python/pytest", "env", lib, "PYTHONPATH=$TOP/python:$TOP/vkgdr/python", "PYTHONDONTWRITEBYTECODE=1", "sh", "-c",
		"python3 -c 'import pytest, numpy' || { echo '0 passed, 0 failed, 1 skipped'; exit 0; }; "+
			"exec python3 -m pytest -q -rs -p no:cacheprovider tests/python tests/python/gpu")
	return programs
}()
