#!/bin/bash
# SPDX-License-Identifier: MIT
#
# ucx.sh BUILD - UCX of Debian's source package, or of the folder UCX_SUITE, built against
# this library and the simulated CUDA, its own programs over it (ucx_info, its gtest's
# gdr_copy cases, ucx_perftest), and one of the project's. BUILD is the project's build
# folder; the environment has the doubles.
#
# Fetched and built once, into a cache: the source of UCX, and of NVIDIA's packages
# in Debian's non-free part the headers alone. The first time takes some 10 minutes,
# a download of 0.8 GB, and root for what the build needs of Debian.
set -euo pipefail
build=${1:?which build folder?}
name=ucx
# shellcheck source=tests/consumers/build.sh
. "$(dirname "$0")/build.sh"
# shellcheck source=tests/consumers/ucx/build.sh
. "$here/ucx/build.sh"

# gtest BACKEND HOW FILTER CASES COUNT=LEAST...: each case is a result of ours, but those that UCX skips: most
# of what it tries on each transport needs an operation that gdr_copy does not have. At least
# CASES of them are not skipped: with a library that does not open, gdr_copy has none.
gtest() {
	local out=$build/consumers/gtest-$1-$2.log status=0 kind name n=0 ran=0
	# The newer cuda_hooks watch mmap, too.
	GDRCOPY_BACKEND=$1 UCX_MEM_MMAP_HOOK_MODE=reloc counting "$counts" timeout 900 \
		"$RM_SIM" env --chdir="$work/build/test/gtest" \
		./gtest --gtest_filter="$3" >"$out" 2>&1 || status=$?
	while read -r kind name; do
		case $kind in
		OK) ran=$((ran + 1)) && result 0 "$1, $2: gtest $name" ;;
		SKIP) n=$((n + 1)) ;;
		*) result 1 "$1, $2: gtest $name; see $out" ;;
		esac
	done < <(awk '
		/^\[ RUN / { skip = 0; name = $4 }
		/^\[ +SKIP / { skip = 1 }
		/^\[ +OK \]/ { print (skip ? "SKIP" : "OK"), name; name = "" }
		/^\[ +FAILED +\].*ms\)$/ { print "FAILED", name; name = "" }
		END { if (name) print "DIED", name }' "$out")
	echo "# $n cases are not for gdr_copy"
	result "$status" "$1, $2: gtest ends with status 0" "$(tail -n 15 "$out")"
	check "$1, $2: gtest ran $ran cases, at least $4" [ "$ran" -ge "$4" ]
	[ $# -le 4 ] || least "$1, $2: gtest" 0 "$counts" "${@:5}"
}

# perf BACKEND NAME BYTES ARGUMENT...: one run of ucx_perftest with itself, which pins, and
# copies so many bytes each way.
perf() {
	local b=$1 name=$2 bytes=$3 out=$build/consumers/perf.log
	shift 3
	GDRCOPY_BACKEND=$b counting "$counts" timeout 300 \
		"$RM_SIM" "$prefix/bin/ucx_perftest" -l "$@" >"$out" 2>&1 &&
		grep -q '^Final:' "$out" && ! grep -q ' ERROR ' "$out"
	result $? "$b: ucx_perftest, $name" "$(tail -n 15 "$out")"
	least "$b: ucx_perftest, $name" 1 "$counts" opens=1 pins=1 maps=1 to="$bytes" from="$bytes"
}

info() {
	GDRCOPY_BACKEND=$1 counting "$counts" "$RM_SIM" "$prefix/bin/ucx_info" -d >"$build/consumers/info.log" 2>&1 &&
		grep -q 'Transport: gdr_copy' "$build/consumers/info.log"
	result $? "$1: ucx_info shows gdr_copy" "$(tail -n 15 "$build/consumers/info.log")"
	least "$1: ucx_info" 1 "$counts" opens=1
}

# ours BACKEND NAME 'COUNT=LEAST...' PROGRAM ARGUMENT...: a program of the project that uses UCX.
ours() {
	local b=$1 what=$2 want=$3 of=$4 out=$build/consumers/$4.log
	shift 4
	counting "$counts" timeout 300 "$here/../on.sh" "$b" "$build/consumers/$of" "$@" >"$out" 2>&1
	result $? "$b: $what" "$(tail -n 15 "$out")"
	# shellcheck disable=SC2086 # words
	least "$b: $what" 1 "$counts" opens=1 $want
}

mapped='pins=1 maps=1' copied='pins=1 maps=1 to=480 from=480'

program messages -lucp -lcuda
set +e
# A newer UCX has protocols of version 2.
newer=$("$prefix/bin/ucx_info" -c 2>/dev/null | grep -c '^UCX_PROTO_ENABLE=y')
# The simulated driver, with dma-bufs that can be mapped.
export CUDA_SIM_DRIVER_VERSION=13030 CUDA_SIM_DMABUF_MMAP=1
# UCX watches cudaFree by one of two kinds of hooks, and mmap, too. That of mmap which
# patches the C library ("bistro") is not for the simulated driver, which does so itself.
export UCX_MEM_CUDA_HOOK_MODE=reloc UCX_MEM_MMAP_HOOK_MODE=none
hooks='*cuda_hooks*:*memtype_cache*:mem_types/memtype_hooks*'
# Managed memory, the third kind, is not modelled far enough. README.md says why not the others.
without='*memtype_hooks.*/2:all/*/2:*deferred_create.mt_cache_init*'
if [ "$newer" -gt 0 ]; then
	without+=':*memtype_cache_deferred_create.*/2:*gdr_copy_reg_cuda_pcie_pin_fail*:*cuMemMapUnmap*'
fi
for b in dmabuf rm; do
	info "$b"
	not=$without
	[ "$newer-$b" != 1-dmabuf ] || not+=':cuda_hooks.*Async*'
	gtest "$b" reloc "*gdr_copy*:$hooks:all/test_ucp_mem_type*-$not" 10 opens=1 pins=1 maps=1
	UCX_MEM_CUDA_HOOK_MODE=bistro gtest "$b" bistro "$hooks-$not" 5
	UCX_GDR_COPY_RCACHE=n gtest "$b" uncached "*gdr_copy*-$not" 5 opens=1 pins=1 maps=1
	export UCX_TLS=self,sm,cuda_copy,gdr_copy
	for n in 1 2 3 4 5 6; do
		perf "$b" "tags of GPU memory, $n threads" 8000 -t tag_lat -m cuda -s 8 -n 2000 -T "$n" -M multi
	done
	used=$copied
	for rcache in y n; do
		export UCX_GDR_COPY_RCACHE=$rcache
		perf "$b" "tags of 64 KiB, registration cache: $rcache" 0 -t tag_bw -m cuda -s 65536 -n 200
		ours "$b" "messages between forks, registration cache: $rcache" "$used" messages fork
		# Without the cache their messages leave gdr_copy, for what a registration takes.
		[ "$newer" -eq 0 ] || used=
	done
	unset UCX_GDR_COPY_RCACHE
	for hook in reloc bistro; do
		UCX_MEM_CUDA_HOOK_MODE=$hook \
			ours "$b" "cuMemFree between messages, hooks by $hook" "$copied" messages free
		[ "$b-$hook" = rm-bistro ] || UCX_MEM_MMAP_HOOK_MODE=$hook \
			ours "$b" "mappings in UCX's hooks of mmap, by $hook" "$mapped" messages mapped
	done
	unset UCX_TLS
done
done_testing
