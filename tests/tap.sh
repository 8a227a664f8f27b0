# shellcheck shell=sh
# SPDX-License-Identifier: MIT
#
# Sourced by test scripts, of sh or bash. They print TAP and, last, the counts. $work is
# a folder that goes when the script ends; a script may use the name for another one.
set -u
passed=0
failed=0
skipped=0
tap_dir=$(mktemp -d) || exit 1
trap 'rm -rf "$tap_dir"' EXIT
# shellcheck disable=SC2034 # for the script
work=$tap_dir

# result STATUS NAME [NOTE]: one test that is over. NOTE is shown if the status is not 0.
result() {
	if [ "$1" -eq 0 ]; then
		passed=$((passed + 1))
		echo "ok $((passed + failed + skipped)) - $2"
		return
	fi
	failed=$((failed + 1))
	echo "not ok $((passed + failed + skipped)) - $2"
	[ -z "${3-}" ] || printf '%s\n' "$3" | sed 's/^/# /'
	return 0
}

# check NAME COMMAND...: one test. COMMAND succeeds; its output is shown when it does not.
check() {
	check_name=$1
	shift
	check_status=0 check_said=
	"$@" >"$tap_dir/said" 2>&1 || { check_status=$? check_said=$(tail -n 100 "$tap_dir/said"); }
	result "$check_status" "$check_name" "$check_said"
}

# is NAME GOT WANT: one test. Two texts are the same.
is() {
	is_status=0
	[ "$2" = "$3" ] || is_status=1
	result "$is_status" "$1" "got: $2
want: $3"
}

# none NAME TEXT: one test. There is no text.
none() {
	is "$1" "$2" ''
}

# skip NAME WHY: one test that nothing can be said of here.
skip() {
	skipped=$((skipped + 1))
	echo "ok $((passed + failed + skipped)) - $1 # SKIP $2"
}

# done_testing: the last lines. It fails if a test did, or if there was none.
done_testing() {
	echo "1..$((passed + failed + skipped))"
	echo "$passed passed, $failed failed, $skipped skipped"
	[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}
