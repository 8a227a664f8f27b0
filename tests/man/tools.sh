#!/bin/sh
# SPDX-License-Identifier: MIT
# Section 1 against the programs: tools.sh PROGRAM... Each has a page, and the
# page has the options that the program's -h prints, and no other.
. tests/man/pages.sh

page_of() {
	echo "$man/man1/$(basename "$1").1"
}

helped() {
	"$1" -h | grep -E '^ +-' | grep -oE '(^|[ ,])--?[A-Za-z][a-z-]*' | tr -d ' ,'
}

# options - those of the lines of standard input, by the Fl macro.
# Letters that stand together, as in -vs, are an option each.
options() {
	awk '{ for (i = 1; i < NF; i++) if ($i ~ /^\.?Fl$/) print "-" $(i + 1) }' |
		sed '/^-[a-z][a-z]*$/s/[a-z]/\n-&/g' | grep -v '^-*$'
}

documented() {
	grep '^\.It Fl ' "$1" | options
}

# Each option is in the synopsis, by one of its names.
in_synopsis() {
	section "$1" SYNOPSIS | options >"$work/synopsis"
	grep '^\.It Fl ' "$1" >"$work/items"
	while read -r item; do
		echo "$item" | options | grep -qxFf "$work/synopsis" ||
			{ echo "the synopsis lacks: $item"; return 1; }
	done <"$work/items"
}

synopsis_is_documented() {
	documented "$1" >"$work/documented"
	! section "$1" SYNOPSIS | options | grep -vxFf "$work/documented"
}

# The page has each exit status that -h names.
has_statuses() {
	"$1" -h | sed -n '/^Exit status:/,$p' | grep -oE '\<[0-9]+\>' >"$work/statuses"
	while read -r status; do
		section "$2" 'EXIT STATUS' | grep -qx "\.It $status" ||
			{ echo "no exit status $status"; return 1; }
	done <"$work/statuses"
}

have=
for tool in "$@"; do
	page=$(page_of "$tool")
	have="$have $(basename "$tool").1"
	check "$page has the options of the program" same "$(helped "$tool")" "$(documented "$page")"
	check "the synopsis of $page has every option" in_synopsis "$page"
	check "$page has the exit statuses of the program" has_statuses "$tool" "$page"
	check "$page explains every option of its synopsis" synopsis_is_documented "$page"
done
check "each program has a page, and each page a program" same "${have# }" \
	"$(find "$man/man1" -type f -exec basename {} \;)"
done_testing
