#!/bin/sh
# SPDX-License-Identifier: MIT
# gdrcopy_doctor itself: doctor.sh BUILD. On each simulated driver it finds the backend,
# and what is broken there it names; without any driver it says so.
. tests/tap.sh
build=$1
cc=${CC:-cc}
doctor=$build/bin/gdrcopy_doctor
folders=$build		# where the loader looks for libgdrapi
user=			# a command that runs another as some user; "" for this one
limit=			# the same, with less of something

# run MACHINE [NAME=VALUE...] -- COMMAND... - on a machine with the simulated libcuda
# (plain), with the simulated driver below it (rm), or with neither (none).
run() {
	machine=$1 variables=
	shift
	while [ "$1" != -- ]; do
		variables="$variables $1"
		shift
	done
	shift
	path=$folders launcher=$user
	[ "$machine" = none ] || path=$path:$build/doubles
	[ "$machine" != rm ] || launcher=$build/doubles/rm_sim
	# shellcheck disable=SC2086 # words
	env -i PATH="$PATH" LD_LIBRARY_PATH="$path" $variables $launcher "$@"
}

# says STATUS TEXT MACHINE [NAME=VALUE...] - the doctor ends with the status and prints a
# line that matches, and nothing on standard error.
says() {
	want=$1 text=$2
	shift 2
	# shellcheck disable=SC2086 # words
	run "$@" -- $limit "$doctor" >"$work/out" 2>"$work/err"
	got=$?
	echo "status $got"
	cat "$work/out" "$work/err"
	[ "$got" -eq "$want" ] && grep -qE "$text" "$work/out" && [ ! -s "$work/err" ]
}

# printed TEXT - the doctor that ran last printed such a line.
printed() {
	cat "$work/out"
	grep -qE "$1" "$work/out"
}

nothing_failed() { ! printed '^FAIL'; }

# Each FAIL has an advice under it, and there is one. What is OK has none. The last line begins with the
# first FAIL.
advised() {
	awk '$1 == "do:" && was == "OK" { print; bad = 1 }
		was == "FAIL" && $1 != "do:" { print; bad = 1 }
		$1 == "FAIL" && !n++ { first = $2 }
		{ was = $1; last = $0 }
		END { exit bad || !n || !index(last, " Begin with " first) }' "$work/out"
}

# first NAME TEXT COMMAND...: what the doctor says first is of that finding, and matches the text.
first() {
	id=$1 text=$2
	shift 2
	says 1 "^libgdrapi does not work here\. Begin with $id: .*$text" "$@" && advised
}

json_is_whole() {
	backend=$1
	shift
	run "$@" -- "$doctor" --json >"$work/json" &&
	python3 - "$work/json" "$backend" <<-'EOF'
		import json, sys
		report = json.load(open(sys.argv[1]))
		taken = [b["name"] for b in report["backends"] if b["taken"]]
		assert report["verdict"] == "works", report["verdict"]
		assert report["backend"] == sys.argv[2] and taken == [sys.argv[2]], report["backend"]
		assert all(b["write_ns"] > 0 and b["read_ns"] > 0 for b in report["backends"] if b["works"])
		assert all(f["cause"] and f["status"] in ("ok", "warn", "fail") for f in report["findings"])
	EOF
}

# fake NAME CODE - folders begins with one that has a library of that name, made of CODE.
fake() {
	mkdir -p "$work/fake"
	rm -f "$work/fake/"*
	printf '%s\n' "$2" >"$work/fake.c"
	$cc -shared -fPIC -w -Wl,-soname,"$1" -o "$work/fake/$1" "$work/fake.c"
	folders=$work/fake:$build
}

