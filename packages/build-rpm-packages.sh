#!/bin/sh
# SPDX-License-Identifier: MIT
#
# build-rpm-packages.sh - what recipes for NVIDIA's GDRCopy call: RPMs under the names of NVIDIA's,
# gdrcopy, gdrcopy-devel and gdrcopy-kmod, in the current folder. There is no kmod of one kernel (-m).
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
[ $# -eq 0 ] || { sed -n '/^# build/,/^set/s/^# //p' "$0" >&2; exit 1; }
make -C "$top" rpm NAMES=nvidia

# As NVIDIA's script names them: version 2.6-1, and the system.
version=$(make -s -C "$top" version)-1
if [ -e /etc/redhat-release ]; then
	system=.el$(grep -oE '[0-9]+' /etc/redhat-release | head -n 1)
else
	# shellcheck source=/dev/null
	system=.$(. /etc/os-release && echo "$ID-${VERSION_ID-}")
fi
cuda=$("${CUDA:-/usr/local/cuda}/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/+cuda\1/p') || :
arch=$(uname -m)
from=$top/build/packages/rpm
cp "$from"/gdrcopy-[0-9]*.rpm "./gdrcopy-$version$system$cuda.$arch.rpm"
cp "$from"/gdrcopy-devel-*.rpm "./gdrcopy-devel-$version$system.noarch.rpm"
cp "$from"/gdrcopy-kmod-*.rpm "./gdrcopy-kmod-${version}dkms$system.noarch.rpm"
ls ./*.rpm
