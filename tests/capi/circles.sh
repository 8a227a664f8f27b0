#!/bin/sh
# SPDX-License-Identifier: MIT
# circles.sh DIR - the C files of capi/ call each other one way: none calls one that
# calls it, directly or by others. Nor does a header include one that includes it.
#
# Who calls whom is read from the object files, which are compiled in DIR without Go.
# A file's functions that Go calls, and Go's that a file calls, are not counted.
. tests/tap.sh
set -e
export LC_ALL=C
dir=$1/circles
cc=${CC:-cc}
rm -rf "$dir"
mkdir -p "$dir"

# one FILE: the object's name is the path, with _ for /.
one() {
	name=$(printf '%s' "${1#capi/}" | tr / _)
	"$cc" -std=gnu11 -O0 -w -Icapi -Itests/callgrind -c -o "$dir/$name.o" "$1"
	nm --defined-only --extern-only "$dir/$name.o" | awk -v f="$name" 'NF == 3 { print "has", f, $3 }'
	nm --undefined-only "$dir/$name.o" | awk -v f="$name" '{ print "needs", f, $2 }'
}

for f in capi/*.c capi/copy/*.c; do
	one "$f"
done >"$dir/symbols"
awk '$1 == "has" { owner[$3] = $2 }
     $1 == "needs" { file[++n] = $2; symbol[n] = $3 }
     END { for (i = 1; i <= n; i++)
		if (symbol[i] in owner && owner[symbol[i]] != file[i])
			print file[i], owner[symbol[i]] }' "$dir/symbols" | sort -u >"$dir/calls"
for f in capi/*.h capi/copy/*.h; do
	sed -nE 's/^#include "([^"]*)".*/\1/p' "$f" | while read -r to; do
		[ ! -f "capi/copy/$to" ] || [ "${f#capi/copy/}" = "$f" ] || to=copy/$to
		echo "${f#capi/} $to"
	done
done | sort -u >"$dir/includes"

# no_circle FILE: tsort names what is in a circle.
no_circle() {
	[ -s "$1" ] && tsort "$1" >/dev/null
}

# What is asked of CUDA is asked in relaxed.c's scope.
one_binding() {
	[ "$(awk '$1 == "needs" && $3 == "gdr_driver_find" { print $2 }' "$dir/symbols")" = relaxed.c ] &&
		[ "$(grep -lw unscoped capi/*.[ch] | tr '\n' ' ')" = 'capi/relaxed.c capi/relaxed.h ' ]
}

check "calls: $(wc -l <"$dir/calls") ways, no circle" no_circle "$dir/calls"
check "includes: $(wc -l <"$dir/includes") ways, no circle" no_circle "$dir/includes"
check "one file finds and calls CUDA's functions" one_binding
done_testing
