#!/bin/bash
# SPDX-License-Identifier: MIT
#
# wheel.sh FOLDER - what auditwheel would look at in the wheels there: name and tag agree, no
# library of it needs a symbol of glibc that is newer than the tag, or a library that a
# manylinux system may lack, and each file has the sum that RECORD has.
set -uo pipefail
# shellcheck source=tests/packages/lib.sh
. "$(dirname "$0")/lib.sh"

# What PEP 600's manylinux systems have, of what a C library brings; and the wheel's own.
may_need='^(libc|libdl|libpthread|librt|libm|libresolv)\.so\.[0-9]+$|^ld-linux[a-z0-9_-]*\.so\.[0-9]$|^libgdrapi\.so\.2$'

# newest FILE: the newest version of glibc's symbols that it needs.
newest() {
	readelf --version-info --wide "$1" | sed -n '/Version needs/,$p' | grep -oE 'GLIBC_[0-9.]+' | sed 's/GLIBC_//' | sort -uV | tail -n 1
}

# at_most A B: version A is not newer than B.
at_most() { [ "$(printf '%s\n' "$1" "$2" | sort -V | tail -n 1)" = "$2" ]; }

libraries() { find "$work/wheel" -name '*.so*' -type f; }

tagged() {
	local tag glibc lib
	tag=$(sed -n 's/^Tag: py3-none-//p' "$work"/wheel/*.dist-info/WHEEL)
	[[ $1 == *-py3-none-$tag.whl && $tag == manylinux_2_*_"$(uname -m)" ]] || { echo "$1 has the tag $tag"; return 1; }
	glibc=$(sed -E 's/manylinux_([0-9]+)_([0-9]+)_.*/\1.\2/' <<<"$tag")
	libraries | grep -q . || { echo "no library"; return 1; }
	while read -r lib; do
		at_most "$(newest "$lib")" "$glibc" || { echo "$lib needs glibc $(newest "$lib"), the tag says $glibc"; return 1; }
	done < <(libraries)
}

# others SED REGEX: what SED finds in the libraries' dynamic sections, but what REGEX matches. It
# fails if there is any.
others() {
	local lib
	while read -r lib; do
		readelf -dW "$lib" | sed -nE "$1" | grep -vE "$2" && return 1
	done < <(libraries)
	return 0
}

needed() { others 's/.*\(NEEDED\).*\[(.*)\]/\1/p' "$may_need"; }

# run_path: none, or the wheel's own folder.
# shellcheck disable=SC2016 # $ORIGIN is the loader's
run_path() { others 's/.*\((RPATH|RUNPATH)\).*\[(.*)\]/\2/p' '^\$ORIGIN$'; }

sums() {
	python3 - "$work"/wheel/*.dist-info/RECORD <<-'END'
		import base64, csv, hashlib, os, sys
		top = os.path.dirname(os.path.dirname(sys.argv[1]))
		listed = {}
		for path, digest, size in csv.reader(open(sys.argv[1])):
		    listed[path] = True
		    if digest:
		        data = open(os.path.join(top, path), "rb").read()
		        want = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
		        assert digest == "sha256=" + want and int(size) == len(data), path
		for folder, _, names in os.walk(top):
		    for name in names:
		        assert os.path.relpath(os.path.join(folder, name), top) in listed, name
	END
}

wheels=("$1"/*.whl)
[ -e "${wheels[0]}" ] || die "there is no wheel in $1: run make wheel"
for wheel in "${wheels[@]}"; do
	name=${wheel##*/}
	rm -rf "$work/wheel"
	check "$name: unpacks" python3 -m zipfile -e "$wheel" "$work/wheel"
	check "$name: its tag is its name's, and no older than its symbols" tagged "$name"
	check "$name: needs no library that a manylinux system lacks" needed
	check "$name: no run path but its own folder" run_path
	check "$name: every file is in RECORD, with its sum" sums
done
done_testing
