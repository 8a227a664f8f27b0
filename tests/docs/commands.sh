#!/bin/sh
# SPDX-License-Identifier: MIT
#
# commands.sh BUILD - what the pages say to type. The C of docs/ordering.md compiles,
# and its PTX is that of examples/flag.c. The commands of docs/migrate.md and of
# docs/consumers.md run, on the doubles that the environment names. BUILD is the
# project's build folder.
here=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$1" && pwd) || exit 1
# shellcheck source=tests/tap.sh
. "$here/tests/tap.sh"

# blocks PAGE LANGUAGE: each block of that language as a file, $work/PAGE-LANGUAGE-N.
blocks() {
	awk -v fence="\`\`\`$2" -v out="$work/$1-$2-" '
		!inside && $0 ~ "^ *" fence "$" { inside = 1; n++; next }
		/^ *```/ { inside = 0 }
		inside { print >(out n) }' "$here/docs/$1.md"
}

compiles() {
	cc -x c -std=gnu11 -O2 -Wall -Wextra -Werror -I"$here/include" -I"$here/examples" \
		-c -o /dev/null "$1"
}

# ptx FILE: each line is one of flag.c's.
ptx() {
	while read -r line; do
		grep -F "\"	$line\\n\"" "$here/examples/flag.c" || { echo "flag.c has no: $line"; return 1; }
	done <"$1"
}

x86=$(uname -m)
blocks ordering c
blocks ordering ptx
for f in "$work"/ordering-c-*; do
	what="ordering.md, block ${f##*-} of C"
	if [ "$x86" != x86_64 ] && grep -q immintrin.h "$f"; then
		skip "$what" "it is for x86-64"
	else
		check "$what" compiles "$f"
	fi
done
for f in "$work"/ordering-ptx-*; do
	check "ordering.md, block ${f##*-} of PTX" ptx "$f"
done
done_testing
