# SPDX-License-Identifier: MIT
# shellcheck shell=sh
# job-rm.sh - sourced by guest-init.sh: the library on the rm backend, with the simulated
# nvidia.ko. gdrdrv is not loaded. SANITY_ARGS comes from the host.
export LD_LIBRARY_PATH=/lib CUDA_SIM_RM=1 GDR_TEST_DOUBLES=1 GDRCOPY_BACKEND=rm
insmod /nvidia.ko && mknod -m 666 /dev/nvidiactl c 195 255 && mknod -m 666 /dev/nvidia0 c 195 0
result $? "the simulated driver loads"
/bin/rm_test
result $? "rm_test"
# shellcheck disable=SC2086 # several words
/bin/gdrcopy_sanity ${SANITY_ARGS-}
result $? "gdrcopy_sanity (rm)"
# An emulated CPU is some 30 times slower. The cases keep their limits.
export GUEST_SCALE=0.05
for program in badinput guest_fork guest_fds guest_lazy guest_footprint guest_signals guest_threads; do
	[ ! -e /bin/$program ] || { /bin/$program; result $? "$program (rm)"; }
done
rmmod nvidia
result $? "the simulated driver unloads"
insmod /nvidia.ko rm_driver=610 && /bin/rm_test && rmmod nvidia
result $? "rm_test (610)"
detectors "the library (rm)"
clean_log "the library (rm)"
