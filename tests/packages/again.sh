#!/bin/bash
# SPDX-License-Identifier: MIT
#
# again.sh OUT - builds what build.sh left in OUT once more: in another folder, with a
# Go cache of its own, another time zone, locale and umask. Every byte must be the same.
set -uo pipefail
# shellcheck source=tests/packages/lib.sh
. "$(dirname "$0")/lib.sh"
out=$(cd "$1" && pwd) || exit 1
first=$(ls "$out"/gdrapi-*.tar.xz) || die "there is no first build in $out: run tests/packages/build.sh"
again=$out/another/folder
rm -rf "$out/another"
mkdir -p "$again"
trap 'rm -rf "$work" "$out/another"' EXIT
cd "$here" || exit 1
umask 077
export TZ=Asia/Kathmandu LC_ALL=C.UTF-8 GOCACHE=$again/gocache

check "the source tarball, again" packaging/dist.sh "$again"
source=$again/${first##*/}
check "${first##*/}" cmp "$first" "$source"
for kind in deb rpm tarball; do
	check "$kind, again" "packaging/$kind.sh" "$source" "$again/$kind"
	for f in "$out/$kind"/*.deb "$out/$kind"/*.rpm "$out/$kind"/*.tar.xz "$out/$kind"/*.dsc; do
		[ ! -e "$f" ] || check "${f##*/}" cmp "$f" "$again/$kind/${f##*/}"
	done
done
done_testing
