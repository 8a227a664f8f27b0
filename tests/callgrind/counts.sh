#!/bin/sh
# SPDX-License-Identifier: MIT
# counts.sh DIR [--update]: builds counts.c and the copies in DIR, runs them under
# callgrind, and compares the instructions of each copy with counts.txt, or writes that
# anew. Counted is what runs of capi/.
#
# Counts repeat exactly, but with one compiler: another one's are not compared.
set -eu
export LC_ALL=C
here=tests/callgrind
dir=$1/callgrind
cc=${CC:-cc}
with="$("$cc" --version | head -n 1), $("$cc" -dumpmachine)"

# bail WHY: nothing can be compared here.
bail() {
	echo "ok 1 - instruction counts # SKIP $1"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
}

if [ "${2-}" != --update ] && [ "$with" != "$(sed -n 's/^# compiler: //p' $here/counts.txt)" ]; then
	bail "counts.txt was made by another compiler, not by $with; '$0 $1 --update' makes it anew"
fi
rm -rf "$dir"
mkdir -p "$dir"
"$cc" -std=gnu11 -O2 -g -fPIC -w -Icapi -Iinclude -Itests/c -o "$dir/counts" \
	$here/counts.c capi/copy_one.c capi/copy/*.c -lpthread
valgrind -q --tool=callgrind --separate-threads=yes --dump-before=mark --compress-strings=no \
	--compress-pos=no --dump-instr=no --callgrind-out-file="$dir/out" "$dir/counts" >"$dir/names"

# instructions FILE: the costs that lines of files in capi/ have themselves. The
# line after calls= is what the callee costs.
instructions() {
	awk -v capi="$PWD/capi/" '/^f[lie]=/ { ours = index($0, capi) || /intrin/ }
	     /^calls=/ { getline; next }
	     ours && /^[0-9+*-]/ { sum += $2 }
	     END { print sum + 0 }' "$1"
}

# The dumps come two for each call: all before it, then its own.
{
	echo "# Instructions of a copy, copy routine sse4.1. '$here/counts.sh DIR --update'"
	echo "# compiler: $with"
	n=0
	while read -r name; do
		n=$((n + 2))
		echo "$name $(instructions "$dir/out.$n-01")"
	done <"$dir/names"
} >"$dir/counts.txt"

if [ "${2-}" = --update ]; then
	cp "$dir/counts.txt" $here/counts.txt
	echo "$here/counts.txt is new"
	exit
fi
awk 'FNR == 1 { file++ }
     /^#/ { next }
     file == 1 { want[$1] = $2; next }
     { seen[$1] = 1; n++
       if (want[$1] == $2) { passed++; printf "ok %d - %s is %d\n", n, $1, $2 }
       else { failed++; printf "not ok %d - %s is %d, not %d\n", n, $1, $2, want[$1] } }
     END { for (name in want) if (!(name in seen)) {
		failed++; printf "not ok %d - %s is counted no more\n", ++n, name }
	   printf "1..%d\n%d passed, %d failed, 0 skipped\n", n, passed, failed
	   exit failed > 0 || n == 0 }' $here/counts.txt "$dir/counts.txt"
