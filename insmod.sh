#!/bin/sh
# SPDX-License-Identifier: MIT
#
# insmod.sh [gdrdrv.ko] [parameter=value...] - load gdrdrv in place of one that is loaded, and
# make /dev/gdrdrv. Without a file it is this tree's, which it builds if it is not there. Needs root.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
module=$here/build/kmod/gdrdrv.ko
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
	make -C "$here" driver
fi
if grep -q '^gdrdrv ' /proc/modules; then
	rmmod gdrdrv
fi
insmod "$module" "$@"
"$here/packaging/gdrdrv-node" add
