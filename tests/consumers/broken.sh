#!/bin/bash
# SPDX-License-Identifier: MIT
#
# broken.sh BUILD PROGRAM... - each quick test of a consumer, with libraries that are broken:
# it must fail. It may not die of it, nor hang: a consumer goes on without the library. A PROGRAM may
# be several words.
set -u
build=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/tap.sh
. "$here/../tap.sh"
# shellcheck source=tests/consumers/count.sh
. "$here/count.sh"

for program in "$@"; do
	for how in open pin map copy flip; do
		status=0
		# shellcheck disable=SC2086 # words
		GDR_BREAK=$how counting "$work/counts" timeout -k 5 300 $program >"$work/out" 2>&1 || status=$?
		[ "$status" -ne 0 ] && [ "$status" -lt 124 ] && grep -Eq '^not ok |^# |Error' "$work/out"
		result $? "${program##*/}: it fails with a broken $how" "status $status
$(tail -n 15 "$work/out")"
	done
done
done_testing
