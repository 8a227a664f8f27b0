#!/bin/sh
# SPDX-License-Identifier: MIT
#
# links.sh FOLDER... - in the pages below the folders, which are a package's, a link to a file that is not there
# becomes its text.
set -eu
find "$@" -name '*.md' -type f | while IFS= read -r page; do
	grep -oE '\]\([^)#: ]+[)#]' "$page" | sed -e 's/^](//' -e 's/.$//' | sort -u | while IFS= read -r target; do
		[ -e "${page%/*}/$target" ] ||
			sed -Ezi "s~!?\[([^][]*)\]\($(printf %s "$target" | sed 's/[.]/\\./g')(#[^)]*)?\)~\1~g" "$page"
	done
done
