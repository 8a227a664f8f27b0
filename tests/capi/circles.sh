#!/bin/sh
# SPDX-License-Identifier: MIT
# circles.sh DIR - the C files of capi/, of kmod/ and of tools/ call each other one way: none
# calls one that calls it, directly or by others. Nor does a header include one that
# includes it. Go has no circles: its compiler takes none.
#
# Who calls whom is read from object files: those that the build made of tools/, and those of capi/,
# which are compiled in DIR without Go; and in kmod/ from the sources, without the kernel's
# headers. What goes through a function's address, between C and Go, and a header's static inline
# function of kmod/, is not counted.
. tests/tap.sh
set -e
export LC_ALL=C
build=$(realpath "$1")
dir=$build/circles
rm -rf "$dir"
mkdir -p "$dir/go" "$dir/obj/capi/copy" "$dir/obj/capi/guest"
(cd capi && ${GO:-go} tool cgo -objdir "$dir/_cgo" -- main.go >/dev/null)

# kernel FILE: what a file of kmod/ has and needs. Its own header's macros count. The kernel's
# headers, and those that the build makes, are empty ones of DIR.
kernel() {
	"${CC:-cc}" -E -nostdinc -DCONFIG_X86 -DGDR_HAVE_PERSISTENT -I"$dir/empty" "$1" |
		awk -v f="$1" '
		/^# [0-9]+ "/ { here = index($3, "\"" f "\""); next }
		!here { next }
		/^[a-z]/ && !/^(static|typedef)/ && match($0, /gdr_[a-z0-9_]+( = .*)?[(;]/) {
			name = substr($0, RSTART)
			sub(/[^a-z0-9_].*/, "", name)
			print "has", f, name
		}
		{
			gsub(/"([^"\\]|\\.)*"/, "")
			gsub(/[^A-Za-z0-9_]+/, " ")
			for (i = 1; i <= NF; i++)
				if ($i ~ /^gdr_/)
					print "needs", f, $i
		}'
}

sed -nE -e 's/^#include <(.*)>.*/\1/p' -e '$a gdrdrv_config.h\ngdrdrv_nvidia.h' kmod/*.[ch] |
	sort -u | sed "s#^#$dir/empty/#" >"$dir/files"
xargs dirname <"$dir/files" | sort -u | xargs mkdir -p
xargs touch <"$dir/files"
# What cgo would make of capi/main.go.
{
	echo '#include "core.h"'
	grep -hoE 'gdrcore_[a-z_]+' capi/*.c capi/*/*.c | sort -u | sed 's/.*/int &();/'
} >"$dir/go/_cgo_export.h"
for folder in capi capi/copy capi/guest; do
	(top=$PWD && cd "$dir/obj/$folder" &&
		"${CC:-cc}" -std=gnu11 -O0 -w -I"$top/capi" -I"$top/include" -I"$dir/go" -c "$top/$folder/"*.c)
done
# -A: each line begins with its file.
{
	(cd "$dir/obj" && find capi -name '*.o' -exec nm -A -g {} +)
	find tools -name '*.c' | sed 's/c$/o/' | (cd "$build/obj" && xargs nm -A -g)
} >"$dir/names"
awk '$NF != "main" {
	file = $1
	sub(/\.o:.*/, ".c", file)
	print ($(NF - 1) == "U" || $(NF - 1) == "w" ? "needs" : "has"), file, $NF
}' "$dir/names" >"$dir/symbols"
for f in kmod/*.c; do
	kernel "$f"
done >>"$dir/symbols"
awk '{ split($2, part, "/"); key = part[1] " " $3 }
     $1 == "has" { owner[key] = $2 }
     $1 == "needs" { file[++n] = $2; symbol[n] = key }
     END { for (i = 1; i <= n; i++)
		if (symbol[i] in owner && owner[symbol[i]] != file[i])
			print file[i], owner[symbol[i]] }' "$dir/symbols" | sort -u >"$dir/calls"
find capi include kmod tools -name '*.[ch]' >"$dir/files"
xargs grep -H '^#include "' <"$dir/files" >"$dir/names"
awk -F '[:"]' '
	FNR == NR { known[$1]; next }
	{
		from = $1
		sub(/[^\/]*$/, "", from)
		n = split(from " capi/ include/ tools/ tools/bench/", folder, " ")
		for (i = 1; i <= n; i++) {
			to = folder[i] $3
			while (sub(/[^\/]+\/\.\.\//, "", to))
				;
			if (to in known) {
				print $1, to
				break
			}
		}
	}' "$dir/files" "$dir/names" | sort -u >"$dir/includes"

# no_circle FILE: tsort names what is in a circle.
no_circle() { [ -s "$1" ] && tsort "$1" >/dev/null; }

# core/cuda alone knows the names of CUDA's functions.
one_binding() {
	[ "$(grep -rlE '"cu[A-Z][A-Za-z0-9_]*"' capi core --include=*.go --include=*.[ch] | grep -v _test.go | sort | tr '\n' ' ')" = \
		'core/cuda/cudatest/cudatest.go core/cuda/driver.go ' ]
}

# knows_only FOLDER FOLDERS: what a file there includes lies in these. Copies know copies,
# the guest knows both, and the rest of capi/ knows all.
knows_only() { ! grep "^capi/$1/" "$dir/includes" | grep -vE " capi/($2)/"; }

# One file of C calls Go, and one file of Go calls C.
one_way_to_go() { [ "$(grep -lE '_cgo_export|gdrcore_[a-z_]+\(' capi/*.c capi/*/*.c)" = capi/abi.c ]; }
one_way_to_c() { [ "$(grep -rlE '\bC\.[a-z_]*(gdr_|map_|munmap)[a-z_]*\(' capi --include=*.go)" = capi/guest/guest.go ]; }

check "calls: $(wc -l <"$dir/calls") ways, no circle" no_circle "$dir/calls"
check "includes: $(wc -l <"$dir/includes") ways, no circle" no_circle "$dir/includes"
check "capi/copy knows nobody above it" knows_only copy copy
check "capi/guest knows nobody above it" knows_only guest 'guest|copy'
check "one file of C calls Go" one_way_to_go
check "one file of Go calls C" one_way_to_c
check "one file has the names of CUDA's functions" one_binding
done_testing
