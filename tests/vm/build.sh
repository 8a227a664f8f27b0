#!/bin/bash
# SPDX-License-Identifier: MIT
#
# build.sh KERNEL NVIDIA OUT - build gdrdrv.ko, the simulated nvidia.ko and card_sim.ko for a
# kernel (of run.sh), against NVIDIA's header of a release (535, 550). Debian has no header of
# 570, of older and of newer releases: vary makes these. Any warning is an error. GDR_MAKE
# has extra make variables, as "C=2". GDR_DIRECT=1 calls the kernel's build on a copy of kmod/, too.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
# shellcheck source=tests/vm/apt.sh
. "$here/apt.sh"

need make:make gcc:gcc pahole:dwarves
[ $# -eq 3 ] || die "usage: build.sh KERNEL NVIDIA OUT"
kdir=$("$here/fetch.sh" kernel "$1")
case $2 in
older | newer | 570) nv=$("$here/fetch.sh" nvidia 550) ;;
*) nv=$("$here/fetch.sh" nvidia "$2") ;;
esac
rel=$(cat "$kdir/release")
mkdir -p "$3"
out=$(cd "$3" && pwd)
read -r -a extra <<<"${GDR_MAKE-}"
# The suite's CC is for this machine; conftest.sh would take it for another one's kernel.
unset CC
# Headers name the compiler of their Debian, which a newer one may not have.
named=$(sed -n 's/^CC = .*CROSS_COMPILE)\(gcc-.*\)$/\1/p' "$kdir/usr/src/linux-headers-$rel/.kernelvariables" 2>/dev/null || :)
[ -z "$named" ] || command -v "$VM_CROSS$named" >/dev/null || extra+=(CC="${VM_CROSS}gcc")
# For another VM_ARCH, choose a kernel whose build tools run on this machine.
case $VM_ARCH in
arm64) extra+=(ARCH=arm64) ;;
ppc64el) extra+=(ARCH=powerpc) ;;
esac
if [ -n "$VM_CROSS" ]; then
	need "${VM_CROSS}gcc:gcc-${VM_CROSS%-}"
	extra+=(CROSS_COMPILE="$VM_CROSS")
fi

# vary WHICH HEADER: turn the header of 550 into another release's. Older releases have no
# persistent mappings, and gdrdrv does not build with them. Newer ones have page tables of major 2, and the flag for mappings
# over PCIe. 570 and 575 have the flag alone.
vary() {
	case $1 in
	570)
		sed -i '/define NVIDIA_P2P_CAP_GET_PAGES/a #define NVIDIA_P2P_FLAGS_FORCE_BAR1_MAPPING 1' "$2"
		;;
	older) sed -i '/define NVIDIA_P2P_CAP_GET_PAGES_PERSISTENT_API/d' "$2" ;;
	newer)
		sed -i -e '/define NVIDIA_P2P_PAGE_TABLE_VERSION /s/0x00010002/0x00020000/' \
			-e '/^struct nvidia_p2p_page_table {/,/^}/s/^}/    uint32_t flags;\n}/' \
			-e '/define NVIDIA_P2P_CAP_GET_PAGES/a #define NVIDIA_P2P_FLAGS_FORCE_BAR1_MAPPING 1' "$2"
		;;
	esac
}

# stage DIR NVIDIA: put everything that the build reads into one folder.
stage() {
	mkdir -p "$1/kmod" "$1/sim" "$1/nv"
	cp "$top"/kmod/* "$1/kmod/"
	cp "$top"/tests/kmod/{nvidia_sim*.[ch],card_sim.c,Kbuild} "$top/examples/capture/card_uapi.h" "$1/sim/"
	cp "$nv/nv-p2p.h" "$1/nv/"
	vary "$2" "$1/nv/nv-p2p.h"
}

# The commands that build, with $w the staged folder and $k the headers.
# shellcheck disable=SC2016 # for the shell that runs it
recipe='
set -e
cd "$w"
env "$@" ./kmod/conftest.sh "$k" "$w/nv" "$w/gdrdrv_config.h"
make -C "$k" M="$w/sim" GDR_NVIDIA_INC="$w/nv" GDR_CONFIG="$w/gdrdrv_config.h" "$@" modules
make -C kmod KDIR="$k" NVIDIA_SRC_DIR="$w/nv" NVIDIA_SYMVERS="$w/sim/Module.symvers" \
	BUILD="$w/out" GDR_WEXTRA=y GDR_WERROR=y "$@"
[ -z "$direct" ] || { cp -r kmod direct && NVIDIA_SRC_DIR=$w/nv NVIDIA_SYMVERS=$w/sim/Module.symvers make -C "$k" M="$w/direct" "$@" modules && ls direct/gdrdrv.ko; }
'

if [ -e "$kdir/root" ]; then
	root=$(readlink -f "$kdir/root")
	work=/build/$2-$$
	mkdir -p "$root/build"
	[ -e "$root/dev/null" ] || mknod -m 666 "$root/dev/null" c 1 3
	trap 'rm -rf "$root$work"' EXIT
	stage "$root$work" "$2"
	# objtool reads /proc. The mount ends with the namespace.
	# shellcheck disable=SC2016 # likewise
	unshare --mount sh -c 'mount -t proc proc "$1/proc" && exec chroot "$@"' sh \
		"$root" env -i PATH=/usr/sbin:/usr/bin HOME=/ w="$work" direct="${GDR_DIRECT-}" \
		k="/usr/src/linux-headers-$rel" sh -c "$recipe" sh "${extra[@]}" >"$out/build.log" 2>&1 ||
		{ cat "$out/build.log" >&2; die "the build failed"; }
	work=$root$work
else
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	stage "$work" "$2"
	w=$work direct=${GDR_DIRECT-} k=$kdir/usr/src/linux-headers-$rel \
		sh -c "$recipe" sh "${extra[@]}" >"$out/build.log" 2>&1 ||
		{ cat "$out/build.log" >&2; die "the build failed"; }
fi
cp "$work/out/gdrdrv.ko" "$work/sim/"*.ko "$work/gdrdrv_config.h" "$out/"

# modpost and objtool warn without failing.
if grep -iE 'warning' "$out/build.log" | grep -v 'the compiler differs'; then
	die "the build warned: see $out/build.log"
fi

# With GPL-only symbols gdrdrv could not be used with a proprietary nvidia.ko. The
# kernel's own inline functions use some if locks are checked. No one runs such a kernel
# with that driver.
case $1 in
*-kasan | *-kcsan)
	say "built for $rel, nv-p2p.h $2: no warning"
	exit
	;;
esac
symvers=$kdir/usr/src/linux-headers-$rel/Module.symvers
[ -e "$symvers" ] || symvers=$kdir/root/usr/src/linux-headers-$rel/Module.symvers
gpl=$(nm -u "$out/gdrdrv.ko" | awk 'NR == FNR { u[$2] = 1; next }
	($2 in u) && $4 == "EXPORT_SYMBOL_GPL" { print $2 }' - "$symvers")
[ -z "$gpl" ] || die "gdrdrv uses GPL-only symbols: ${gpl//$'\n'/ }"
say "built for $rel, nv-p2p.h $2: no warning, no GPL-only symbol"
