#!/bin/sh
# SPDX-License-Identifier: MIT
# gpu.sh [PART...]: what docs/dataplane.md is made from, on a machine with a GPU,
# with the programs of 'make tools copy-bench litmus'. Parts: litmus, used, many,
# each, pause, dma, choice, callers, heat, calls; without one, all of them, in some nine
# minutes.
#
# ALLOC says how the GPU memory is allocated (cumemalloc), GDRCOPY_BACKEND is the
# library's. ROUNDS of each of the four ways to read are 28 million in the litmus test.
set -eu
bin=build/bin
alloc=${ALLOC:-cumemalloc}
rounds=${ROUNDS:-28000000}
cpus=$(nproc)
failed=0

# title WHAT: also the time, to see what takes it.
title() {
	printf '\n===== %s (%s)\n' "$*" "$(date -u +%H:%M:%S)"
}

# tool NAME ARGUMENT...: goes on when one fails, and says so at the end.
tool() {
	name=$1
	shift
	title "$name" "$@"
	"$bin/$name" "$@" -a "$alloc" || { failed=1; echo "FAILED: $name ended with $?"; }
}

# How a long copy is made, and what a pause before it costs.
pause() {
	for n in 1 2 4 8; do
		[ "$n" -le "$cpus" ] || continue
		tool gdrcopy_copylat -m pause --budget 30 --read-threads "$n" --write-threads "$((n > 2 ? 2 : n))"
	done
	title "all by DMA"
	GDRCOPY_DMA_READ=1 GDRCOPY_DMA_WRITE=1 tool gdrcopy_copylat -m pause --budget 30
	title "by the library's choice"
	GDRCOPY_COPY=auto tool gdrcopy_copylat -m pause --budget 30
}

# Copies by DMA of 4 KiB or more, by where the host memory is and who copies out of it.
by_dma() {
	GDRCOPY_DMA_READ=4096 GDRCOPY_DMA_WRITE=4096 tool gdrcopy_copylat -m pause --budget 30 "$@"
}

dma() {
	title "pageable host memory"
	by_dma
	title "pageable host memory, threads copy out"
	by_dma --read-threads "$((cpus > 8 ? 8 : cpus))"
	title "page-locked host memory"
	by_dma --registered
	title "page-locked host memory, by the library's choice"
	GDRCOPY_COPY=auto tool gdrcopy_copylat -m pause --budget 30 --registered
}

# once WAY ROUND ARGUMENT...: one way to make copies, for choice.py.
once() {
	file=$csv/$1-$2.csv
	shift 2
	"$bin/gdrcopy_copylat" -m pause --budget 30 -a "$alloc" --csv "$@" >"$file" ||
		{ failed=1; echo "FAILED: $file"; }
}

# The library's choice beside each single way, in turns.
choice() {
	title "the library's choice beside each single way, the least of 5 rounds, us"
	csv=$(mktemp -d)
	for round in 1 2 3 4 5; do
		once one $round --read-threads 1
		once threads-4 $round --read-threads 4 --write-threads 2
		once threads-8 $round --read-threads 8 --write-threads 4
		GDRCOPY_DMA_READ=1 GDRCOPY_DMA_WRITE=1 once dma $round --read-threads 1
		GDRCOPY_DMA_READ=1 GDRCOPY_DMA_WRITE=1 once dma-8 $round --read-threads 8
		GDRCOPY_COPY=auto once auto $round
	done
	python3 tests/bench/choice.py "$csv"/*.csv || failed=1
	rm -r "$csv"
}

uname -srm
grep -m1 'model name' /proc/cpuinfo
cat /proc/driver/nvidia/version 2>/dev/null || true
[ $# -gt 0 ] || set -- used many each pause dma choice callers heat calls litmus
for part in "$@"; do
	case $part in
	litmus) tool copy_litmus -t "$rounds" --threads "$((cpus > 4 ? cpus - 2 : 2))" --budget 40000 ;;
	used) tool gdrcopy_copylat -m used --budget 30 ;;
	many) tool gdrcopy_copylat -m many --budget 20 ;;
	callers) tool gdrcopy_copylat -m callers --budget 30 ;;
	each) tool gdrcopy_copylat --budget 20 ;;
	heat) tool copy_bench -s 1M --budget 8 ;;
	calls) tool gdrcopy_apiperf --budget 200 ;;
	pause) pause ;;
	dma) dma ;;
	choice) choice ;;
	*) echo "gpu.sh: there is no part $part" >&2; exit 2 ;;
	esac
done
title end
exit "$failed"
