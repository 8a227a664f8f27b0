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
check "capture refuses DMA without a device" fails_with "usage: capture" "$bin/capture" -m dma
check "capture refuses a wrong option" fails_with "usage: capture" "$bin/capture" -m pio
check "capture by DMA of no card" fails_with "CARD_DMA: " "$bin/capture" -m dma -d /dev/null -b 65536
# A call that fails, or a copy that is wrong, is not well (tests/tools/spoil.c).
spoilt() {
	fails_with "$3" env LD_PRELOAD="$bin/../tests/libspoil.so" SPOIL="$2" "$bin/$1"
}
if [ "${2-}" != gpu ]; then
	for program in write_read flag; do
		check "$program, a write is refused" spoilt $program to:refuse:1 'gdr_copy_to_mapping: Input/output error'
		check "$program, a read is refused" spoilt $program from:refuse:1 'gdr_copy_from_mapping: Input/output error'
		check "$program, the unmap is refused" spoilt $program unmap:refuse:1 'gdr_unmap: Input/output error'
	done
	check "cache, a write is refused" spoilt cache to:refuse:400 'gdr_copy_to_mapping: Input/output error'
	check "cache, one header is wrong" spoilt cache to:flip:1 '400 headers to 4 buffers, 1 wrong'
	check "cache, all are" spoilt cache to:flip:all '400 headers to 4 buffers, 400 wrong'
	check "capture, a copy is refused" fails_with 'gdr_copy_to_mapping: Input/output error' \
		env LD_PRELOAD="$bin/../tests/libspoil.so" SPOIL=to:refuse:1 "$bin/capture" -m copy -n 2 -b 64 -p 1000
	check "capture, a copy is wrong" fails_with '1 damaged' \
		env LD_PRELOAD="$bin/../tests/libspoil.so" SPOIL=to:flip:1 "$bin/capture" -m copy -n 2 -b 64 -p 1000
fi
if command -v python3 >/dev/null; then
	check "write_read.py" says "read: FROM the CPU" \
		env PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1 python3 examples/write_read.py
else
	skip "write_read.py" "python3 is not installed"
fi
done_testing
