#!/bin/sh
# SPDX-License-Identifier: MIT
# stubs.sh DIR - makes libpthread.so.0 and libdl.so.2 in DIR, to link against.
#
# glibc 2.34 moved the functions of these two into libc.so.6, under new symbol
# versions that no older glibc has. Linked against stubs that still have them
# where they were, with the version they have had since the architecture's first
# glibc, the library runs on both: an old glibc finds the functions there, a new
# one finds them in libc.so.6 under the old version.
set -eu
dir=$1
mkdir -p "$dir"
case $("${GDR_CC:-cc}" -dumpmachine) in
x86_64-*) base=GLIBC_2.2.5 ;;
*) base=GLIBC_2.17 ;;
esac
echo "$base { *; };" >"$dir/map"

# make NAME FUNCTION...: the bodies are never run.
make() {
	name=$1
	shift
	for f; do
		echo "void $f(void); void $f(void) {}"
	done >"$dir/$name.c"
	"${GDR_CC:-cc}" -shared -fPIC -fno-builtin -nostdlib -w -Wl,-soname,"$name" \
		-Wl,--version-script="$dir/map" -o "$dir/$name" "$dir/$name.c"
}

make libpthread.so.0 pthread_create pthread_detach pthread_join pthread_setspecific pthread_sigmask pthread_attr_setstacksize
make libdl.so.2 dlopen dlsym dlclose dlerror
