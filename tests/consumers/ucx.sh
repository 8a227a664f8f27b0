#!/bin/bash
# SPDX-License-Identifier: MIT
#
# ucx.sh BUILD - UCX of Debian's source package, built against this library and the
# simulated CUDA, and its own programs over it: ucx_info, its gtest's gdr_copy cases,
# ucx_perftest. BUILD is the project's build folder; the environment has the doubles.
#
# Fetched and built once, into a cache: the source of UCX, and of NVIDIA's packages
# in Debian's non-free part the headers alone. The first time takes some 10 minutes,
# a download of 0.8 GB, and root for what the build needs of Debian.
set -euo pipefail
build=${1:?which build folder?}
here=$(cd "$(dirname "$0")" && pwd)
GDRAPI_VM_CACHE=${GDRAPI_CONSUMERS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gdrapi-consumers}
VM_COMPONENTS='main contrib non-free' VM_SOURCES=1
# shellcheck source=tests/vm/apt.sh
. "$here/../vm/apt.sh"
# shellcheck source=tests/consumers/tap.sh
. "$here/tap.sh"

suite=${UCX_SUITE:-bookworm}
work=$GDRAPI_VM_CACHE/ucx-$suite
cuda=$GDRAPI_VM_CACHE/cuda-$suite
prefix=$work/installed
log=$build/consumers/ucx.log

# install PACKAGE...: what is missing of them.
install() {
	local p missing=()
	for p in "$@"; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] ||
			missing+=("$p")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	[ "$(id -u)" -eq 0 ] || die "UCX's build needs ${missing[*]}: install them, or run this as root"
	say "installing ${missing[*]}"
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
		>>"$log" 2>&1 || die "cannot install ${missing[*]}: see $log"
}

# Headers of NVIDIA's, libraries of the doubles.
make_cuda() {
	local p
	if [ ! -e "$cuda/.complete" ]; then
		mkdir -p "$cuda/debs" "$cuda/lib64"
		for p in nvidia-cuda-dev libnvidia-ml-dev; do
			say "fetching $p ($suite) for its headers"
			(cd "$cuda/debs" && vm_apt "$suite" apt-get download "$p") ||
				die "cannot download $p of $suite, non-free"
			dpkg-deb --fsys-tarfile "$cuda/debs/${p}_"*.deb |
				tar -C "$cuda" --strip-components=2 -xf - --wildcards './usr/include/*'
			rm -f "$cuda/debs/${p}_"*.deb
		done
		: >"$cuda/.complete"
	fi
	ln -sfn "$build/doubles/libcuda.so.1" "$cuda/lib64/libcuda.so"
	ln -sfn "$build/doubles/libcudart.so" "$cuda/lib64/libcudart.so"
	ln -sfn "$build/doubles/libnvidia-ml.so.1" "$cuda/lib64/libnvidia-ml.so"
}

fetch_ucx() {
	[ ! -e "$work/.fetched" ] || return 0
	rm -rf "$work"
	mkdir -p "$work/source"
	say "fetching the source of ucx ($suite)"
	(cd "$work" && vm_apt "$suite" apt-get source --download-only ucx) >>"$log" 2>&1 ||
		die "cannot fetch the source package ucx of $suite: see $log"
	tar -C "$work/source" --strip-components=1 -xf "$work"/ucx_*.orig.tar.*
	# Its configure.ac names the files of the upstream's packaging, which Debian renames.
	[ ! -d "$work/source/debian.upstream" ] || mv "$work/source/debian.upstream" "$work/source/debian"
	# Its tests of put and get give up on a transport that allocates nothing; not here.
	sed -i 's|cap.max_alloc / 2.5|cap.max_alloc ? sender().md_attr().&: 16.0 * UCS_MBYTE|' \
		"$work/source/test/gtest/uct/uct_p2p_test.cc"
	: >"$work/.fetched"
}

# The objects of gtest for the tests of UCT, where gdr_copy's are, and some of UCP's.
gtest_objects() {
	make -C "$1" -pn 2>/dev/null | sed -n 's/^am_gtest_OBJECTS = //p' | head -n 1 |
		tr ' ' '\n' | sed 's/[$](OBJEXT)/o/' |
		grep -E '^(common|ucm)/|^uct/gtest-|^ucp/gtest-(ucp_|test_ucp_(mem_type|tag_mem_type|tag|memheap|mmap)[.])|^ucs/gtest-test_(memtype_cache|rcache)' |
		grep -vE 'uct/gtest-test_(tag|mm)[.]' | tr '\n' ' '
}