# has_gpu - this machine has an NVIDIA GPU of its own.
has_gpu() {
	[ -e /dev/nvidiactl ] || [ -e /dev/dxg ] || [ -e /dev/nvmap ] || [ -e /proc/driver/nvidia ] ||
		grep -lqs 0x10de /sys/bus/pci/devices/*/vendor
}

# works BACKEND MACHINE [NAME=VALUE...]
works() {
	backend=$1
	shift
	check "$backend is taken, and works" says 0 "^libgdrapi works here: gdr_open takes $backend\\." "$@"
	check "the line of $backend" printed "^OK    backend-$backend: Taken, and it works\\."
	check "nothing failed on $backend" nothing_failed
	check "the JSON of $backend is whole" json_is_whole "$backend" "$@"
}

works dmabuf plain

check "CUDA that exports nothing" first backend-dmabuf 'attribute 124 is 0' plain CUDA_SIM_DMABUF=0
check "a kernel part that cannot map" first backend-dmabuf 'attribute 152 is 0' plain CUDA_SIM_DMABUF_MMAP=0
check "the attributes" printed '^OK    attributes: .*\): 1, 1; attribute 152 .*: 0, 0\.'
check "a pin that fails" first trial 'It failed at gdr_pin_buffer' plain \
	CUDA_SIM_FAIL=cuMemGetHandleForAddressRange=1
check "a name that is no backend" first environment 'pigeon names no backend' plain GDRCOPY_BACKEND=pigeon
check "what to do about it" printed 'do: Unset it'
check "a backend that is not here" first environment 'GDRCOPY_BACKEND=gdrdrv forces .*, and dmabuf would' plain GDRCOPY_BACKEND=gdrdrv
check "a setting that is wrong" first environment 'refuses GDRCOPY_COPY_IMPL=no\.' plain GDRCOPY_COPY_IMPL=no

case $(tests/on.sh) in
*rm*)
	works rm rm
	check "on each GPU, memory of pools too" printed 'It was tried on [2-9] simulated GPUs, with plain memory and memory of pools\.'
	check "CUDA_VISIBLE_DEVICES of none" first cuda '\(100\), with CUDA_VISIBLE_DEVICES=\.' rm CUDA_SIM_FAIL=cuInit=100 CUDA_VISIBLE_DEVICES=
	limit="prlimit --nofile=12"
	check "few descriptors" first limit-files '' rm
	limit="prlimit --as=1100000000"
	check "little address space" first limit-as '' rm
	limit=
	check "a system that is not ready" first cuda '\(802\)' rm CUDA_SIM_FAIL=cuInit=802
	check "a sandbox that refuses" first backend-rm 'NV_ERR_INSUFFICIENT_PERMISSIONS.*a sandbox is in the way' rm NVRM_SIM_FAIL=ALLOC=0x1b
	# What gVisor lets pass of rm's requests, and the same without DUP_OBJECT.
	# [google/gvisor 3c5eee17, pkg/sentry/devices/nvproxy/version.go: the first driverABI, and 545 for 0x288]
	gvisor=0x29,0x2a,0x2b,0x4e,0x4f,200,201,210,0x41,0x80,0xcb33,0x201,0x205,0x288,0x3d06,0x410110,0xcb330101
	works rm rm NVRM_SIM_PASS=$gvisor,0x34
	check "a sandbox that CUDA starts in, and rm does not" first backend-rm 'DUP_OBJECT: .*gVisor' rm NVRM_SIM_PASS=$gvisor
	check "Grace, where nobody names rm" first backend-rm 'coherent with the CPU.*GDRCOPY_BACKEND=rm' rm NVRM_SIM_MACHINE=grace
	works rm rm NVRM_SIM_MACHINE=grace GDRCOPY_BACKEND=rm
	check "Grace" printed '^OK    memory: .*cached'
	works rm rm NVRM_SIM_MACHINE=gb10 GDRCOPY_BACKEND=rm
	check "GB10" printed '^OK    memory: .*no memory of its own'
	check "MIG" first backend-rm '\(MIG\)' rm NVRM_SIM_MACHINE=mig
	check "confidential computing, by the driver" first backend-rm 'onfidential computing' rm NVRM_SIM_MACHINE=cc
	check "a lost GPU" first gpu 'is lost' rm NVRM_SIM_FAIL=MAP_MEMORY=0x0f
	check "a second GPU without memory" first trial 'cuMemAlloc: on CUDA device 1: ' rm CUDA_SIM_FAIL=cuMemAlloc_v2=2@3 # the library has some of its own on device 0
	check "a BAR1 that is full" first bar1 'no room' rm NVRM_SIM_BAR1_MIB=0
	check "the libcuda of 13.3 over 580" says 0 'Not taken: dma-bufs of these GPUs cannot be mapped' rm \
		CUDA_SIM_DRIVER_VERSION=13030

	fake libcuda.so.1 'int cuInit(void) { return *(volatile int *)8; } int cuDriverGetVersion(int *v) { *v = 13000; return 0; }'
	check "a libcuda that crashes" first cuda 'it crashed \(SIGSEGV\)' rm
	fake libgdrapi.so.2 '#include <stdlib.h>
		__attribute__((constructor)) static void f(void) { abort(); }'
	check "a libgdrapi that crashes" first library 'it crashed \(SIGABRT\)' rm
	fake libgdrapi.so.2 'void *gdr_open(void) { return 0; }
		void gdr_runtime_get_version(int *a, int *b) { *a = 2; *b = 5; }'
	check "a libgdrapi of another maker" first library 'version 2\.5, which is not this project' rm
	check "two libgdrapi" printed '^WARN  library-name: libgdrapi\.so is another file'
	folders=$build
	;;
esac

# passed NAME WHY: the loader passes over that file, and finds this project's after it.
passed() {
	says 1 "^gdr_open takes dmabuf, and it works\. .*Begin with library: The loader passes over $work/one/$1: $2" plain
}

# A libgdrapi of another architecture, a link that leads nowhere, and one that may not be read.
mkdir "$work/one"
{
	head -c 18 "$build/libgdrapi.so.2.6"
	printf '\265\002' # no machine of this project
	tail -c +21 "$build/libgdrapi.so.2.6"
} >"$work/one/libgdrapi.so.2"
folders=$work/one:$build
check "a library of another architecture" passed libgdrapi.so.2 'it is of another architecture'
folders=$work/one
check "it alone, and the doctor's own beside it" says 1 '^FAIL  library: The loader passes over' plain
ln -sf nowhere "$work/one/libgdrapi.so.2"
folders=$work/one:$build
check "a link that leads nowhere" passed libgdrapi.so.2 'it is a link that leads nowhere'
rm "$work/one/libgdrapi.so.2"
: >"$work/one/libgdrapi.so"
chmod 0 "$work/one/libgdrapi.so"
user=
[ "$(id -u)" -ne 0 ] || user="setpriv --reuid 65534 --clear-groups"
chmod 755 "$work"
if $user test -r "$build/libgdrapi.so.2"; then
	check "a library that may not be read" passed libgdrapi.so 'this user may not read it'
else
	skip "a library that may not be read" "this tree is root's alone"
fi
user=
rm -f "$work/one/libgdrapi.so"

# A /dev of its own, without /dev/null, whose nodes nobody may open.
printf '#!/bin/sh\nmount -t tmpfs -o nodev none /dev && mknod -m 666 /dev/nvidiactl c 195 255 && exec "$@"\n' >"$work/own_dev"
chmod +x "$work/own_dev"
if unshare -m "$work/own_dev" true 2>/dev/null; then
	user="unshare -m $work/own_dev"
	check "a /dev without devices" first device-nodes '/dev/nvidiactl may not be opened: its file system is mounted with nodev' plain \
		CUDA_SIM_FAIL=cuInit=100
	user=
else
	skip "a /dev without devices" "needs root, and a mount namespace"
fi

# An NVML of one GPU that has all that makes mapping hard.
fake libnvidia-ml.so.1 '#include <string.h>
	int nvmlInit_v2(void) { return 0; }
	int nvmlShutdown(void) { return 0; }
	int nvmlDeviceGetCount_v2(unsigned int *n) { *n = 1; return 0; }
	int nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **d) { *d = (void *)7; return 0; }
	int nvmlDeviceGetPciInfo_v3(void *d, char *p) { strcpy(p + 36, "00000000:18:00.0"); return 0; }
	int nvmlDeviceGetBAR1MemoryInfo(void *d, unsigned long long *m) { m[0] = 256 << 20; m[1] = 200 << 20; m[2] = 56 << 20; return 0; }
	int nvmlDeviceGetMigMode(void *d, unsigned int *now, unsigned int *next) { *now = *next = 1; return 0; }
	int nvmlDeviceGetVirtualizationMode(void *d, int *mode) { *mode = 2; return 0; }
	int nvmlSystemGetConfComputeState(unsigned int *s) { s[0] = s[2] = 0; s[1] = 1; return 0; }'
check "NVML is asked" says 0 '^WARN  bar1: GPU 00000000:18:00\.0: of 256 MiB of BAR1 200 MiB are free' plain
check "MIG" printed '^OK    mig: '
check "vGPU" printed '^WARN  vgpu: '
check "confidential computing" printed '^WARN  confidential-computing: '

# A libgdrapi whose mapping is plain memory, and one of whose steps goes wrong.
fake libgdrapi.so.2 '#include <errno.h>
	#include <stdlib.h>
	#include <string.h>
	static char memory[131072], opened, pinned, mapped, pins;
	static int wrong(const char *step) { const char *w = getenv("WRONG"); return w && !strcmp(w, step) ? EIO : 0; }
	void gdr_runtime_get_version(int *a, int *b) { *a = 2; *b = 6; }
	void *gdr_open(void) { if (wrong("crash")) abort(); if (wrong("gdr_open")) return 0; opened++; return memory; }
	int gdr_close(void *g) { if (!opened-- || pinned) abort(); return wrong("gdr_close"); }
	int gdr_get_backend(void *g, char *name, size_t n) { strcpy(name, "dmabuf"); return 0; }
	int gdr_pin_buffer(void *g, unsigned long at, size_t n, unsigned long t, unsigned v, unsigned long *h)
	{ if (at % 65536 || n != 65536) return EINVAL; if (wrong("pool") && ++pins == 2) return EIO; pinned += !wrong("gdr_pin_buffer"); *h = 1; return wrong("gdr_pin_buffer"); }
	int gdr_unpin_buffer(void *g, unsigned long h) { if (!pinned-- || mapped) abort(); return wrong("gdr_unpin_buffer"); }
	int gdr_map(void *g, unsigned long h, void **va, size_t n)
	{ mapped += !wrong("gdr_map"); *va = memory + 65536 - (unsigned long)memory % 65536; return wrong("gdr_map"); }
	int gdr_unmap(void *g, unsigned long h, void *va, size_t n) { if (!mapped--) abort(); return wrong("gdr_unmap"); }
	int gdr_copy_to_mapping(unsigned long h, void *to, const void *from, size_t n)
	{ if (!wrong("lost")) memcpy(to, from, n); return wrong("gdr_copy_to_mapping"); }
	int gdr_copy_from_mapping(unsigned long h, void *to, const void *from, size_t n)
	{ memcpy(to, from, n); if (wrong("bit")) ((char *)to)[n - 1] ^= 1; return wrong("gdr_copy_from_mapping"); }'
check "a libgdrapi of plain memory works" says 0 '^libgdrapi works here: gdr_open takes dmabuf\.' plain
for step in gdr_open gdr_pin_buffer gdr_map gdr_copy_to_mapping gdr_copy_from_mapping gdr_unmap gdr_unpin_buffer gdr_close; do
	check "a trial that fails at $step" first trial "It failed at ${step}[ :]" plain WRONG=$step
done
# The file that crashed is named, and what else may be the cause.
crashed="^FAIL  trial: $work/fake/libgdrapi\.so\.2 was tried\. It crashed \(SIGABRT\)"
check "a trial that crashes" says 1 "$crashed" plain WRONG=crash LD_PRELOAD="$build/beside_preload.so"
check "is tried without what is preloaded" printed "do: Try it without LD_PRELOAD=$build/beside_preload\.so"
python3 - "$work/fake/libgdrapi.so.2" <<-'EOF'
	import struct, sys	# the program headers move to the end, as patchelf moves them
	f = open(sys.argv[1], "r+b")
	b = f.read()
	size, count = struct.unpack_from("<HH", b, 54)
	f.seek(32)
	f.write(struct.pack("<Q", len(b)))
	f.seek(0, 2)
	f.write(b[64:64 + size * count])
EOF
check "one of a file that was edited" says 1 "$crashed" plain WRONG=crash
check "is tried as it was built" printed 'do: Put the file in its place as it was built: .*patchelf'
for what in lost bit; do
	check "a trial whose bytes are wrong: $what" first trial 'What was read .* is not what was written' plain WRONG=$what
done

case $(tests/on.sh) in
*rm*)
	check "pools that do not work" says 0 'Memory of pools does not work: gdr_pin_buffer: input/output error\.' rm WRONG=pool
	;;
esac

fake libnccl.so.2 'const char *name(void) { return "libgdrapi.so"; }'
check "a consumer that is told" says 0 "^OK    consumer: NCCL .*it takes .*, as libgdrapi\\.so\\." plain NCCL_GDRCOPY_ENABLE=1

folders=$work/empty
beside='library: .*The one beside this program is examined: .*/libgdrapi\.so\.2\.6, version 2\.6\.'
if run plain -- "$doctor" | grep -q '^WARN  consumer: .*which the loader does not find'; then
	check "the library beside the doctor, and a program that wants one" says 1 "^FAIL  $beside" plain
else
	check "the library beside the doctor" says 0 "^WARN  $beside" plain
	check "it works, and the driver is simulated" printed '^libgdrapi works here: gdr_open takes dmabuf\..* simulated GPUs?,.*No program finds it yet: see the line library\.$'
fi
mkdir "$work/bin" "$work/lib"
cp "$doctor" "$work/bin/"
cp -P "$build"/libgdrapi.so* "$work/lib/"
doctor=$work/bin/gdrcopy_doctor
check "the same, installed" says 1 '^gdr_open takes dmabuf, and it works\. .*Begin with library: The loader finds no libgdrapi\.so\.2\.' plain
head -n 1 "$work/out" >"$work/first"
check "it is the first line" grep "^FAIL  library: " "$work/first"
rm -r "${work:?}/lib"
check "no libgdrapi" first library 'The loader finds no libgdrapi\.so\.2' plain
check "which backend it would take" printed 'backend-dmabuf: gdr_open of this version takes it'
ln -s "$build/libgdrapi.so.2" "$work/one/libgdrapi.so.2"
folders=$work/one
check "no unversioned name" says 0 '^WARN  library-name: The loader finds no libgdrapi\.so' plain

folders=$build
if has_gpu; then
	skip "no GPU" "there is one here"
else
	check "no GPU" says 77 '^FAIL  gpu: .*no NVIDIA GPU' none
fi
done_testing
