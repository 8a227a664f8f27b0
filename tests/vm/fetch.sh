#!/bin/bash
# SPDX-License-Identifier: MIT
#
# fetch.sh - fetch what the VM tier needs of one kernel into the cache.
#
#   fetch.sh nvidia 535|550		nv-p2p.h of that driver
#   fetch.sh kernel 6.1|6.12|7.2	image, modules, headers
#
# Prints the folder on stdout. Everything comes from Debian's packages; nothing
# is installed, and nothing outside the cache is written.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/apt.sh"

# link_build DIR: make Debian's absolute paths in the headers point into DIR.
relocate() {
	local f
	grep -rlIE '/usr/(src|lib)/linux' "$1/usr/src" --include=Makefile --include='.kernelvariables' \
		--include=.config 2>/dev/null | while read -r f; do
		sed -i -E "s@([ =\"'(]|^)/usr/(src|lib)/linux-@\1$1/usr/\2/linux-@g" "$f"
	done
}

fetch_nvidia() {
	local suite dir
	case $1 in
	535) suite=bookworm ;;
	550) suite=trixie ;;
	*) die "no Debian release ships NVIDIA's open kernel source $1: use 535 or 550" ;;
	esac
	dir=$GDRAPI_VM_CACHE/nvidia-$1
	if [ ! -e "$dir/.complete" ]; then
		vm_suite "$suite"
		vm_unpack "$suite" nvidia-open-kernel-source "$dir"
		find "$dir/usr/src" -name '*.tar.*' -exec tar -C "$dir" -xf {} \;
		: >"$dir/.complete"
	fi
	find "$dir" -name nv-p2p.h -path '*/nvidia/*' | head -n 1 | xargs dirname
}

# suite_of VERSION: where Debian ships that kernel.
suite_of() {
	case $1 in
	6.1) echo bookworm ;;
	6.12) echo bookworm-backports ;;
	7.2) echo sid ;;
	*) die "unknown kernel $1: use 6.1, 6.12 or 7.2" ;;
	esac
}

fetch_kernel() {
	local suite dir rel kb
	suite=$(suite_of "$1")
	dir=$GDRAPI_VM_CACHE/linux-$1
	if [ ! -e "$dir/.complete" ]; then
		vm_suite "$suite"
		rel=$(vm_names "$suite" "linux-headers-${1//./\\.}[.+-].*-cloud-amd64" | tail -n 1)
		rel=${rel#linux-headers-}
		[ -n "$rel" ] || die "$suite has no cloud kernel headers of $1"
		kb=${rel%-cloud-amd64}
		vm_unpack "$suite" "linux-headers-$rel" "$dir"
		vm_unpack "$suite" "linux-headers-$kb-common" "$dir"
		if [ -n "$(vm_names "$suite" "linux-kbuild-${kb//+/\\+}")" ]; then
			vm_unpack "$suite" "linux-kbuild-$kb" "$dir"
		else
			vm_unpack "$suite" "linux-kbuild-$1" "$dir"
		fi
		vm_unpack "$suite" "linux-image-$rel" "$dir"
		relocate "$dir"
		printf '%s\n' "$rel" >"$dir/release"
		: >"$dir/.complete"
	fi
	printf '%s\n' "$dir"
}

case ${1-} in
nvidia) fetch_nvidia "${2:?which driver}" ;;
kernel) fetch_kernel "${2:?which kernel}" ;;
*) die "usage: fetch.sh nvidia 535|550 | kernel 6.1|6.12|7.2" ;;
esac
