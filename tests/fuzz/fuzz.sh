#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the libFuzzer target over the C ABI, and counts as the other tests do.
#
#   fuzz.sh PROGRAM SECONDS FOUND    replays each kept input, then fuzzes for
#                                    SECONDS; what is new goes to the folder FOUND
#   fuzz.sh --merge PROGRAM BACKEND...  makes the kept inputs the fewest, smallest
#                                    ones that reach on the backends what they
#                                    and the found ones reach
#
# An input that fails is kept as FOUND-crash-*: run PROGRAM with that file.
set -u
here=$(dirname "$0")
kept=$here/corpus

# The simulated libcuda says so each time that it cannot do what a GPU can.
quiet() {
	grep -v '^simulated libcuda: cannot emulate this export'
}

if [ "$1" = --merge ]; then
	program=$2
	shift 2
	set -e
	new=$(mktemp -d)
	for b; do
		found=$(dirname "$program")/$b
		mkdir -p "$found"
		"$here/../on.sh" "$b" "$program" -set_cover_merge=1 -print_funcs=0 -use_counters=0 -use_cmp=0 \
			-max_len=512 "$new" "$kept" "$found" 2>&1 | quiet
	done
	find "$kept" -type f -delete
	cp "$new"/* "$kept"
	rm -rf "$new"
	echo "$(find "$kept" -type f | wc -l) inputs kept"
	exit
fi
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
