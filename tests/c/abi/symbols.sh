#!/bin/sh
# SPDX-License-Identifier: MIT
#
# abi/symbols.sh LIBRARY [FILE...] - what the shared object shows to the linker: its
# symbols, its name, what it needs, and how old a glibc may be; this for the other files, too.
. tests/tap.sh
export LC_ALL=C

lib=${1:?usage: $0 libgdrapi.so.2.6 [FILE...]}
readelf=${READELF:-readelf}

dynamic=$("$readelf" -dW "$lib") || { echo "Bail out! $readelf cannot read $lib"; exit 1; }
symbols=$("$readelf" --dyn-syms -W "$lib")
exported=$(printf '%s\n' "$symbols" |
	awk '$1 ~ /^[0-9]+:$/ && $7 != "UND" && $5 != "LOCAL" && $7 != "ABS" { print $8 }' |
	sort -u)
# As readelf writes them: those of gdrapi.h have no version, the others that of the package's list.
documented=$({
	tests/headers.sh include/gdrapi.h | cut -f 1
	tests/headers.sh include/gdrapi_ext.h | cut -f 1 | while read -r name; do
		sed -n "s/^ $name@\\(GDRAPI_EXT_[0-9]*\\) .*/$name@@\\1/p" packaging/deb/debian/libgdrapi2.symbols | grep . || echo "$name"
	done
} | sort -u)

# tag NAME: the values of a dynamic entry, in one line.
tag() {
	printf '%s\n' "$dynamic" | sed -n "s/.*($1).*\[\(.*\)\].*/\1/p" | sort | tr '\n' ' ' | sed 's/ $//'
}

none "every documented function is exported, with its version" \
	"$(printf '%s\n' "$exported" "$exported" "$documented" | sort | uniq -u)"
none "nothing else is exported" \
	"$(printf '%s\n' "$documented" "$documented" "$exported" | sort | uniq -u)"
is "the package's list has these, and no other" "$(sed -n 's/^ \(gdr_[a-z0-9_]*\)@.*/\1/p' packaging/deb/debian/libgdrapi2.symbols)" \
	"$(printf '%s\n' "$documented" | sed 's/@.*//' | sort)"
none "no symbol of Go or cgo is exported" \
	"$(printf '%s\n' "$exported" | grep -Ei '^_?(_|x_|crosscall|cgo|go|runtime|main\.)' || true)"
none "every export is a function" "$(printf '%s\n' "$symbols" |
	awk '$7 != "UND" && $8 ~ /^gdr_/ && $4 != "FUNC"')"
is "the SONAME" "$(tag SONAME)" "libgdrapi.so.2"
none "only glibc is needed" "$(tag NEEDED | tr ' ' '\n' |
	grep -Ev '^(libc\.so\.6|libdl\.so\.2|libpthread\.so\.0|ld-linux.*|ld64\.so\.[12])$' || true)"
none "no text relocation" "$(printf '%s\n' "$dynamic" | grep TEXTREL || true)"
none "no run path" "$(printf '%s\n' "$dynamic" | grep -E 'R(UN)?PATH' || true)"
none "the stack is not executable" "$("$readelf" -lW "$lib" | awk '$1 == "GNU_STACK" && /RWE/')"
none "no segment is writable and executable" \
	"$("$readelf" -lW "$lib" | awk '$1 == "LOAD" && /RWE/')"

# newer VERSION FILE: the symbols of a newer glibc that it needs.
newer() {
	"$readelf" --dyn-syms -W "$2" >"$work/needs" || return
	sed -n 's/.* UND \(.*@GLIBC_\([0-9.]*\)\).*/\2 \1/p' "$work/needs" | awk -v old="$1" '
		{ split($1, v, "."); split(old, o, "."); if (v[1] > o[1] || v[1] == o[1] && v[2] + 0 > o[2] + 0) print $2 }'
}

# What docs/install.md says.
none "runs on glibc 2.31" "$(newer 2.31 "$lib" || echo "$readelf failed")"
shift
for file; do
	none "${file##*/} runs on glibc 2.34" "$(newer 2.34 "$file" || echo "$readelf failed")"
done

done_testing
