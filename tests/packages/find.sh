#!/bin/bash
# SPDX-License-Identifier: MIT
#
# find.sh OUT - a small C program built as a consumer builds one, against the tarball of
# OUT, unpacked in a folder with a space in its name, and against `make install`'s tree:
# by pkg-config, by CMake's find_package, and by CMake's pkg-config module.
set -uo pipefail
# shellcheck source=tests/packages/lib.sh
. "$(dirname "$0")/lib.sh"
out=$(cd "$1" && pwd) || exit 1
# The simulated driver, and no libgdrapi of the build tree.
doubles=${LD_LIBRARY_PATH%%:*}
export LD_LIBRARY_PATH=$doubles

mkdir -p "$work/app" "$work/any where" "$work/root"
cat >"$work/app/app.c" <<'APP'
#include <stdio.h>
#include <gdrapi.h>
#include <gdrapi_ext.h>

int main(void)
{
	int major, minor;
	gdr_t g = gdr_open();

	gdr_runtime_get_version(&major, &minor);
	printf("%d.%d %s\n", major, minor, g ? "open" : "not open");
	return !g || gdr_close(g);
}
APP
cat >"$work/app/CMakeLists.txt" <<'APP'
cmake_minimum_required(VERSION 3.13)
project(app C)
if(BY_PKG_CONFIG)
	find_package(PkgConfig REQUIRED)
	pkg_check_modules(gdrapi REQUIRED IMPORTED_TARGET gdrapi)
	set(target PkgConfig::gdrapi)
else()
	find_package(gdrapi ${WANTED} REQUIRED)
	message(STATUS "gdrapi version: ${gdrapi_VERSION}")
	set(target gdrapi::gdrapi)
endif()
add_executable(app app.c)
target_link_libraries(app PRIVATE ${target})
APP

# runs PROGRAM LIBDIR: on the simulated driver, with the library of that folder alone.
runs() {
	local said
	said=$(LD_LIBRARY_PATH="$doubles${2:+:$2}" "$1") && echo "$said" && [ "$said" = '2.6 open' ]
}

# by_pkg_config PREFIX LIBDIR
by_pkg_config() {
	local flags
	flags=$(pkg-config --cflags --libs gdrapi) && echo "$flags" &&
		eval "cc -Wall -Werror -o '$work/by-pc' '$work/app/app.c' $flags" &&
		runs "$work/by-pc" "$1$2"
}

# by_cmake PREFIX ARGUMENTS...: CMake itself sets the run path.
by_cmake() {
	rm -rf "$work/build"
	cmake -S "$work/app" -B "$work/build" -DCMAKE_PREFIX_PATH="$1" "${@:2}" &&
		cmake --build "$work/build" && runs "$work/build/app" &&
		ldd "$work/build/app" | grep -F "$1"
}

# refused ARGUMENTS...: for its version, nothing else.
refused() {
	local said
	said=$(by_cmake "$@" 2>&1) && return 1
	said=$(tr -s ' \n' '  ' <<<"$said")
	echo "$said"
	[[ $said == *"compatible with requested version"* || $said == *"exactly matches requested version"* ]]
}

no_library() {
	local said
	rm "$work/root/usr/lib/libgdrapi.so.2" || return
	said=$(by_cmake "$work/root/usr" 2>&1) && return 1
	said=$(tr -s ' \n' '  ' <<<"$said")
	echo "$said"
	[[ $said == *"install the library beside this file"* ]]
}

# Relative paths alone are in the tree: it may lie anywhere.
tar -C "$work/any where" -xf "$out"/tarball/gdrapi-*-linux-*.tar.xz
tree=$(echo "$work/any where"/*)
export PKG_CONFIG_LIBDIR="$tree/lib/pkgconfig"
check "tarball: pkg-config" by_pkg_config "$tree" /lib
check "tarball: CMake" by_cmake "$tree"
check "tarball: CMake's pkg-config module" by_cmake "$tree" -DBY_PKG_CONFIG=1
program() {
	"$tree/bin/gdrcopy_sanity" && ldd "$tree/bin/gdrcopy_sanity" | grep -F "$tree"
}
check "tarball: a program finds the library beside it" program

# The tree of make install, as a distribution's packages have it.
check "make install" make -s -C "$here" all install DESTDIR="$work/root" prefix=/usr libdir=/usr/lib
export PKG_CONFIG_LIBDIR="$work/root/usr/lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$work/root"
check "make install: pkg-config" by_pkg_config "$work/root" /usr/lib
check "make install: CMake" by_cmake "$work/root/usr"
ln -s usr/lib "$work/root/lib"
check "make install: CMake, by a link to its folder" by_cmake "$work/root" -DCMAKE_FIND_ROOT_PATH="$work/root"
for v in 2 2.5 2.6; do check "CMake: version $v will do" by_cmake "$work/root/usr" "-DWANTED=$v"; done
for v in 1 2.7 3 '2.5;EXACT'; do check "CMake: version $v will not" refused "$work/root/usr" "-DWANTED=$v"; done
check "CMake: 2.6 EXACT will do" by_cmake "$work/root/usr" '-DWANTED=2.6;EXACT'
check "CMake says so where the library is not there" no_library
done_testing
