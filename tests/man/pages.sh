# shellcheck shell=sh
# SPDX-License-Identifier: MIT
# What the tests of the manual pages share. Sourced, in the top folder.
. tests/tap.sh
man=docs/man

# same WANT GOT - two lists of words hold the same ones, and at least one.
same() {
	echo "$1" | tr -s ' ' '\n' | sort -u >"$work/want"
	echo "$2" | tr -s ' ' '\n' | sort -u >"$work/got"
	[ -n "$1" ] && diff "$work/want" "$work/got"
}

# section PAGE NAME - the lines of a section of a page.
section() {
	awk -v name="$2" '/^\.Sh / { on = $0 == ".Sh " name; next } on' "$1"
}

# names PAGE - the names that its NAME section gives.
names() {
	section "$1" NAME | awk '$1 == ".Nm" { print $2 }'
}

# items PAGE MACRO - the first argument of MACRO in each item of the page's lists.
items() {
	awk -v macro="$2" '$1 == ".It" && $2 == macro { print $3 }' "$1"
}

pages() {
	find "$man" -type f -name '*.[0-9]' | sort
}
