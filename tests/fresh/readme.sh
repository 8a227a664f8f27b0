#!/bin/sh
# SPDX-License-Identifier: MIT
#
# readme.sh [DESTDIR LIBDIR] - README.md's first program, taken from README.md: its
# own line compiles and runs it, and it must print what it read. With DESTDIR the
# library is the one that `make install DESTDIR=` put there, else the installed one.
# The driver is whatever libcuda.so.1 is found: the simulated one in `make check`.
here=$(cd "$(dirname "$0")" && pwd)
readme=$here/../../README.md
# shellcheck source=tests/tap.sh
. "$here/../tap.sh"

# block LANGUAGE N: the N-th block of that language.
block() {
	awk -v fence="\`\`\`$1" -v want="$2" '
		$0 == fence { n++; inside = n == want; next }
		/^```/ { inside = 0 }
		inside' "$readme"
}

if [ $# -eq 2 ]; then
	export PKG_CONFIG_LIBDIR="$1$2/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$1"
	export LD_LIBRARY_PATH="$1$2:${LD_LIBRARY_PATH-}"
fi

# runs: the line, with no error. What it printed is left in out.
runs() {
	sh -eu line >out 2>&1 || { cat out; return 1; }
}

cd "$work" || exit 1
block c 2 >example.c
block sh 4 >line
check "pkg-config knows gdrapi 2.6" pkg-config --exact-version=2.6 gdrapi
check "README.md has a program" grep -q '^int main' example.c
check "and the line that compiles and runs it" \
	grep -q '^cc example.c .*pkg-config.*&& .*[.]/example$' line
check "the line does, with no error" runs
check "what was written is read back" \
	grep -qx 'wrote 42 to GPU memory at 0x[0-9a-f]*, read 42' out
done_testing
