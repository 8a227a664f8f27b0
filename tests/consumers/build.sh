# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# build.sh - sourced, with $build (the project's build folder) and $name set. What the
# consumers that are built here have in common: a cache for sources and builds, Debian's
# packages and sources, a CUDA toolkit of NVIDIA's headers and the doubles' libraries.

GDRAPI_VM_CACHE=${GDRAPI_CONSUMERS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gdrapi-consumers}
VM_COMPONENTS='main contrib non-free' VM_SOURCES=1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/vm/apt.sh
. "$here/../vm/apt.sh"
# shellcheck source=tests/tap.sh
. "$here/../tap.sh"
# shellcheck source=tests/consumers/count.sh
. "$here/count.sh"

: "${build:?}" "${name:?}"
# Debian 12's: their headers of CUDA are those that all of these consumers build with. Later
# consumers know more of trixie's.
cuda_suite=${CUDA_SUITE:-bookworm}
cuda=$GDRAPI_VM_CACHE/cuda-$cuda_suite
log=$build/consumers/$name.log
# What the processes of one run did.
# shellcheck disable=SC2034 # for the script
counts=$build/consumers/$name-counts
mkdir -p "$build/consumers" "$GDRAPI_VM_CACHE"
: >"$log"

# install PACKAGE...: what is missing of them.
install() {
	local p missing=()
	for p in "$@"; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] ||
			missing+=("$p")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	[ "$(id -u)" -eq 0 ] || die "$name needs ${missing[*]}: install them, or run this as root"
	say "installing ${missing[*]}"
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
		>>"$log" 2>&1 || die "cannot install ${missing[*]}: see $log"
}

# Headers of NVIDIA's, libraries of the doubles.
make_cuda() {
	local p
	if [ ! -e "$cuda/.complete" ]; then
		vm_suite "$cuda_suite"
		mkdir -p "$cuda/debs" "$cuda/lib64"
		for p in nvidia-cuda-dev libnvidia-ml-dev; do
			say "fetching $p for its headers"
			(cd "$cuda/debs" && vm_apt "$cuda_suite" apt-get download "$p") ||
				die "cannot download $p of $cuda_suite, non-free"
			dpkg-deb --fsys-tarfile "$cuda/debs/${p}_"*.deb |
				tar -C "$cuda" --strip-components=2 -xf - --wildcards './usr/include/*'
			rm -f "$cuda/debs/${p}_"*.deb
		done
		: >"$cuda/.complete"
	fi
	ln -sfn "$build/doubles/libcuda.so" "$cuda/lib64/libcuda.so"
	ln -sfn "$build/doubles/libcudart.so" "$cuda/lib64/libcudart.so"
	ln -sfn "$build/doubles/libnvidia-ml.so.1" "$cuda/lib64/libnvidia-ml.so"
}

# fetch SOURCE SUITE DIR: the upstream's source of a Debian source package, or of the folder
# that SUITE is, in DIR/source. Its status is 1 if it was there already.
fetch() {
	[ ! -e "$3/.fetched" ] || return 1
	rm -rf "$3"
	mkdir -p "$3/source"
	if [ -d "$2" ]; then
		cp -a "$2/." "$3/source/" || die "cannot copy $2"
		return 0
	fi
	vm_suite "$2"
	say "fetching the source of $1 ($2)"
	(cd "$3" && vm_apt "$2" apt-get source --tar-only "$1") >>"$log" 2>&1 ||
		die "cannot fetch the source package $1 of $2: see $log"
	tar -C "$3/source" --strip-components=1 -xf "$3/$1"_*.orig.tar.* || die "cannot unpack $1"
}

# built DIR COMMAND: runs COMMAND in a shell of its own unless it has built what lies in
# DIR, with the header as it is. Comments do not count.
built() {
	local stamp
	stamp=$(cc -fpreprocessed -dD -E -P "$here/../../include/gdrapi.h" | cksum)
	[ "$(cat "$1/.built" 2>/dev/null)" != "$stamp" ] || return 0
	say "building $name (minutes)"
	("$2") >>"$log" 2>&1 || die "$name does not build: see $log"
	echo "$stamp" >"$1/.built"
}
