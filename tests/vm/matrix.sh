#!/bin/bash
# SPDX-License-Identifier: MIT
#
# matrix.sh OUT - build gdrdrv for every kernel against every header of NVIDIA's, under
# OUT. TAP. Any warning is a failure.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/tap.sh
. "$here/../tap.sh"

# build ARCH KERNEL NVIDIA
build() {
	local dir=$out/$2-$3
	[ "$1" = amd64 ] || dir+=-$1
	check "$1, kernel $2, nv-p2p.h $3" env VM_ARCH="$1" GDR_DIRECT=1 "$here/build.sh" "$2" "$3" "$dir"
}

out=$1
for kernel in 6.1 6.12 7.2; do
	for nvidia in 535 550; do
		build amd64 $kernel $nvidia
	done
done
build amd64 5.10 535
build amd64 5.10 newer
build amd64 6.1 newer
build amd64 6.1 570
build arm64 6.1 535
build arm64 6.12 550
build arm64 6.12 newer
build ppc64el 6.1 550
done_testing
