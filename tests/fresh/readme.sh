#!/bin/sh
# SPDX-License-Identifier: MIT
#
# readme.sh [DESTDIR LIBDIR] - README.md's first program, taken from README.md: its
# own line compiles and runs it, and it must print what it read. With DESTDIR the
# library is the one that `make install DESTDIR=` put there, else the installed one.
# The driver is whatever libcuda.so.1 is found: the simulated one in `make check`.
set -u

readme=$(cd "$(dirname "$0")/../.." && pwd)/README.md
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# block LANGUAGE N: the N-th block of that language.
block() {
	awk -v fence="\`\`\`$1" -v want="$2" '
		$0 == fence { n++; inside = n == want; next }
		/^```/ { inside = 0 }
		inside' "$readme"
}

# result NAME STATUS: one TAP line; the program's output when it is not 0.
result() {
	if [ "$2" -eq 0 ]; then
		passed=$((passed + 1))
		echo "ok $((passed + failed)) - $1"
	else
		failed=$((failed + 1))
		echo "not ok $((passed + failed)) - $1"
		sed 's/^/# /' "$work/out"
	fi
}

if [ $# -eq 2 ]; then
	export PKG_CONFIG_LIBDIR="$1$2/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$1"
	export LD_LIBRARY_PATH="$1$2:${LD_LIBRARY_PATH-}"
fi

cd "$work" || exit 1
: >out
block c 1 >example.c
block sh 4 >line
grep -q '^int main' example.c
result "README.md has a program" $?
grep -q '^cc example.c .*pkg-config.*&& .*[.]/example$' line
result "and the line that compiles and runs it" $?
sh -eu line >out 2>&1
result "the line does, with no error" $?
grep -qx 'wrote 42 to GPU memory at 0x[0-9a-f]*, read 42' out
result "what was written is read back" $?

echo "1..$((passed + failed))"
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
