#!/bin/sh
# SPDX-License-Identifier: MIT
#
# examples.sh BIN [gpu] - runs the examples that are in BIN and Python's. Each must say
# what it did. The driver is the simulated one, or that of a real GPU.
. tests/tap.sh
bin=$1

# says WORDS COMMAND... - COMMAND succeeds and has a line with these words.
says() {
	words=$1
	shift
	"$@" >"$work/out" 2>&1 || { cat "$work/out"; return 1; }
	grep -F "$words" "$work/out" || { cat "$work/out"; return 1; }
}

# no_kernels COMMAND... - COMMAND says that it needs a real GPU, by its status too.
no_kernels() {
	"$@" >"$work/out" 2>&1
	[ $? -eq 2 ] && grep -F "needs a real GPU" "$work/out"
}

# fails_with WORDS COMMAND... - COMMAND fails, and says these words.
fails_with() {
	words=$1
	shift
	! "$@" >"$work/out" 2>&1 && grep -F "$words" "$work/out"
}

# drawn SVG FRAMES - the bars of the picture add up to so many frames.
drawn() {
	sed -n 's/.*<title>\([0-9]*\)<.*/\1/p' "$1" | awk -v want="$2" '{ sum += $1 } END { exit sum != want }'
}

check "write_read" says "the CPU reads: from CUDA" "$bin/write_read"
check "write_read, there" grep -qx "CUDA reads: from the CPU" "$work/out"
check "flag" says "sent 41, the GPU answers 42" "$bin/flag"
check "cache" says "400 headers to 4 buffers, 0 wrong" "$bin/cache"
check "scheduler, without PyTorch" fails_with "scheduler.py needs PyTorch" python3 -IS examples/scheduler/scheduler.py
check "keep, without PyTorch" fails_with "server.py needs PyTorch" python3 -IS examples/keep/server.py
if [ "${2-}" = gpu ]; then
	check "pingpong" says "messages/s there and back" "$bin/pingpong" 10000
else
	check "pingpong, without a GPU" no_kernels "$bin/pingpong" 10
fi
for way in read copy; do
	check "capture by $way" says "20 frames of 1048576 bytes every 1000 us" \
		"$bin/capture" -m $way -n 20 -b 1048576 -p 1000 -k 20 -o "$work/$way.svg"
	check "its frames were whole, and none was lost" grep -F "0 lost, 0 damaged" "$work/out"
	check "its picture has all frames" drawn "$work/$way.svg" 20
done
check "capture by read of a device" says "4 frames of 1024 bytes" "$bin/capture" -d /dev/zero -n 4 -b 1024
check "capture of a device that ends" fails_with "0 frames" "$bin/capture" -d /dev/null -n 4
check "capture of a device that fails" fails_with "read(2): Input/output error" "$bin/capture" -d /proc/self/mem -n 4
check "capture refuses DMA without a device" fails_with "usage: capture" "$bin/capture" -m dma
check "capture by DMA of no card" fails_with "CARD_DMA: " "$bin/capture" -m dma -d /dev/null -b 65536
# A call that fails, or a copy that is wrong, is not well (tests/doubles/spoil.c).
spoilt() {
	fails_with "$3" env LD_PRELOAD="$bin/../tests/libspoil.so" SPOIL="$2" "$bin/$1"
}

# no_gpu COMMAND... - COMMAND says so, and by its status.
no_gpu() {
	"$@" >"$work/out" 2>&1
	[ $? -eq 2 ] && grep -qxE "no GPU here|No GPU here: CUDA says CUDA_ERROR_NO_DEVICE\." "$work/out"
}

