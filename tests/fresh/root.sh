# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# root.sh - sourced, after tests/vm/apt.sh. A small Debian in the folder $root, which
# reaches the network as this machine does, with the working tree $here in /src.
#
# A function runs where a failed command does not end it: hence the &&.
# shellcheck disable=SC2154 # $root and $here are the caller's

# make_root SUITE: as small as debootstrap makes it.
make_root() {
	local mirror
	mirror=$(vm_mirror)
	if [ -z "$mirror" ]; then
		echo "apt names no Debian mirror: run apt-get update first"
		return 1
	fi
	rm -rf --one-file-system "$root" &&
		debootstrap --variant=minbase "$1" "$root" "$mirror"
}

# What a machine on this network has before anybody installs anything.
set_network() {
	local certs=usr/local/share/ca-certificates
	mkdir -p "$root/$certs" && cp -L /etc/resolv.conf "$root/etc/resolv.conf" &&
		find "/$certs" -name '*.crt' -exec cp -t "$root/$certs" {} + &&
		apt-config dump | sed -n '/^Acquire::[a-z]*::Proxy /Ip' >"$root/etc/apt/apt.conf.d/90proxy"
}

put_source() {
	mkdir -p "$root/src" && cd "$here" &&
		git ls-files -z -co --exclude-standard | tar --null -cf - -T - | tar -C "$root/src" -xf -
}

# inside COMMAND: in the root, with processes and an environment of its own.
inside() {
	env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
		${http_proxy+http_proxy="$http_proxy"} ${https_proxy+https_proxy="$https_proxy"} \
		${no_proxy+no_proxy="$no_proxy"} ${GOPROXY+GOPROXY="$GOPROXY"} \
		unshare --mount --pid --fork --mount-proc="$root/proc" \
		chroot "$root" sh -c "cd /src && $1"
}
