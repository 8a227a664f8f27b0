#!/bin/sh
# SPDX-License-Identifier: MIT
# check.sh [PART...]: the tests on a real GPU, with the programs of 'make gpu-programs', from
# the top of the tree. The parts are api, guest, signals and python; without one all run, in
# 10 minutes. Each takes 300 s at most, and so do api and signals, or guest and python.
# GDRCOPY_BACKEND is the library's. Ends with the counts of all.
#
# A GPU machine need not have a compiler: build/ may come from another machine. Its
# python3 may have PyTorch, CuPy, numba, JAX and pytest; what it lacks is skipped.
set -eu
for part; do
	case $part in
	api | guest | signals | python) ;;
	*) echo "check.sh: $part is no part: api, guest, signals, python" >&2; exit 2 ;;
	esac
done
ln -sf libgdrapi.so.2 build/libgdrapi.so
for lib in build/libgdrapi.so.2.*; do ln -sf "${lib##*/}" build/libgdrapi.so.2; done
IFS='|'
exec build/suite -test.run "^gpu\$/^(${*:-.*})\$"