if [ "${2-}" != gpu ]; then
	for program in write_read flag cache ../bin/demo; do
		check "$program, no GPU" no_gpu env CUDA_SIM_FAIL=cuInit=100@1 "$bin/$program"
		check "$program, a call of CUDA's fails" fails_with "cuMemAlloc: CUDA_ERROR_UNKNOWN" \
			env CUDA_SIM_FAIL=cuMemAlloc_v2=999@1 "$bin/$program"
		check "$program, a call of the library's fails" spoilt "$program" to:refuse:1 "gdr_copy_to_mapping: "
	done
	check "write_read, CUDA reads a wrong byte" spoilt write_read to:flip:1 'CUDA reads other bytes than were written'
	check "write_read, the CPU does" spoilt write_read HtoD:flip:1 'the CPU reads other bytes than were written'
	check "flag, the data are wrong" spoilt flag to:flip:2 'sent 41, the GPU answers 268435498'
	check "cache, one header is wrong" spoilt cache to:flip:1 '400 headers to 4 buffers, 1 wrong'
	check "capture, a copy is wrong" fails_with '1 damaged' \
		env LD_PRELOAD="$bin/../tests/libspoil.so" SPOIL=to:flip:1 "$bin/capture" -m copy -n 2 -b 64 -p 1000
fi
# demo - all that it says, and what it makes of wrong bytes.
demo() {
	program=../bin/demo
	unset GDRCOPY_LOG_LEVEL # the demo has its own
	check "demo, the library's choice" says "INFO: gdr_open: using the " "$bin/$program"
	is "demo, all that it says" "$("$bin/$program" 2>/dev/null | sed -E "s/0x[0-9a-f]+/ADDRESS/g; s/ 13\\.[03]\$/ 13.x/")" \
"GPU: Simulated GPU 0, CUDA driver 13.x
It is the simulated driver of tests/doubles: its GPU memory is memory of the host.
cuMemAlloc gave ADDRESS; 64 KiB of it pinned, and mapped for the CPU at ADDRESS, Write Combining
4096 bytes written by the CPU, read by cuMemcpyDtoH: equal
4096 bytes written by cuMemcpyHtoD, read by the CPU: equal
No times are shown: on simulated memory they would mean nothing.
Next: make check; make install, and README.md's first program; build/bin/gdrcopy_copylat on a GPU."
	check "demo, CUDA reads a wrong byte" spoilt "$program" to:flip:1 "read by cuMemcpyDtoH: DIFFERENT"
	check "demo, the CPU does" spoilt "$program" from:flip:1 "read by the CPU: DIFFERENT"
}
[ "${2-}" = gpu ] || demo
# go_example - what it says, and how it fails.
go_example() {
	check "go" says "written by Go" "$bin/go"
	is "go, a line for each size" \
		"$(grep -Ec '^ *(8|4096|65536) bytes: a write takes [0-9.]+([nm]|µ)s, a read [0-9.]+([nm]|µ)s$' "$work/out")" 3
	check "go, a backend that is not there" fails_with pigeon env GDRCOPY_BACKEND=pigeon "$bin/go"
	[ "${1-}" != gpu ] || return 0
	check "go, no memory" fails_with "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY" env CUDA_SIM_FAIL=cuMemCreate=2 "$bin/go"
	[ ! -e /dev/nvidiactl ] || { skip "go, no GPU: its status" "this machine has a driver"; return 0; }
	env -u LD_LIBRARY_PATH -u GDRCOPY_BACKEND "$bin/go" >/dev/null 2>&1
	is "go, no GPU: its status" $? 2
}

# py COMMAND... - write_read.py, by COMMAND.
py() {
	env PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1 "$@" python3 examples/write_read.py
}

if [ "${GDRCOPY_BACKEND-}" = rm ] && [ "${2-}" != gpu ]; then
	skip "go" "the simulated rm is for programs with a C library"
else
	go_example "${2-}"
fi
if command -v python3 >/dev/null; then
	check "write_read.py" says "read: FROM the CPU" py env
	check "write_read.py, before" grep -qx "read: from the CPU" "$work/out"
	check "write_read.py, what it takes" grep -E '^[a-z]+: 4096 bytes of a [A-Za-z]+ at 0x[0-9a-f]+$' "$work/out"
	if [ "${2-}" != gpu ]; then
		check "write_read.py, no memory" fails_with "gdr_mem_alloc: Cannot allocate memory" py env CUDA_SIM_FAIL=cuMemCreate=2
	fi
else
	skip "write_read.py" "python3 is not installed"
fi
done_testing
