#!/bin/busybox sh
# shellcheck shell=dash
# SPDX-License-Identifier: MIT
#
# guest-init.sh - the first process of the test VM. It runs /job, checks the kernel's log,
# and powers off. The host reads the lines "ok" and "not ok", and the last line, "GUEST
# DONE".
# A line of progress before an "ok" would hide it from run.sh.
export PATH=/bin:/sbin HOME=/ TERM=dumb
/bin/busybox mkdir -p /bin /proc /sys /dev /tmp
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t debugfs debugfs /sys/kernel/debug
mount -t tmpfs tmp /tmp
ln -sf /proc/self/fd /dev/fd
# Only errors and worse are printed at once. The rest is in the log: the serial line is
# slow and has the results of the tests.
echo 4 >/proc/sys/kernel/printk
echo "# guest: $(uname -r), $(nproc) processors"

result() { # result STATUS NAME
	[ "$1" -eq 0 ] && echo "ok - $2" || echo "not ok - $2"
}
check() ( # check NAME COMMAND...: does it end with 0?
	name=$1
	shift
	"$@"
	result $? "$name"
)

# clean_log NAME: the kernel has logged no complaint since the last call.
clean_log() {
	dmesg -c >/tmp/log
	grep -E 'WARNING|BUG|Oops|[Rr]efcount|general protection|Call Trace|MISUSE|INFO: task|possible (circular|recursive)|suspicious RCU|KASAN|UBSAN|memory leak|unchecked MSR|double fault|stack guard|soft lockup|rcu_.*stall|Busy inodes' \
		/tmp/log >/tmp/bad
	if [ -s /tmp/bad ]; then
		cat /tmp/log
		result 1 "kernel log clean after $1"
	else
		result 0 "kernel log clean after $1"
	fi
}

# detectors NAME: a kernel with detectors has found no leak since the last call, and still
# checks locks.
detectors() {
	if [ -e /proc/lockdep_stats ]; then
		grep -q 'debug_locks: *1' /proc/lockdep_stats
		result $? "locks are still being checked after $1"
	fi
	[ -e "$kmemleak" ] || return 0
	# Objects younger than 5 s, and those that change between scans, do not count.
	sleep 6
	if echo scan >"$kmemleak" && echo scan >"$kmemleak" && cat "$kmemleak" >/tmp/leaks; then
		cat /tmp/leaks
		check "no memory lost by $1" [ ! -s /tmp/leaks ]
		echo clear >"$kmemleak"
	else
		result 1 "kmemleak works after $1"
	fi
}

# load PERSISTENT [SIM PARAMETERS]: 0 must fail.
load() {
	p=$1
	shift
	# shellcheck disable=SC2086 # several words
	insmod /nvidia.ko "$@" && insmod /gdrdrv.ko dbg_enabled=1 \
		use_persistent_mapping="$p" ${GDRDRV_ARGS-} || return 1
	[ "$(stat -c %a:%u:%g /dev/gdrdrv)" = 666:0:0 ]
}

# unload [COMMAND]: the command unloads gdrdrv, in place of rmmod.
unload() {
	held=$(cat /proc/driver/gdrdrv/nv_get_pages_refcount)
	result "$held" "nothing held before unload"
	${1-rmmod gdrdrv}
	result $? "gdrdrv unloads"
	check "its node is removed" [ ! -e /dev/gdrdrv ]
	rmmod nvidia
	result $? "the simulated driver unloads"
}

kmemleak=/sys/kernel/debug/kmemleak
# Leaks of the kernel's own start do not count.
[ ! -e "$kmemleak" ] || { sleep 6; echo scan >"$kmemleak"; echo clear >"$kmemleak"; }
dmesg -c >/dev/null
# shellcheck source=/dev/null
. /job
echo "GUEST DONE"
poweroff -f
