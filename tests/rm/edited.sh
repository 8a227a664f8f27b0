#!/bin/sh
# SPDX-License-Identifier: MIT
#
# rm/edited.sh BUILD - packagers edit the library's file: Nix its run path, auditwheel its name, Debian its
# symbols. It watches libcuda as before, also beside a copy that nobody has edited.
. tests/tap.sh
b=${1:?usage: $0 BUILD}
lib=$b/libgdrapi.so.2

# pin LIBRARY OTHER ORDER: threads pin by both in one process. The log has each pin: once one failed, and in 1,100 runs none did.
pin() {
	GDRCOPY_LOG_LEVEL=1 OURS=$1 COPY=$2 GOLIB=$b/watched/golib.so "$b/bin/rm_libraries" "$3"
}

# edited NAME COMMAND...: COMMAND edits the file that is its last argument.
edited() {
	edit=$1
	shift
	cp "$lib" "$work/edited.so"
	check "$edit" "$@" "$work/edited.so"
	! cmp -s "$lib" "$work/edited.so" || result 1 "$edit changes the file"
	check "$edit: before an untouched copy" pin "$lib" "$work/edited.so" "the copy, the library, golib"
	check "$edit: behind one" pin "$lib" "$work/edited.so" "the library, its copy, golib"
}

edited "a run path, for which the old one's place has no room" patchelf --set-rpath "/$(printf '%02000d' 0)"
edited "another name" patchelf --set-soname libgdrapi-0123456789abcdef.so.2
edited "pages of 64 KiB" patchelf --page-size 65536 --set-rpath /opt/lib
edited "strip" "${STRIP:-strip}" --strip-unneeded
edited "no notes, no section table's names" "${OBJCOPY:-objcopy}" --strip-all --remove-section='.note.*' --remove-section=.comment

done_testing
