# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# build.sh - sourced, after the build.sh above. UCX of Debian's source package, built
# against this library and the simulated CUDA. $prefix is where it is.

: "${build:?}" "${here:?}" "${cuda:?}" "${log:?}"
suite=${UCX_SUITE:-bookworm}
work=$GDRAPI_VM_CACHE/ucx-${suite##*/}
prefix=$work/installed

fetch_ucx() {
	fetch ucx "$suite" "$work" || return 0
	# Its configure.ac names the files of the upstream's packaging, which Debian renames.
	[ ! -d "$work/source/debian.upstream" ] || mv "$work/source/debian.upstream" "$work/source/debian"
	# Its tests of put and get give up on a transport that allocates nothing; not here.
	sed -i 's/sender()[.]md_attr()[.a-z]*max_alloc/(& ? & : 40.0 * UCS_MBYTE)/' \
		"$work/source/test/gtest/uct/uct_p2p_test.cc"
	grep -q '40.0 [*] UCS_MBYTE' "$work/source/test/gtest/uct/uct_p2p_test.cc" ||
		die "UCX's uct_p2p_test.cc is not as it was"
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
		../source/configure CFLAGS='-O1 -g0 -Wno-error' CXXFLAGS='-O1 -g0' --prefix="$prefix" \
			--enable-mt --enable-gtest --disable-static --disable-numa --disable-doxygen-doc \
			--without-java --without-go --without-verbs --without-rdmacm --without-rocm \
			--without-knem --without-xpmem --without-fuse3 \
			--with-cuda="$cuda" --with-gdrcopy="$build/consumers/usr" &&
		for d in src/ucm src/ucs src/uct src/ucp src/tools/info src/tools/perf; do
			make -C $d -j2 install || return
		done &&
		make -C test/gtest/common/googletest -j2 &&
		make -C test/gtest -j2 gtest CXXFLAGS='-O1 -g0' BASE_CXXFLAGS=-w \
			am_gtest_OBJECTS="$(gtest_objects test/gtest) ucm/gtest-cuda_hooks.o"
}

install autoconf automake libtool g++ make pkg-config
make_cuda
fetch_ucx
built "$work" build_ucx
export LD_LIBRARY_PATH="$prefix/lib:$LD_LIBRARY_PATH"

# program NAME LIBRARY...: one of the programs here that use UCX.
program() {
	local of=$1
	shift
	cc -std=gnu11 -O1 -g -Wall -Wextra -Werror -I"$here/../../include" -I"$here/../../tools" \
		-isystem "$prefix/include" -isystem "$work/source/src" -o "$build/consumers/$of" \
		"$here/ucx/$of.c" "$here/../../tools/cuda_dl.c" -L"$prefix/lib" -L"$cuda/lib64" "$@" \
		-lucs -lucm -ldl -Wl,-rpath-link,"$LD_LIBRARY_PATH" >>"$log" 2>&1 ||
		die "$of.c does not compile: see $log"
}
