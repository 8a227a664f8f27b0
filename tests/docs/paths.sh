#!/bin/bash
# SPDX-License-Identifier: MIT
#
# paths.sh [PAGE...] - the pages' relative links, with the headings that they name, and the files of this
# tree that they name in backquotes, exist. Of pages that are given, which may lie elsewhere, only the links are
# looked at. Run from the top of the tree.
#
# Of what stands in backquotes these count: a word that begins with a folder of the
# tree, and may be a pattern; and the bare name of a source file, in any folder. A word
# with < or $ in it stands for several, and does not count. A variable of the environment that a page
# or a manual page names is read by a file of the library, the tools or the packages.
. tests/tap.sh

tops='capi|cmd|core|docs|examples|include|kmod|packaging|pkg-config|python|tests|tools|vkgdr'
# Source files that are others', or the reader's.
others='^(nv-p2p\.[ch]|example\.c)$'
find capi cmd core docs examples include kmod packaging pkg-config python tests tools vkgdr . -maxdepth 6 \
	-type f -not -path './build/*' -not -path './.git/*' -printf '%f\n' | sort -u >"$work/names"

# quoted PAGE: the words in backquotes, one a line.
quoted() {
	# shellcheck disable=SC2016 # the backquotes are the page's
	grep -oE '`[^`]+`' "$1" | tr -d '`' | tr ' ' '\n' | grep -v '[<$]'
}

# anchors PAGE: its headings, as links name them.
anchors() {
	sed -n 's/^##* //p' "$1" | tr '[:upper:]' '[:lower:]' | tr -cd 'a-z0-9_ \n-' | tr ' ' '-'
}

# bad_links PAGE: what it links to and is not there.
bad_links() {
	local word file

	grep -oE '\]\([^)]+\)' "$1" | sed -e 's/^](//' -e 's/)$//' | grep -vE '^[a-z]+:' | while read -r word; do
		file=$(dirname "$1")/${word%%#*}
		[ "${word%%#*}" ] || file=$1
		if [ ! -s "$file" ]; then
			echo "link: $word"
		elif [ "${word#*#}" != "$word" ] && ! anchors "$file" | grep -qxF -e "${word#*#}"; then
			echo "heading: $word"
		fi
	done
}

# bad_names PAGE: what it names in backquotes and is not there.
bad_names() {
	local word

	quoted "$1" | grep -E "^($tops)/" | while read -r word; do
		compgen -G "${word%[.,;:]}" >/dev/null || echo "path: $word"
	done
	quoted "$1" | grep -E '^[A-Za-z0-9_-]+\.(c|h|go|sh|mk|py|awk)$' | grep -vE "$others" | while read -r word; do
		grep -qxF "$word" "$work/names" || echo "name: $word"
	done
}

# bad_variables PAGE: GDRCOPY_… that nothing reads; GDRCOPY_PATH_L is DPDK's. A manual page's title is none.
bad_variables() {
	local word

	grep -v '^\.Dt' "$1" | grep -oE '\bGDRCOPY_[A-Z0-9_]+' | sort -u | grep -vx GDRCOPY_PATH_L | while read -r word; do
		grep -rqw --include='*.[chp]*' --include='*.go' --include='*.yaml' -e "$word" capi core include tools cmd python packaging ||
			echo "variable: $word"
	done
}

if [ $# -gt 0 ]; then
	for page; do none "$page" "$(bad_links "$page")"; done
	done_testing
	exit
fi
for page in *.md docs/*.md docs/runs/*.md python/*.md vkgdr/python/*.md examples/*.md examples/*/*.md packaging/*.md tests/*/*.md tests/c/*/*.md; do
	none "$page" "$(bad_links "$page"; bad_names "$page"; bad_variables "$page")"
done
for page in docs/man/man*/*.[1-9]; do none "$page" "$(bad_variables "$page")"; done
done_testing
