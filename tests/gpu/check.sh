#!/bin/sh
# SPDX-License-Identifier: MIT
# check.sh: the tests on a real GPU, with the programs of 'make gpu-programs', from the
# top of the tree. GDRCOPY_BACKEND is the library's. Ends with the counts of all.
#
# A GPU machine need not have a compiler: build/ may come from another machine. Its
# python3 may have PyTorch, CuPy, numba, JAX and pytest; what it lacks is skipped.
set -u
bin=build/bin
export GDR_GO_ON=1
ln -sf libgdrapi.so.2 build/libgdrapi.so
for lib in build/libgdrapi.so.2.*; do ln -sf "${lib##*/}" build/libgdrapi.so.2; done
tests/run.sh --clear

one() { GDR_LIMIT=${GDR_LIMIT:-180} tests/run.sh "$@"; }

one gpu-sanity $bin/gdrcopy_sanity
one gpu-doctor tests/doctor/gpu.sh build
one gpu-badinput $bin/badinput
one gpu-rm-memory $bin/rm_memory
for t in lazy static fds threads signals rest fork hosts limits; do one "gpu-guest-$t" "$bin/guest_$t"; done
for t in threads dma cache many auto export host; do one "gpu-ext-$t" "$bin/ext_$t"; done
one gpu-copy $bin/copy_test
one gpu-vkgdr $bin/vkgdr_test
one gpu-examples env "LD_LIBRARY_PATH=$PWD/build:${LD_LIBRARY_PATH-}" tests/examples/examples.sh build/examples gpu
if python3 -c 'import pytest, numpy' 2>/dev/null; then
	one gpu-python env "LD_LIBRARY_PATH=$PWD/build:${LD_LIBRARY_PATH-}" PYTHONPATH=python:vkgdr/python PYTHONDONTWRITEBYTECODE=1 \
		python3 -m pytest -q -rs -p no:cacheprovider tests/python tests/python/gpu
fi
tests/run.sh --total
