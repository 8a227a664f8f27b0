# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# tap.sh - sourced. Results of a script's checks, in TAP, and the counts at its end.

passed=0 failed=0

# result STATUS NAME [FILE]: one line; FILE's end if the status is not 0.
result() {
	local n=$((passed + failed + 1))
	case $1 in
	0) passed=$((passed + 1)); echo "ok $n - $2" ;;
	*)
		failed=$((failed + 1))
		echo "not ok $n - $2"
		[ $# -lt 3 ] || tail -n 15 "$3" | sed 's/^/# /'
		;;
	esac
	return 0
}

closing() {
	echo "1..$((passed + failed))"
	echo "$passed passed, $failed failed, 0 skipped"
	[ "$failed" -eq 0 ]
}
