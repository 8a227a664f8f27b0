#!/bin/sh
# SPDX-License-Identifier: MIT
#
# version.sh [--commit|--epoch] - the version of this tree, its commit, or the time of it
# in seconds since 1970.
#
# A release is the commit with the tag vX.Y.Z, where X.Y is the version of the ABI and
# the first heading of CHANGELOG.md is X.Y.Z. Any other commit on the way to it is
# X.Y.Z~gitDATE.COMMIT, which dpkg and rpm sort before it. A source tarball has no
# history: there the file VERSION holds the three words. With neither it is X.Y.Z~unknown,
# of the time SOURCE_DATE_EPOCH, or 0: the clock is never asked.
set -eu
cd "$(dirname "$0")/.."

die() { echo "version.sh: $*" >&2; exit 1; }

# git of this tree alone, not of one that it may lie in; the tree may be another user's.
tree_git() { git -c safe.directory="$PWD" --git-dir=.git "$@" 2>/dev/null; }

heading() {
	v=$(sed -n 's/^## \([0-9][0-9]*[.][0-9][0-9]*[.][0-9][0-9]*\) .*/\1/p' CHANGELOG.md | head -n 1)
	[ -n "$v" ] || die "CHANGELOG.md has no heading '## X.Y.Z - date'"
	echo "$v"
}

commit() {
	tree_git describe --always --abbrev=12 --exclude '*' --dirty || echo unknown
}

epoch() {
	tree_git log -1 --format=%ct || echo "${SOURCE_DATE_EPOCH:-0}"
}

version() {
	v=$(heading)
	c=$(commit)
	if [ "$(tree_git tag --points-at HEAD --list "v$v")" = "v$v" ] && [ "$c" = "${c%-dirty}" ]; then
		echo "$v"
	elif [ "$c" = unknown ]; then
		echo "$v~unknown"
	else
		echo "$v~git$(date -u -d "@$(epoch)" +%Y%m%d%H%M).$(echo "$c" | tr - .)"
	fi
}

if [ -r VERSION ]; then
	read -r version commit epoch <VERSION
	version() { echo "$version"; }
	commit() { echo "$commit"; }
	epoch() { echo "$epoch"; }
fi

case ${1-} in
'') version ;;
--commit) commit ;;
--epoch) epoch ;;
*) die "usage: version.sh [--commit|--epoch]" ;;
esac
