#!/bin/sh
# SPDX-License-Identifier: MIT
# What make install did: install.sh MANDIR BINDIR. All pages and links are there,
# and each program that was installed has one.
. tests/man/pages.sh
mandir=$1
bindir=$2

files() {
	(cd "$1" && find . -name '*.[1-9]')
}

whole_links() {
	[ -z "$(find -L "$mandir" -type l -print)" ]
}

check "the pages that are installed are those of $man" same "$(files "$man")" "$(files "$mandir")"
check "every link leads to a page" whole_links
for program in "$bindir"/*; do
	check "$(basename "$program") has a page" test -f "$mandir/man1/$(basename "$program").1"
done
done_testing