# It runs where a failed command does not end a function: hence the &&.
build_ucx() {
	rm -rf "$work/build" "$prefix" && mkdir -p "$work/build" && cd "$work/source" &&
		{ [ -x configure ] || ./autogen.sh; } && cd "$work/build" &&
		../source/configure CFLAGS='-O1 -g0' CXXFLAGS='-O1 -g0' --prefix="$prefix" \
			--enable-mt --enable-gtest --disable-static --disable-numa --disable-doxygen-doc \
			--without-java --without-go --without-verbs --without-rdmacm --without-rocm \
			--without-knem --without-xpmem --without-fuse3 \
			--with-cuda="$cuda" --with-gdrcopy="$build/consumers/usr" &&
		for d in src/ucm src/ucs src/uct src/ucp src/tools/info src/tools/perf; do
			make -C $d -j"$(nproc)" install || return
		done &&
		make -C test/gtest/common/googletest -j"$(nproc)" &&
		make -C test/gtest -j"$(nproc)" gtest CXXFLAGS='-O1 -g0' BASE_CXXFLAGS=-w \
			am_gtest_OBJECTS="$(gtest_objects test/gtest) ucm/gtest-cuda_hooks.o"
}

# gtest BACKEND FILTER: each case is a result of ours, but those that UCX skips: most
# of what it tries on each transport needs an operation that gdr_copy does not have.
gtest() {
	local out=$build/consumers/gtest-$1.log status=0 kind name n=0
	(cd "$work/build/test/gtest" && GDRCOPY_BACKEND=$1 timeout 900 "$RM_SIM" ./gtest --gtest_filter="$2") \
		>"$out" 2>&1 || status=$?
	while read -r kind name; do
		case $kind in
		OK) result 0 "$1: gtest $name" ;;
		SKIP) n=$((n + 1)) ;;
		*) result 1 "$1: gtest $name; see $out" ;;
		esac
	done < <(awk '
		/^\[ RUN / { skip = 0; name = $4 }
		/^\[ +SKIP / { skip = 1 }
		/^\[ +OK \]/ { print (skip ? "SKIP" : "OK"), name; name = "" }
		/^\[ +FAILED +\].*ms\)$/ { print "FAILED", name; name = "" }
		END { if (name) print "DIED", name }' "$out")
	echo "# $n cases are not for gdr_copy"
	[ "$status" -eq 0 ]
	result $? "$1: gtest ends with status 0" "$out"
}

# perf BACKEND NAME ARGUMENT...: one run of ucx_perftest with itself, which pins.
perf() {
	local b=$1 name=$2 out=$build/consumers/perf.log
	shift 2
	GDRCOPY_BACKEND=$b GDRCOPY_ENABLE_LOGGING=1 GDRCOPY_LOG_LEVEL=1 timeout 300 \
		"$RM_SIM" "$prefix/bin/ucx_perftest" -l "$@" >"$out" 2>&1 &&
		grep -q '^Final:' "$out" && grep -q '^DBG: *pinned' "$out" && ! grep -q ' ERROR ' "$out"
	result $? "$b: ucx_perftest, $name" "$out"
}

info() {
	GDRCOPY_BACKEND=$1 "$RM_SIM" "$prefix/bin/ucx_info" -d >"$build/consumers/info.log" 2>&1 &&
		grep -q 'Transport: gdr_copy' "$build/consumers/info.log"
	result $? "$1: ucx_info shows gdr_copy" "$build/consumers/info.log"
}

mkdir -p "$build/consumers" "$GDRAPI_VM_CACHE"
: >"$log"
install autoconf automake libtool g++ make pkg-config
vm_suite "$suite"
make_cuda
fetch_ucx
export LD_LIBRARY_PATH="$prefix/lib:$LD_LIBRARY_PATH"
stamp=$(cksum <"$here/../../include/gdrapi.h")
if [ "$(cat "$work/.built" 2>/dev/null)" != "$stamp" ]; then
	say "building UCX (minutes)"
	(build_ucx) >>"$log" 2>&1 || die "UCX does not build: see $log"
	echo "$stamp" >"$work/.built"
fi

set +e
# The simulated driver, with dma-bufs that can be mapped.
export CUDA_SIM_DRIVER_VERSION=13030 CUDA_SIM_DMABUF_MMAP=1
# UCX watches cudaFree by relocation: the simulated libcuda's functions do not begin as
# those that its other way can patch. Of mmap it needs nothing here, and must not take
# it from the simulated driver.
export UCX_MEM_CUDA_HOOK_MODE=reloc UCX_MEM_MMAP_HOOK_MODE=none
# Managed memory, the third kind, is not modelled far enough.
for b in dmabuf rm; do
	info "$b"
	gtest "$b" '*gdr_copy*:*cuda_hooks*:*memtype_cache*:all/test_ucp_mem_type*:mem_types/memtype_hooks*-*memtype_hooks.*/2:all/*/2'
	export UCX_TLS=self,sm,cuda_copy,gdr_copy
	for n in 1 2 6; do
		perf "$b" "tags of GPU memory, $n threads" -t tag_lat -m cuda -s 8 -n 2000 -T "$n" -M multi
	done
	perf "$b" "tags of 64 KiB" -t tag_bw -m cuda -s 65536 -n 500
	UCX_GDR_COPY_RCACHE=n perf "$b" "tags of 64 KiB, no registration cache" -t tag_bw -m cuda -s 65536 -n 200
	unset UCX_TLS
done
closing
