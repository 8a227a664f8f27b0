#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs test programs and keeps their counts. It fails when a test failed.
#
#   run.sh NAME COMMAND...   runs COMMAND and keeps the counts of its closing line,
#                            'N passed, N failed[, N skipped]'
#   run.sh --go NAME COMMAND...  the same for `go test -v`, whose counts are its
#                            '--- PASS', '--- FAIL' and '--- SKIP' lines
#   run.sh --make TARGET...  forgets what was kept, makes each target, goes on after
#                            one that fails, then does --total
#   run.sh --clear           forgets what was kept
#   run.sh --total           prints what was kept, and the sum; fails if a test failed
#   run.sh --need PROGRAM... fails if one is missing, and names its Debian package
#   run.sh --packages        the packages of all programs that tests need
#
# These count as one failure each: a program that ends without counts; one that ends
# with a status other than 0 and counts no failure; one that takes longer than
# $GDR_LIMIT seconds (3600; 0 is no limit); a target that make cannot make.
#
# Within --make a failed test ends with status 0, so that make goes on. --make fails.
# Results lie in $GDR_RESULTS, by default build/results.
set -u
dir=${GDR_RESULTS:-build/results}
limit=${GDR_LIMIT:-3600}
needs=$(dirname "$0")/needs.txt

total() {
	cat "$dir"/*.count 2>/dev/null | awk '
		{ printf "%-34s %7d passed %4d failed %4d skipped %6d s\n", $1, $2, $3, $4, $5
		  p += $2; f += $3; s += $4 }
		END { printf "%d passed, %d failed, %d skipped\n", p, f, s
		      exit (f > 0 || p == 0) }'
}

# keep NAME PASSED FAILED SKIPPED SECONDS
keep() {
	echo "$*" >"$dir/$1.count"
}

# need PROGRAM...: says of each that is missing which package has it.
need() {
	lacks=0
	for program; do
		command -v "$program" >/dev/null && continue
		lacks=1
		package=$(awk -v p="$program" '$1 == p { $1 = ""; print substr($0, 2); exit }' "$needs")
		echo "$program is missing. Debian: apt-get install ${package:-the package that has it}"
	done
	return "$lacks"
}

clear() {
	rm -f "$dir"/*.count
}

make_all() {
	clear
	for target; do
		began=$(date +%s)
		GDR_GO_ON=1 ${MAKE:-make} --no-print-directory "$target" && continue
		echo "   make $target ended with status $?"
		keep "make-$target" 0 1 0 $(($(date +%s) - began))
	done
	total
}

# shellcheck disable=SC2317 # called by its name
count_closing_line() {
	awk '/^([A-Za-z_-]+: )?[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/ {
		line = $0; sub(/^[A-Za-z_-]+: /, "", line); gsub(/[^0-9 ]/, "", line)
		split(line, n, " "); seen = 1
	     }
	     END { if (seen) print n[1] + 0, n[2] + 0, n[3] + 0 }' "$1"
}

# shellcheck disable=SC2317 # called by its name
count_go() {
	awk '/^ *--- PASS/ { p++ } /^ *--- FAIL/ { f++ } /^ *--- SKIP/ { s++ }
	     /^(FAIL|panic:)/ { broken = 1 }
	     END { if (broken && !f) f = 1
		   if (p + f + s) print p + 0, f + 0, s + 0 }' "$1"
}

# why STATUS: what a status other than 0 means.
why() {
	case $1 in
	124) echo "it took longer than $limit s" ;;
	126 | 127) echo "status $1: a program is missing or cannot be run" ;;
	*) [ "$1" -le 128 ] && echo "status $1" || echo "signal $(($1 - 128))" ;;
	esac
}

# missing LOG: the program that was not found, by what a shell, env or timeout says of it.
missing() {
	sed -nE "s/.*[: ]([^ :]+): (command )?not found\$/\1/p
		 s/^env: .(.+).: No such file or directory\$/\1/p
		 s/^timeout: failed to run command .(.+).: No such file or directory\$/\1/p" "$1" | head -n 1
}

# one COUNTER NAME COMMAND...
one() {
	counter=$1 name=$2 log=$dir/$2.log
	shift 2
	echo "== $name"
	began=$(date +%s)
	timeout --foreground -k 10 "$limit" "$@" >"$log" 2>&1
	status=$?
	took=$(($(date +%s) - began))
	counts=$($counter "$log")
	# shellcheck disable=SC2086 # the three counts are three words
	set -- ${counts:-0 0 0}
	failed=$2
	if [ -z "$counts" ] || { [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; }; then
		failed=$((failed + 1))
		echo "   ended: $(why "$status"); counts: ${counts:-none}"
		lacking=$(missing "$log")
		[ -z "$lacking" ] || need "$lacking" || :
	fi
	keep "$name" "$1" "$failed" "$3" "$took"
	if [ "$failed" -ne 0 ]; then
		grep -E '^not ok|^ *--- FAIL|panic|Error|error|ERROR|WARNING: ' "$log" | head -n 40
		tail -n 25 "$log"
		[ -n "${GDR_GO_ON-}" ]
		return
	fi
	grep -E '# SKIP|--- SKIP' "$log" | head -n 20
	echo "   $1 passed, $failed failed, $3 skipped, $took s"
}

mkdir -p "$dir"
# Read as a whole, so that a run does not mind if this file changes meanwhile.
{
case ${1-} in
--make) shift; make_all "$@" ;;
--clear) clear ;;
--total) total ;;
--need) shift; need "$@" ;;
--packages) awk '!/^#/ { $1 = ""; print substr($0, 2) }' "$needs" | tr ' ' '\n' | sort -u ;;
--go) shift; one count_go "$@" ;;
*) one count_closing_line "$@" ;;
esac
exit
}
