# SPDX-License-Identifier: MIT
# shellcheck shell=sh
# job-kmod.sh - sourced by guest-init.sh: the module's own tests, in both modes. KMOD_ARGS
# comes from the host. The limits are low enough for the tests to reach.
export GDRDRV_ARGS='max_pins_per_file=5000 max_pins_per_user=8000
	max_mib_per_file=2048 max_mib_per_user=3072'
for persistent in 1 0; do
	for major in 1 2; do
		mode="persistent=$persistent, page table major $major"
		load "$persistent" page_table_major="$major"
		result $? "modules load ($mode)"
		# shellcheck disable=SC2086 # several words
		/bin/kmod_test ${KMOD_ARGS-}
		result $? "kmod_test ($mode)"
		unload
		detectors "kmod_test ($mode)"
		clean_log "kmod_test ($mode)"
	done
done
# A module that hands tokens on.
GDRDRV_ARGS="$GDRDRV_ARGS pass_p2p_tokens=1" load 0
result $? "modules load (pass_p2p_tokens)"
[ "$(stat -c %a /sys/module/gdrdrv/parameters/pass_p2p_tokens)" = 400 ]
result $? "root alone sees pass_p2p_tokens"
for t in tokens tokens_of_another close_in_child; do
	/bin/kmod_test -t $t
	result $? "kmod_test -t $t (pass_p2p_tokens)"
done
# As gdrdrv.service stops: rmmod fails while the module is in use, then the node's turn.
exec 3</dev/gdrdrv
rmmod gdrdrv 2>/dev/null || gdrdrv-node remove
[ -c /dev/gdrdrv ]
result $? "a module that stays keeps its node"
exec 3<&-
unload "kmod_test -u"
clean_log "pass_p2p_tokens"
