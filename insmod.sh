#!/bin/sh
# SPDX-License-Identifier: MIT
#
# insmod.sh [gdrdrv.ko] [parameter=value...] - load gdrdrv in place of one that is loaded, and
# make /dev/gdrdrv. Without a file it is this tree's, which it builds if it is not there; a copy of this
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
insmod "$module" "$@"
for node in "$here/packaging/gdrdrv-node" /usr/libexec/gdrdrv-node; do
	[ ! -x "$node" ] || exec "$node" add
done
# As gdrdrv-node makes it.
rm -f /dev/gdrdrv
mknod -m 0666 /dev/gdrdrv c "$(awk '$2 == "gdrdrv" { print $1; exit }' /proc/devices)" 0
