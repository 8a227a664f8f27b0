# shellcheck shell=sh
# SPDX-License-Identifier: MIT
# What the tests of the manual pages share; sourced, in the top folder.
set -u
man=docs/man
passed=0
failed=0
skipped=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# check NAME COMMAND... - one test: COMMAND succeeds. Its output is shown when not.
check() {
	name=$1
	shift
	if "$@" >"$work/said" 2>&1; then
		passed=$((passed + 1))
		echo "ok $((passed + failed + skipped)) - $name"
	else
		failed=$((failed + 1))
		echo "not ok $((passed + failed + skipped)) - $name"
		sed 's/^/# /' "$work/said"
	fi
}

skip() {
	skipped=$((skipped + 1))
	echo "ok $((passed + failed + skipped)) - $1 # SKIP $2"
}

# done_testing - the closing line; fails if a test did.
done_testing() {
	echo "1..$((passed + failed + skipped))"
	echo "$passed passed, $failed failed, $skipped skipped"
	[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}

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
