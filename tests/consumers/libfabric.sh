#!/bin/bash
# SPDX-License-Identifier: MIT
#
# libfabric.sh BUILD - libfabric of Debian's source package, built against this library
# and the simulated CUDA, and its fi_rdm_tagged_pingpong with GPU memory. libfabric takes
# this library and CUDA in one of two ways: linked, or by dlopen. Both are built.
# BUILD is the project's build folder; the environment has the doubles.
#
# Fetched and built once, into a cache. The first time takes some 10 minutes, and root
# for what the build needs of Debian.
set -euo pipefail
build=${1:?which build folder?}
name=libfabric
# shellcheck source=tests/consumers/build.sh
. "$(dirname "$0")/build.sh"

# The first Debian whose libfabric has both ways, and its tests beside it.
suite=${LIBFABRIC_SUITE:-trixie}
work=$GDRAPI_VM_CACHE/libfabric-${suite##*/}

# libfabric pins GPU memory for its copies on EFA, CXI and, through ofi_rxm, on what knows
# GPU memory. Of these only hardware does: its tcp says it does not, and tcp;ofi_rxm
# answers FI_ENODATA to who asks for GPU memory, whatever GDRCopy is there. Here tcp
# says it does. ofi_rxm copies short messages between the GPU's memory and buffers of its
# own, so that tcp sees none; FI_OFI_RXM_ENABLE_DIRECT_SEND=0 holds it to that.
tcp_knows_gpus() {
	sed -i -e 's/^#define XNET_EP_CAPS.*FI_RMA_PMEM/& | FI_HMEM/' \
		-e 's/\.mr_mode = OFI_MR_SCALABLE | OFI_MR_BASIC/& | FI_MR_HMEM/' "$1"
	[ "$(grep -c 'FI_HMEM\|FI_MR_HMEM' "$1")" -eq 3 ] || die "libfabric's tcp is not as it was: $1"
}

# build_one NAME ARGUMENT...: one of the two, with the test program.
build_one() {
	local to=$work/$1
	shift
	rm -rf "$to" && mkdir -p "$to/build" "$to/fabtests" && cd "$to/build" &&
		../../source/configure CFLAGS='-O1 -g0' --prefix="$to" --disable-static \
			--enable-only --enable-shm --enable-tcp --enable-rxm \
			--with-cuda="$cuda" --with-gdrcopy="$build/consumers/usr" "$@" &&
		make -j2 install && cd "$to/fabtests" &&
		../../source/fabtests/configure CFLAGS='-O1 -g0' --prefix="$to" \
			--with-libfabric="$to" --with-cuda="$cuda" &&
		make -j2 benchmarks/fi_rdm_tagged_pingpong
}

build_libfabric() {
	cd "$work/source" && { [ -x configure ] || ./autogen.sh; } &&
		{ [ -x fabtests/configure ] || (cd fabtests && ./autogen.sh); } &&
		(build_one linked) && (build_one dlopen --enable-cuda-dlopen --enable-gdrcopy-dlopen)
}

# one_side WAY BACKEND ARGUMENT...: server or client, checking the bytes it gets.
one_side() {
	local to=$work/$1 b=$2
	shift 2
	GDR_COUNT=$counts LD_LIBRARY_PATH="$to/lib:$build/front:$LD_LIBRARY_PATH" timeout 120 "$here/../on.sh" "$b" \
		"$to/fabtests/benchmarks/fi_rdm_tagged_pingpong" -v -E -D cuda -i 0 -I 50 "$@"
}

# both_sides WAY BACKEND ARGUMENT...: the client tries until the server listens.
both_sides() {
	local out=$build/consumers/libfabric- server n=0 status=1
	rm -rf "$counts" && mkdir -p "$counts"
	one_side "$@" >"${out}server.log" 2>&1 &
	server=$!
	while [ $((n += 1)) -le 50 ] && kill -0 "$server" 2>/dev/null; do
		one_side "$@" 127.0.0.1 >"${out}client.log" 2>&1 && status=0 && break
		grep -q 'Connection refused' "${out}client.log" || break
		sleep 0.1
	done
	[ "$status" -eq 0 ] || kill "$server" 2>/dev/null
	wait "$server" && return "$status"
}

# both_logs REGEX: it is in what either side wrote.
both_logs() {
	grep -q "$1" "$build/consumers/libfabric-server.log" &&
		grep -q "$1" "$build/consumers/libfabric-client.log"
}

install autoconf automake libtool gcc make
make_cuda
if fetch libfabric "$suite" "$work"; then
	tcp_knows_gpus "$work/source/prov/tcp/src/xnet_attr.c"
	: >"$work/.fetched"
fi
built "$work" build_libfabric

set +e
# The simulated driver, with dma-bufs that can be mapped.
export CUDA_SIM_DRIVER_VERSION=13030 CUDA_SIM_DMABUF_MMAP=1
export GDRCOPY_ENABLE_LOGGING=1 GDRCOPY_LOG_LEVEL=1 FI_OFI_RXM_ENABLE_DIRECT_SEND=0
for b in dmabuf rm; do
	for way in linked dlopen; do
		for size in 64 65536 1048576; do
			both_sides "$way" "$b" -p shm -S "$size" && both_logs "using the $b backend"
			result $? "$b, $way: pings of $size bytes over shm" \
				"$(tail -n 15 "$build/consumers/libfabric-client.log")"
			least "$b, $way: pings of $size bytes over shm" 2 "$counts" opens=1
		done
		for size in 1 64 4096 16000; do
			both_sides "$way" "$b" -p 'tcp;ofi_rxm' -S "$size" && both_logs '^DBG: *unpinned'
			result $? "$b, $way: pings of $size bytes over tcp;ofi_rxm" \
				"$(tail -n 15 "$build/consumers/libfabric-client.log")"
			least "$b, $way: pings of $size bytes over tcp;ofi_rxm" 2 "$counts" \
				opens=1 pins=1 maps=1 to="$size" from="$size"
		done
	done
done
done_testing
