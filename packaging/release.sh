#!/bin/sh
# SPDX-License-Identifier: MIT
#
# release.sh [OUT] - is this tree a release? It is that of the tag, and CHANGELOG.md and
# both packages' changelogs have its version and a day. Then writes OUT/SHA256SUMS, of
# every file that is published. Without OUT it only looks.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)

die() { echo "release.sh: $*" >&2; exit 1; }
version=$("$top/packaging/version.sh")
case $version in
*~*) die "$version is no release: tag a clean commit, v${version%%~*} (docs/release.md)" ;;
esac
grep -qE "^## $version - [0-9]{4}-[0-9]{2}-[0-9]{2}\$" "$top/CHANGELOG.md" ||
	die "CHANGELOG.md has no heading '## $version - YYYY-MM-DD'"
head -n 1 "$top/packaging/deb/debian/changelog" | grep -qF "($version-" ||
	die "packaging/deb/debian/changelog begins with another version than $version"
sed -n '/^%changelog/{n;p;}' "$top/packaging/rpm/gdrapi.spec" | grep -qF -- "- $version-" ||
	die "the %changelog of packaging/rpm/gdrapi.spec begins with another version than $version"

[ $# -gt 0 ] || exit 0
out=$1
cd "$out"
[ -d channels ] || die "there are no recipes in $out/channels"
files=$(find . -name build.log -prune -o -type f ! -name SHA256SUMS -print | sed 's|^\./||' | sort)
[ "$files" ] || die "there is nothing in $out"
printf '%s\n' "$files" | xargs -d '\n' sha256sum >SHA256SUMS
echo "$out/SHA256SUMS: $(wc -l <SHA256SUMS) files"
