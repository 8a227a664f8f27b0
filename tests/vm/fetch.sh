#!/bin/bash
# SPDX-License-Identifier: MIT
#
# fetch.sh - fetch what the VM tests need for one kernel into the cache.
#
#   fetch.sh nvidia 535|550		nv-p2p.h of that driver
#   fetch.sh kernel 5.10|6.1|6.12|7.2	image, headers
#   fetch.sh kernel 6.1-rt		the same with PREEMPT_RT
#   fetch.sh kernel 6.1-kasan|6.1-kcsan	the same, built from source (minutes)
#   fetch.sh style 6.1|6.12|7.2		scripts/checkpatch.pl of the kernel's source
#   fetch.sh busybox			the static busybox of the machine VM_ARCH
#   fetch.sh qemu-user			emulators of user programs, newer than Debian 12's
#
# VM_ARCH=arm64 fetches them for that machine; ppc64el headers alone, to build with.
# Prints the folder on stdout. Everything comes from Debian's packages. Nothing is
# installed, and nothing outside the cache is written.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/vm/apt.sh
. "$here/apt.sh"

# absolute DIR: headers of Debian refer to each other by absolute path. Change these paths
# so that they lead into DIR.
absolute() {
	local f
	grep -rlIE '/usr/(src|lib)/linux' "$1/usr/src" --include=Makefile \
		--include=.kernelvariables 2>/dev/null | while read -r f; do
		sed -i -E "s@([ =\"'(]|^)/usr/(src|lib)/linux-@\1$1/usr/\2/linux-@g" "$f"
	done
}

fetch_nvidia() {
	local suite dir header
	case $1 in
	535) suite=bookworm ;;
	550) suite=trixie ;;
	*) die "no Debian release ships NVIDIA's open kernel source $1: use 535 or 550" ;;
	esac
	dir=$GDRAPI_VM_CACHE/nvidia-$1
	if [ ! -e "$dir/.complete" ]; then
		need xz:xz-utils
		vm_suite "$suite"
		vm_unpack "$suite" nvidia-open-kernel-source "$dir"
		tar -C "$dir" -xf "$dir/usr/src/nvidia-open-kernel.tar.xz" \
			--wildcards '*/nvidia/nv-p2p.h' || die "no nv-p2p.h of $1"
		: >"$dir/.complete"
	fi
	header=$(find "$dir" -name nv-p2p.h -path '*/nvidia/*')
	[ -e "$header" ] || die "no nv-p2p.h in $dir: remove that folder, and try again"
	dirname "$header"
}

# suite_of VERSION: the Debian suite that has that kernel.
suite_of() {
	case $1 in
	5.10) echo bullseye ;;
	6.1) echo bookworm ;;
	6.12) echo bookworm-backports ;;
	7.2) echo sid ;;
	*) die "unknown kernel $1: use 5.10, 6.1, 6.12 or 7.2" ;;
	esac
}

# newest SUITE REGEX: the newest package of that name.
newest() { vm_names "$1" "$2" | tail -n 1; }

# fetch_headers SUITE VERSION DIR: unpack headers that this machine's compiler can use.
# Prints the kernel's release.
fetch_headers() {
	local rel kb kbuild flavour common=common version=${2%-rt}
	case $VM_ARCH:$2 in
	*:*-rt) flavour=rt-$VM_ARCH common=common-rt ;;
	ppc64el:*) flavour=powerpc64le ;;
	*:5.10) flavour=$VM_ARCH ;;	# the one for clouds has no dma-bufs
	*) flavour=cloud-$VM_ARCH ;;
	esac
	rel=$(newest "$1" "linux-headers-${version//./\\.}[.+-]([^a-z]|deb|bpo)*-$flavour")
	rel=${rel#linux-headers-}
	[ -n "$rel" ] || die "$1 has no headers of a kernel $2 for $VM_ARCH"
	kb=${rel%-"$flavour"}
	vm_unpack "$1" "linux-headers-$rel" "$3"
	vm_unpack "$1" "linux-headers-$kb-$common" "$3"
	# The build's own tools run here, for every target.
	VM_ARCH=amd64 vm_suite "$1"
	kbuild=$(VM_ARCH=amd64 newest "$1" "linux-kbuild-${kb//+/\\+}")
	VM_ARCH=amd64 vm_unpack "$1" "${kbuild:-linux-kbuild-$version}" "$3"
	absolute "$3"
	printf '%s\n' "$rel"
}

# fetch_root SUITE DIR: a small Debian with compiler and headers, for kernels whose build
# tools are too new for this machine.
fetch_root() {
	local rel
	need debootstrap:debootstrap
	if [ ! -e "$2/.complete" ]; then
		say "unpacking a small $1 (minutes)"
		rm -rf "$2"
		debootstrap --variant=minbase \
			--include=gcc,make,libelf-dev,linux-headers-cloud-amd64 \
			"$1" "$2" "$(vm_mirror)" >"$2.log" 2>&1 ||
			{ tail -n 30 "$2.log" >&2; die "debootstrap of $1 failed: see $2.log"; }
		: >"$2/.complete"
	fi
	rel=$(basename "$(find "$2/usr/src" -maxdepth 1 -name 'linux-headers-*-cloud-amd64')")
	printf '%s\n' "${rel#linux-headers-}"
}

# fetch_image SUITE RELEASE DIR: the kernel itself, as DIR/vmlinuz.
fetch_image() {
	local p
	[ ! -e "$3/vmlinuz" ] || return 0
	vm_suite "$1"
	# Newer packages have the kernel itself in a separate package.
	p=$(newest "$1" "linux-binary-${2//+/\\+}")
	vm_unpack "$1" "${p:-linux-image-$2}" "$3"
	find "$3" -type f -name 'vmlinuz*' -exec ln -sfn {} "$3/vmlinuz" \;
	[ -e "$3/vmlinuz" ] || die "no kernel image in ${p:-linux-image-$2}"
}

