#!/bin/sh
# SPDX-License-Identifier: MIT
#
# html.sh OUT - the manual pages as HTML in OUT, and OUT/index.html, which leads to each
# function and program. A reference to a page of another project leads to Debian's.
set -eu
out=${1:?usage: html.sh OUT}
cd "$(dirname "$0")/../docs/man"
command -v mandoc >/dev/null || { echo "html.sh: mandoc is missing: install Debian's package mandoc" >&2; exit 1; }

man=$PWD
rm -rf "$out"
mkdir -p "$out"
cd "$out"
for page in "$man"/man?/*.[0-9]; do
	name=${page##*/}
	if [ -L "$page" ]; then
		ln -sf "$(readlink "$page").html" "$name.html"
	else
		mandoc -T html -O 'style=style.css,man=%N.%S.html' "$page" >"$name.html"
	fi
done
# Pages that are not here are Debian's to show.
others=$(grep -ohE 'href="[A-Za-z0-9_.-]+\.[0-9]\.html"' ./*.html | sed -e 's/^href="//' -e 's/"$//' | sort -u |
	while read -r link; do [ -e "$link" ] || echo "s|\"$link\"|\"https://manpages.debian.org/${link%.html}\"|g"; done)
back='s|^<body>$|&<p><a href="index.html">gdrapi: reference</a></p>|'
find . -name '*.html' -type f -exec sed -i -e "$back" -e "$others" {} +

cat >style.css <<'END'
body { max-width: 50em; margin: 1em auto; padding: 0 1em; font: 1em/1.5 sans-serif; color-scheme: light dark }
pre, code { font-family: monospace, monospace; font-size: .95em }
code.Fl { white-space: nowrap }
table.Nm td { vertical-align: top }
pre { overflow-x: auto }
h1 { font-size: 1.4em }
h2 { font-size: 1.15em }
a.permalink { color: inherit; text-decoration: none }
table.head, table.foot { width: 100% }
td.head-rtitle, td.foot-os { text-align: right }
@media (max-width: 40em) { td.head-rtitle, td.foot-os { display: none } }
.Bl-tag > dt { margin-top: .5em }
END

# list TITLE SECTION: each page, by the names that lead to it, and its first line of description.
list() {
	echo "<h2>$1</h2><ul>"
	for page in "$man/man$2"/*."$2"; do
		[ ! -L "$page" ] || continue
		names=
		for name in "${page##*/}" $(find "$man/man$2" -lname "${page##*/}" -printf '%f\n' | sort); do
			names="${names:+$names, }<a href=\"$name.html\"><code>${name%.*}</code></a>"
		done
		echo "<li>$names: $(sed -n 's/^\.Nd //p' "$page" | head -n 1)</li>"
	done
	echo "</ul>"
}
{
	cat <<-'END'
	<!DOCTYPE html>
	<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
	<title>gdrapi: reference</title><link rel="stylesheet" href="style.css"></head><body>
	<h1>gdrapi: reference</h1>
	<p>Begin with <a href="gdrapi.3.html">gdrapi(3)</a>. The headers gdrapi.h and gdrapi_ext.h say the same.</p>
	END
	list Functions 3
	list Programs 1
	list "The kernel module" 4
	cat <<-'END'
	<h2>Sources that this library is compared with</h2><ul>
	<li><a href="https://github.com/NVIDIA/gdrcopy">NVIDIA/gdrcopy</a>: the reference</li>
	<li><a href="https://github.com/NVIDIA/open-gpu-kernel-modules">NVIDIA/open-gpu-kernel-modules</a>: the driver's kernel part</li>
	<li><a href="https://github.com/openucx/ucx">openucx/ucx</a>, <a href="https://github.com/NVIDIA/nccl">NVIDIA/nccl</a>,
	<a href="https://github.com/ofiwg/libfabric">ofiwg/libfabric</a>: consumers</li>
	<li><a href="https://docs.nvidia.com/cuda/gpudirect-rdma/">GPUDirect RDMA</a>: NVIDIA's guide</li>
	</ul></body></html>
	END
} >index.html
echo "$PWD/index.html"
