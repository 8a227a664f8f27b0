#!/bin/sh
# SPDX-License-Identifier: MIT
#
# run_test.sh - run.sh and the make files around it: nothing that broke looks green.
. tests/tap.sh
unset GDR_GO_ON GDR_LIMIT MAKEFLAGS MFLAGS
export GDR_RESULTS="$work/results"

# run WANT ARGUMENT...: run.sh ends with status WANT. What it says is in $work/out.
run() {
	want=$1
	shift
	tests/run.sh "$@" >"$work/out" 2>&1
	status=$?
	cat "$work/out"
	[ "$status" -eq "$want" ]
}

# kept NAME PASSED FAILED SKIPPED: what it kept of NAME.
kept() {
	cat "$GDR_RESULTS/$1.count"
	grep -q "^$1 $2 $3 $4 [0-9]*\$" "$GDR_RESULTS/$1.count"
}

# one WANT PASSED FAILED SKIPPED TEXT SCRIPT: SCRIPT as a test program, and a TEXT that is said.
one() {
	run "$1" t sh -c "$6" && kept t "$2" "$3" "$4" && grep -q "$5" "$work/out"
}

hangs() {
	GDR_LIMIT=1 one 1 0 1 0 'longer than 1 s' 'exec sleep 600'
}

check "a program that passes" one 0 3 0 1 '3 passed' 'echo "3 passed, 0 failed, 1 skipped"'
check "a program that counts failures" one 1 2 1 0 'not ok 2' \
	'echo "not ok 2 - x"; echo "2 passed, 1 failed, 0 skipped"; exit 1'
check "failures count, whatever the status is" one 1 2 1 0 failed 'echo "2 passed, 1 failed"'
check "a status counts, whatever the counts are" one 1 3 1 0 'status 7' 'echo "3 passed, 0 failed"; exit 7'
check "a program that prints no counts" one 1 0 1 0 'counts: none' 'echo fine'
check "a program that crashes" one 1 0 1 0 'signal 11' 'kill -SEGV $$'
check "a program that crashes after its counts" one 1 3 1 0 'signal 6' \
	'echo "3 passed, 0 failed"; kill -ABRT $$'
check "a program that hangs" hangs
check "a program that is missing" run 1 t no-such-program
check "it is a failure, and said" grep -q 'a program is missing' "$work/out"
lacks_in() {
	PATH="$work/bin:/none" run 1 t "$@"
	grep -qx 'valgrind is missing. Debian: apt-get install valgrind' "$work/out"
}
mkdir "$work/bin"
for program in awk cat date dirname env grep head mkdir rm sed sh tail timeout; do
	ln -s "$(command -v "$program")" "$work/bin/"
done
check "its package is named" lacks_in valgrind
check "when a shell misses it, too" lacks_in sh -c 'valgrind --version'
check "and env" lacks_in env A=1 valgrind

check "go test that passes" run 0 --go g sh -c 'echo "--- PASS: A"; echo "--- SKIP: B"; echo PASS'
check "its counts" kept g 1 0 1
check "go test that fails" run 1 --go g sh -c 'echo "--- FAIL: A"; echo FAIL; exit 1'
check "go test that does not build" run 1 --go g sh -c 'echo "--- PASS: A"; echo "FAIL x [build failed]"; exit 1'
check "a panic in go test" run 1 --go g sh -c 'echo "--- PASS: A"; echo "panic: x"; exit 2'

lacks() {
	run 1 --need "$1" && grep -qx "$2" "$work/out"
}
check "programs that are there" run 0 --need sh awk
check "one that no package is known of" lacks no-such-program \
	'no-such-program is missing. Debian: apt-get install the package that has it'
only_bin=$(PATH=$work/bin tests/run.sh --need valgrind awk)
is "one that is missing has a package" "$only_bin" 'valgrind is missing. Debian: apt-get install valgrind'
check "all packages are known" run 0 --packages
check "clang's among them" grep -qx clang "$work/out"

cat >"$work/Makefile" <<-'END'
	.SHELLFLAGS := -ec
	RUN := tests/run.sh
	good: ; @$(RUN) good echo '2 passed, 0 failed'
	bad: ; @for t in bad also-good; do $(RUN) $$t sh -c "echo 1 passed, 0 failed; [ $$t != bad ]"; done
	broken: ; @false
	lacks: need-no-such-program good
	need-%: ; @$(RUN) --need $*
END
MAKE="make -f $work/Makefile"
export MAKE
check "a target whose test fails makes make fail, in a loop, too" sh -c "! $MAKE -s bad"
check "so does one that lacks a program" sh -c "! $MAKE -s lacks"
check "run.sh --make with targets that pass" run 0 --make good
check "with one that fails, it fails" run 1 --make bad broken lacks good
check "after the test that failed, the target goes on" kept also-good 1 0 0
check "after the target that failed, the next one is made" kept good 2 0 0
check "the failed test is kept" kept bad 1 1 0
check "the failed target is kept" kept make-broken 0 1 0
check "so is that which lacks a program" kept make-lacks 0 1 0
check "the total fails with them" run 1 --total
check "the last line is the sum" sh -c "tail -n 1 $work/out | grep -qx '4 passed, 3 failed, 0 skipped'"
rm -f "$GDR_RESULTS"/*
check "a total of nothing fails" run 1 --total
unset MAKE

cat >"$work/x.mk" <<-'END'
	include Makefile
	run-test-bad: ; @for t in 1 0; do $(RUN) t sh -c "echo 1 passed, 0 failed; exit $$t"; done
END
check "the project's make files are of that kind" sh -c "! make -s -f $work/x.mk run-test-bad"
make -pnq nothing-of-that-name 2>/dev/null | sed -n 's/^\(check[a-z-]*\):.*/\1/p' | sort -u >"$work/targets"
make -s help >"$work/help"
check "there are targets to look for" grep -qx check-guest "$work/targets"
# A target that only another one needs says so in its name.
for target in $(grep -vE -- '-(rm|tsan|asan)$' "$work/targets"; echo check-rm); do
	check "make help has $target" grep -qE "(make|and UCX,) $target( |,|;|\$)" "$work/help"
done
none "make help says of each how long it takes" "$(sed -n '/^Others$/,$p' "$work/help")"
done_testing
