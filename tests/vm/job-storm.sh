# SPDX-License-Identifier: MIT
# shellcheck shell=sh
# job-storm.sh - sourced by guest-init.sh: the storm again and again, with both page
# tables, for STORM_SECONDS (default 3600), with another seed each time. The round
# that has begun is ended. KMOD_ARGS comes from the host.
seed=0
now() { cut -d. -f1 /proc/uptime; }
end=$(($(now) + ${STORM_SECONDS-3600}))
while [ $seed -eq 0 ] || [ "$(now)" -lt "$end" ]; do
	seed=$((seed + 1))
	for major in 1 2; do
		name="storm (page table major $major, seed $seed)"
		load 1 page_table_major=$major
		result $? "modules load"
		# shellcheck disable=SC2086 # several words
		/bin/kmod_test -t storm -s $seed ${KMOD_ARGS-}
		result $? "$name"
		unload
		detectors "$name"
		clean_log "$name"
	done
done
