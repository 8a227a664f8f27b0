#!/bin/sh
# SPDX-License-Identifier: MIT
# gpu.sh [PART...]: the examples, vkgdr and Python on a machine with a GPU, with what
# 'make gpu-programs' built. Parts: examples, pingpong, vkgdr, export, python, copy, read;
# without one, all of them.
#
# SECONDS_EACH (60) is how long copy and read capture 4 MiB every 8 ms; their pictures go
# to OUT (build/examples). PYTHON (python3) has pytest, and what frameworks are to be tried.
set -eu
bin=build/bin ex=build/examples
out=${OUT:-$ex}
frames=$((${SECONDS_EACH:-60} * 125))
python=${PYTHON:-python3}
failed=0

# try WHAT COMMAND...: goes on when one fails, and says so at the end.
try() {
	printf '\n===== %s (%s)\n' "$1" "$(date -u +%H:%M:%S)"
	shift
	"$@" || { echo "FAILED with $?: $*"; failed=1; }
}

capture() {
	try "capture by $1" "$ex/capture" -m "$1" -n "$frames" -c "$(($(nproc) - 1))" -r 50 -o "$out/capture-$1.svg"
}

uname -srm
grep -m1 'model name' /proc/cpuinfo
cat /proc/driver/nvidia/version 2>/dev/null || true
[ $# -gt 0 ] || set -- examples pingpong vkgdr export python copy read
for part in "$@"; do
	case $part in
	examples)
		for e in write_read flag cache; do
			try "$e" "$ex/$e"
		done
		try write_read.py env LD_LIBRARY_PATH="$PWD/build:${LD_LIBRARY_PATH-}" PYTHONPATH=python \
			"$python" examples/write_read.py ;;
	pingpong) try pingpong "$ex/pingpong" 1000000 ;;
	vkgdr)
		try "vkgdr on what gdr_open takes" "$bin/vkgdr_test"
		if ldconfig -p | grep -q libvulkan.so.1; then
			try "vkgdr on Vulkan" env GDRCOPY_BACKEND=vulkan "$bin/vkgdr_test"
		else
			echo "vkgdr on Vulkan: there is no libvulkan.so.1 here"
		fi ;;
	export) try "dma-bufs" "$bin/ext_export" ;;
	python) try "PyTorch, CuPy, numba, JAX" env LD_LIBRARY_PATH="$PWD/build:${LD_LIBRARY_PATH-}" \
		PYTHONPATH="$PWD/python" "$python" -m pytest -q -rs -p no:cacheprovider tests/python tests/python/gpu ;;
	copy | read) capture "$part" ;;
	*) echo "gpu.sh: there is no part $part" >&2; exit 2 ;;
	esac
done
printf '\n===== end (%s)\n' "$(date -u +%H:%M:%S)"
exit "$failed"
