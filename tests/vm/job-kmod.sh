# SPDX-License-Identifier: MIT
# shellcheck shell=sh
# job-kmod.sh - sourced by guest-init.sh: the module's own tests. KMOD_ARGS
# comes from the host. The limits are low enough for the tests to reach.
limits='max_pins_per_user=8000 max_mib_per_user=3072'
params=/sys/module/gdrdrv/parameters

# mounts: how many devices without a disk there are. Each file system has one.
mounts() {
	mount -t tmpfs count /tmp/count
	stat -c %d /tmp/count
	umount /tmp/count
}

# parameters NAME...: their values.
parameters() {
	for p; do cat $params/"$p"; done | tr '\n' ' '
}

mkdir /tmp/count
before=$(mounts)
# With fault injection every allocation can fail.
[ ! -e /sys/kernel/debug/failslab ] || for f in failslab/ignore-gfp-wait failslab/verbose \
	fail_page_alloc/ignore-gfp-wait fail_page_alloc/ignore-gfp-highmem \
	fail_page_alloc/min-order fail_page_alloc/verbose; do
	echo 0 >/sys/kernel/debug/$f
done
# What the module says of itself, and its own limits: for each user a pinning for 16 KiB of
# memory and 80 times the memory.
GDRDRV_ARGS=dbg_enabled=0 load 1
result $? "modules load (defaults)"
kib=$(awk '/^MemTotal/ { print $2 }' /proc/meminfo)
# shellcheck disable=SC2017 # whole MiB
pins=$((kib / 16)) mib=$((kib / 1024 * 80))
check "limits by the size of the memory" [ "$(parameters max_pins_per_user max_mib_per_user)" = "$pins $mib " ]
check "who sees the parameters" [ "$(cd $params && stat -c '%a %n' -- *)" = '444 dbg_enabled
444 info_enabled
444 map_whole
444 max_mib_per_user
444 max_pins_per_user
444 use_persistent_mapping' ]
check "their defaults" [ "$(parameters dbg_enabled info_enabled map_whole use_persistent_mapping)" = '0 0 N 1 ' ]
check "the version, and the files in /proc" [ "$(cat /sys/module/gdrdrv/version; cd /proc/driver/gdrdrv && stat -c '%a %n' -- *)" = '2.6.0
444 params' ]
major=$(awk '$2 == "gdrdrv" { print $1 }' /proc/devices)
dmesg | grep -q "gdrdrv: version 2.6, device major $major, persistent mappings$"
result $? "the line of its start"
# As recipes make the node.
mknod /tmp/0 c "$major" 0 && true <>/tmp/0 && mknod /tmp/127 c "$major" 127 && ! true <>/tmp/127
result $? "a node of that number works, and has minor 0"
rmmod gdrdrv && rmmod nvidia
result $? "modules unload (defaults)"

# A limit in MiB that 64 bits cannot hold in bytes. Unloading waits for the GPU driver, and loses
# what it does not take.
for refused in 0 5 all; do
	GDRDRV_ARGS='max_mib_per_user=17592186044416' load 1
	result $? "modules load (a large limit)"
	/bin/kmod_test -t pin_rounds
	result $? "pinnings under a large limit"
	unload "kmod_test -u $refused"
done

# A start that fails leaves nothing.
insmod /nvidia.ko take_majors=1
result $? "the double takes all numbers"
! insmod /gdrdrv.ko 2>/tmp/said && grep -q busy /tmp/said && [ ! -e /proc/driver/gdrdrv ] && [ "$(mounts)" = "$before" ]
result $? "a start that fails leaves nothing"
rmmod nvidia
! load 0 && dmesg | grep -q "gdrdrv: use_persistent_mapping=0 is not supported: leave it out, or load NVIDIA's gdrdrv$"
result $? "no other mappings than persistent ones"
rmmod nvidia
clean_log "other loads"

for major in 1 2; do
	mode="page table major $major"
	GDRDRV_ARGS="$limits info_enabled=$((major - 1))" load 1 page_table_major="$major"
	result $? "modules load ($mode)"
	# shellcheck disable=SC2086 # several words
	/bin/kmod_test ${KMOD_ARGS-}
	result $? "kmod_test ($mode)"
	unload
	detectors "kmod_test ($mode)"
	clean_log "kmod_test ($mode)"
done
# The machines without write-combining, by their root ports: IDs, revision, whether it is one.
# The IDs are those of core/internal/rm/machine.go, whose test compares.
[ "$(uname -m)" != aarch64 ] || for machine in "0x15b3a2da 1 1" "0x15b3a2db 0 1" "0x15b3a2dc 0 0" \
	"0x1defe000 0 1" "0x1defe110 0 1" "0x1defe00d 4 0"; do
	# shellcheck disable=SC2086 # several words
	set -- $machine
	load 1 root_port="$1" root_revision="$2" without_wc="$3"
	result $? "modules load ($machine)"
	/bin/kmod_test -t mapping_types
	result $? "kmod_test -t mapping_types ($machine)"
	unload
done
# A module that maps all at the first touch.
GDRDRV_ARGS="$limits map_whole=1" load 1
result $? "modules load (map_whole)"
check "what it tells of itself" [ "$(sed 's/proprietary/open/' /proc/driver/gdrdrv/params)" = 'version: 2.6
NVIDIA driver flavour: open
Use persistent mapping: yes
dbg_enabled: 1
info_enabled: 0
use_persistent_mapping: 1
lost pinnings: 0' ]
/bin/kmod_test -t faults
result $? "kmod_test -t faults (map_whole)"
exec 3</dev/gdrdrv
! rmmod gdrdrv 2>/dev/null && [ -c /dev/gdrdrv ]
result $? "a module that is in use stays, with its node"
exec 3<&-
unload
clean_log "map_whole"
check "no file system is left" [ "$(mounts)" = "$before" ]
