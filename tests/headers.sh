#!/bin/sh
# SPDX-License-Identifier: MIT
# The functions of the public headers, for the tests that name each of them.
#
# headers.sh HEADER... - one a line: name, result and arguments, with tabs between. A macro of a
#	function's name is a function of the type of the one that it stands for.
# headers.sh -c HEADER... - in C: HANDLES(name, takes) for a function that takes a gdr_t or
#	another handle, OTHER(name) for one that takes something else, NOTHING(name)
# headers.sh -p PAGE... - the prototypes of manual pages' synopses, in C
set -eu

functions() {
	cat "$@" | awk '
		{ text = text $0 "\n" }
		END {
			while (match(text, /\/\*([^*]|\*+[^*\/])*\*+\//))
				text = substr(text, 1, RSTART - 1) " " substr(text, RSTART + RLENGTH)
			n = split(text, lines, "\n")
			for (i = 1; i <= n; i++) {
				if (lines[i] ~ /^#define v?k?gdr_[a-z0-9_]+ v?k?gdr_[a-z0-9_]+$/) {
					split(lines[i], word, " ")
					macro[word[2]] = word[3]
				} else if (lines[i] !~ /^#|extern "C"|\\$/) {
					code = code " " lines[i]
				}
			}
			n = split(code, parts, ";")
			for (i = 1; i <= n; i++) {
				gsub(/[ \t]+/, " ", parts[i])
				sub(/^[ }]*(VKGDR_API )?/, "", parts[i])
				if (parts[i] !~ /^[A-Za-z_][A-Za-z0-9_ ]*[ *]v?k?gdr_[a-z0-9_]+\([^)]*\)$/)
					continue
				at = index(parts[i], "(")
				head = substr(parts[i], 1, at - 1)
				match(head, /v?k?gdr_[a-z0-9_]+$/)
				name = substr(head, RSTART)
				type[name] = substr(head, 1, RSTART - 1) "\t" substr(parts[i], at + 1, length(parts[i]) - at - 1)
			}
			for (name in macro)
				type[name] = type[macro[name]]
			for (name in type)
				print name "\t" type[name]
		}' | sort | grep .
}

in_c() {
	functions "$@" | awk -F '\t' '
		{ takes = "" }
		$3 ~ /(^| )gdr_t / { takes = takes " | TAKES_G" }
		$3 ~ /gdr_mh_t [a-z]|gdr_piece_t / { takes = takes " | TAKES_MH" }
		$3 ~ /gdr_mem_t [a-z]/ { takes = takes " | TAKES_MEM" }
		$3 ~ /gdr_cache_t [a-z]/ { takes = takes " | TAKES_CACHE" }
		takes { print "HANDLES(" $1 ", " substr(takes, 4) ")"; next }
		{ print ($3 == "void" ? "NOTHING" : "OTHER") "(" $1 ")" }' | grep .
}

pages() {
	awk '
		/^\.Sh / { on = /SYNOPSIS/ }
		!on { next }
		{ macro = $1; sub(/^[^ ]+ /, ""); gsub(/"/, "") }
		macro == ".In" { print "#include <" $0 ">" }
		macro == ".Ft" { printf "%s ", $0 }
		macro == ".Fo" { printf "%s(", $0; comma = "" }
		macro == ".Fa" { printf "%s%s", comma, $0; comma = ", " }
		macro == ".Fc" { print ");" }' "$@"
}

case $1 in
-c) shift; in_c "$@" ;;
-p) shift; pages "$@" ;;
*) functions "$@" ;;
esac
