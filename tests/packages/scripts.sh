#!/bin/bash
# SPDX-License-Identifier: MIT
#
# scripts.sh - what makes the packages, and setup.sh's installing, with programs that stand for
# those they call: dist.sh, channels.sh, deb.sh, rpm.sh, tarball.sh, packaging.mk. Nothing is
# built, fetched or installed. tests/packages/version.sh has version.sh and release.sh.
# shellcheck disable=SC2016 # for the stubs
# shellcheck source=tests/stubs.sh
. "$(dirname "$0")/../stubs.sh"
unset MAKEFLAGS MAKELEVEL GO SOURCE_DATE_EPOCH
umask 022
real sh bash awk grep sed cat find readlink sort tail head tr cut cmp cp mv rm ln mkdir mktemp dirname basename realpath ls env \
	date git tar gzip sha256sum install chmod touch printf wc make
answers uname 'echo x86_64'
# tar looks at what it reads, not at its name.
if command -v xz >"$work/said"; then real xz; else answers xz 'exec gzip -6'; fi

# A tree with a history of one commit; its Go is a stub.
top=$work/top
mkdir -p "$top/packaging/deb/debian" "$top/packaging/rpm" "$top/packaging/channels/any" "$top/capi/host" "$top/docs/h200"
cp "$here"/packaging/*.sh "$top/packaging/"
cp "$here/.gitattributes" "$top/"
echo '$Format:%H$' >"$top/VERSION" # as it is in a checkout
printf '#!/bin/sh\necho go-of-setup "$@"\n' >"$top/setup.sh"
chmod +x "$top/setup.sh"
echo '## 9.8.7 - 2026-11-22' >"$top/CHANGELOG.md"
printf '%s\n' 'module gdrapi' '' 'go 1.24.0' '' 'toolchain go1.27.4' '' 'require a v1' >"$top/go.mod"
printf '%s\n' 'gdrapi (2.6.0-1) unstable; urgency=medium' '' '  * (see)' '' ' -- The gdrapi authors <maintainers@gdrapi.invalid>  Sun' \
	>"$top/packaging/deb/debian/changelog"
printf '%s\n' 'Maintainer: The gdrapi authors <maintainers@gdrapi.invalid>' 'Standards-Version: 4.6.2' 'Rules: no' >"$top/packaging/deb/debian/control"
printf '%s\n' 'Version:        2.6.0' 'Source0:        %{name}.tar.xz' '%changelog' '* Sun The gdrapi authors <maintainers@gdrapi.invalid> - 2.6.0-1' >"$top/packaging/rpm/gdrapi.spec"
printf '%s\n' '# The list.' go1.24.0 go1.26.8 go1.27.4 >"$top/capi/host/go_versions"
echo '@HEAD@ @VERSION@ @VERSION@ @SHA256@ @URL@ @URL@ @ABI@ @GO@ @GO_LEAST@ @GO_MOST@ @GO_PAST@' >"$top/packaging/channels/any/file.x.in"
mkdir "$top/packaging/channels/easybuild"
echo '@VERSION@' >"$top/packaging/channels/easybuild/gdrapi.eb.in"
: >"$top/packaging/deb/debian/copyright"
: >"$top/packaging/ucx.conf"
for f in README.md LICENSE docs/a.md docs/h200/b.md docs/h200/b.txt; do echo text >"$top/$f"; done
git_in() { git -C "$top" -c user.name=t -c user.email=t "$@" >"$work/git" 2>&1 || cat "$work/git"; }
git_in init -q
git_in add -A
GIT_COMMITTER_DATE='@1000000000 +0000' git_in commit -qm one
git_in tag v9.8.7
commit=$(git -C "$top" rev-parse --short=12 HEAD)

# dist.sh
dist=$top/packaging/dist.sh
for go in go go-of-setup; do stub $go 'echo "+ GOFLAGS=$GOFLAGS" >>"$CALLS"; mkdir vendor && echo a >vendor/modules.txt'; done
umask 077
echo untracked >"$top/untracked"
runs "make dist" "$dist" "$work/dist" <<'END'
+ go-of-setup --go mod vendor
+ GOFLAGS=-mod=mod
W/dist/gdrapi-9.8.7.tar.xz
= 0
END
umask 022
is "nothing but the tarball is left" "$(tree "$work/dist")" '-rw------- gdrapi-9.8.7.tar.xz'
tarball=$work/dist/gdrapi-9.8.7.tar.xz
# listed TARBALL: mode, owner, time and name of what is in it.
listed() { tar --full-time -tvf "$1" | TZ=UTC awk '{ print $1, $2, $4, $5, $6, $7, $8 }'; }
is "its files, in order, of nobody and of the commit's time" "$(listed "$tarball" | sed -n '1,4p;/dist.sh *$/p;/vendor\/m/p')" \
	'drwxr-xr-x 0/0 2001-09-09 01:46:40 gdrapi-9.8.7/  
-rw-r--r-- 0/0 2001-09-09 01:46:40 gdrapi-9.8.7/.gitattributes  
-rw-r--r-- 0/0 2001-09-09 01:46:40 gdrapi-9.8.7/CHANGELOG.md  
-rw-r--r-- 0/0 2001-09-09 01:46:40 gdrapi-9.8.7/LICENSE  
-rwxr-xr-x 0/0 2001-09-09 01:46:40 gdrapi-9.8.7/packaging/dist.sh  
-rw-r--r-- 0/0 2001-09-09 01:46:40 gdrapi-9.8.7/vendor/modules.txt  '
# held FILE...: what is in files of the tarball.
held() { tar -xOf "$tarball" "${@/#/gdrapi-9.8.7/}"; }
is "VERSION" "$(held VERSION)" "9.8.7 $commit 1000000000"
is "its go.mod names no toolchain" "$(held go.mod)" 'module gdrapi

go 1.24.0

require a v1'
recipes() { held packaging/deb/debian/control packaging/deb/debian/changelog packaging/rpm/gdrapi.spec; }
is "the packages have its version, and nobody publishes it" "$(recipes)" 'gdrapi (9.8.7-1) unstable; urgency=medium

  * (see)

 -- The gdrapi authors <maintainers@gdrapi.invalid>  Sun
Maintainer: The gdrapi authors <maintainers@gdrapi.invalid>
Standards-Version: 4.6.2
Rules: no
Version:        9.8.7
Source0:        %{name}.tar.xz
%changelog
* Sun The gdrapi authors <maintainers@gdrapi.invalid> - 2.6.0-1'
none "an untracked file is not in it" "$(tar -tf "$tarball" | grep untracked)"
cp "$tarball" "$work/first.tar.xz"
is "the same commit gives the same bytes" "$(ran TZ=Asia/Kathmandu "$dist" "$work/dist" | tail -n 1; cmp "$tarball" "$work/first.tar.xz")" '= 0'
(cd "$work" && ran GO='env A=b go' MAINTAINER='Me & <m@x>' "$dist" dist) >"$work/said"
is "MAINTAINER with a character of sed's" "$(cat "$work/said")" '! dist.sh: MAINTAINER and URL may not have | or & or a backslash
= 1'
for bad in '|' \\; do is "URL, too: $bad" "$(ran URL="http://x/$bad" "$dist" "$work/dist" | tail -n 1)" '= 1'; done
is "GO, MAINTAINER, URL, and a folder that is not named from the root on" "$(cd "$work" && ran GO='env A=b go' MAINTAINER='Me <m@x>' URL=https://x/y "$dist" dist
	recipes)" '+ go mod vendor
+ GOFLAGS=-mod=mod
W/dist/gdrapi-9.8.7.tar.xz
= 0
gdrapi (9.8.7-1) unstable; urgency=medium

  * (see)

 -- Me <m@x>  Sun
Maintainer: Me <m@x>
Standards-Version: 4.6.2
Homepage: https://x/y
Rules: no
Version:        9.8.7
URL:            https://x/y
Source0:        https://x/y/%{name}.tar.xz
%changelog
* Sun Me <m@x> - 2.6.0-1'
is "no modules, no tarball" "$(ran FAILS=go-of-setup "$dist" "$work/dist2" | tail -n 1; tree "$work/dist2")" '= 9'
echo changed >>"$top/README.md"
is "a change that is not committed is in it" "$(ran "$dist" "$work/dist3" | sed -n 's/dirty.*/dirty/p'; tar -xOf "$work"/dist3/*.xz --wildcards '*/README.md')" \
	"W/dist3/gdrapi-9.8.7~git200109090146.$commit.dirty
