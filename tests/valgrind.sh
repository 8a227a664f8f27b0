#!/bin/sh
# SPDX-License-Identifier: MIT
#
# valgrind.sh PROGRAM - PROGRAM, which loads the library, under valgrind.
#
# Valgrind tells a program of RDTSCP wherever the machine has AVX2, and ends it at one where the
# machine has no RDTSCP: some virtual machines. Go's runtime reads the time so.
if grep -qw avx2 /proc/cpuinfo && ! grep -qw rdtscp /proc/cpuinfo; then
	echo "ok 1 - $1 # SKIP valgrind tells of RDTSCP, which this machine does not have"
	echo "1..1"
	echo "0 passed, 0 failed, 1 skipped"
	exit
fi
exec valgrind -q --smc-check=all --error-exitcode=9 --suppressions=packaging/gdrapi.supp "$1"
