# SPDX-License-Identifier: MIT
# shellcheck shell=sh
# job-doctor.sh - sourced by guest-init.sh: gdrcopy_doctor where the module gdrdrv is
# loaded, where its node is gone, where it is closed, and where the module is not loaded.
export LD_LIBRARY_PATH=/lib CUDA_SIM_KERNEL=1 GDR_TEST_DOUBLES=1

# says STATUS TEXT NAME - the doctor ends with that status, and one of its lines matches.
says() {
	# shellcheck disable=SC2086 # words
	${AS-} /bin/gdrcopy_doctor >/tmp/doctor 2>&1
	got=$?
	if [ "$got" -eq "$1" ] && grep -qE "$2" /tmp/doctor; then
		result 0 "$3"
	else
		echo "status $got"
		cat /tmp/doctor
		result 1 "$3"
	fi
}

load 1
result $? "modules load"
says 0 '^OK    backend-gdrdrv: Taken, and it works\. The module is of version 2\.6\.' "gdrdrv is taken"
says 0 '^libgdrapi works here: gdr_open takes gdrdrv\.' "the answer"
rm /dev/gdrdrv
export GDRCOPY_BACKEND=gdrdrv
says 1 '^FAIL  backend-gdrdrv: Not taken: the module gdrdrv is loaded, but there is no /dev/gdrdrv\.' "no node"
major=$(awk '$2 == "gdrdrv" { print $1 }' /proc/devices)
mknod -m 600 /dev/gdrdrv c "$major" 0	# as the doctor says
AS='/bin/setpriv --reuid 65534' says 1 '^FAIL  backend-gdrdrv: Not taken: /dev/gdrdrv may not be used by this user: permission denied \(mode 0600, owner 0:0\)' "a node that is closed"
rmmod gdrdrv && [ -c /dev/gdrdrv ]
result $? "the module goes, and that node stays"
says 1 '^FAIL  backend-gdrdrv: Not taken: /dev/gdrdrv is there, but the module is not loaded\.' "a node without the module"
rm /dev/gdrdrv
says 1 '^FAIL  backend-gdrdrv: Not taken: the module gdrdrv is not loaded\.' "no module"
rmmod nvidia
result $? "the simulated driver unloads"
says 77 '^FAIL  gpu: There is no NVIDIA GPU here\.' "no driver"
clean_log "the doctor"