text
changed"
git_in checkout -q README.md
mv "$top/.git" "$work/history"
is "without a history there is none" "$(ran "$dist" "$work/dist2")" '! dist.sh: W/top is not a git checkout: the tarball is made of one
= 1'
mv "$work/history" "$top/.git"
for p in git:git tar:tar xz:xz-utils; do
	mv "$bin/${p%:*}" "$work/away"
	is "dist.sh without ${p%:*}" "$(ran "$dist" "$work/dist2")" "! dist.sh: ${p%:*} is missing: install Debian's package ${p#*:}
= 1"
	mv "$work/away" "$bin/${p%:*}"
done

# channels.sh
sum=$(sha256sum <"$tarball" | cut -d' ' -f1)
channels=$top/packaging/channels.sh
is "make channels" "$(cd "$work" && mkdir -p out/old && ran URL=https://x/y%20~z "$channels" "$tarball" out; cat out/any/file.x out/easybuild/*)" \
	"W/out/any/file.x
W/out/easybuild/GDRCopy-9.8.7-gdrapi.eb
= 0
Made by \`make channels\`. 9.8.7 9.8.7 $sum https://x/y%20~z https://x/y%20~z 9.8 1.27.4 1.24 1.27 1.28
9.8.7"
is "nothing old is left" "$(tree "$work/out")" 'drwxr-xr-x any
-rw-r--r-- any/file.x
drwxr-xr-x easybuild
-rw-r--r-- easybuild/GDRCopy-9.8.7-gdrapi.eb'
is "without URL it is nowhere" "$(ran "$channels" "$tarball" "$work/out" | tail -n 1; cut -d' ' -f8 "$work/out/any/file.x")" '= 0
https://gdrapi.invalid'
for bad in 'a b' 'a|b' 'a&b' 'a"b'; do
	is "URL=$bad is refused" "$(ran URL="$bad" "$channels" "$tarball" "$work/out")" "! channels.sh: URL=$bad is not the address of a folder
= 1"
done
for f in "$here"/packaging/channels/*/*.in; do
	none "${f##*/} has no other name to fill in" "$(grep -oE '@[A-Z][A-Z_]*[A-Z0-9]@' "$f" | grep -vxE '@(HEAD|VERSION|SHA256|URL|ABI|GO|GO_LEAST|GO_MOST|GO_PAST)@')"
done

# Each of the others needs programs, says which, and keeps the log of what failed.
stub gcc
needs() {
	for p in "${@:2}"; do
		mv "$bin/${p%:*}" "$work/away"
		is "$1 without ${p%:*}" "$(ran "$top/packaging/$1" "$tarball" "$work/none" | grep -v ^+)" "! $1: ${p%:*} is missing: install Debian's package ${p#*:}
= 1"
		mv "$work/away" "$bin/${p%:*}"
	done
}
for s in deb rpm tarball channels; do
	is "$s.sh: usage" "$(ran "$top/packaging/$s.sh" "$tarball" 2>&1 | grep -o "usage: $s.sh TARBALL OUT")" "usage: $s.sh TARBALL OUT"
done

# deb.sh
stub dh
stub dpkg-buildpackage 'printf "+ %s\n" "GO=$GO GOCACHE=$GOCACHE" "${PWD##*/}: $(ls debian)" >>"$CALLS"
seq() { i=1; while [ $i -le 50 ]; do echo "line $i"; i=$((i + 1)); done; }; seq; seq >&2
: >../a.deb; : >../a.dsc; : >../a.changes; : >../a.buildinfo; exit "${BUILD-0}"'
stub go-of-setup 'echo /cache'
stub go 'echo /cache'
needs deb.sh dpkg-buildpackage:dpkg-dev dh:debhelper make:make gcc:gcc xz:xz-utils
debs='+ dpkg-buildpackage -us -uc -F -Ppkg.gdrapi.owngo
+ GO=go-of-setup --go GOCACHE=/cache
+ gdrapi-9.8.7: changelog
+ control
+ copyright'
debs=${debs//$'\n+ co'/$'\nco'}
mkdir -p "$work/deb/old"
is "make deb" "$(cd "$work" && ran packaging= "$top/packaging/deb.sh" dist/gdrapi-9.8.7.tar.xz deb)" "+ go-of-setup --go env GOCACHE
$debs
./a.changes
./a.deb
./a.dsc
= 0"
is "the source package is left, and the log" "$(tree "$work/deb")" '-rw-r--r-- a.buildinfo
-rw-r--r-- a.changes
-rw-r--r-- a.deb
-rw-r--r-- a.dsc
-rw-r--r-- build.log
-rw-r--r-- gdrapi_9.8.7.orig.tar.xz'
check "the tarball is its source" cmp "$tarball" "$work/deb/gdrapi_9.8.7.orig.tar.xz"
is "both streams are in the log" "$(wc -l <"$work/deb/build.log")" 100
is "GO= is taken" "$(ran GO='env A=b go' "$top/packaging/deb.sh" "$tarball" "$work/deb" | sed -n '1p;3p')" '+ go env GOCACHE
+ GO=env A=b go GOCACHE=/cache'
# fails SCRIPT WHAT: a build that fails: the end of the log, and where it is.
fails() {
	is "$1.sh: a build that fails" "$(ran BUILD=3 "$top/packaging/$1.sh" "$tarball" "$work/$1" | sed -n '/^[!=]/p' | sed -n '1p;40,$p')" \
		"! line 11
! line 50
! $1.sh: $2 failed: see W/$1/build.log
= 1"
}
fails deb dpkg-buildpackage

# rpm.sh
stub rpmbuild 'echo "+ umask $(umask)" >>"$CALLS"; seq() { i=1; while [ $i -le 50 ]; do echo "line $i"; i=$((i + 1)); done; }; seq; seq >&2
mkdir -p "$TOP/RPMS/x86_64" "$TOP/RPMS/noarch" "$TOP/BUILD"; : >"$TOP/RPMS/x86_64/a.rpm"; : >"$TOP/RPMS/noarch/b.rpm"; : >"$TOP/BUILD/c.rpm"; exit "${BUILD-0}"'
sed -i "s|/etc/rpm|$work/etc|" "$top/packaging/rpm.sh"
needs rpm.sh rpmbuild:rpm make:make gcc:gcc xz:xz-utils
rpm() { ran TOP="$work/rpm/.top" "$@" "$top/packaging/rpm.sh" dist/gdrapi-9.8.7.tar.xz rpm; }
cd "$work" || exit 1
umask 077
mkdir -p "$work/rpm/old" "$work/etc"
is "make rpm" "$(rpm)" "+ rpmbuild -tb --define '_topdir W/rpm/.top' --define 'go go-of-setup --go' --with owngo --nodeps --define '_libdir /usr/lib64' --define 'dist %{nil}' W/dist/gdrapi-9.8.7.tar.xz
+ umask 0022
W/rpm/a.rpm
W/rpm/b.rpm
= 0"
umask 022
is "the RPMs are left, and the log" "$(tree "$work/rpm")" '-rw-r--r-- a.rpm
-rw-r--r-- b.rpm
-rw-r--r-- build.log'
is "both streams are in the log" "$(wc -l <"$work/rpm/build.log")" 100
: >"$work/etc/macros.dist"
is "where packages are RPMs nothing is given that the system says" "$(rpm GO='env A=b go' | head -n 1)" \
	"+ rpmbuild -tb --define '_topdir W/rpm/.top' --define 'go env A=b go' --with owngo W/dist/gdrapi-9.8.7.tar.xz"
fails rpm rpmbuild

# tarball.sh, with a make that installs some files.
stub strip
stub make 'echo "+ GOFLAGS=$GOFLAGS" >>"$CALLS"
seq() { i=1; while [ $i -le 50 ]; do echo "line $i"; i=$((i + 1)); done; }; seq; seq >&2
for w; do case $w in DESTDIR=*) d=${w#*=} ;; prefix=/*) p=${w#*=} ;; build/*.pc) mkdir -p build; echo "of $w" >"$w" ;; sbom) mkdir -p build; echo {} >build/gdrapi.cdx.json ;; esac; done
if [ "${d-}" ]; then
	for f in bin/gdrcopy_a lib/libgdrapi.so.2.6 lib/libvkgdr.so lib/pkgconfig/gdrapi.pc share/man/man3/a.3 share/man/man4/b.4 include/a.h; do
		mkdir -p "$d$p/${f%/*}"
		echo a >"$d$p/$f"
	done
	chmod 777 "$d$p/bin/gdrcopy_a"
	ln -s gdrcopy_a "$d$p/bin/a"
	ln -s libgdrapi.so.2.6 "$d$p/lib/libgdrapi.so.2"
fi
exit "${BUILD-0}"'
needs tarball.sh make:make gcc:gcc strip:binutils tar:tar xz:xz-utils
flags="GO='go-of-setup --go' 'CFLAGS=-O2 -g -ffile-prefix-map=W/tarball/gdrapi-9.8.7=.' LDFLAGS=-Wl,-z,relro,-z,now 'WARN=-Wall -Wextra' prefix=/gdrapi-9.8.7-linux-x86_64"
flags=${flags/GO=\'/\'GO=}
umask 077
mkdir -p "$work/tarball/old"
cp "$tarball" "$work/first.tar.xz"
is "make tarball" "$(ran "$top/packaging/tarball.sh" dist/gdrapi-9.8.7.tar.xz tarball)" "+ make $flags all install DESTDIR=W/tarball
+ GOFLAGS=-mod=vendor -buildmode=pie
+ make $flags -s sbom
+ GOFLAGS=-mod=vendor -buildmode=pie
+ make $flags build/gdrapi.pc build/vkgdr.pc prefix=\$\${pcfiledir}/../.. libdir=\$\${prefix}/lib includedir=\$\${prefix}/include
+ GOFLAGS=-mod=vendor -buildmode=pie
+ strip --strip-unneeded W/tarball/gdrapi-9.8.7-linux-x86_64/bin/gdrcopy_a W/tarball/gdrapi-9.8.7-linux-x86_64/lib/libgdrapi.so.2.6 W/tarball/gdrapi-9.8.7-linux-x86_64/lib/libvkgdr.so
W/tarball/gdrapi-9.8.7-linux-x86_64.tar.xz
= 0"
umask 022
is "it is left, and the log" "$(tree "$work/tarball" | cut -d' ' -f2)" 'build.log
gdrapi-9.8.7-linux-x86_64.tar.xz'
made=$work/tarball/gdrapi-9.8.7-linux-x86_64.tar.xz
is "what is in it, with its modes" "$(listed "$made" | sed -e 's| 0/0 2001-09-09 01:46:40 gdrapi-9.8.7-linux-x86_64/| |' -e 's/ *$//')" 'drwxr-xr-x
drwxr-xr-x bin/
lrwxr-xr-x bin/a -> gdrcopy_a
-rwxr-xr-x bin/gdrcopy_a
drwxr-xr-x include/
-rw-r--r-- include/a.h
drwxr-xr-x lib/
lrwxr-xr-x lib/libgdrapi.so.2 -> libgdrapi.so.2.6
-rw-r--r-- lib/libgdrapi.so.2.6
-rw-r--r-- lib/libvkgdr.so
drwxr-xr-x lib/pkgconfig/
-rw-r--r-- lib/pkgconfig/gdrapi.pc
-rw-r--r-- lib/pkgconfig/vkgdr.pc
drwxr-xr-x share/
drwxr-xr-x share/doc/
drwxr-xr-x share/doc/gdrapi/
-rw-r--r-- share/doc/gdrapi/CHANGELOG.md
-rw-r--r-- share/doc/gdrapi/LICENSE
-rw-r--r-- share/doc/gdrapi/README.md
-rw-r--r-- share/doc/gdrapi/copyright
drwxr-xr-x share/doc/gdrapi/docs/
-rw-r--r-- share/doc/gdrapi/docs/a.md
drwxr-xr-x share/doc/gdrapi/docs/h200/
-rw-r--r-- share/doc/gdrapi/docs/h200/b.md
-rw-r--r-- share/doc/gdrapi/docs/h200/b.txt
-rw-r--r-- share/doc/gdrapi/gdrapi.cdx.json
-rw-r--r-- share/doc/gdrapi/ucx.conf
drwxr-xr-x share/man/
drwxr-xr-x share/man/man3/
-rw-r--r-- share/man/man3/a.3'
is "the .pc files that move with it" "$(tar -xOf "$made" --wildcards '*.pc')" 'of build/gdrapi.pc
of build/vkgdr.pc'
is "both streams are in the log" "$(wc -l <"$work/tarball/build.log")" 300
is "GO= is taken" "$(ran GO='env A=b go' "$top/packaging/tarball.sh" "$tarball" tarball | grep -c "make 'GO=env A=b go' 'CFLAGS")" 3
fails tarball "the build"
is "so does a strip that fails" "$(ran FAILS=strip "$top/packaging/tarball.sh" "$tarball" tarball | tail -n 1 | grep -c '= [1-9]')" 1

# All of them, where each path has a space and a star.
odd="$work/a * folder"
mkdir -p "$odd/x" "$odd/tarball"
cp -a "$top" "$odd/top"
git -C "$odd/top" checkout -q .
stub make '[ "$*" = "${*#*DESTDIR}" ] || { for f in bin lib/pkgconfig share/man/man4; do mkdir -p "$D/gdrapi-9.8.7-linux-x86_64/$f"; done; : >"$D/gdrapi-9.8.7-linux-x86_64/lib/libgdrapi.so.2.6"; : >"$D/gdrapi-9.8.7-linux-x86_64/lib/libvkgdr.so"; }
mkdir -p build; : >build/gdrapi.pc; : >build/vkgdr.pc; : >build/gdrapi.cdx.json'
stub go-of-setup 'mkdir -p vendor; : >vendor/modules.txt; echo /cache'
odd_run() {
	is "$1 in a folder with a space" "$(ran TOP="$odd/$1/.top" D="$odd/tarball" "$odd/top/packaging/$1.sh" "${@:2}" | tail -n 1)" '= 0'
}
cd "$odd" || exit 1
odd_run dist dist
odd_run channels "dist/gdrapi-9.8.7.tar.xz" "$odd/channels"
for s in deb rpm tarball; do odd_run $s "$odd/dist/gdrapi-9.8.7.tar.xz" "$odd/$s"; done
is "what they made" "$(find . -name top -prune -o -type f -print | sort)" './channels/any/file.x
./channels/easybuild/GDRCopy-9.8.7-gdrapi.eb
./deb/a.buildinfo
./deb/a.changes
./deb/a.deb
./deb/a.dsc
./deb/build.log
./deb/gdrapi_9.8.7.orig.tar.xz
./dist/gdrapi-9.8.7.tar.xz
./rpm/a.rpm
./rpm/b.rpm
./rpm/build.log
./tarball/build.log
./tarball/gdrapi-9.8.7-linux-x86_64.tar.xz'
real make
cd "$here" || exit 1

# html.sh, with three pages and a link, and a mandoc that gives what a page has.
mkdir -p "$top/docs/man/man1" "$top/docs/man/man3" "$top/docs/man/man4"
cp "$here/packaging/html.sh" "$top/packaging/"
printf '%s\n' .Nd\ 'one program' .Nd\ no '<body>' 'href="gdr_b.3.html" href="gdr_c.3.html#x" href="ls.1.html" href="ls.1.html"' >"$top/docs/man/man1/gdr_a.1"
printf '%s\n' '.Nd two functions' '<body>' ' <body>' >"$top/docs/man/man3/gdr_b.3"
echo '.Nd a module' >"$top/docs/man/man4/gdr_d.4"
ln -s gdr_b.3 "$top/docs/man/man3/gdr_c.3"
ln -s gdr_b.3 "$top/docs/man/man3/gdr_0.3"
runs "html.sh without mandoc" "$top/packaging/html.sh" "$work/html" <<'END'
! html.sh: mandoc is missing: install Debian's package mandoc
= 1
END
stub mandoc 'for page; do :; done; cat "$page"'
mkdir -p "$work/html/old"
is "make html" "$(cd "$work" && ran "$top/packaging/html.sh" "$work/html")" "$(for p in 1/gdr_a.1 3/gdr_b.3 4/gdr_d.4; do echo "+ mandoc -T html -O style=style.css,man=%N.%S.html W/top/docs/man/man$p"; done)
W/html/index.html
= 0"
is "each page, and each other name of one" "$(tree "$work/html" | cut -d' ' -f2-)" 'gdr_0.3.html gdr_b.3.html
gdr_a.1.html
gdr_b.3.html
gdr_c.3.html gdr_b.3.html
gdr_d.4.html
index.html
style.css'
is "a page leads back, and to Debian for those that are not here" "$(cat "$work/html/gdr_a.1.html" "$work/html/gdr_b.3.html")" '.Nd one program
.Nd no
<body><p><a href="index.html">gdrapi: reference</a></p>
href="gdr_b.3.html" href="gdr_c.3.html#x" href="https://manpages.debian.org/ls.1" href="https://manpages.debian.org/ls.1"
.Nd two functions
<body><p><a href="index.html">gdrapi: reference</a></p>
 <body>'
is "the index" "$(sed -n '/^<p>/,/compared with/p' "$work/html/index.html" | grep -v '^<p>')" '<h2>Functions</h2><ul>
<li><a href="gdr_b.3.html"><code>gdr_b</code></a>, <a href="gdr_0.3.html"><code>gdr_0</code></a>, <a href="gdr_c.3.html"><code>gdr_c</code></a>: two functions</li>
</ul>
<h2>Programs</h2><ul>
<li><a href="gdr_a.1.html"><code>gdr_a</code></a>: one program</li>
</ul>
<h2>The kernel module</h2><ul>
<li><a href="gdr_d.4.html"><code>gdr_d</code></a>: a module</li>
</ul>
<h2>Sources that this library is compared with</h2><ul>'

# What CMake finds the library by; cmake says what it makes of it.
found=$work/moved/lib/cmake/gdrapi
mkdir -p "$found" "$work/moved/include" "$work/link"
for f in gdrapi-config.cmake gdrapi-config-version.cmake; do
	make -s -f Makefile --eval "one: ; \$(call find_file,$f,$found)" one libdir=/x/lib64 includedir=/x/h/include
done
ln -s "$found" "$work/link/gdrapi"
cat >"$work/any.cmake" <<'END'
function(add_library)
	message("+ ${ARGN}")
endfunction()
function(set_target_properties)
	message("+ ${ARGN}")
endfunction()
include(${FILE})
message("${gdrapi_FOUND} ${gdrapi_NOT_FOUND_MESSAGE} ${PACKAGE_VERSION} ${PACKAGE_VERSION_COMPATIBLE},${PACKAGE_VERSION_EXACT},${PACKAGE_VERSION_UNSUITABLE}${_gdrapi_here}${_gdrapi_libdir}${_gdrapi_includedir}${_gdrapi_major}")
END
# cmaked FILE VARIABLE=VALUE...: what including it says.
cmaked() {
	local v=()
	for w in "${@:2}"; do v+=("-D$w"); done
	cmake "${v[@]}" -DFILE="$1" -P "$work/any.cmake" 2>&1 | plain
}
if command -v cmake >"$work/said"; then
	while read -r wanted answer; do
		is "CMake: version $wanted" "$(cmaked "$found/gdrapi-config-version.cmake" PACKAGE_FIND_VERSION="$wanted" \
			PACKAGE_FIND_VERSION_MAJOR="${wanted%%.*}" CMAKE_SIZEOF_VOID_P=8)" "  2.6 $answer,"
	done <<'END'
1 FALSE,
2 TRUE,
2.5 TRUE,
2.6 TRUE,TRUE
2.6.1 FALSE,
2.7 FALSE,
3 FALSE,
26 FALSE,
END
	is "CMake: another size of a pointer" "$(cmaked "$found/gdrapi-config-version.cmake" PACKAGE_FIND_VERSION=2.6 PACKAGE_FIND_VERSION_MAJOR=2 CMAKE_SIZEOF_VOID_P=4)" '  2.6 TRUE,TRUE,TRUE'
	is "CMake: no library" "$(cmaked "$found/gdrapi-config.cmake")" \
		'FALSE W/moved/lib/libgdrapi.so.2 does not exist: install the library beside this file  ,,'
	: >"$work/moved/lib/libgdrapi.so.2"
	is "CMake: by a link" "$(cmaked "$work/link/gdrapi/gdrapi-config.cmake")" "+ gdrapi::gdrapi;SHARED;IMPORTED
+ gdrapi::gdrapi;PROPERTIES;IMPORTED_LOCATION;W/moved/lib/libgdrapi.so.2;IMPORTED_SONAME;libgdrapi.so.2;INTERFACE_INCLUDE_DIRECTORIES;W/moved/h/include
   ,,"
else
	skip "CMake's files" "cmake is missing. Debian: apt-get install cmake"
fi

# What each package takes of the tree that make install leaves: both kinds the same, and all of it.
tree=$work/installed lib=usr/lib/x86_64-linux-gnu
(cd "$here" && make -s install DESTDIR="$tree" prefix=/usr libdir=/$lib && make -s -C kmod install DESTDIR="$tree") >"$work/said" 2>&1 || cat "$work/said"
# takes NAME: the files of the paths on standard input, for the package of that name.
takes() {
	while read -r path; do
		found=$(cd "$tree" && compgen -G "$path") || { echo "$1: nothing is $path"; continue; }
		(cd "$tree" && echo "$found" | xargs -I{} find {} ! -type d) | sed "s|^|$1 |"
	done
}
for f in "$here"/packaging/deb/debian/*.install; do
	name=${f##*/}
	grep '^usr/' "$f" | takes "${name%.install}"
done | sort >"$work/debs"
for name in libgdrapi2 libgdrapi-devel libvkgdr gdrcopy-tools gdrdrv-dkms; do
	sed -n "/^%files -n $name\$/,/^\$/p" "$here/packaging/rpm/gdrapi.spec" | grep -v '^%\(files\|doc\|license\)\|^$' |
		sed -e "s|%{_libdir}|/$lib|; s|%{_includedir}|/usr/include|; s|%{_bindir}|/usr/bin|; s|%{_mandir}|/usr/share/man|; s|%{_datadir}|/usr/share|; s|%{dkmsversion}|2.6|; s|^/||" |
		takes "${name/%-devel/-dev}"
done | sort >"$work/rpms"
none "the packages of both kinds have the same files" "$(diff "$work/debs" "$work/rpms")"
is "each file is in one" "$(cut -d' ' -f2 "$work/debs" | sort)" "$(cd "$tree" && find ./* ! -type d | sed 's|^./||' | sort)"
is "so many are in each" "$(cut -d' ' -f1 "$work/debs" | uniq -c | awk '{ print $2, ($1 > 0) }')" "$(printf '%s 1\n' gdrcopy-tools gdrdrv-dkms libgdrapi-dev libgdrapi2 libvkgdr)"
for f in "$here"/packaging/deb/debian/*.{install,examples,docs}; do
	while read -r words; do
		for word in $words; do
			case $word in usr/* | build/*) continue ;; esac
			check "${f##*/}: $word is there" compgen -G "$here/$word"
		done
	done <"$f"
done
is "the symbols of Debian's package are the library's" "$(sed -nE 's/^ ([^ ]+) 2\.6\.0~$/\1/p' "$here/packaging/deb/debian/libgdrapi2.symbols" | sort)" \
	"$(nm -D --defined-only --with-symbol-versions "$here/build/libgdrapi.so.2.6" | awk '{ sub("@@", "@", $3); print $3 ($3 ~ /@/ ? "" : $2 == "A" ? "@" $3 : "@Base") }' | sort)"
# relations FILE: whose place each package takes, and what it needs.
relations() {
	sed -nE 's/^%package -n /Package: /; s/\$\{[a-z]+:(Pre-Depends|Depends)\},? ?//g; s/, $//; /^(Package|Depends|Requires|Provides|Conflicts|Replaces): *./{s/:  +/: /;p}' "$1" | grep -v 'bundled\|: $'
}
is "Debian's packages stand in for NVIDIA's" "$(relations "$here/packaging/deb/debian/control")" 'Package: libgdrapi2
Provides: libgdrapi (= ${binary:Version})
Conflicts: libgdrapi
Replaces: libgdrapi
Package: libgdrapi-dev
Depends: libgdrapi2 (= ${binary:Version})
Package: libvkgdr
Package: gdrcopy-tools
Provides: gdrcopy-tests (= ${binary:Version})
Conflicts: gdrcopy-tests
Replaces: gdrcopy-tests
Package: gdrdrv-dkms
Depends: dkms'
is "and so do the RPMs" "$(relations "$here/packaging/rpm/gdrapi.spec")" 'Package: libgdrapi2
Provides: gdrcopy = %{version}-%{release}
Provides: gdrcopy%{?_isa} = %{version}-%{release}
Conflicts: gdrcopy
Package: libgdrapi-devel
Requires: libgdrapi2%{?_isa} = %{version}-%{release}
Provides: gdrcopy-devel = %{version}-%{release}
Conflicts: gdrcopy-devel
Package: libvkgdr
Package: gdrcopy-tools
Conflicts: gdrcopy
Package: gdrdrv-dkms
Requires: dkms
Provides: gdrcopy-kmod = %{version}-%{release}
Conflicts: gdrcopy-kmod'

# packaging.mk: what each target runs.
planned() {
	make -n --no-print-directory GO='env A=b go' MAINTAINER='Me <m@x>' URL=https://x/y "$@" |
		sed -e "s|$("$here/packaging/version.sh")|VERSION|g" -e "s|$("$here/packaging/version.sh" --epoch)|EPOCH|g" -e "s|$here|TOP|"
}
dist="GO='env A=b go' MAINTAINER='Me <m@x>' URL='https://x/y' packaging/dist.sh build/packages"
is "make dist deb rpm tarball channels html" "$(planned dist deb rpm tarball channels html)" "$dist
$(for s in deb rpm tarball; do echo "GO='env A=b go' packaging/$s.sh build/packages/gdrapi-VERSION.tar.xz build/packages/$s"; done)
URL='https://x/y' packaging/channels.sh build/packages/gdrapi-VERSION.tar.xz build/packages/channels
packaging/html.sh TOP/build/html"
is "each makes the tarball first" "$(for t in deb rpm tarball channels; do planned $t | head -n 1; done | sort -u)" "$dist"
is "make sbom" "$(planned -o all sbom)" 'env A=b go run ./packaging/sbom -version VERSION -epoch EPOCH -o build/gdrapi.cdx.json build/libgdrapi.so.2.6 build/bin/gdrcopy_report build/bin/gdrcopy_doctor'
is "make release" "$(sed -n '/^release:/,/^$/s/^\t//p' "$here/packaging/packaging.mk")" 'packaging/release.sh
rm -rf $(PKG)
$(MAKE) deb rpm tarball channels wheel sbom
cp $(B)/wheel/*.whl $(B)/gdrapi.cdx.json $(PKG)/
packaging/release.sh $(PKG)'

# setup.sh on systems that have some of what is needed; its Go is a stub, known or not.
mkdir -p "$work/set/capi/host" "$work/set/etc/apt/sources.list.d"
sed "s|/etc/|$work/set/etc/|g; s|/usr/lib/go-|$work/set/lib/go-|" "$here/setup.sh" >"$work/set/setup.sh"
printf '%s\n' '# The list.' go1.24.0 go1.27.4 >"$work/set/capi/host/go_versions"
answers id 'echo "${FAKE_UID-0}"'
answers dpkg-query 'case " ${LACKS-} " in *" $4 "*) echo config-files; exit 1 ;; esac; echo installed'
real tee
stub sudo 'exec "$@"'
stub apt-get 'case "$* " in
indextargets*) echo "${ARCHIVE-}" ;;
*" golang-1."*) printf "#!/bin/sh\n[ \$1 = mod ] || echo ${INSTALLED-go1.27.4}\n" >"${CALLS%/*}/bin/go"; chmod +x "${CALLS%/*}/bin/go" ;;
esac'
stub apt-cache 'for g in ${GOS-}; do echo "golang-1.$g-go - Go"; done
[ ! -s "${CALLS%/*}/set/etc/apt/sources.list.d/bookworm-backports.list" ] || echo golang-1.24-go - Go'
# setup SYSTEM GO [NAME=VALUE...] [ARGUMENT...]: setup.sh there, with a Go of that version.
setup() {
	echo "$1" | tr ' ' '\n' >"$work/set/etc/os-release"
	rm -f "$bin/go"
	[ "$2" = none ] || stub go "case \"\$*\" in 'env GOVERSION') echo $2 ;; 'env GOTOOLCHAIN') echo local ;; mod*) exit \${MOD-0} ;; esac"
	ran "${@:3:$#-2}" sh "$work/set/setup.sh" | grep -v '+ go env'
}
apt='+ apt-get -q'
done='setup.sh: using go; running: go mod download (the Go that go.mod names, and the modules)
setup.sh: all is there. Next: make demo, then make check
= 0'
for system in 'ID=debian VERSION_ID="12"' 'ID=debian VERSION_ID="13"' ID=debian 'ID=ubuntu VERSION_ID="22.04"'; do
	is "setup.sh: all is there on $system" "$(setup "$system" go1.24.3)" "+ go mod download
$done"
done
for system in 'ID=debian VERSION_ID="11"' 'ID=fedora VERSION_ID="40"' 'NAME=none'; do
	is "setup.sh installs nothing on $system" "$(setup "$system" go1.24.3 LACKS=make | sed -n '1p;$p')" \
		'setup.sh: this is neither Debian 12 or later nor Ubuntu, so nothing was installed. Needed:
= 1'
done
running='setup.sh: running: env DEBIAN_FRONTEND=noninteractive apt-get -q'
install='install -y --no-install-recommends'
is "setup.sh: what is missing" "$(setup ID=debian go1.24.3 LACKS='g++ python3')" "$apt update
$apt $install g++ python3
+ go mod download
setup.sh: missing: g++ python3 
$running update
$running $install g++ python3
$done"
is "setup.sh: by sudo" "$(setup ID=debian go1.24.3 LACKS=make FAKE_UID=1000 | sed -n '1,4p;7p')" "+ sudo env DEBIAN_FRONTEND=noninteractive apt-get -q update
$apt update
+ sudo env DEBIAN_FRONTEND=noninteractive apt-get -q $install make
$apt $install make
${running/env/sudo env} update"
mv "$bin/sudo" "$work/away"
is "setup.sh: no sudo" "$(setup ID=debian go1.24.3 LACKS=make FAKE_UID=1000)" "setup.sh: missing: make 
! setup.sh: only root can install that, and there is no sudo; run: su -c 'sh W/set/setup.sh'
= 1"
mv "$work/away" "$bin/sudo"
is "setup.sh: apt-get fails" "$(setup ID=debian go1.24.3 LACKS=make FAILS=apt-get | tail -n 2)" '! setup.sh: apt-get failed; it says why above
= 1'
is "setup.sh: the modules are not fetched" "$(setup ID=debian go1.24.3 MOD=1 | tail -n 2)" '! setup.sh: go could not fetch them: is the Go module proxy reached?
= 1'
cache='+ apt-cache search --names-only ^golang-1[.][0-9]+-go$'
# no_go GOS [NAME=VALUE...]: what apt does where no Go is installed and the archive has these.
no_go() { setup ID=debian none GOS="$1" "${@:2}" | grep -E '^(\+ apt|!|=)' | grep -vxF -e "$cache" -e "$apt update"; }
is "setup.sh: no Go: the newest that is known" "$(no_go '19 24 27 28')" "$apt $install golang-1.27-go
= 0"
is "setup.sh: none that is known: the newest that fetches" "$(no_go '19 21 28 9' | head -n 1)" "$apt $install golang-1.28-go"
is "setup.sh: the least that fetches" "$(no_go '20 21' | head -n 1)" "$apt $install golang-1.21-go"
is "setup.sh: beside what else is missing" "$(no_go 27 LACKS=make | head -n 1)" "$apt $install make golang-1.27-go"
targets="+ apt-get indextargets --format \$(REPO_URI) 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' 'Codename: bookworm'"
is "setup.sh: none that fetches, and no backports" "$(no_go '19 20')" "$targets
! setup.sh: no package has Go 1.21 or later: install it, then run this again
= 1"
is "setup.sh: by backports" "$(no_go '19 20' ARCHIVE=http://deb.invalid/debian; cat "$work"/set/etc/apt/sources.list.d/*)" "$targets
$apt $install golang-1.24-go
= 0
deb http://deb.invalid/debian bookworm-backports main"
is "setup.sh: a Go that is installed and does not serve" "$(no_go 28 INSTALLED=local | tail -n 2)" \
	'! setup.sh: Go was installed, and is none that the library is built with: run make, which says what to do
= 1'
is "setup.sh: another system's list" "$(setup ID=arch go1.24.3)" 'setup.sh: this is neither Debian 12 or later nor Ubuntu, so nothing was installed. Needed:
  - a C and a C++ compiler, GNU make, binutils, pkg-config, the C library'"'"'s headers
  - Python 3, for the tests
  - the certificates of the usual authorities (Debian: ca-certificates)
  - Go 1.21 or later, in PATH; it fetches a version that the library is built with
Then run: make demo
= 1'
mkdir "$work/set/vendor"
is "setup.sh: a source tarball has them" "$(setup ID=debian go1.24.3)" 'setup.sh: all is there. Next: make demo, then make check
= 0'
cp -r "$work/set" "$work/a set"
is "setup.sh: a folder with a space" "$(ran LACKS=make sh "$work/a set/setup.sh")" "! setup.sh: nothing was installed: the path 'W/a set' has a space, where make cannot build; move this folder, then run this again
= 1"
is "setup.sh: usage" "$(ran sh "$work/set/setup.sh" --all)" '! setup.sh: usage: sh setup.sh [--go]
= 1'
done_testing
