#!/bin/sh
# SPDX-License-Identifier: MIT
#
# insmod.sh [gdrdrv.ko] [parameter=value...] - load gdrdrv in place of one that is loaded. It makes
# /dev/gdrdrv. Without a file it is this tree's, which is built if it is not there; a copy of this
# script elsewhere takes the gdrdrv.ko or src/gdrdrv/gdrdrv.ko beside it. Needs root.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
module=$here/build/kmod/gdrdrv.ko
for f in "$here/gdrdrv.ko" "$here/src/gdrdrv/gdrdrv.ko"; do
	[ -e "$here/Makefile" ] || [ -e "$module" ] || module=$f
done
case ${1-} in
*.ko)
	module=$1
	shift
	;;
esac

if [ "$(id -u)" -ne 0 ]; then
	echo "insmod.sh: only root may load modules: use sudo" >&2
	exit 1
fi
if ! grep -q '^nvidia ' /proc/modules; then
	echo "insmod.sh: NVIDIA's driver is not loaded: run modprobe nvidia first" >&2
	exit 1
fi
if [ ! -e "$module" ]; then
	if [ ! -e "$here/Makefile" ]; then
		echo "insmod.sh: there is no gdrdrv.ko in $here: name the file" >&2
		exit 1
	fi
	make -C "$here" driver
fi
if grep -q '^gdrdrv ' /proc/modules; then
	rmmod gdrdrv
fi
# A node that somebody made stays in the way of the module's own.
rm -f /dev/gdrdrv
insmod "$module" "$@"
