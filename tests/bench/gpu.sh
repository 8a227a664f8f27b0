#!/bin/sh
# SPDX-License-Identifier: MIT
# gpu.sh [PART...]: what docs/dataplane.md is made from, on a machine with a GPU,
# with the programs of 'make tools litmus'. Parts: litmus, used, many, each, callers,
# calls; without one, all of them.
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

uname -srm
grep -m1 'model name' /proc/cpuinfo
cat /proc/driver/nvidia/version 2>/dev/null || true
[ $# -gt 0 ] || set -- used many each callers calls litmus
for part in "$@"; do
	case $part in
	litmus) tool copy_litmus -t "$rounds" --threads "$((cpus > 4 ? cpus - 2 : 2))" --budget 40000 ;;
	used) tool gdrcopy_copylat -m used --budget 30 ;;
	many) tool gdrcopy_copylat -m many --budget 20 ;;
	callers) tool gdrcopy_copylat -m callers --budget 30 ;;
	each) tool gdrcopy_copylat --budget 20 ;;
	calls) tool gdrcopy_apiperf --budget 200 ;;
	*) echo "gpu.sh: there is no part $part" >&2; exit 2 ;;
	esac
done
title end
exit "$failed"
