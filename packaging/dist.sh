#!/bin/sh
# SPDX-License-Identifier: MIT
#
# dist.sh OUT - the source tarball OUT/gdrapi-VERSION.tar.xz, which the packages are
# built from: the files that git tracks, or of a tree without git all but its builds; the Go modules in vendor/, and VERSION. Its
# go.mod names no toolchain: each Go in capi/guest/build/go_versions builds it as it is, and takes
# nothing from the network. The same commit gives the same bytes.
#
# MAINTAINER='Name <address>' and URL=ADDRESS in the environment are of who publishes it: they
# go into the fields of the packages. The project itself has neither.
set -eu
out=${1:?usage: dist.sh OUT}
here=$(cd "$(dirname "$0")" && pwd)
top=$(dirname "$here")

die() { echo "dist.sh: $*" >&2; exit 1; }
case ${MAINTAINER-}${URL-} in *[\|\&\\]*) die "MAINTAINER and URL may not have | or & or a backslash" ;; esac
go=${GO:-$(sh "$top/setup.sh" --go)}

version=$("$here/version.sh") commit=$("$here/version.sh" --commit) epoch=$("$here/version.sh" --epoch)
mkdir -p "$out"
out=$(cd "$out" && pwd)
name=gdrapi-$version
stage=$out/.$name
rm -rf "$stage"
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/$name"

cd "$top"
if [ -e .git ]; then
	# A commit of what differs from HEAD in the working tree, which no branch names.
	commit_of_tree=$(git -c safe.directory="$top" -c user.name=dist -c user.email=dist stash create)
	git -c safe.directory="$top" archive "${commit_of_tree:-HEAD}" | tar -C "$stage/$name" -xf -
else
	tar --exclude='./build*' -cf - . | tar -C "$stage/$name" -xf -
fi
cd "$stage/$name"
[ -d vendor ] || GOFLAGS=-mod=mod $go mod vendor
sed -i '/^toolchain /,/^$/d' go.mod
echo "$version $commit $epoch" >VERSION
sed -i "1s/([^)]*)/($version-1)/" packaging/deb/debian/changelog
sed -i "s/^Version:.*/Version:        $version/" packaging/rpm/gdrapi.spec
[ -z "${MAINTAINER-}" ] || sed -i "s|The gdrapi authors <maintainers@gdrapi.invalid>|$MAINTAINER|" \
	packaging/deb/debian/control packaging/deb/debian/changelog packaging/rpm/gdrapi.spec
[ -z "${URL-}" ] || sed -i "s|^Standards-Version:.*|&\nHomepage: $URL|" packaging/deb/debian/control
[ -z "${URL-}" ] || sed -i "s|^Source0:  *|URL:            $URL\n&$URL/|" packaging/rpm/gdrapi.spec

cd "$stage"
tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=gnu \
	--mode=u+rw,go+rX,go-w -cf - "$name" | xz -6 -T1 >"$name.tar.xz"
mv "$name.tar.xz" "$out/"
echo "$out/$name.tar.xz"
