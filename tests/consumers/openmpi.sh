#!/bin/bash
# SPDX-License-Identifier: MIT
#
# openmpi.sh BUILD - two ranks of Debian's Open MPI over UCX, which is the one that ucx.sh
# builds: Debian's own knows no CUDA. BUILD is the project's build folder; the environment
# has the doubles.
set -euo pipefail
build=${1:?which build folder?}
name=openmpi
# shellcheck source=tests/consumers/build.sh
. "$(dirname "$0")/build.sh"
# shellcheck source=tests/consumers/ucx/build.sh
. "$here/ucx/build.sh"

install openmpi-bin libopenmpi-dev
mpicc -std=gnu11 -O1 -g -Wall -Wextra -Werror -I"$here/../../include" -I"$here/../../tools" \
	-o "$build/consumers/ranks" "$here/openmpi/ranks.c" "$here/../../tools/cuda_dl.c" -ldl \
	>>"$log" 2>&1 || die "ranks.c does not compile: see $log"

# ranks BACKEND HOW: the ranks report, and each has copied the messages of 1 and 8 bytes.
ranks() {
	local out=$build/consumers/ranks-$1-$2.log
	counting "$counts" timeout 300 "$here/../on.sh" "$1" mpirun -n 2 --allow-run-as-root --oversubscribe \
		--bind-to none --mca pml ucx --mca opal_common_ucx_tls any \
		"$build/consumers/ranks" >"$out" 2>"$out.err"
	result $? "$1, $2: mpirun ends with status 0" "$(tail -n 15 "$out.err")"
	grep -E '^(not )?ok ' "$out" | sed -E "s/^(not )?ok [0-9]+ - /&$1, $2: /" >"$out.lines"
	while read -r verdict rest; do
		check "${rest#*- }" [ "$verdict" = ok ]
	done <"$out.lines"
	check "$1, $2: the ranks report" grep . "$out.lines"
	least "$1, $2: each rank" 2 "$counts" opens=1 pins=1 maps=1 to=900 from=900
}

set +e
# The simulated driver, with dma-bufs that can be mapped.
export CUDA_SIM_DRIVER_VERSION=13030 CUDA_SIM_DMABUF_MMAP=1
export UCX_TLS=self,sm,cuda_copy,gdr_copy UCX_MEM_MMAP_HOOK_MODE=none
export OMPI_MCA_btl_vader_single_copy_mechanism=none
for b in dmabuf rm; do
	UCX_MEM_CUDA_HOOK_MODE=reloc ranks "$b" reloc
	UCX_MEM_CUDA_HOOK_MODE=bistro ranks "$b" bistro
done
done_testing
