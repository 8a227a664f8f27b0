#!/bin/sh
# SPDX-License-Identifier: (GPL-2.0 OR MIT)
#
# symvers.sh KVER KDIR NVIDIA_INC OUT HEADER - write to OUT the versions of the symbols
# that gdrdrv needs from NVIDIA's driver, in the form of the kernel's build system. Write
# to HEADER which flavour of the driver they are of.
#
# The versions come from the first of these:
#
# 1. Module.symvers of a built driver ($NVIDIA_SYMVERS, or near nv-p2p.h).
# 2. The installed module, whatever its name is.
# 3. Zeros. Then the module loads only into a kernel without CONFIG_MODVERSIONS. For
#    another kernel that is an error, unless NVIDIA_SYMVERS=none.
set -eu
kver=$1 kdir=$2 inc=$3 out=$4 header=$5
here=$(cd "$(dirname "$0")" && pwd)
symbols='nvidia_p2p_get_pages_persistent nvidia_p2p_put_pages_persistent'

unknown=
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

say() { echo "gdrdrv: $*" >&2; }

from_symvers() {
	grep -E '[[:space:]]nvidia_p2p_' "$1" >"$tmp/out" &&
		say "symbol versions of $1"
}

# unpack FILE: the module, in whatever way it is packed.
unpack() {
	case $1 in
	*.xz) xz -dc "$1" ;;
	*.zst) zstd -qdc "$1" ;;
	*.gz) gzip -dc "$1" ;;
	*) cat "$1" ;;
	esac >"$tmp/nvidia.ko"
}

# crc SYMBOL: in older kernels a version is the value of an absolute symbol. In newer ones
# it is a word in a section: __kcrctab, or __kcrctab_gpl for exports to GPL modules alone.
crc() {
	objdump -t "$tmp/nvidia.ko" | awk -v s="__crc_$1" '$NF == s { print $(NF - 2), $1 }' | {
		read -r section value || exit 0
		case $section in
		\*ABS\*) echo "0x$(printf '%s' "$value" | tail -c 8)" ;;
		*)
			objcopy -O binary --only-section="$section" \
				--set-section-flags "$section=alloc,load" \
				"$tmp/nvidia.ko" "$tmp/crcs"
			printf '0x%s\n' "$(od -An -v -tx4 -N4 \
				-j "$((0x$value))" "$tmp/crcs" | tr -d ' ')"
			;;
		esac
	}
}

# export_of: how the unpacked module exports.
export_of() {
	case $(modinfo -F license "$tmp/nvidia.ko") in
	*GPL*) echo EXPORT_SYMBOL_GPL ;;
	*) echo EXPORT_SYMBOL ;;
	esac
}

from_module() {
	unpack "$1"
	: >"$tmp/out"
	for s in $symbols; do
		v=$(crc "$s")
		[ -z "$v" ] || printf '%s\t%s\tnvidia\t%s\t\n' "$v" "$s" "$(export_of)" >>"$tmp/out"
	done
	[ -s "$tmp/out" ] && say "symbol versions of $1"
}

no_versions() {
	if [ "${NVIDIA_SYMVERS:-}" != none ] &&
		grep -qx CONFIG_MODVERSIONS=y "$kdir/include/config/auto.conf" 2>/dev/null; then
		say "no module of NVIDIA's driver with symbol versions for $kver: without them gdrdrv does not load into this kernel"
		say "install the driver for $kver first, or give NVIDIA_SYMVERS="
		exit 1
	fi
	say "no module of NVIDIA's driver for $kver: building without symbol versions"
	unknown=1
	for s in $symbols; do
		printf '0x00000000\t%s\tnvidia\tEXPORT_SYMBOL\t\n' "$s"
	done >"$tmp/out"
}

find_versions() {
	for f in "${NVIDIA_SYMVERS:-}" "$inc/Module.symvers" "$inc/../Module.symvers"; do
		if [ -n "$f" ] && [ -e "$f" ]; then
			from_symvers "$f" && return
		fi
	done
	ko=$("$here/nvidia.sh" module "$kver")
	if [ -n "$ko" ]; then
		from_module "$ko" && return
	fi
	no_versions
}

# The open flavour exports to GPL modules only.
flavour() {
	if [ -n "$unknown" ]; then
		echo unknown
	elif grep -q 'nvidia_p2p_get_pages_persistent[[:space:]].*_GPL' "$tmp/out"; then
		echo open
	else
		echo proprietary
	fi
}

find_versions
cmp -s "$tmp/out" "$out" || cp "$tmp/out" "$out"
printf '#define GDR_NVIDIA_FLAVOUR "%s"\n' "$(flavour)" >"$tmp/header"
cmp -s "$tmp/header" "$header" || cp "$tmp/header" "$header"
