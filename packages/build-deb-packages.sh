#!/bin/sh
# SPDX-License-Identifier: MIT
#
# build-deb-packages.sh [-d] [-t] [-k] - what recipes for NVIDIA's GDRCopy call: Debian's packages
# under the names of NVIDIA's, in the current folder. -t leaves out gdrcopy-tests, -k gdrdrv-dkms;
# -d says nothing here. CUDA's version is in the name of gdrcopy-tests where $CUDA has nvcc.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
left_out=libvkgdr
while getopts dtkh option; do
	case $option in
	d) ;;
	t) left_out="$left_out gdrcopy-tests" ;;
	k) left_out="$left_out gdrdrv-dkms" ;;
	*) sed -n '/^# build/,/^set/s/^# //p' "$0"; exit 1 ;;
	esac
done

sh "$top/setup.sh"
make -C "$top" deb NAMES=nvidia

# As NVIDIA's script names them: version 2.6-1, this machine's architecture, the system.
suffix=_$(make -s -C "$top" version)-1_$(dpkg --print-architecture)
! command -v lsb_release >/dev/null || suffix=$suffix.$(lsb_release -is | tr ' ' _)$(lsb_release -rs | tr . _)
cuda=$("${CUDA:-/usr/local/cuda}/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/+cuda\1/p') || :
for package in libgdrapi gdrcopy-tests gdrdrv-dkms gdrcopy; do
	case " $left_out " in *" $package "*) continue ;; esac
	of=$suffix
	[ $package != gdrcopy-tests ] || of=$suffix$cuda
	cp "$top/build/packages/deb/${package}"_[0-9]*.deb "./$package$of.deb"
done
ls ./*.deb
