#!/bin/sh
# SPDX-License-Identifier: MIT
#
# installed.sh DESTDIR LIBDIR - libvkgdr.so as it was installed: its names, what it needs,
# its manual page, and a program that finds it by pkg-config, in C and in C++.
. tests/man/pages.sh
root=$1 libdir=$2
lib=$root$libdir/libvkgdr.so
export PKG_CONFIG_LIBDIR="$root$libdir/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$root"
export LD_LIBRARY_PATH="$root$libdir:${LD_LIBRARY_PATH-}"

declared() {
	sed -n 's/^VKGDR_API .*[ *]\(vkgdr_[a-z_]*\)(.*/\1/p' include/vkgdr.h | sort
}

exported() {
	nm -D --defined-only "$lib" | awk '{ print $3 }' | sort
}

needed() {
	objdump -p "$lib" | awk '$1 == "NEEDED" && $2 !~ /^(libc|libdl|libpthread|ld-linux[^.]*|ld64)\.so/ { print $2 }'
}

documented() {
	section "$man/man3/vkgdr.3" SYNOPSIS | awk '$1 == ".Fo" { print $2 }' | sort
}

cat >"$work/app.c" <<'APP'
#include <vkgdr.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
	enum vkgdr_open_flags flags = VKGDR_OPEN_REQUIRE_COHERENT_BIT;
	vkgdr_t g = vkgdr_open(99, flags);
	char *why = vkgdr_last_error();

	printf("%s\n", why);
	free(why);
	vkgdr_close(g);
	return g != NULL;
}
APP

# build COMPILER FLAG... - the flags of pkg-config are several words.
build() {
	# shellcheck disable=SC2046
	"$@" -Wall -Wextra -Werror -o "$work/app" $(pkg-config --cflags --libs vkgdr)
}

check "what is declared is exported, and no more" same "$(declared)" "$(exported)"
check "it is a library on libgdrapi.so.2, which has the one Go runtime" same libgdrapi.so.2 "$(needed)"
check "every function is in vkgdr(3)" same "$(declared)" "$(documented)"
check "a C program compiles" build "${CC:-cc}" -std=gnu11 "$work/app.c"
check "and runs" "$work/app"
check "a C++ program compiles" build "${CXX:-c++}" -x c++ -std=c++11 "$work/app.c"
check "and runs" "$work/app"
done_testing
