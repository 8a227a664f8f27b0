# SPDX-License-Identifier: MIT
# shellcheck shell=sh
# job-sanity.sh - sourced by guest-init.sh: the library on the gdrdrv backend. The simulated
# nvidia.ko has the device memory. SANITY_ARGS comes from the host.
export LD_LIBRARY_PATH=/lib CUDA_SIM_KERNEL=1 GDR_TEST_DOUBLES=1 GDRCOPY_BACKEND=gdrdrv
load 1
result $? "modules load"
# shellcheck disable=SC2086 # several words
/bin/gdrcopy_sanity ${SANITY_ARGS-}
result $? "gdrcopy_sanity"
# An emulated CPU is some 30 times slower. The cases keep their limits.
export GUEST_SCALE=0.05
for program in badinput guest_fork guest_fds; do
	[ ! -e /bin/$program ] || { /bin/$program; result $? "$program"; }
done
unload
detectors "the library"
clean_log "the library"
