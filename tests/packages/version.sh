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
for f in packaging/dkms.conf kmod/Makefile kmod/main.c packaging/rpm/gdrapi.spec packaging/deb/debian/gdrdrv-dkms.postinst packaging/deb/debian/gdrdrv-dkms.prerm; do
	check "$f: the module has it" grep -Eq "(^PACKAGE_VERSION=\"|^VERSION := |dkmsversion |gdrdrv |-v |MODULE_VERSION\(\")$release(\"|\$| )" "$here/$f"
done
for f in python/pyproject.toml vkgdr/python/pyproject.toml; do
	is "$f has it" "$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/$f")" "$release"
done
is "vkgdr's module has it" "$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$here/vkgdr/python/vkgdr/__init__.py")" "$release"

# What of vendor/ is linked in is go.mod's. tests/capi/goroot.sh compares the Gos.
bundled() { sed -n 's/^Provides: *bundled(golang(\(.*\))) = \(.*\)/\1 v\2/p' "$here/packaging/rpm/gdrapi.spec"; }
is "the spec names what is bundled" "$(bundled)" \
	"$(awk '$1 ~ /purego$|^golang.org.x.sys$/ { print $1, $2 }' "$here/go.mod")"
licensed() { awk '$1 ~ "/" && !/^module/ { print $1 }' "$here/go.mod" | sed 's|/testify$||' | while read -r module; do
	grep -qF "Files: vendor/$module/*" "$here/packaging/deb/debian/copyright" || { echo "debian/copyright lacks $module"; return 1; }
done; }
check "debian/copyright has each module of go.mod" licensed

# A release is refused where it is none.
none_yet() { ! make -C "$here" release >"$work/built" 2>"$work/refused" && grep 'is no release' "$work/refused" && ! grep dist.sh "$work/built"; }
case $("$here/packaging/version.sh") in *~*) check "make release refuses a commit without a tag, and builds nothing" none_yet ;; esac

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
git_in tag v9.8.7
is "the release's tag, beside it" "$(v)" 9.8.7
git_in tag -d v9.8.6
is "the release's tag" "$(v)" 9.8.7
usage() { ! v --version 2>"$work/refused" && grep -F 'usage: version.sh [--commit|--epoch]' "$work/refused"; }
check "another option is an error" usage
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

# releases: the same tree, with the day in the changelogs and the tag.
mkdir -p "$tree/packaging/deb/debian" "$tree/packaging/rpm" "$work/out"
cp "$here/packaging/release.sh" "$tree/packaging/"
echo one >"$work/out/one" && echo no >"$work/out/build.log"
echo '## 9.8.7 - 2026-11-22' >"$tree/CHANGELOG.md"
echo 'gdrapi (9.8.7-1) unstable; urgency=medium' >"$tree/packaging/deb/debian/changelog"
printf '%s\n' '%changelog' '* Sun Nov 22 2026 t <t@t.invalid> - 9.8.6-1' >"$tree/packaging/rpm/gdrapi.spec"
git_in init -q
git_in add -A
git_in commit -qm two
git_in tag v9.8.7
refused() { ! "$tree/packaging/release.sh" "$work/out" 2>"$work/refused" && grep "$1" "$work/refused"; }
check "a release whose spec has another version is refused" refused 'rpm/gdrapi.spec'
sed -i 's/9\.8\.6/9.8.7/' "$tree/packaging/rpm/gdrapi.spec"
git_in commit -qam three
git_in tag -f v9.8.7
mkdir "$work/out/channels"
check "a release" "$tree/packaging/release.sh" "$work/out"
# sums: of each file but the logs and itself, in order.
sums() { (cd "$work/out" && sha256sum 'a b' channels/one one two/three); }
echo x | tee "$work/out/a b" >"$work/out/channels/one"
mkdir "$work/out/two" && echo y >"$work/out/two/three" && echo no >"$work/out/two/build.log"
for time in first second; do
	is "its files, the $time time" "$("$tree/packaging/release.sh" "$work/out")" "$work/out/SHA256SUMS: 4 files"
	is "its checksums, the $time time" "$(cat "$work/out/SHA256SUMS")" "$(sums)"
done
rm "$work/out/channels/one"
none "without OUT it only looks" "$(cd "$work/out" && rm SHA256SUMS && "$tree/packaging/release.sh" && find . -name SHA256SUMS)"
mkdir -p "$work/empty/channels"
nothing() { ! "$tree/packaging/release.sh" "$work/empty" 2>"$work/refused" && grep "nothing in $work/empty" "$work/refused"; }
check "a release of nothing is refused" nothing
rmdir "$work/out/channels"
check "a release without recipes is refused" refused 'no recipes'
mkdir "$work/out/channels"
sed -i 's/2026-11-22/unreleased/' "$tree/CHANGELOG.md"
git_in commit -qam four
check "a commit without the tag is refused" refused 'tag a clean commit, v9.8.7 '
git_in tag -f v9.8.7
check "a release without a day is refused" refused 'YYYY-MM-DD'
sed -i 's/unreleased/2026-11-22/' "$tree/CHANGELOG.md"
sed -i 's/9\.8\.7/9.8.71/' "$tree/packaging/deb/debian/changelog"
git_in commit -qam five
git_in tag -f v9.8.7
check "a release whose debian/changelog has another version is refused" refused 'deb/debian/changelog'
done_testing
