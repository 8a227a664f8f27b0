#!/bin/sh
# SPDX-License-Identifier: MIT
# The pages as HTML: html.sh. Each link leads to a page and a place that are there, and the
# index leads to each function that is exported.
. tests/man/pages.sh
packaging/html.sh "$work/html" >"$work/said" || { cat "$work/said"; exit 1; }

# links PAGE: what it links to.
links() {
	grep -oE 'href="[^"]*"' "$1" | sed -e 's/^href="//' -e 's/"$//' | sort -u
}

# dead PAGE: the links that lead nowhere, but for those to other sites.
dead() {
	links "$1" | grep -v '^https:' | while read -r link; do
		file=${link%%#*}
		file=$(dirname "$1")/${file:-$(basename "$1")}
		if [ ! -s "$file" ]; then
			echo "$link"
		elif [ "$link" != "${link#*#}" ] && ! grep -qF "id=\"${link#*#}\"" "$file"; then
			echo "$link"
		fi
	done
}

# ours PAGE: pages of this project that it looks for at Debian.
ours() {
	links "$1" | sed -n 's|^https://manpages.debian.org/||p' | grep -E '^(gdr|vkgdr)'
}

for page in "$work"/html/*.html; do
	none "${page##*/}" "$(dead "$page")$(ours "$page")"
done
exported=$(tests/headers.sh include/gdrapi.h include/gdrapi_ext.h | cut -f 1)
for name in $exported; do
	check "the index leads to $name" grep -qF "href=\"$name.3.html\"" "$work/html/index.html"
done
# section TITLE: the pages that the index has under it.
section() {
	sed -n "/<h2[^>]*>$1</,/<\/ul>/p" "$work/html/index.html" | grep -oE 'href="[^"#]*\.html"' | sed -e 's/^href="//' -e 's/\.html"$//' | sort -u
}
is "the programs are under theirs" "$(section Programs)" "$(ls docs/man/man1)"
is "the module's page is under its" "$(section 'The kernel module')" "$(ls docs/man/man4)"
is "other names of a page lead to it" "$(find "$work/html" -type l | wc -l)" "$(find docs/man -type l | wc -l)"
done_testing
