#!/bin/sh
# SPDX-License-Identifier: MIT
# gdrcopy_doctor on a real GPU where the library works: gpu.sh BUILD. Its output is
# shown, for people to read.
. tests/tap.sh
build=$(realpath "$1")
export LD_LIBRARY_PATH="$build:${LD_LIBRARY_PATH-}"

# says STATUS TEXT COMMAND... - the command ends with the status and prints such a line.
says() {
	want=$1 text=$2
	shift 2
	"$@" >"$work/out" 2>&1
	got=$?
	sed 's/^/# /' "$work/out" >&3
	echo "status $got"
	[ "$got" -eq "$want" ] && grep -qE "$text" "$work/out"
}

exec 3>&1
check "it works" says 0 '^libgdrapi works here: gdr_open takes [a-z]+\.' "$build/bin/gdrcopy_doctor"
check "as JSON" says 0 '"verdict": "works"' "$build/bin/gdrcopy_doctor" --json
check "no GPU that CUDA may see" says 1 '^FAIL  cuda: .*no device \(100\), with CUDA_VISIBLE_DEVICES=' \
	env CUDA_VISIBLE_DEVICES= "$build/bin/gdrcopy_doctor"
if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
	check "as another user" says 0 '^libgdrapi works here' \
		setpriv --reuid=65534 --regid=65534 --clear-groups "$build/bin/gdrcopy_doctor"
else
	skip "as another user" "needs root and setpriv"
fi
done_testing
