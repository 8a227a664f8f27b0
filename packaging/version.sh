#!/bin/sh
# SPDX-License-Identifier: MIT
#
# version.sh [--commit|--epoch] - the version of this tree, its commit, or the time of it
# in seconds since 1970.
#
# A release is the commit with the tag vX.Y.Z, where X.Y is the version of the ABI and
# the first heading of CHANGELOG.md is X.Y.Z. Any other commit on the way to it is
# X.Y.Z~gitDATE.COMMIT, which dpkg and rpm sort before it. A tree without a history has its
# commit in the file VERSION: `make dist` writes version, commit and time there, and
# git archive (.gitattributes) writes commit, time and tag. With neither it is X.Y.Z~unknown,
# of the time SOURCE_DATE_EPOCH, or 0: the clock is never asked.
set -eu
cd "$(dirname "$0")/.."

die() { echo "version.sh: $*" >&2; exit 1; }

# git of this tree alone, not of one that it may lie in; the tree may be another user's.
tree_git() { git -c safe.directory="$PWD" --git-dir=.git "$@" 2>/dev/null; }

# name COMMIT TIME TAG: the version.
name() {
	v=$(sed -n 's/^## \([0-9][0-9]*[.][0-9][0-9]*[.][0-9][0-9]*\) .*/\1/p' CHANGELOG.md | head -n 1)
	[ -n "$v" ] || die "CHANGELOG.md has no heading '## X.Y.Z - date'"
	case "$1 $3" in
	*-dirty\ *) ;;
	*" v$v") echo "$v"; return ;;
	unknown*) echo "$v~unknown"; return ;;
	esac
	echo "$v~git$(date -u -d "@$2" +%Y%m%d%H%M).$(echo "$1" | tr - .)"
}

first=
[ ! -r VERSION ] || read -r first second third <VERSION
case $first in
'' | \$Format*)
	commit=$(tree_git describe --always --abbrev=12 --exclude '*' --dirty || echo unknown)
	epoch=$(tree_git log -1 --format=%ct || echo "${SOURCE_DATE_EPOCH:-0}")
	version=$(name "$commit" "$epoch" "$(tree_git tag --points-at HEAD --list 'v*' --sort=-v:refname | head -n 1)")
	;;
*.*)
	version=$first commit=$second epoch=$third
	;;
*)
	commit=$(printf %.12s "$first") epoch=$second
	version=$(name "$commit" "$epoch" "${third-}")
	;;
esac

case ${1-} in
'') echo "$version" ;;
--commit) echo "$commit" ;;
--epoch) echo "$epoch" ;;
*) die "usage: version.sh [--commit|--epoch]" ;;
esac
