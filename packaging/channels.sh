#!/bin/sh
# SPDX-License-Identifier: MIT
#
# channels.sh TARBALL OUT - the recipes of packaging/channels for that source tarball, in
# OUT: its version, its SHA-256 and the Gos of capi/guest/build/go_versions are filled in. URL in the
# environment is the folder that the tarball is published in.
set -eu
tarball=${1:?usage: channels.sh TARBALL OUT} out=${2:?usage: channels.sh TARBALL OUT}
here=$(cd "$(dirname "$0")" && pwd)
url=${URL:-https://gdrapi.invalid}
case $url in *[!A-Za-z0-9:/._~%-]*) echo "channels.sh: URL=$url is not the address of a folder" >&2; exit 1 ;; esac

version=$(basename "$tarball" .tar.xz)
version=${version#gdrapi-}
sum=$(sha256sum <"$tarball")
gos=$(sed -n 's/^go//p' "$here/../capi/guest/build/go_versions")
go=$(echo "$gos" | tail -n 1)
least=$(echo "$gos" | head -n 1 | cut -d. -f1,2)
most=$(echo "$go" | cut -d. -f1,2)

rm -rf "$out"
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$here/channels"
for template in */*.in; do
	recipe=$out/${template%.in}
	mkdir -p "$(dirname "$recipe")"
	sed -e "s|@HEAD@|Made by \`make channels\`.|" -e "s|@VERSION@|$version|g" -e "s|@SHA256@|${sum%% *}|" \
		-e "s|@URL@|$url|g" -e "s|@ABI@|$(echo "$version" | cut -d. -f1,2)|" -e "s|@GO@|$go|" -e "s|@GO_LEAST@|$least|" \
		-e "s|@GO_MOST@|$most|" -e "s|@GO_PAST@|1.$((${most#1.} + 1))|" "$template" >"$recipe"
done
mv "$out/easybuild/gdrapi.eb" "$out/easybuild/GDRCopy-$version-gdrapi.eb"
find "$out" -type f | sort
