#!/bin/sh
# SPDX-License-Identifier: MIT
# gpu.sh [PART...]: what docs/dataplane.md is made from, on a machine with a GPU,
# with the programs of 'make tools litmus'. Parts: litmus, used, each, calls;
# without one, all of them. And of 'make examples': pingpong, copy, read.
#
# ALLOC says how the GPU memory is allocated (cumemalloc), GDRCOPY_BACKEND is the
# library's. ROUNDS of each of the four ways to read are 28 million in the litmus test.
# SECONDS_EACH (60) is how long copy and read capture 4 MiB every 8 ms; their pictures go
# to OUT (build/examples). SCHED_FIFO needs root, or CAP_SYS_NICE.
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

# run PROGRAM ARGUMENT...: goes on when one fails, and says so at the end.
run() {
	title "$@"
	"$@" || { failed=1; echo "FAILED: $1 ended with $?"; }
}

tool() {
	name=$1
	shift
	run "$bin/$name" "$@" -a "$alloc"
}

uname -srm
grep -m1 'model name' /proc/cpuinfo
cat /proc/driver/nvidia/version 2>/dev/null || true
[ $# -gt 0 ] || set -- used each calls litmus
for part in "$@"; do
	case $part in
	litmus) tool copy_litmus -t "$rounds" --threads "$((cpus > 4 ? cpus - 2 : 2))" --budget 40000 ;;
	used) tool gdrcopy_copylat -m used --budget 30 ;;
	each) tool gdrcopy_copylat --budget 20 ;;
	calls) tool gdrcopy_apiperf --budget 200 ;;
	pingpong) run build/examples/pingpong 1000000 ;;
	copy | read) run build/examples/capture -m "$part" -n "$((${SECONDS_EACH:-60} * 125))" -c "$((cpus - 1))" -r 50 \
		-o "${OUT:-build/examples}/capture-$part.svg" ;;
	*) echo "gpu.sh: there is no part $part" >&2; exit 2 ;;
	esac
done
title end
exit "$failed"
