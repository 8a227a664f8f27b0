#!/bin/bash
# SPDX-License-Identifier: MIT
#
# fresh.sh SUITE [--check] - README.md's commands on a fresh machine: a root that
# debootstrap made of that Debian suite, as small as it can be. Then this working tree
# is put there, and setup.sh, make demo, make install, the first program and pip's line of
# python/README.md run; with --check, make check too. There is no GPU in it. Before each step the log
# has the size of the root.
#
# Needs root, and the network. The root reaches it as this machine does: its
# mirror, its name servers, its own certificates and proxies.
set -euo pipefail
suite=${1:?which suite?}
here=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/vm/apt.sh
. "$here/tests/vm/apt.sh"
# shellcheck source=tests/fresh/root.sh
. "$here/tests/fresh/root.sh"
# shellcheck source=tests/tap.sh
. "$here/tests/tap.sh"
need debootstrap unshare:util-linux git
[ "$(id -u)" -eq 0 ] || die "only root may make a root: run it with sudo"
work=$here/build/fresh
root=$work/$suite
log=$work/$suite.log

mkdir -p "$work"
: >"$log"
trap 'rm -rf --one-file-system "$root" "$tap_dir"' EXIT

# refuses COMMAND TEXT: it fails, says TEXT, and installs nothing.
refuses() {
	local before out
	before=$(inside 'dpkg -l | cksum')
	if out=$(inside "$1" 2>&1); then
		echo "$out"
		return 1
	fi
	echo "$out"
	[[ $out == *"$2"* ]] && [ "$before" = "$(inside 'dpkg -l | cksum')" ]
}

other_system='echo ID=other >/tmp/os && mount --bind /tmp/os /etc/os-release && sh setup.sh'
setup_twice() {
	local out
	inside 'sh setup.sh </dev/null' && out=$(inside 'sh setup.sh') && echo "$out" &&
		[[ $out != *apt-get* ]]
}

demo() {
	local out
	out=$(inside 'make demo') && echo "$out" && [ "$(grep -c ': equal$' <<<"$out")" -eq 2 ]
}

# What README.md names after the demo is there, and the doctor finds the library beside itself.
# shellcheck disable=SC2016 # for that shell
next_steps() {
	inside 'for t in sanity copybw copylat apiperf pplat report doctor; do build/bin/gdrcopy_$t --version || exit 1; done
		env LD_LIBRARY_PATH=/src/build/doubles build/bin/gdrcopy_doctor | grep "^libgdrapi works here"'
}

# By a user who has no Go, after the make of another.
install() {
	inside 'env PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/nonexistent GO=/bin/false CC=/bin/false make install'
}

# The lines of python/README.md, with the package that they name.
pip_line() {
	local lines
	lines=$(awk '/^## Install/ { on = 1 } /^```/ { inside = on && $0 == "```sh"; if (!inside && $0 == "```") on = 0; next } inside' "$here/python/README.md")
	inside "DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-venv &&
		$lines
		cd / && /src/venv/bin/python -c 'import gdrapi; print(gdrapi.__file__)' | grep /src/venv"
}

example() {
	inside 'LD_LIBRARY_PATH=/src/build/doubles tests/fresh/readme.sh'
}

# try NAME COMMAND...: one TAP line, and the log's end if it failed.
try() {
	local name=$1 t0=$SECONDS
	shift
	echo "== $name, with $(du -smx "$root" 2>/dev/null | cut -f 1) MiB" >>"$log"
	if "$@" >>"$log" 2>&1; then
		result 0 "$suite: $name # $((SECONDS - t0)) s"
	else
		result 1 "$suite: $name; see $log" "$(tail -n 30 "$log")"
		return 1
	fi
}

# Each step needs the one before.
steps() {
	try "README.md says what is run here" grep -qx 'sh setup.sh && make demo' "$here/README.md" &&
		try "a root made by debootstrap" make_root "$suite" &&
		try "its network" set_network &&
		try "the working tree" put_source &&
		try "setup.sh without root stops" refuses 'setpriv --reuid=nobody --clear-groups sh setup.sh' 'run: su -c' &&
		try "setup.sh on another system stops" refuses "$other_system" 'Needed:' &&
		try "setup.sh, and again with nothing to do" setup_twice &&
		try "make demo" demo &&
		{ [ "${1-}" != --check ] || try "make check" inside 'make check'; } &&
		try "README.md's next steps" next_steps &&
		try "make install" install &&
		try "README.md's first program" example &&
		try "python/README.md's lines for pip" pip_line
}

steps "${2-}" || :
done_testing
