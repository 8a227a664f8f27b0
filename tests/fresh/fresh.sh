#!/bin/bash
# SPDX-License-Identifier: MIT
#
# fresh.sh SUITE part|whole|users - README.md's commands on a fresh machine: a root that
# debootstrap made of that suite of Debian or Ubuntu, as small as it can be. This working tree
# is put there, below root's home. Then README.md's two commands run, before anything else is installed; then
# make install, the first program and pip's line of python/README.md. With part make check there
# runs the groups that a newer compiler or C library is most likely to break, with whole all of it, with users all of
# it also as a user without a home, under umask 077, in a long path, with an unknown locale.
# There is no GPU in it. Before each step the log has the size of the root.
#
# Needs root, and the network. The root reaches it as this machine does: its
# mirror, its name servers, its own certificates and proxies.
set -euo pipefail
suite=${1:?which suite?} how=${2-}
here=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/vm/apt.sh
. "$here/tests/vm/apt.sh"
# shellcheck source=tests/fresh/root.sh
. "$here/tests/fresh/root.sh"
# shellcheck source=tests/tap.sh
. "$here/tests/tap.sh"
need debootstrap unshare:util-linux git
[ "$(id -u)" -eq 0 ] || die "only root may make a root: run it with sudo"
[[ $how == @(part|whole|users) ]] || die "how much of make check: part, whole or users, not '$how'"
work=$here/build/fresh
root=$work/$suite
src=/root/gdrapi
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

as_nobody='mkdir -p /tmp/t && cp -r setup.sh capi /tmp/t && cd /tmp/t && setpriv --reuid=nobody --clear-groups sh setup.sh'
other_system='echo ID=other >/tmp/os && mount --bind /tmp/os /etc/os-release && sh setup.sh'
offline='mkdir /tmp/lists && mount --bind /tmp/lists /var/lib/apt/lists && unshare --net sh setup.sh'
no_modules='unshare --net env GOPATH=/tmp/none sh setup.sh'
setup_again() {
	local out
	out=$(inside 'sh setup.sh') && echo "$out" && [[ $out != *apt-get* ]] &&
		out=$(inside 'setpriv --reuid=nobody --clear-groups apt-cache policy git 2>&1') && echo "$out" &&
		[[ $out != *'Unable to read'* ]]
}

# What .ci/run installs, resolved and not installed.
ci_needs() {
	inside "apt-get install -s -qq --no-install-recommends \$(sed -n '/^#/!s/^[^ ]* //p' tests/suite/needs.txt) >/dev/null"
}

setup_and_demo() {
	local out
	out=$(inside '(umask 077; sh setup.sh </dev/null) && make demo') && echo "$out" && [ "$(grep -c ': equal$' <<<"$out")" -eq 2 ]
}

# What README.md names after the demo is there, and the doctor finds the library beside itself.
# shellcheck disable=SC2016 # for that shell
next_steps() {
	inside 'for t in sanity copybw copylat apiperf pplat report doctor; do build/bin/gdrcopy_$t --version || exit 1; done
		env LD_LIBRARY_PATH=$PWD/build/doubles build/bin/gdrcopy_doctor | grep "^libgdrapi works here"'
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
		cd / && $src/venv/bin/python -c 'import gdrapi; print(gdrapi.__file__)' | grep $src/venv"
}

# shellcheck disable=SC2016 # for that shell
example() {
	inside 'LD_LIBRARY_PATH=$PWD/build/doubles tests/fresh/readme.sh'
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

# Root's home is root's alone, as an installed system has it.
close_home() { chmod 700 "$root/root" && put_source; }

# Another user's folder, with a build of its own. Go's caches lie in the build.
as_user() {
	local long
	long=/home/user/$(printf 'a-folder-with-a-long-name-%.0s' 1 2 3 4 5)
	inside "useradd -m user && mkdir $long && cp -r $src $long/ && rm -r $long/gdrapi/build && chown -R user: /home/user" &&
		inside_of "$long/gdrapi" 'setpriv --reuid=user --regid=user --init-groups env -u HOME LC_ALL=xx_YY.UTF-8 \
			sh -ec "umask 077; sh setup.sh; make demo; make check; make clean; [ ! -e build ]"'
}

# Each step needs the one before.
steps() {
	try "README.md says what is run here" grep -qx 'sh setup.sh && make demo' "$here/README.md" &&
		try "a root made by debootstrap" make_root "$suite" &&
		try "its network" set_network &&
		try "the working tree, in root's home" close_home &&
		try "setup.sh without root stops" refuses "$as_nobody" 'run: su -c' &&
		try "setup.sh on another system stops" refuses "$other_system" 'Needed:' &&
		try "setup.sh without a network stops" refuses "$offline" 'knows no packages from before' &&
		try "README.md's first command" setup_and_demo &&
		case $how in
		part) try "make check, of the C side" inside "make check CHECK='abi capi'" ;;
		whole) try "README.md's second command" inside 'make check' ;;
		users) try "README.md's second command" inside 'make check' && try "README.md's two commands, as a user" as_user ;;
		esac &&
		try "setup.sh again, with nothing to do" setup_again &&
		try "setup.sh without Go's modules and a network stops" refuses "$no_modules" 'lies in /tmp/none' &&
		try ".ci/run's packages" ci_needs &&
		try "README.md's next steps" next_steps &&
		try "make install" install &&
		try "README.md's first program" example &&
		try "python/README.md's lines for pip" pip_line
}

steps || :
done_testing
