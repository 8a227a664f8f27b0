#!/bin/busybox sh
# shellcheck shell=dash
# SPDX-License-Identifier: MIT
#
# guest-init.sh - the first process of the test VM. Runs what /job says, then
# looks at the kernel's log, and powers off. What the host reads are the lines
# "ok" and "not ok" and the last one, "GUEST DONE".
export PATH=/bin:/sbin HOME=/
/bin/busybox mkdir -p /bin /proc /sys /dev /tmp
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t debugfs debugfs /sys/kernel/debug
mount -t tmpfs tmp /tmp
ln -sf /proc/self/fd /dev/fd
echo 8 >/proc/sys/kernel/printk
echo "# guest: $(uname -r), $(nproc) processors"

result() { # result STATUS NAME
	[ "$1" -eq 0 ] && echo "ok - $2" || echo "not ok - $2"
}

# clean_log NAME: the kernel has complained of nothing since the last call.
clean_log() {
	dmesg -c >/tmp/log
	grep -E 'WARNING|BUG|Oops|[Rr]efcount|general protection|Call Trace|MISUSE|INFO: task|possible (circular|recursive)|suspicious RCU|KASAN|UBSAN|memory leak|never given back|unchecked MSR|double fault|stack guard|soft lockup|rcu_.*stall|Busy inodes' \
		/tmp/log >/tmp/bad
	if [ -s /tmp/bad ]; then
		cat /tmp/log
		result 1 "kernel log clean after $1"
	else
		result 0 "kernel log clean after $1"
	fi
}

# load PERSISTENT [SIM PARAMETERS]
load() {
	p=$1
	shift
	insmod /nvidia.ko "$@" && insmod /gdrdrv.ko dbg_enabled=1 use_persistent_mapping="$p" || return 1
	major=$(awk '$2 == "gdrdrv" { print $1 }' /proc/devices)
	rm -f /dev/gdrdrv
	mknod -m 666 /dev/gdrdrv c "$major" 0
}

unload() {
	held=$(cat /proc/driver/gdrdrv/nv_get_pages_refcount)
	result "$held" "nothing held before unload"
	rmmod gdrdrv
	result $? "gdrdrv unloads"
	rmmod nvidia
	result $? "the simulated driver unloads"
}

dmesg -c >/dev/null
. /job
echo "GUEST DONE"
poweroff -f
