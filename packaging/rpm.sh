#!/bin/sh
# SPDX-License-Identifier: MIT
#
# rpm.sh TARBALL OUT - the RPMs of a source tarball, in OUT. Lists them. NAMES=nvidia in the environment
# gives them the names of NVIDIA's. No source RPM:
# rpm writes the folder of the build into one, and its sum into the others; who wants
# one has it from the tarball by rpmbuild -ts.
set -eu
umask 022
tarball=$(realpath "${1:?usage: rpm.sh TARBALL OUT}") out=${2:?usage: rpm.sh TARBALL OUT}

die() { echo "rpm.sh: $*" >&2; exit 1; }
: "${GO:=$(sh "$(dirname "$0")/../setup.sh" --go)}"

rm -rf "$out"
mkdir -p "$out"
out=$(cd "$out" && pwd)
# On a machine whose packages are not RPMs none is required, and libdir is named.
set -- --define "_topdir $out/.top" --define "go $GO" --with owngo ${NAMES:+--with "$NAMES"}
[ -e /etc/rpm/macros.dist ] || set -- "$@" --nodeps --define '_libdir /usr/lib64' --define 'dist %{nil}'
mkdir -p "$out/.top"
rpmbuild -tb "$@" "$tarball" >"$out/build.log" 2>&1 || {
	tail -n 40 "$out/build.log" >&2
	die "rpmbuild failed: see $out/build.log"
}
find "$out/.top/RPMS" -name '*.rpm' -exec mv {} "$out/" \;
rm -rf "$out/.top"
ls "$out"/*.rpm
