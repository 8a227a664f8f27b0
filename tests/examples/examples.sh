#!/bin/sh
# SPDX-License-Identifier: MIT
#
# examples.sh BIN - runs the examples that are in BIN and Python's. Each must say what it
# did. The driver is the simulated one.
. tests/man/tap.sh
bin=$1

# says WORDS COMMAND... - COMMAND succeeds and has a line with these words.
says() {
	words=$1
	shift
	"$@" >"$work/out" 2>&1 || { cat "$work/out"; return 1; }
	grep -F "$words" "$work/out" || { cat "$work/out"; return 1; }
}

# no_kernels COMMAND... - COMMAND says that it needs a real GPU, by its status too.
no_kernels() {
	"$@" >"$work/out" 2>&1
	[ $? -eq 2 ] && grep -F "needs a real GPU" "$work/out"
}

check "write_read" says "the CPU reads: from CUDA" "$bin/write_read"
check "flag" says "sent 41, the GPU answers 42" "$bin/flag"
check "cache" says "400 headers to 4 buffers, 0 wrong" "$bin/cache"
check "pingpong, without a GPU" no_kernels "$bin/pingpong" 10
if command -v python3 >/dev/null; then
	check "write_read.py" says "read: FROM the CPU" \
		env PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1 python3 examples/write_read.py
else
	skip "write_read.py" "python3 is not installed"
fi
done_testing
