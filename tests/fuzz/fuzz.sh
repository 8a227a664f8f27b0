#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the libFuzzer target over the C ABI, and counts as the other tests do.
#
#   fuzz.sh PROGRAM SECONDS FOUND    replays each kept input, then fuzzes for
#                                    SECONDS; what is new goes to the folder FOUND
#
# An input that fails is kept as FOUND-crash-*: run PROGRAM with that file.
set -u
here=$(dirname "$0")
kept=$here/corpus

# The simulated libcuda says so each time that it cannot do what a GPU can.
quiet() {
	grep -v '^simulated libcuda: cannot emulate this export'
}

program=$1 seconds=$2 found=$3
mkdir -p "$found"
log=$found.log
failed=0

"$program" "$kept"/* >"$log" 2>&1 || failed=1
passed=$(grep -c '^Executed ' "$log")
[ "$failed" -eq 0 ] || quiet <"$log" | tail -n 60

if "$program" -print_funcs=0 -print_final_stats=1 -max_len=512 -max_total_time="$seconds" \
	-artifact_prefix="$found-" "$found" "$kept" >"$log" 2>&1; then
	passed=$((passed + 1))
	grep -aE '^#.*(INITED|DONE)|^stat::|^Done ' "$log"
else
	failed=$((failed + 1))
	quiet <"$log" | grep -av '^#[0-9]' | tail -n 60
fi
echo "$passed passed, $failed failed"
exit "$failed"
