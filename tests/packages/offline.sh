#!/bin/bash
# SPDX-License-Identifier: MIT
#
# offline.sh - the source tarball builds on a machine that reaches no network, with a Go
# that is there and empty caches. As root it has no network indeed; else the Go command is
# told so.
set -uo pipefail
# shellcheck source=tests/packages/lib.sh
. "$(dirname "$0")/lib.sh"
root=$(${GO:-go} env GOROOT)

# offline COMMAND...: with that Go in PATH, which fetches none.
offline() {
	local net=()
	[ "$(id -u)" -ne 0 ] || net=(unshare -n)
	env -i PATH="$root/bin:/usr/bin:/bin" HOME="$work/home" GOTOOLCHAIN=local GOPROXY=off "${net[@]}" "$@"
}

# built FOLDER: the library and a tool that speaks of it.
built() {
	[ -e "$1/build/libgdrapi.so.2" ] && "$1/build/bin/gdrcopy_doctor" --version
}

mkdir "$work/home"
check "make dist" "$here/packaging/dist.sh" "$work"
tar -C "$work" -xf "$work"/gdrapi-*.tar.xz
source=$(find "$work" -maxdepth 1 -type d -name 'gdrapi-*')
check "it has the modules" test -e "$source/vendor/modules.txt"
check "its go.mod names no toolchain" sh -c "! grep -q ^toolchain '$source/go.mod'"
check "make, without a network" offline make -C "$source" all
check "the library and the programs are there" built "$source"
check "nothing was fetched" sh -c "! find '$work/home' -path '*pkg/mod*' -type f | grep ."
done_testing
