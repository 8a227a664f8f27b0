# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# lib.sh - sourced by the tests of the packages: TAP, Debian's archive, and the commands
# that a page has.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/tap.sh
. "$here/tests/tap.sh"
# shellcheck source=tests/vm/apt.sh
. "$here/tests/vm/apt.sh"

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
