#!/bin/sh
# SPDX-License-Identifier: MIT
#
# install.sh - make install into prefixes of which the build knows nothing. The
# programs find the library, wherever both are moved; pkg-config gives flags that
# work; make uninstall leaves no file. $MAKE is the make to run.
. tests/tap.sh
export LC_ALL=C
unset LD_LIBRARY_PATH

# install_to VARIABLE=VALUE...: in the project's folder, built before.
install_to() {
	${MAKE:-make} -s install LDCONFIG=: "$@"
}

# runs PROGRAM: it finds its library, and answers.
runs() {
	env -i "$1" -h >/dev/null
}

# paths PROGRAM: where it looks for libraries.
paths() {
	readelf -dW "$1" | sed -n 's/.*(R\(UN\)*PATH).*\[\(.*\)\]$/\2/p'
}

# all_run FOLDER HOW: one test for each program there.
all_run() {
	for program in "$1"/*; do
		check "$2: $(basename "$program") runs" runs "$program"
	done
}

first=$work/first
check "make install prefix=" install_to prefix="$first"
all_run "$first/bin" "in its prefix"
is "a program looks for its library from where it lies" \
	"$(paths "$first/bin/gdrcopy_sanity")" "\$ORIGIN/../lib"
check "pkg-config gives flags that work" tests/c/abi/pc.sh '' "$first/lib"
mv "$first" "$work/moved"
all_run "$work/moved/bin" "in a prefix that was moved"
mv "$work/moved" "$first"
check "make uninstall" "${MAKE:-make}" -s uninstall prefix="$first"
none "it leaves no file" "$(find "$first" ! -type d)"

other=$work/other
check "make install bindir= libdir=" install_to prefix="$other" bindir="$other/libexec/gdr" libdir="$other/lib64"
all_run "$other/libexec/gdr" "with folders of its own"

check "make install DESTDIR= libdir=/usr/lib" install_to DESTDIR="$work/root" prefix=/usr libdir=/usr/lib
is "where the loader looks by itself, no path is in the programs" \
	"$(paths "$work/root/usr/bin/gdrcopy_sanity")" ''
none "no file names the folder of the build" \
	"$(grep -rlF "$PWD" "$work/root" || true)"
rm -f build/gdrapi.pc
done_testing