# configure SOURCE BUILD FLAVOUR: a small kernel that looks for faults. Every option must
# be set in the result, or a detector is missing.
configure() {
	local line name
	cat "$here/debug.config" "$here/$3.config" >"$2/wanted"
	make -C "$1" O="$2" ARCH=x86_64 CC=gcc KCONFIG_ALLCONFIG="$2/wanted" \
		allnoconfig >"$2/log" 2>&1 ||
		{ cat "$2/log" >&2; die "cannot configure the kernel"; }
	while read -r line; do
		name=${line%%=*}
		grep -qxF "$line" "$2/.config" ||
			die "the kernel in $1 does not take $line: $(grep -w "$name" "$2/.config")"
	done < <(grep '^CONFIG_' "$2/wanted")
}

# fetch_debug VERSION FLAVOUR: build such a kernel, once for each configuration.
fetch_debug() {
	local src dir want
	dir=$GDRAPI_VM_CACHE/linux-$1-$2
	src=$(fetch_source "$1" "$GDRAPI_VM_CACHE/source-$1")
	want=$(cat "$here/debug.config" "$here/$2.config" | cksum)
	if [ "$(cat "$dir/.complete" 2>/dev/null)" != "$want" ]; then
		need flex:flex bison:bison bc:bc gcc:gcc
		mkdir -p "$dir/build" "$dir/usr/src"
		configure "$src" "$dir/build" "$2"
		say "building the kernel $1 with $2 (minutes)"
		nice -n 10 make -C "$src" O="$dir/build" ARCH=x86_64 CC=gcc -j"$(nproc)" \
			bzImage modules >"$dir/build/log" 2>&1 ||
			{ tail -n 30 "$dir/build/log" >&2; die "the kernel does not build: see $dir/build/log"; }
		cp "$dir/build/include/config/kernel.release" "$dir/release"
		ln -sfn ../../build "$dir/usr/src/linux-headers-$(cat "$dir/release")"
		ln -sfn build/arch/x86/boot/bzImage "$dir/vmlinuz"
		printf '%s\n' "$want" >"$dir/.complete"
	fi
	printf '%s\n' "$dir"
}

fetch_kernel() {
	local suite dir rel
	case $1 in
	*-kasan | *-kcsan) fetch_debug "${1%-*}" "${1##*-}"; return ;;
	esac
	suite=$(suite_of "${1%-rt}")
	dir=$GDRAPI_VM_CACHE/linux-$1
	[ "$VM_ARCH" = amd64 ] || dir+=-$VM_ARCH
	if [ ! -e "$dir/.complete" ]; then
		vm_suite "$suite"
		mkdir -p "$dir"
		if [ "$suite" = sid ]; then
			rel=$(fetch_root "$suite" "$GDRAPI_VM_CACHE/root-$1")
			ln -sfn "$GDRAPI_VM_CACHE/root-$1" "$dir/root"
		else
			rel=$(fetch_headers "$suite" "$1" "$dir")
		fi
		printf '%s\n' "$rel" >"$dir/release"
		: >"$dir/.complete"
	fi
	[ "$VM_ARCH" = ppc64el ] || fetch_image "$suite" "$(cat "$dir/release")" "$dir"
	printf '%s\n' "$dir"
}

fetch_busybox() {
	local dir=$GDRAPI_VM_CACHE/busybox-$VM_ARCH
	[ -e "$dir/bin/busybox" ] || { vm_suite bookworm; vm_unpack bookworm busybox-static "$dir"; }
	printf '%s\n' "$dir/bin/busybox"
}

# Of Debian 12's backports: before 8.1 there is no MADV_WIPEONFORK.
fetch_qemu_user() {
	local dir=$GDRAPI_VM_CACHE/qemu-user
	[ -e "$dir/usr/bin" ] ||
		{ vm_suite bookworm-backports; vm_unpack bookworm-backports qemu-user "$dir"; }
	printf '%s\n' "$dir/usr/bin"
}

# fetch_source VERSION DIR [PATTERN]: the kernel's source, or only the files that match.
fetch_source() {
	local suite src=linux-source-$1
	suite=$(suite_of "$1")
	if [ ! -e "$2/.complete" ]; then
		need xz:xz-utils
		vm_suite "$suite"
		vm_unpack "$suite" "$src" "$2"
		say "unpacking the source of $1"
		tar -C "$2" -xf "$2/usr/src/$src.tar.xz" --wildcards "$src/${3-*}" ||
			die "cannot unpack the source of $1"
		rm -f "$2/usr/src/$src.tar.xz"
		: >"$2/.complete"
	fi
	printf '%s\n' "$2/$src"
}

# One at a time: a second process waits for the first.
mkdir -p "$GDRAPI_VM_CACHE"
exec 9>"$GDRAPI_VM_CACHE/lock"
flock 9
case ${1-} in
style) fetch_source "${2:?which kernel}" "$GDRAPI_VM_CACHE/style-$2" 'scripts/*' ;;
nvidia) fetch_nvidia "${2:?which driver}" ;;
kernel) fetch_kernel "${2:?which kernel}" ;;
busybox) fetch_busybox ;;
qemu-user) fetch_qemu_user ;;
*) die "usage: fetch.sh nvidia 535|550 | kernel|style 6.1|6.12|7.2 | busybox | qemu-user" ;;
esac
