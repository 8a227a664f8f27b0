#!/bin/bash
# SPDX-License-Identifier: MIT
#
# offline.sh - the source tarball builds on a machine that reaches no network, with a Go
# that is there and empty caches: by the steps of each recipe of packaging/channels. As
# root it has no network indeed; else the Go command is told so.
set -uo pipefail
# shellcheck source=tests/packages/lib.sh
. "$(dirname "$0")/lib.sh"
root=$(${GO:-go} env GOROOT)
for python in python3 /usr/bin/python3 ''; do
	if "$python" -c 'import yaml' 2>/dev/null; then break; fi
done
[ -n "$python" ] || die "Python's yaml is missing. Debian: apt-get install python3-yaml"

# offline COMMAND...: with that Go in PATH, which fetches none.
offline() {
	local net=()
	[ "$(id -u)" -ne 0 ] || net=(unshare -n)
	env -i PATH="$root/bin:/usr/bin:/bin" HOME="$work/home" GOTOOLCHAIN=local GOPROXY=off "${net[@]}" "$@"
}

mkdir "$work/home" "$work/made"
check "make dist" "$here/packaging/dist.sh" "$work"
tarball=$(echo "$work"/gdrapi-*.tar.xz)
tar -C "$work" -xf "$tarball"
source=${tarball%.tar.xz}
version=${source##*/gdrapi-}
sum=$(sha256sum <"$tarball")
check "it has the modules" test -e "$source/vendor/modules.txt"
check "its go.mod names no toolchain" sh -c "! grep -q ^toolchain '$source/go.mod'"
# As make has it: in a folder that is not named from the root on.
recipes() { (cd "$work" && "$here/packaging/channels.sh" "$tarball" channels); }
check "make channels" recipes

# steps CHANNEL RECIPE: the recipe's own, into a script.
steps() {
	"$python" "$here/tests/packages/recipes.py" "$1" "$2" "$version" "${sum%% *}" "$work/made/$1" >"$work/$1.sh" &&
		cat "$work/$1.sh"
}

# runs CHANNEL: the script in the tree, and what it installs. The first builds; the others
# find it built.
runs() {
	if ! (cd "$source" && offline sh -eu "$work/$1.sh") >"$work/out" 2>&1; then
		tail -n 20 "$work/out"
		return 1
	fi
	"$work/made/$1/bin/gdrcopy_doctor" --version | grep -F "$version" &&
		[ -e "$work/made/$1/lib/libgdrapi.so" ] && [ -e "$work/made/$1/include/gdrapi.h" ]
}

for recipe in "$work"/channels/*/*; do
	channel=$(basename "$(dirname "$recipe")")
	if [ "$channel" = nix ] && ! command -v nix-instantiate >/dev/null; then
		skip "nix" "nix-instantiate is missing. Debian: apt-get install nix-bin"
		continue
	fi
	check "$channel: version, checksum and steps" steps "$channel" "$recipe"
	check "$channel: builds and installs, without a network" runs "$channel"
done
check "nothing was fetched" sh -c "! find '$work/home' -path '*pkg/mod*' -type f | grep ."
done_testing
