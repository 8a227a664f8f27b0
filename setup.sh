#!/bin/sh
# SPDX-License-Identifier: MIT
#
# setup.sh - installs what `make`, `make demo` and `make check` need, on Debian 12 or
# later and on Ubuntu. It says first what it does. Elsewhere it prints what is needed.
#
#   sh setup.sh        install what is missing, by apt-get
#   sh setup.sh --go   print the go command that the Makefile takes
#
# Any Go from 1.21 on serves: by itself it fetches the version that go.mod names, through
# the Go module proxy, and leaves the machine's own Go as it is.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

packages='gcc g++ make binutils libc6-dev pkg-config libvulkan-dev python3 ca-certificates'
go_least=21

say() { printf 'setup.sh: %s\n' "$*"; }
die() { printf 'setup.sh: %s\n' "$*" >&2; exit 1; }

# go_serves COMMAND: is it a Go that can fetch another?
go_serves() {
	command -v "$1" >/dev/null || return 1
	minor=$(cd / && GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null |
		sed -n 's/.*go1\.\([0-9][0-9]*\).*/\1/p')
	[ "${minor:-0}" -ge "$go_least" ]
}

# find_go: the go in PATH, else the newest that Debian keeps out of it.
find_go() {
	for g in go $(printf '%s\n' /usr/lib/go-1.*/bin/go | sort -t . -k 2,2nr); do
		if go_serves "$g"; then
			echo "$g"
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

# go_package: the newest Go among the packages that apt knows, if it serves.
go_package() {
	apt-cache search --names-only '^golang-1[.][0-9]+-go$' | sed 's/ .*//' |
		sort -t . -k 2,2n | tail -n 1 |
		while IFS= read -r p; do
			minor=${p#golang-1.}
			[ "${minor%-go}" -lt "$go_least" ] || echo "$p"
		done
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
	apt update
}

if [ "${1-}" = --go ]; then
	find_go || echo go
	exit
fi
[ $# -eq 0 ] || die "usage: sh setup.sh [--go]"

if ! known_system; then
	cat <<-END
	setup.sh: this is neither Debian 12 or later nor Ubuntu, so nothing was installed. Needed:
	  - a C and a C++ compiler, GNU make, binutils, pkg-config, the C library's headers
	  - the Vulkan headers and loader, for the tests' doubles (Debian: libvulkan-dev)
  - Python 3, for the tests
	  - the certificates of the usual authorities (Debian: ca-certificates)
	  - Go 1.$go_least or later, in PATH; it fetches the version that go.mod names
	Then run: make demo
	END
	exit 1
fi

missing=$(missing_packages)
go=$(find_go) || go=
if [ -n "$missing" ] || [ -z "$go" ]; then
	[ -z "$missing" ] || say "missing: $missing"
	[ -n "$go" ] || say "missing: Go 1.$go_least or later"
	if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
		die "only root can install that, and there is no sudo; run: su -c 'sh $here/setup.sh'"
	fi
	apt update
	if [ -z "$go" ]; then
		[ -n "$(go_package)" ] || backports
		missing="$missing$(go_package)"
	fi
	# shellcheck disable=SC2086 # package names are words
	apt install -y --no-install-recommends $missing
	go=$(find_go) || die "Go 1.$go_least or later was installed and cannot be run"
fi

say "using $go; running: $go mod download (the Go that go.mod names, and the modules)"
cd "$here"
"$go" mod download ||
	die "$go could not fetch them: is the Go module proxy reached, and GOTOOLCHAIN ($("$go" env GOTOOLCHAIN)) not 'local'?"
say "all is there. Next: make demo, then make check"
