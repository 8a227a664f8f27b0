# SPDX-License-Identifier: MIT
# shellcheck shell=sh
# job-load.sh - sourced by guest-init.sh: the modules load, and print what they are.
load 1
result $? "the modules load"
cat /proc/driver/gdrdrv/params
grep -q 'NVIDIA driver flavour: open' /proc/driver/gdrdrv/params
result $? "the flavour is known"
unload
clean_log "loading"
