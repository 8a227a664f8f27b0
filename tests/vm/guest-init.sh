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
# Errors and worse show at once; the rest is in the log, for the serial line is slow
# and has the tests' results.
echo 4 >/proc/sys/kernel/printk
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

# detectors NAME: with a kernel that looks for them, nothing lost was found
# since the last call, and the checks of locks have not been given up.
detectors() {
	if [ -e /proc/lockdep_stats ]; then
		grep -q 'debug_locks: *1' /proc/lockdep_stats
		result $? "locks are still being checked after $1"
	fi
	[ -e "$kmemleak" ] || return 0
	# What is younger than 5 s is left out, and what changes between scans.
	sleep 6
	if echo scan >"$kmemleak" && echo scan >"$kmemleak" && cat "$kmemleak" >/tmp/leaks; then
		cat /tmp/leaks
		[ ! -s /tmp/leaks ]
		result $? "no memory lost by $1"
		echo clear >"$kmemleak"
	else
		result 1 "kmemleak works after $1"
	fi
}

# load PERSISTENT [SIM PARAMETERS]
load() {
	p=$1
	shift
	# shellcheck disable=SC2086 # several words
	insmod /nvidia.ko "$@" && insmod /gdrdrv.ko dbg_enabled=1 \
		use_persistent_mapping="$p" ${GDRDRV_ARGS-} || return 1
	gdrdrv-node add && gdrdrv-node add && [ "$(stat -c %a:%u:%g /dev/gdrdrv)" = 666:0:0 ]
}

unload() {
	held=$(cat /proc/driver/gdrdrv/nv_get_pages_refcount)
	result "$held" "nothing held before unload"
	rmmod gdrdrv
	result $? "gdrdrv unloads"
	gdrdrv-node remove && [ ! -e /dev/gdrdrv ]
	result $? "its node is removed"
	rmmod nvidia
	result $? "the simulated driver unloads"
}

kmemleak=/sys/kernel/debug/kmemleak
# What the start of the kernel lost is not our concern.
[ ! -e "$kmemleak" ] || { sleep 6; echo scan >"$kmemleak"; echo clear >"$kmemleak"; }
dmesg -c >/dev/null
# shellcheck source=/dev/null
. /job
echo "GUEST DONE"
poweroff -f
