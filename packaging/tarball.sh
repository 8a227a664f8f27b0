#!/bin/sh
# SPDX-License-Identifier: MIT
#
# tarball.sh TARBALL OUT - out of a source tarball, OUT/gdrapi-VERSION-linux-MACHINE.tar.xz:
# one folder with the library, the programs, the headers and the manual pages, which
# may lie anywhere. Its programs find the library beside them.
set -eu
tarball=$(realpath "${1:?usage: tarball.sh TARBALL OUT}") out=${2:?usage: tarball.sh TARBALL OUT}

die() { echo "tarball.sh: $*" >&2; exit 1; }

rm -rf "$out"
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$out"
tar -xf "$tarball"
source=$(basename "$tarball" .tar.xz)
name=$source-linux-$(uname -m)
cd "$source"
GO=${GO:-$(sh setup.sh --go)}
epoch=$(packaging/version.sh --epoch)
export GOFLAGS='-mod=vendor -buildmode=pie'

# make_ ARGUMENTS: with the flags of all that is shipped here, in a folder of its own.
make_() {
	make GO="$GO" CFLAGS="-O2 -g -ffile-prefix-map=$PWD=." LDFLAGS=-Wl,-z,relro,-z,now WARN='-Wall -Wextra' \
		prefix="/$name" "$@"
}
{
	make_ all install DESTDIR="$out"
} >"$out/build.log" 2>&1 || {
	tail -n 40 "$out/build.log" >&2
	die "the build failed: see $out/build.log"
}
rm -r "$out/$name/share/man/man4" # the kernel module's
find "$out/$name/bin" "$out/$name/lib"/lib*.so.2.6 "$out/$name/lib/libvkgdr.so" -type f -exec strip --strip-unneeded {} +
install -d "$out/$name/share/doc/gdrapi/docs/runs"
install -m 644 README.md CHANGELOG.md LICENSE packaging/deb/debian/copyright packaging/ucx.conf \
	"$out/$name/share/doc/gdrapi/"
install -m 644 docs/*.md "$out/$name/share/doc/gdrapi/docs/"
install -m 644 docs/runs/*.md docs/runs/*.txt "$out/$name/share/doc/gdrapi/docs/runs/"
packaging/links.sh "$out/$name/share/doc"
cd "$out"
rm -rf "$source"
tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=gnu \
	--mode=u+rw,go+rX,go-w -cf - "$name" | xz -6 -T1 >"$name.tar.xz"
rm -rf "$name"
ls "$out/$name.tar.xz"
