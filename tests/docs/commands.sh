#!/bin/sh
# SPDX-License-Identifier: MIT
#
# commands.sh BUILD - what the pages say to type. The C of docs/ordering.md compiles,
# and its PTX is that of examples/flag.c. The commands of docs/migrate.md run on the
# simulated driver that the environment names. BUILD is the project's build folder.
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

# runs FILE: its commands, on the simulated driver. What stands for the reader's folder
# is one with the library and that driver. Each command must print what the reader is
# told to look for.
runs() {
	sed "s#/opt/gdrapi#$work/opt#g" "$1" >"$work/line"
	(cd "$work" && PATH=$build/bin:$PATH "$RM_SIM" sh -eux line) >"$work/out" 2>&1 ||
		{ cat "$work/out"; return 1; }
	cat "$work/out"
	case $(cat "$1") in
	*/opt/gdrapi*) [ "$(grep -c '^INFO: gdr_open: using the rm backend$' "$work/out")" -eq 2 ] ;;
	*LD_DEBUG*) grep -q "calling init: $build/libgdrapi.so.2$" "$work/out" &&
		grep -q "libgdrapi.so.2 is $build/.*this project's" "$work/out" ;;
	*gdrcopy_sanity*) grep -q ' 0 failed' "$work/out" && grep -q '^# backend: rm$' "$work/out" ;;
	*gdrcopy_copylat*) grep -q '^# backend: rm$' "$work/out" ;;
	*) echo "this test does not know what it should print"; return 1 ;;
	esac
}

machine=$(uname -m)
blocks ordering c
blocks ordering ptx
for f in "$work"/ordering-c-*; do
	what="ordering.md, block ${f##*-} of C"
	if [ "$machine" != x86_64 ] && grep -q immintrin.h "$f"; then
		skip "$what" "it is for x86-64"
	else
		check "$what" compiles "$f"
	fi
done
for f in "$work"/ordering-ptx-*; do
	check "ordering.md, block ${f##*-} of PTX" ptx "$f"
done

mkdir -p "$work/opt/lib" && cp -a "$build"/libgdrapi.so* "$work/opt/lib/" &&
	cp -a "$build"/doubles/libcuda.so.1 "$work/opt/lib/" || exit 1
blocks migrate sh
for f in "$work"/migrate-sh-*; do
	what="migrate.md, block ${f##*-} of commands"
	if [ "$machine" != x86_64 ]; then
		skip "$what" "rm is simulated on x86-64 alone"
	else
		check "$what" runs "$f"
	fi
done

# go_program: what docs/go.md says to type builds its program, which says hello. It builds for arm64, too.
go_program() {
	mkdir "$work/go" && cp "$work/go-go-1" "$work/go/main.go" && sed "s#\.\./gdrapi#$here#" "$work/go-sh-1" >"$work/go/line" || return 1
	(cd "$work/go" && sh -eux line && CGO_ENABLED=0 GOARCH=arm64 $(sh "$here/setup.sh" --go) build -o hello.arm64 . && ./hello) >"$work/out" 2>&1 ||
		{ cat "$work/out"; return 1; }
	grep -x 'hello, GPU' "$work/out"
}
blocks go go
blocks go sh
check "go.md, its program" go_program

# conf: packaging/ucx.conf has the settings that docs/consumers.md gives UCX, and no others.
conf() {
	sed -n 's/^export \(UCX_.*\)/\1/p' "$here/docs/consumers.md" >"$work/page-conf"
	[ -s "$work/page-conf" ] && grep -v '^#' "$here/packaging/ucx.conf" | diff "$work/page-conf" -
}
check "packaging/ucx.conf is consumers.md's" conf
done_testing
