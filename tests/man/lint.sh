#!/bin/sh
# SPDX-License-Identifier: MIT
# The manual pages by themselves: mandoc has nothing to say, each page is where
# its title says and each of its names finds it, and no reference leads nowhere.
. tests/man/pages.sh

lints() {
	mandoc -Tlint -W warning "$1" >"$work/lint" 2>&1
	cat "$work/lint"
	[ ! -s "$work/lint" ]
}

# The folder, the file and the title agree.
placed() {
	base=$(basename "$1" | tr '[:lower:]' '[:upper:]')
	grep -qx "\.Dt ${base%.*} ${base##*.}" "$1" &&
		[ "$(basename "$(dirname "$1")")" = "man${1##*.}" ]
}

# Its names are its own file and the links to it.
named() {
	dir=$(dirname "$1")
	links=$(find "$dir" -type l -lname "$(basename "$1")" -exec basename {} \;)
	same "$(names "$1" | sed "s/\$/.${1##*.}/")" "$(basename "$1") $links"
}

# A reference to a page of ours: gdr*. Others are the system's.
refers() {
	awk '$1 == ".Xr" || $2 == "Xr" { for (i = 1; i < NF; i++) if ($i == "Xr" || $i == ".Xr")
		print "man" $(i + 2) "/" $(i + 1) "." $(i + 2) }' "$1" | grep '/gdr' >"$work/refs"
	while read -r ref; do
		[ -e "$man/$ref" ] || { echo "$ref is not there"; return 1; }
	done <"$work/refs"
}

for page in $(pages); do
	check "mandoc finds nothing in $page" lints "$page"
	check "$page is where its title says" placed "$page"
	check "the names of $page lead to it" named "$page"
	check "the references of $page lead somewhere" refers "$page"
done
for link in $(find "$man" -type l | sort); do
	check "$link leads to a page" test -f "$link"
done
done_testing
