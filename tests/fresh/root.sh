# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# root.sh - sourced, after tests/vm/apt.sh. A small Debian or Ubuntu in the folder $root, which
# reaches the network as this machine does, with the working tree $here in its folder $src.
#
# A function runs where a failed command does not end it: hence the &&.
# shellcheck disable=SC2154 # $root and $here are the caller's
: "${src:=/src}"

# make_root SUITE: as small as debootstrap makes it.
make_root() {
	local mirror
	rm -rf --one-file-system "$root" || return
	case $1 in
	noble)
		ubuntu_root "$1"
		return
		;;
	esac
	mirror=$(vm_mirror)
	if [ -z "$mirror" ]; then
		echo "apt names no Debian mirror: run apt-get update first"
		return 1
	fi
	debootstrap --variant=minbase "$1" "$root" "$mirror"
}

# ubuntu_root SUITE: debootstrap knows where Ubuntu's archive is, and one script for all newer suites;
# Debian 13 has Ubuntu's keys. An installed Ubuntu has universe, too.
ubuntu_root() {
	local mirror keys=$GDRAPI_VM_CACHE/ubuntu
	mirror=$(sed -n 's|^[[:space:]]*default_mirror \(.*/archive[.].*\)|\1|p' /usr/share/debootstrap/scripts/gutsy | head -n 1)
	(vm_suite trixie && vm_unpack trixie ubuntu-keyring "$keys") &&
		debootstrap --variant=minbase --components=main,universe --keyring="$keys/usr/share/keyrings/ubuntu-archive-keyring.gpg" \
			"$1" "$root" "$mirror" gutsy
}

# What a machine on this network has before anybody installs anything.
set_network() {
	local certs=usr/local/share/ca-certificates
	mkdir -p "$root/$certs" && cp -L /etc/resolv.conf "$root/etc/resolv.conf" &&
		find "/$certs" -name '*.crt' -exec cp -t "$root/$certs" {} + &&
		apt-config dump | sed -n '/^Acquire::[a-z]*::Proxy /Ip' >"$root/etc/apt/apt.conf.d/90proxy"
}

# put_source: a clone, with what the working tree has beside the commit. Whoever clones has git.
put_source() {
	inside_of / 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends git' &&
		mkdir -p "$(dirname "$root$src")" && git clone -q --depth 1 "file://$here" "$root$src" && cd "$here" &&
		git ls-files -z -co --exclude-standard | tar --null -cf - -T - | tar -C "$root$src" -xf -
}

# inside COMMAND: in the root, in the working tree.
inside() { inside_of "$src" "$1"; }

# inside_of FOLDER COMMAND: in the root, with processes, terminals and an environment of its own.
# shellcheck disable=SC2016 # for that shell
inside_of() {
	env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
		${http_proxy+http_proxy="$http_proxy"} ${https_proxy+https_proxy="$https_proxy"} \
		${no_proxy+no_proxy="$no_proxy"} ${GOPROXY+GOPROXY="$GOPROXY"} \
		unshare --mount --pid --fork --mount-proc="$root/proc" sh -euc '
			mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts"
			mount --bind "$1/dev/pts/ptmx" "$1/dev/ptmx"
			exec chroot "$1" sh -c "cd $2 && $3"' sh "$root" "$1" "$2"
}
