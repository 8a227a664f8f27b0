#!/bin/sh
# SPDX-License-Identifier: MIT
#
# tools.sh BIN SIM... - the tools' arguments: those of the reference's programs mean here
# what docs/tools.md says, an argument that has no effect is an error, and all end in the
# same way. SIM... is a command that runs another one with the simulated driver.
. tests/tap.sh
bin=$1
shift
simulated=$*
benchmarks='copybw copylat apiperf pplat'

# ends STATUS COMMAND...: with that status. $work/out and $work/err have what it printed.
ends() {
	want=$1
	shift
	"$@" >"$work/out" 2>"$work/err" </dev/null
	got=$?
	head -n 5 "$work/out" "$work/err"
	[ "$got" -eq "$want" ] || { echo "status $got, not $want"; return 1; }
}

# usage TOOL ARGUMENT...: it is refused, in one line that names --help, and nothing else.
usage() {
	program=gdrcopy_$1
	shift
	ends 2 "$bin/$program" "$@" && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" -eq 1 ] &&
		grep -q "^$program: .*; see '$program --help'\$" "$work/err"
}

# absent TOOL ARGUMENT...: where CUDA has no GPU, or there is no CUDA.
absent() {
	program=gdrcopy_$1
	shift
	ends 77 env -u LD_LIBRARY_PATH CUDA_VISIBLE_DEVICES='' "$bin/$program" "$@" &&
		[ "$(wc -l <"$work/err")" -eq 1 ] && grep -q "^$program: .*\(driver\|GPU\)" "$work/err"
}

# sim TOOL ARGUMENT...: with the simulated driver, and nothing on standard error.
sim() {
	program=gdrcopy_$1
	shift
	args=$*
	# shellcheck disable=SC2086 # arguments of this script: they have no spaces
	ends 0 $simulated "$bin/$program" $args && [ ! -s "$work/err" ]
}
for tool in $benchmarks report sanity; do
	check "$tool --help" ends 0 "$bin/gdrcopy_$tool" --help
	check "$tool -h" ends 0 "$bin/gdrcopy_$tool" -h
	check "$tool refuses an unknown letter" usage "$tool" -Z
	check "$tool refuses an unknown name" usage "$tool" --no-such-option
	check "$tool refuses what is no option" usage "$tool" more
	check "$tool refuses an option without its value" usage "$tool" -d
done
for tool in $benchmarks sanity; do
	check "$tool refuses a GPU that is no number" usage "$tool" -d first
	check "$tool where there is no GPU" absent "$tool"
	check "$tool -d 7 where there is no GPU" absent "$tool" -d 7
	# shellcheck disable=SC2086 # words
	check "$tool -d 2 where there are two" ends 2 $simulated "$bin/gdrcopy_$tool" -d 2
	check "it says so" grep -q "^gdrcopy_$tool: there is no GPU 2: CUDA sees 2; see" "$work/err"
done

