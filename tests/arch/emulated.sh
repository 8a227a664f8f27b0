#!/bin/sh
# SPDX-License-Identifier: MIT
# emulated.sh LACKS PROGRAM EMULATOR... - runs a test program under an emulator that does not
# do what the file LACKS names (emulator.c), without the cases that need it (needs.txt).
set -eu
lacks=$1
program=$2
shift 2
set -- "$@" "$program"
if grep -qx wipeonfork "$lacks"; then
	echo "this emulator has no MADV_WIPEONFORK, on which the library counts: take qemu 8.1 or newer" >&2
	exit 1
fi
if grep -qx one-thread "$lacks"; then
	GUEST_OTHER_THREADS=1
	export GUEST_OTHER_THREADS
fi
while read -r name need case; do
	[ "$name" = "${program##*/}" ] || continue
	if [ "$need" = time ] || grep -qx "$need" "$lacks"; then
		echo "# without '$case': the emulator has no $need"
		set -- "$@" --skip "$case"
	fi
done <"$(dirname "$0")/needs.txt"
exec "$@"
