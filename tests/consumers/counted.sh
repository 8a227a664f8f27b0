#!/bin/bash
# SPDX-License-Identifier: MIT
#
# counted.sh BUILD PROCESSES 'COUNT=LEAST...' PROGRAM [ARGUMENT...] - a TAP program with the
# library of front.c. Its results are followed by two: that it ended with status 0, and that
# it did as much as count.sh's least asks for.
set -u
build=$1 processes=$2 want=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/tap.sh
. "$here/../tap.sh"
# shellcheck source=tests/consumers/count.sh
. "$here/count.sh"

status=0
counting "$work/counts" "$@" >"$work/out" 2>&1 || status=$?
while read -r line; do
	case $line in
	'ok '*) result 0 "${line#* - }" ;;
	'not ok '*) result 1 "${line#* - }" ;;
	*' passed, '*' failed'* | 1..*) ;;
	*) printf '%s\n' "$line" ;;
	esac
done <"$work/out"
result "$status" 'it ends with status 0'
# shellcheck disable=SC2086 # words
least 'it did' "$processes" "$work/counts" $want
done_testing
