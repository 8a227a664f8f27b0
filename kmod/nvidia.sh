#!/bin/sh
# SPDX-License-Identifier: (GPL-2.0 OR MIT)
#
# nvidia.sh module|source KVER - find NVIDIA's driver: the file of its module for a
# kernel, or the folder of its nv-p2p.h. Prints nothing if there is none. SYSROOT: another
# root to look in.
#
# Packages give both any name: nvidia.ko or nvidia-current.ko, nvidia-550.54,
# nvidia-open-550.54 or nvidia-srv-550.54. So this looks at their contents.
set -eu
what=$1 kver=$2 root=${SYSROOT-}
PATH=$PATH:/usr/sbin:/sbin

# unpack FILE: the module, in whatever way it is packed.
unpack() {
	case $1 in
	*.xz) xz -dc "$1" ;;
	*.zst) zstd -qdc "$1" ;;
	*.gz) gzip -dc "$1" ;;
	*) cat "$1" ;;
	esac
}

# exports FILE: whether the module exports the symbols that gdrdrv needs.
exports() { unpack "$1" 2>/dev/null | grep -aq nvidia_p2p_get_pages; }

# candidates: the module that modprobe would load comes first.
candidates() {
	modprobe ${root:+-d "$root"} -S "$kver" --show-depends nvidia 2>/dev/null |
		sed -n 's/^insmod \([^ ]*\).*/\1/p' | tail -n 1
	find -L "$root/lib/modules/$kver" -name 'nvidia*.ko*' 2>/dev/null |
		grep -vE '(uvm|drm|modeset|peermem|fs)\.ko' | sort
}

module() {
	candidates | while read -r f; do
		if [ -e "$f" ] && exports "$f"; then
			printf '%s\n' "$f"
			break
		fi
	done
}

# sources: "VERSION FOLDER" of each nv-p2p.h that an installer left, by version.
sources() {
	for h in "$root"/usr/src/nvidia-*/nvidia/nv-p2p.h \
		"$root"/usr/src/nvidia-*/kernel-open/nvidia/nv-p2p.h \
		"$root"/usr/src/nvidia-*/kernel/nvidia/nv-p2p.h \
		"$root"/usr/src/nvidia-*/nv-p2p.h; do
		[ ! -e "$h" ] || printf '%s\n' "${h%/nv-p2p.h}"
	done | sed 's@^\(.*/usr/src/nvidia-[^/]*-\|.*/usr/src/nvidia-\)\([0-9][0-9.]*\)\(.*\)@\2 \1\2\3@' |
		sort -V
}

# source_of MODULE: the one of the module's version, else the newest. A version is a text
# to awk: as numbers 550.9 and 550.90 are the same.
source_of() {
	version=
	[ -z "$1" ] || version=$(modinfo -F version "$1" 2>/dev/null) || :
	sources | awk -v v="$version" '$1 "" == v { exact = $2 } { newest = $2 }
		END { print exact ? exact : newest }'
}

case $what in
module) module ;;
source) source_of "$(module)" ;;
*)
	echo "usage: nvidia.sh module|source KVER" >&2
	exit 2
	;;
esac
