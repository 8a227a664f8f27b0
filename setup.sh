#!/bin/sh
# SPDX-License-Identifier: MIT
#
# setup.sh - installs what `make`, `make demo` and `make check` need, on Debian 12 or
# later and on Ubuntu. It says first what it does. Elsewhere it prints what is needed.
#
#   sh setup.sh        install what is missing, by apt-get
#   sh setup.sh --go   print the go command that the Makefile takes
#
# The library is built with the Go releases in capi/guest/build/go_versions. Of these, in this order:
#
# 1. the go in PATH; an older one than go.mod's toolchain fetches that by itself
# 2. the newest /usr/lib/go-N/bin/go, where Debian keeps those that are not its default
# 3. the newest that the tests have passed with: any Go from 1.21 on fetches it through the
#    Go module proxy (GOTOOLCHAIN), unless it has been told to fetch none
#
# The machine's own Go stays as it is. `make GO=COMMAND` takes another. With
# GDR_GO_UNTESTED=1 the go in PATH is taken as it is, if it is not known.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

# A program that a test of make check needs is one of these, or of a package that each Debian has (tests/suite).
packages='gcc g++ make binutils libc6-dev pkg-config python3 ca-certificates patchelf'
go_least=21

say() { printf 'setup.sh: %s\n' "$*"; }
die() { printf 'setup.sh: %s\n' "$*" >&2; exit 1; }

# Without a home Go's caches lie in the build, as the Makefile has it.
if ! [ -w "${HOME-}" ]; then
	export GOPATH="${GOPATH-$here/build/_go}"
	export GOCACHE="${GOCACHE-$GOPATH/cache}"
fi

versions=$(sed '/^#/d' "$here/capi/guest/build/go_versions")
newest=$(printf '%s\n' "$versions" | tail -n 1)

# go_minor COMMAND: the N of its 1.N, of what is installed.
go_minor() {
	command -v "$1" >/dev/null || return 1
	(cd / && GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) | sed -nE 's/.*go1\.([0-9]+).*/\1/p'
}

# known MINOR
known() {
	printf '%s\n' "$versions" | grep -qE "^go1\.${1:-none}(\.|$)"
}

# fetches COMMAND: may it fetch another Go?
fetches() {
	case $(cd / && "$1" env GOTOOLCHAIN) in
	local | path | *+path) return 1 ;;
	esac
}

# asked COMMAND: GOTOOLCHAIN, in the environment or in go.env, names a version that is known.
asked() {
	named=$(cd / && "$1" env GOTOOLCHAIN | sed -nE 's/^go1\.([0-9]+).*/\1/p')
	[ -n "$named" ] && known "$named"
}

# find_go: the command that the Makefile takes.
find_go() {
	others=$(printf '%s\n' /usr/lib/go-1.*/bin/go | sort -rV)
	for g in go $others; do
		minor=$(go_minor "$g") || continue
		if known "$minor" || { [ "${minor:-0}" -ge "$go_least" ] && asked "$g"; }; then
			echo "$g"
			return
		fi
		if [ "$g" = go ] && [ "${GDR_GO_UNTESTED-}" = 1 ]; then
			echo "env GOTOOLCHAIN=local go"
			return
		fi
	done
	for g in go $others; do
		minor=$(go_minor "$g") || continue
		if [ "${minor:-0}" -ge "$go_least" ] && fetches "$g"; then
			echo "env GOTOOLCHAIN=$newest $g"
			return
		fi
	done
	return 1
}

# missing_packages: those of the list that are not installed.
missing_packages() {
	for p in $packages; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] ||
			printf '%s ' "$p"
	done
}

# known_system: Debian 12 or later (testing has no number), or Ubuntu.
known_system() {
	[ -r /etc/os-release ] || return 1
	# shellcheck source=/dev/null
	system=$(. /etc/os-release && echo "${ID-} ${VERSION_ID:-99}")
	case $system in
	'debian '*) [ "${system#* }" -ge 12 ] ;;
	'ubuntu '*) ;;
	*) return 1 ;;
	esac
}

