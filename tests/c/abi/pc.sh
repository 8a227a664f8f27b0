#!/bin/sh
# SPDX-License-Identifier: MIT
#
# abi/pc.sh ROOT LIBDIR - a consumer's way to an installed library: pkg-config
# gives the flags, the compiler takes them, the program runs. ROOT is the
# DESTDIR of `make install`, LIBDIR the libdir that it was given.
. tests/tap.sh

root=${1?usage: $0 destdir libdir}
libdir=${2:?usage: $0 destdir libdir}

export PKG_CONFIG_LIBDIR="$root$libdir/pkgconfig"
export PKG_CONFIG_SYSROOT_DIR="$root"

cat >"$work/app.c" <<'APP'
#include <stdio.h>
#include <gdrapi.h>
#include <gdrapi_ext.h>

int main(void)
{
	int major = 0, minor = 0;

	gdr_runtime_get_version(&major, &minor);
	printf("%d.%d\n", major, minor);
	return major != GDR_API_MAJOR_VERSION || minor != GDR_API_MINOR_VERSION;
}
APP

# The flags are several words.
# shellcheck disable=SC2046
build() {
	${CC:-cc} -Wall -Wextra -Werror -o "$work/app" "$work/app.c" \
		$(pkg-config --cflags --libs gdrapi)
}

# dlopen by the plain name is how NCCL finds the library.
links() {
	[ "$(readlink "$root$libdir/libgdrapi.so")" = libgdrapi.so.2 ] &&
	[ "$(readlink "$root$libdir/libgdrapi.so.2")" = libgdrapi.so.2.6 ] &&
	[ -f "$root$libdir/libgdrapi.so.2.6" ]
}

check "pkg-config knows gdrapi 2.6" pkg-config --exact-version=2.6 gdrapi
check "the installed links" links
check "a program compiles with its flags" build
check "the program gets version 2.6" env LD_LIBRARY_PATH="$root$libdir" "$work/app"
done_testing
