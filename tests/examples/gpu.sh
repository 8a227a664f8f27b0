#!/bin/sh
# SPDX-License-Identifier: MIT
# gpu.sh [PART...]: how fast the examples are on a machine with a GPU, with the programs of
# 'make examples'. Parts: pingpong, copy, read; without one, all of them.
#
# SECONDS_EACH (60) is how long copy and read capture 4 MiB every 8 ms; their pictures go
# to OUT (build/examples). SCHED_FIFO needs root, or CAP_SYS_NICE.
set -eu
ex=build/examples
out=${OUT:-$ex}
frames=$((${SECONDS_EACH:-60} * 125))
failed=0

# try WHAT COMMAND...: goes on when one fails, and says so at the end.
try() {
	printf '\n===== %s (%s)\n' "$1" "$(date -u +%H:%M:%S)"
	shift
	"$@" || { echo "FAILED with $?: $*"; failed=1; }
}

uname -srm
grep -m1 'model name' /proc/cpuinfo
cat /proc/driver/nvidia/version 2>/dev/null || true
[ $# -gt 0 ] || set -- pingpong copy read
for part in "$@"; do
	case $part in
	pingpong) try pingpong "$ex/pingpong" 1000000 ;;
	copy | read) try "capture by $part" "$ex/capture" -m "$part" -n "$frames" -c "$(($(nproc) - 1))" -r 50 \
		-o "$out/capture-$part.svg" ;;
	*) echo "gpu.sh: there is no part $part" >&2; exit 2 ;;
	esac
done
printf '\n===== end (%s)\n' "$(date -u +%H:%M:%S)"
exit "$failed"
