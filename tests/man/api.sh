#!/bin/sh
# SPDX-License-Identifier: MIT
# Section 3 against the library: api.sh BUILD. What is exported is documented, as
# the headers declare it; the environment, the constants and the examples are true.
. tests/man/pages.sh
build=$1
cc=${CC:-cc}
cflags='-std=gnu11 -Wall -Wextra -Werror -Iinclude'
api=$man/man3

exported() {
	readelf --dyn-syms -W "$build/libgdrapi.so.2" |
		awk '$4 == "FUNC" && $7 != "UND" && $8 !~ /@@GDRAPI_PRIVATE$/ { sub(/@.*/, "", $8); print $8 }'
}

documented() {
	for page in "$api"/*.3; do
		section "$page" SYNOPSIS | awk '$1 == ".Fo" && $2 ~ /^gdr_/ { print $2 }'
	done
}

# has_page FUNCTION - there is a page of that name that has what a page needs.
has_page() {
	page=$api/$1.3
	names "$page" | grep -qx "$1" &&
		section "$page" SYNOPSIS | grep -qx "\.Fo $1" &&
		section "$page" DESCRIPTION | grep -qE "^\.Fn $1( |\$)" &&
		grep -qx '\.Ss Threads and signals' "$page" &&
		section "$page" 'RETURN VALUES' | grep -q . &&
		section "$page" ERRORS | grep -q 'Er EINVAL'
}

# examples PAGE - its example of a C file, if it has one.
examples() {
	section "$1" EXAMPLES | awk '
		/^\.Bd -literal/ { getline; on = /^#include/ }
		/^\.Ed/ { on = 0 }
		on' | sed 's/\\e/\\/g'
}

compiles() {
	# shellcheck disable=SC2086 # flags are words
	$cc $cflags -fsyntax-only "$1"
}

# The example of gdrapi(3) is a program, and does what it says.
runs() {
	# shellcheck disable=SC2086 # flags are words
	$cc $cflags -o "$work/word" "$work/gdrapi.c" -L"$build" -lgdrapi &&
		GDRCOPY_ENABLE_LOGGING=1 tests/on.sh "$1" "$work/word" >"$work/word.out" &&
		[ "$(cat "$work/word.out")" = 42 ]
}

# The environment's variables, by their names in capi/guest/env.c.
variables() {
	grep -ohE '"[A-Z]+_[A-Z_]+"' capi/guest/env.c | tr -d '"'
}

# Only env.c asks for one, of C's and Go's code.
asked_elsewhere() {
	grep -rnE --include='*.c' --include='*.h' --include='*.go' --exclude='env.c' --exclude='*_test.go' \
		--exclude-dir='*test' '([gG]etenv|os\.(LookupEnv|Environ))\(' capi core
}

# Each is in the one or the other of the pages that people read first.
in_docs() {
	cat README.md docs/*.md >"$work/docs"
	variables | each_is_in "$work/docs"
}

known_to_doctor() {
	variables | each_is_in cmd/gdrcopy_doctor/internal/facts/root.go
}

# The copy routines, which GDRCOPY_COPY_IMPL names.
routines() {
	sed -n 's/^#define NAME "\(.*\)"/\1/p' capi/copy/*.c >"$work/routines"
	[ -s "$work/routines" ] && each_is_in "$api/gdrapi.3" <"$work/routines"
}

enumerators() {
	grep -ohE '^[[:space:]]GDR_(PIN_FLAG|MAP_FLAG|MAPPING_TYPE|ATTR)_[A-Z_]+' include/gdrapi.h |
		tr -d '\t' | grep -v '_MAX$'
}

constants() {
	cat "$api"/*.3 | awk '{ for (i = 1; i < NF; i++) if ($i ~ /^\.?Dv$/) print $(i + 1) }' |
		grep -E "^($1)" | sort -u
}

# each_is_in FILE - every word of standard input is in FILE.
each_is_in() {
	while read -r word; do
		grep -qw "$word" "$1" || { echo "$word is not in $1"; return 1; }
	done
}

constants_exist() {
	constants 'GDR_|GPU_|MINIMUM_' >"$work/constants"
	cat include/gdrapi.h include/gdrapi_ext.h >"$work/headers"
	[ -s "$work/constants" ] && each_is_in "$work/headers" <"$work/constants"
}

check "what is exported is documented, and the other way" same "$(exported)" "$(documented)"
for function in $(exported); do
	check "$function has a page" has_page "$function"
	check "gdrapi(3) leads to $function" grep -qE "^\.(Fn|It Xr) $function( |\$)" "$api/gdrapi.3"
done
for page in $(pages | grep '/man3/'); do
	examples "$page" >"$work/$(basename "$page" .3).c"
	if [ -s "$work/$(basename "$page" .3).c" ]; then
		check "the example of $page compiles" compiles "$work/$(basename "$page" .3).c"
	fi
done
for backend in $(tests/on.sh); do
	check "the example of gdrapi(3) runs on $backend" runs "$backend"
done
check "the environment is what the code reads" same "$(variables)" "$(items "$api/gdrapi.3" Ev)"
check "nothing else reads the environment" test -z "$(asked_elsewhere)"
check "README.md or docs/ names each variable" in_docs
check "gdrcopy_doctor looks at each variable" known_to_doctor
check "gdrapi(3) names each copy routine" routines
check "every flag, type and attribute is documented" same "$(enumerators)" \
	"$(constants 'GDR_(PIN_FLAG|MAP_FLAG|MAPPING_TYPE|ATTR)_')"
check "every constant of the pages is in the header" constants_exist
done_testing
