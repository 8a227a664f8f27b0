#!/bin/sh
# SPDX-License-Identifier: MIT
#
# deb.sh TARBALL OUT - the Debian source package and the binary packages of a source
# tarball, in OUT. Lists them. NAMES=nvidia in the environment gives them the names of NVIDIA's.
set -eu
tarball=$(realpath "${1:?usage: deb.sh TARBALL OUT}") out=${2:?usage: deb.sh TARBALL OUT}

die() { echo "deb.sh: $*" >&2; exit 1; }

rm -rf "$out"
mkdir -p "$out"
cd "$out"
tar -xf "$tarball"
name=$(basename "$tarball" .tar.xz)
cp "$tarball" "gdrapi_${name#gdrapi-}.orig.tar.xz"
cp -a "$name/packaging/deb/debian" "$name/debian"

# Debian 12 and 13 have an older Go than the oldest that serves: with this profile it is the
# builder's matter.
cd "$name"
GO=${GO:-$(sh setup.sh --go)}
GOCACHE=$($GO env GOCACHE)
export GO GOCACHE
dpkg-buildpackage -us -uc -F -Ppkg.gdrapi.owngo${NAMES:+,pkg.gdrapi.$NAMES} >../build.log 2>&1 || {
	tail -n 40 ../build.log >&2
	die "dpkg-buildpackage failed: see $out/build.log"
}
cd ..
rm -rf "$name"
ls ./*.deb ./*.dsc ./*.changes
