# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# lib.sh - sourced by the tests of the packages: TAP, and programs that must be there.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/consumers/tap.sh
. "$here/tests/consumers/tap.sh"
# shellcheck source=tests/vm/apt.sh
. "$here/tests/vm/apt.sh"

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

# check NAME COMMAND...: one TAP line; the end of the command's output if it fails.
check() {
	local name=$1
	shift
	"$@" >"$scratch/out" 2>&1
	result $? "$name" "$scratch/out"
}

# same A B: the difference of two texts, if there is one.
same() { diff -u "$1" "$2"; }

# blocks FILE HEADING: the lines of all ```sh blocks under that heading.
blocks() {
	awk -v want="## $2" '
		/^## / { under = $0 == want }
		/^```/ { inside = under && $0 == "```sh"; next }
		inside' "$1"
}

# headings FILE: those that have such a block.
headings() {
	awk '/^## / { h = substr($0, 4) } $0 == "```sh" && !seen[h]++ { print h }' "$1"
}
