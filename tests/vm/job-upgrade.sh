# SPDX-License-Identifier: MIT
# shellcheck shell=sh
# job-upgrade.sh - sourced by guest-init.sh: a package's upgrade puts a new module on the disk
# while the old one is loaded, in use and not. OLD and NEW, from the host, are their source
# versions; they are /old/gdrdrv.ko and /gdrdrv.ko. The commands are those of gdrdrv.service.
modules=/lib/modules/$(uname -r)/updates/dkms

# commands KEY...: run the service's, all of them; their last status but 0.
commands() {
	status=0
	for key; do
		eval "$(sed -n "s/^$key=//p" /etc/gdrdrv.service)" || status=$?
	done
	return $status
}
start() { commands ExecStart; }
stop() { commands ExecStop; }

# on_disk FILE: what DKMS does at the end of an upgrade.
on_disk() { cp "$1" "$modules/" && depmod; }

# loaded SOURCE_VERSION: that module is loaded, and its node works.
loaded() { [ "$(cat /sys/module/gdrdrv/srcversion)" = "$1" ] && true <>/dev/gdrdrv; }

mkdir -p "$modules"
ln -s /bin /sbin
cp /nvidia.ko "$modules/" && on_disk /old/gdrdrv.ko && start && loaded "$OLD"
result $? "the service loads the old module"

exec 3<>/dev/gdrdrv
on_disk /gdrdrv.ko
! stop && loaded "$OLD"
result $? "in use: it stays, with its node, where the service stops"
start && loaded "$OLD"
result $? "in use: the service starts beside it"
exec 3>&-
stop && [ ! -e /dev/gdrdrv ] && start && loaded "$NEW"
result $? "no longer in use: a restart loads the new one"

on_disk /old/gdrdrv.ko && stop && start && loaded "$OLD"
result $? "not in use: a restart loads what is on the disk"
stop && rmmod nvidia
result $? "both unload"
clean_log "the upgrade"