# as_root COMMAND...: says it, and does it.
as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		say "running: $*"
		"$@"
	else
		say "running: sudo $*"
		sudo "$@"
	fi
}

apt() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" ||
		die "apt-get failed; it says why above"
}

# update: without an archive apt-get says so and returns 0, unless it is told otherwise. What apt knows already may do.
update() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o APT::Update::Error-Mode=any update && return
	[ -n "$(apt-cache madison make)" ] || die "apt-get failed, and knows no packages from before; it says why above"
	say "apt-get could not update all of its lists; it says why above. Going on with those that it has"
}

# go_package: of the Gos among the packages that apt knows, the newest that the library is
# built with; else the newest that can fetch one.
go_package() {
	apt-cache search --names-only '^golang-1[.][0-9]+-go$' | sed 's/ .*//' |
		sort -V |
		while IFS= read -r p; do
			minor=${p#golang-1.}
			minor=${minor%-go}
			if known "$minor"; then
				echo "1 $p"
			elif [ "$minor" -ge "$go_least" ]; then
				echo "0 $p"
			fi
		done | sort -s -k 1,1n | tail -n 1 | sed 's/^. //'
}

# backports: Debian 12's own Go is too old; the same archive has a newer one.
backports() {
	list=/etc/apt/sources.list.d/bookworm-backports.list
	# shellcheck disable=SC2016 # a format of apt
	archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' \
		'Origin: Debian' 'Label: Debian' 'Codename: bookworm' | head -n 1)
	[ -n "$archive" ] || die "no package has Go 1.$go_least or later: install it, then run this again"
	say "Go of this system is too old: adding bookworm-backports, in $list"
	echo "deb $archive bookworm-backports main" | as_root tee "$list" >/dev/null
	as_root chmod 644 "$list" # whatever the umask is, apt as a user reads it
	update
	[ -n "$(go_package)" ] || die "bookworm-backports has no Go 1.$go_least or later, or could not be reached; apt-get says why above"
}

if [ "${1-}" = --go ]; then
	find_go || echo go
	exit
fi
[ $# -eq 0 ] || die "usage: sh setup.sh [--go]"

# As the Makefile has it.
case $here in
*[[:space:]]*) die "nothing was installed: the path '$here' has a space, where make cannot build; move this folder, then run this again" ;;
esac

if ! known_system; then
	cat <<-END
	setup.sh: this is neither Debian 12 or later nor Ubuntu, so nothing was installed. Needed:
	  - a C and a C++ compiler, GNU make, binutils, pkg-config, the C library's headers
	  - Python 3 and patchelf, for the tests
	  - the certificates of the usual authorities (Debian: ca-certificates)
	  - Go 1.$go_least or later, in PATH; it fetches a version that the library is built with
	Then run: make demo
	END
	exit 1
fi

missing=$(missing_packages)
go=$(find_go) || go=
if [ -n "$missing" ] || [ -z "$go" ]; then
	[ -z "$missing" ] || say "missing: $missing"
	[ -n "$go" ] || say "missing: a Go that the library is built with ($(echo "$versions" | tr '\n' ' '))"
	if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
		die "only root can install that, and there is no sudo; run: su -c 'sh $here/setup.sh'"
	fi
	update
	if [ -z "$go" ]; then
		[ -n "$(go_package)" ] || backports
		missing="$missing$(go_package)"
	fi
	# shellcheck disable=SC2086 # package names are words
	apt install -y --no-install-recommends $missing
	go=$(find_go) || die "Go was installed, and is none that the library is built with: run make, which says what to do"
fi

# A source tarball has the modules.
if [ ! -d "$here/vendor" ]; then
	say "using $go; running: $go mod download (the Go that go.mod names, and the modules)"
	cd "$here"
	$go mod download ||
		die "$go failed; it says why above. What it fetches comes from the Go module proxy (GOPROXY) and lies in $(cd / && GOTOOLCHAIN=local "${go##* }" env GOPATH)"
fi
say "all is there. Next: make demo, then make check"
