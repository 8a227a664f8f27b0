# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# apt.sh - sourced. Fetches Debian packages of any suite into a cache without
# touching the machine's own package lists.
#
# The mirror is that of the machine's apt, so no host is named here.

# The architecture of the packages, as Debian calls it.
VM_ARCH=${VM_ARCH:-amd64}
# The parts of the archive, and whether to use source packages.
VM_COMPONENTS=${VM_COMPONENTS:-main contrib}
VM_SOURCES=${VM_SOURCES:-}
GDRAPI_VM_CACHE=${GDRAPI_VM_CACHE:-${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/gdrapi-vm}

say() { printf '%s\n' "# $*" >&2; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# The prefix of the compiler's name, for another machine than this one.
# shellcheck disable=SC2034 # for the scripts that source this
case $VM_ARCH in
arm64) VM_CROSS=aarch64-linux-gnu- ;;
ppc64el) VM_CROSS=powerpc64le-linux-gnu- ;;
*) VM_CROSS= ;;
esac

# need PROGRAM[:PACKAGE]...: end here unless all are installed.
need() {
	local p
	for p in "$@"; do
		command -v "${p%:*}" >/dev/null ||
			die "${p%:*} is missing: install Debian's package ${p#*:}"
	done
}

# vm_mirror: the base URI of the machine's Debian archive. Other archives have other
# labels, also that of security updates.
vm_mirror() {
	# shellcheck disable=SC2016 # a format of apt
	apt-get indextargets --format '$(REPO_URI)' \
		'Created-By: Packages' 'Origin: Debian' 'Label: Debian' |
		sort -u | head -n 1
}

# vm_suite_dir SUITE: where the lists of one suite live.
vm_suite_dir() { printf '%s/apt/%s-%s' "$GDRAPI_VM_CACHE" "$1" "$VM_ARCH"; }

# vm_apt SUITE TOOL ARGS...: run an apt tool on the lists of that suite alone. Expired
# lists are accepted: a mirror may be frozen at a date.
vm_apt() {
	local d tool
	d=$(vm_suite_dir "$1"); tool=$2
	shift 2
	"$tool" -qq \
		-o Dir::Etc::sourcelist="$d/sources.list" -o Dir::Etc::sourceparts=/dev/null \
		-o Dir::Etc::preferencesparts=/dev/null -o Dir::State="$d/state" \
		-o Dir::State::status="$d/state/status" -o Dir::Cache="$d/cache" \
		-o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3 \
		-o Acquire::Check-Valid-Until=false \
		-o APT::Architecture="$VM_ARCH" -o APT::Architectures::="$VM_ARCH" "$@"
}

# vm_suite SUITE: fetch the package lists of a suite, once a day.
vm_suite() {
	local d mirror kind
	d=$(vm_suite_dir "$1")
	if [ -e "$d/stamp" ] && [ -z "$(find "$d/stamp" -mmin +1440)" ]; then
		return 0
	fi
	mirror=$(vm_mirror)
	[ -n "$mirror" ] || die "apt names no Debian mirror: run apt-get update first"
	mkdir -p "$d/state/lists/partial" "$d/cache/archives/partial"
	: >"$d/state/status"
	for kind in deb ${VM_SOURCES:+deb-src}; do
		printf '%s [signed-by=%s] %s %s %s\n' "$kind" \
			/usr/share/keyrings/debian-archive-keyring.gpg "$mirror" "$1" "$VM_COMPONENTS"
	done >"$d/sources.list"
	say "fetching the package lists of $1"
	vm_apt "$1" apt-get update || die "no package lists for $1"
	touch "$d/stamp"
}

# vm_names SUITE REGEX: package names of a suite that match, oldest first.
vm_names() {
	vm_apt "$1" apt-cache pkgnames | { grep -E "^($2)\$" || :; } | sort -V || :
}

# vm_unpack SUITE PACKAGE DIR: download one package and unpack it into DIR.
vm_unpack() {
	local tmp=$GDRAPI_VM_CACHE/debs/$1 f
	[ -e "$3/.unpacked-$2" ] && return 0
	mkdir -p "$tmp" "$3"
	say "fetching $2 ($1)"
	(cd "$tmp" && rm -f "${2}_"*.deb && vm_apt "$1" apt-get download "$2") ||
		die "cannot download $2 of $1"
	for f in "$tmp/${2}_"*.deb; do
		dpkg -x "$f" "$3" || die "cannot unpack $f"
		rm -f "$f"
	done
	: >"$3/.unpacked-$2"
}