# The reference's arguments.
check "copybw -s -c -o -d -a -w -r" sim copybw -s 65536 -c 4096 -o 64 -d 0 -a cuMemAlloc -w 10 -r 10
check "its writes are those of -w and -c" grep -q '^writing test, size=4096 offset=64 ' "$work/out"
check "its bandwidths are there" grep -q '^read BW: [0-9.]*MB/s$' "$work/out"
check "copybw -l -c 8" sim copybw -l -c 8 -w 10 -r 10
is "its copies are of 1, 2, 4 and 8 bytes" "$(sed -n 's/^writing test, size=\([0-9]*\) .*/\1/p' "$work/out" | xargs)" '1 2 4 8'
check "each with its bandwidths" test "$(grep -c '^read BW: [0-9.]*MB/s$' "$work/out")" -eq 4
check "copybw -l -s 100 -o 4" sim copybw -l -s 100 -o 4 -w 10 -r 10
check "its largest copy is what fits" grep -q '^reading test, size=64 offset=4 ' "$work/out"
check "copylat --registered" sim copylat -s 64 --registered -w 10 -r 10
check "copylat -s -d -a -w -r -c" sim copylat -s 64 -d 0 -a cuMemCreate -w 10 -r 10 -c
check "its largest copy is that of -s" grep -qE '^ *64( |$)' "$work/out"
check "and no other is larger" sh -c "! grep -qE '^ *96 ' $work/out"
check "it times cuMemcpy" grep -q 'cuMemcpy HtoD' "$work/out"
# shellcheck disable=SC2086 # words
check "copylat -C where the CPU caches the mapping" env GDRCOPY_BACKEND=dmabuf CUDA_SIM_COHERENT=1 $simulated "$bin/gdrcopy_copylat" -C -s 4 -w 10 -r 10 --csv
# shellcheck disable=SC2086 # words
check "and where it does not" ends 1 $simulated "$bin/gdrcopy_copylat" -C -s 4
check "it says so" grep -q '^gdrcopy_copylat: --cold-cache has no effect on this mapping' "$work/err"
check "apiperf -w 0" sim apiperf -s 65536 -n 1 -w 0
check "apiperf -s -n -d -a" sim apiperf -s 65536 -n 5 -d 0 -a cuMemAlloc
check "its pins are there" grep -q 'gdr_pin_buffer_v2' "$work/out"
# It runs a kernel, which simulated GPUs do not: with good arguments it says that.
pplat() {
	# shellcheck disable=SC2086 # words
	ends 77 $simulated "$bin/gdrcopy_pplat" "$@" && grep -q 'needs a real GPU' "$work/err"
}
check "pplat -d -t -u -G -C -a -s -m" pplat -d 0 -t 10 -u 0 -G hostmem -C gpumem -a cuMemAlloc -s 0 -m 0
check "pplat -s -m -D -B -T" pplat -s 1G -m 1 -D hostmem -B 8192 -T 1024
for bad in '-s 6' '-s 2G' '-m 2' '-D both' '-B 0' '-B 8193' '-T 0' '-T 1025'; do
	# shellcheck disable=SC2086 # words
	check "pplat $bad" usage pplat $bad
done
check "sanity -v -s -d -e -t" sim sanity -v -s -d 0 -e -t 'fork*' --skip 'fork_t*'
check "it has its cases" grep -q '^ok 1 - fork_first' "$work/out"
check "-s prints no summary" sh -c "! grep -q '^# Failed:\|^# Skipped:\|passed' $work/out"
check "sanity without -s" sim sanity -t 'fork*' --skip 'fork_t*'
check "its plan is of the cases that -t chooses" grep -qx '1\.\.7' "$work/out"
check "a case that is skipped says why" grep -q '^ok [0-9]* - fork_twice # SKIP asked$' "$work/out"
check "its summary says how many" grep -q '^6 passed, 0 failed, 1 skipped$' "$work/out"
check "and what was skipped" grep -q '^# Skipped:$' "$work/out"
check "and why" grep -q '^#   fork_twice: asked$' "$work/out"
check "and that none failed" grep -qx '#   none' "$work/out"
check "sanity -l lists" ends 0 "$bin/gdrcopy_sanity" -l
all=$(wc -l <"$work/out")
check "sanity -l -t lists some" ends 0 "$bin/gdrcopy_sanity" -l -t 'fork*' -t 'basic*'
check "fewer than all" test "$(wc -l <"$work/out")" -lt "$all"
check "those of the first -t" grep -q '^fork_first$' "$work/out"
check "and of the second" grep -q '^basic' "$work/out"
check "sanity -l -t with a comma" ends 0 "$bin/gdrcopy_sanity" -l -t 'fork_first,basic*'
check "those before it" grep -q '^fork_first$' "$work/out"
for bad in 1z 1024 -1 ''; do
	check "sanity -d '$bad'" usage sanity -d "$bad"
done
check "sanity -t of no case" usage sanity -t no_such_case
check "sanity --skip of no case" usage sanity --skip no_such_case

# What has no effect is refused.
check "copylat --mode many -s" usage copylat --mode many -s 64
check "copylat --mode used --cold" usage copylat --mode used --cold
check "copylat --mode callers --registered" usage copylat --mode callers --registered
check "copylat --mode callers -w" usage copylat --mode callers -w 5
check "copylat --mode pause -r" usage copylat --mode pause -r 5
check "copylat --cold with -C" usage copylat --cold -C
check "copylat --mode many -C" usage copylat --mode many -C
check "copybw with nothing left past -o" usage copybw -s 4096 -o 4096
check "it says so" grep -q -- '--offset 4096 is not inside the 4096 bytes' "$work/err"
# shellcheck disable=SC2086 # words
check "copybw on a CPU that is not there" ends 1 $simulated "$bin/gdrcopy_copybw" --cpu 1000
check "it says which" grep -q '^CPU 1000: ' "$work/err"
check "copybw with a copy that does not fit" usage copybw -s 4096 -c 8192 -o 64
check "it says so" grep -q ': a copy of 8192 bytes at offset 64 does not fit into --size 4096;' "$work/err"
check "--json with --csv" usage copybw --json --csv
for backend in gdrdrv dmabuf rm; do
	check "--backend $backend is known" absent copybw --backend "$backend"
