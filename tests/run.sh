#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs one test program and keeps its counts, or sums up what was kept.
#
#   run.sh NAME COMMAND...   runs COMMAND, shows its output, and notes the counts
#                            of its closing line 'N passed, N failed[, N skipped]'
#   run.sh --go NAME COMMAND...  the same for `go test -v`, whose counts are its
#                            '--- PASS', '--- FAIL' and '--- SKIP' lines
#   run.sh --clear           forgets the counts of earlier runs
#   run.sh --total           prints the table and the sum; exit 1 if any failed
#
# A program that ends without counts, or with a status other than 0 without
# counting a failure, counts as one failure: nothing that broke looks green.
# Results lie in $GDR_RESULTS, default build/results.
set -u
dir=${GDR_RESULTS:-build/results}
mkdir -p "$dir"

if [ "${1-}" = --clear ]; then
	rm -f "$dir"/*.count
	exit
fi

total() {
	cat "$dir"/*.count 2>/dev/null | awk '
		{ printf "%-34s %7d passed %4d failed %4d skipped\n", $1, $2, $3, $4
		  p += $2; f += $3; s += $4 }
		END { printf "%d passed, %d failed, %d skipped\n", p, f, s
		      exit (f > 0 || p == 0) }'
}

count_closing_line() {
	awk '/^([A-Za-z_-]+: )?[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/ {
		line = $0; sub(/^[A-Za-z_-]+: /, "", line); gsub(/[^0-9 ]/, "", line)
		split(line, n, " "); seen = 1
	     }
	     END { if (seen) print n[1] + 0, n[2] + 0, n[3] + 0 }' "$1"
}

count_go() {
	awk '/^ *--- PASS/ { p++ } /^ *--- FAIL/ { f++ } /^ *--- SKIP/ { s++ }
	     /^(FAIL|panic:)/ { broken = 1 }
	     END { if (broken && !f) f = 1
		   if (p + f + s) print p + 0, f + 0, s + 0 }' "$1"
}

if [ "${1-}" = --total ]; then
	total
	exit
fi
counter=c
if [ "${1-}" = --go ]; then
	counter=go
	shift
fi
name=$1
shift
log=$dir/$name.log
echo "== $name"
"$@" >"$log" 2>&1
status=$?
case $counter in
go) counts=$(count_go "$log") ;;
*) counts=$(count_closing_line "$log") ;;
esac
# shellcheck disable=SC2086 # the three counts are three words
set -- ${counts:-0 0 0}
failed=$2
if [ -z "$counts" ] || { [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; }; then
	failed=$((failed + 1))
	echo "   ended with status $status, counts: ${counts:-none}"
fi
echo "$name $1 $failed $3" >"$dir/$name.count"
if [ "$failed" -ne 0 ]; then
	grep -E '^not ok|^ *--- FAIL|panic|Error|error|ERROR|WARNING: ' "$log" | head -n 40
	tail -n 25 "$log"
else
	grep -E '# SKIP|--- SKIP' "$log" | head -n 20
	echo "   $1 passed, $failed failed, $3 skipped"
fi
# make check goes on, so that one run shows all that is broken; --total fails.
exit 0
