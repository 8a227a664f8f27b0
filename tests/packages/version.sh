#!/bin/bash
# SPDX-License-Identifier: MIT
#
# version.sh - one version everywhere, and what packaging/version.sh makes of a tag, of a
# commit without one and of a source tarball.
set -uo pipefail
# shellcheck source=tests/packages/lib.sh
. "$(dirname "$0")/lib.sh"

release=$(sed -n 's/^## \([0-9.]*\) .*/\1/p' "$here/CHANGELOG.md" | head -n 1)
is "the release begins with the ABI's version" "${release%.*}" "$(sed -n 's/^VERSION  *:= //p' "$here/Makefile")"
is "debian/changelog has it" "$(sed -n '1s/.*(\(.*\)-1).*/\1/p' "$here/packaging/deb/debian/changelog")" "$release"
is "the spec has it" "$(sed -n 's/^Version: *//p' "$here/packaging/rpm/gdrapi.spec")" "$release"
for f in packaging/dkms.conf kmod/Makefile packaging/rpm/gdrapi.spec; do
	check "$f: the module's version is the ABI's" grep -Eq "(^PACKAGE_VERSION=\"|^VERSION := |dkmsversion )${release%.*}\"?\$" "$here/$f"
done

# A tree of its own, with a history of one commit.
tree=$work/tree
mkdir -p "$tree/packaging"
cp "$here/packaging/version.sh" "$tree/packaging/"
cp "$here/VERSION" "$here/.gitattributes" "$tree/"
echo '## 9.8.7 - unreleased' >"$tree/CHANGELOG.md"
git_in() { git -C "$tree" -c user.name=t -c user.email=t "$@" >"$work/git" 2>&1 || cat "$work/git"; }
git_in init -q
git_in add -A
GIT_COMMITTER_DATE='@1000000000 +0000' git_in commit -qm one
commit=$(git -C "$tree" rev-parse --short=12 HEAD)
v() { "$tree/packaging/version.sh" "$@"; }
# archived: version, commit and time of what git archive makes of the tree.
archived() {
	rm -rf "$work/archive"
	mkdir "$work/archive"
	git -C "$tree" archive HEAD | tar -C "$work/archive" -xf - &&
		for o in '' --commit --epoch; do "$work/archive/packaging/version.sh" $o; done | tr '\n' ' '
}

is "a commit without a tag" "$(v)" "9.8.7~git200109090146.$commit"
is "its time" "$(v --epoch)" 1000000000
is "git archive of it" "$(archived)" "9.8.7~git200109090146.$commit $commit 1000000000 "
check "which dpkg sorts before the release" dpkg --compare-versions "$(v)-1" lt 9.8.7-1
git_in tag v9.8.6
is "another release's tag changes nothing" "$(v)" "9.8.7~git200109090146.$commit"
git_in tag -d v9.8.6
git_in tag v9.8.7
is "the release's tag" "$(v)" 9.8.7
is "the commit" "$(v --commit)" "$commit"
is "git archive of it" "$(archived)" "9.8.7 $commit 1000000000 "
echo '# more' >>"$tree/CHANGELOG.md"
is "a changed tree is not the release" "$(v)" "9.8.7~git200109090146.$commit.dirty"
rm -rf "$tree/.git"
is "no history" "$(v) $(v --commit) $(v --epoch)" '9.8.7~unknown unknown 0'
is "with a time" "$(SOURCE_DATE_EPOCH=77 v --epoch)" 77
check "which dpkg sorts before the release, too" dpkg --compare-versions "$(v)-1" lt 9.8.7-1
echo '1.2.3 abcdef 42' >"$tree/VERSION"
is "a source tarball's version, commit and time" "$(v) $(v --commit) $(v --epoch)" '1.2.3 abcdef 42'
cp "$here/VERSION" "$tree/"
echo '# nothing' >"$tree/CHANGELOG.md"
refuses() { ! v 2>"$work/refused" && grep 'has no heading' "$work/refused"; }
check "a changelog without a release is an error" refuses
done_testing