done
check "--backend of another name" usage copybw --backend other

# Each option at the ends of its range is taken, and past them refused.
while read -r tools option least most words; do
	for tool in $(echo "$tools" | tr , ' '); do
		for value in $least $most $words; do
			check "$tool $option $value" absent "$tool" "$option" "$value"
		done
		[ "$least" = - ] || for value in $((least - 1)) $((most + 1)) "${least}x" x; do
			check "$tool refuses $option $value" usage "$tool" "$option" "$value"
		done
	done
done <<'END'
copybw,copylat,apiperf,pplat -d 0 1023
copybw,copylat,apiperf -s 1 1099511627776 1024G 1k 1KiB 1kb 2M 2MiB 1G 0x10
copybw,copylat,apiperf --budget 1 600000
copybw,copylat -w 1 100000000 0x10
copybw,copylat -r 1 100000000
copybw,copylat --read-threads 1 64
copybw,copylat --write-threads 1 64
copybw --threads 1 256
copybw -c 1 131072 128K
copybw -o 0 131071
copylat -o 0 1099511627776
apiperf -n 1 100000000
apiperf -w 0 1000000
pplat -t 1 1000000000
pplat -u 0 86400
pplat -m 0 1
pplat -B 1 8192
pplat -T 1 1024
END
for bad in 1025G 1048577M 16Q 1KK 1iB 4BB K -1 ''; do
	check "copybw refuses -s '$bad'" usage copybw -s "$bad"
done
check "pplat -s 4" absent pplat -s 4
check "pplat -s 1G" absent pplat -s 1G
for bad in 1 2 1073741828; do check "pplat refuses -s $bad" usage pplat -s $bad; done
for word in default wc WC cached cache caching device; do check "copybw -M $word" absent copybw -M $word; done
for word in ext cumemalloc cuMemCreate; do check "copybw -A $word" absent copybw -A $word; done
for word in -M -A --backend; do check "copybw refuses $word wcx" usage copybw $word wcx; done
for word in each used many pause callers; do check "copylat --mode $word" absent copylat --mode $word; done
for word in hostmem gpumem; do
	for option in -G -C -D; do check "pplat $option $word" absent pplat $option $word; done
done
check "pplat -C both" absent pplat -C both
for option in -G -D; do check "pplat refuses $option both" usage pplat $option both; done
check "copybw with a copy that just fits past -o" absent copybw -s 4096 -c 4090 -o 6
check "copybw with one that does not" usage copybw -s 4096 -c 4091 -o 6

# A terminal has a line of progress; a pipe, above, nothing.
on_terminal() {
	# shellcheck disable=SC2086 # words
	TERM=${2-xterm} script -qec "$simulated $bin/gdrcopy_$1" "$work/terminal" >/dev/null </dev/null &&
		tr '\r' '\n' <"$work/terminal" >"$work/lines" &&
		grep -E '^.\[K\[#* *\] [0-9]+ of [0-9]+' "$work/lines"
}
check "progress on a terminal, of copylat" on_terminal "copylat -s 16 --budget 20"
check "with the time that is left" grep -q '[0-9]:[0-9][0-9] left' "$work/lines"
check "of copybw, each size a step" on_terminal "copybw -l -c 8 -w 1 -r 1"
check "and what it is" grep -q ' 1 of 4  1 bytes, 1 threads' "$work/lines"
check "of apiperf, gdr_open and each size" on_terminal "apiperf -s 1M -n 1 -w 0"
check "and what it is" grep -q ' 1 of 3  gdr_open' "$work/lines"
check "and of sanity" on_terminal "sanity -t fork_*"
none "the line is gone at the end" "$(tail -n 3 "$work/lines" | grep -F ' left')"
on_terminal "copylat -s 16 --budget 20" dumb >/dev/null
none "a dumb terminal has none" "$(grep -F ' left' "$work/lines")"
check "but the figures" grep -qw 16 "$work/lines"
done_testing
