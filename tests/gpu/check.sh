#!/bin/sh
# SPDX-License-Identifier: MIT
# check.sh: the tests on a real GPU, with the programs of 'make gpu-programs', from the
# top of the tree. GDRCOPY_BACKEND is the library's. Ends with the counts of all.
#
# A GPU machine need not have a compiler: build/ may come from another machine. Its
# python3 may have PyTorch, CuPy, numba, JAX and pytest; what it lacks is skipped.
set -eu
ln -sf libgdrapi.so.2 build/libgdrapi.so
for lib in build/libgdrapi.so.2.*; do ln -sf "${lib##*/}" build/libgdrapi.so.2; done
exec build/suite -test.run '^Test_gpu$'
