#!/bin/sh
# SPDX-License-Identifier: MIT
# emulated.sh PROGRAM EMULATOR... - runs a test program under qemu-user 8.1 or newer, without the
# cases of needs.txt. qemu has a thread of its own in the process.
set -eu
program=$1
shift
set -- "$@" "$program"
while read -r name case; do
	[ "$name" != "${program##*/}" ] || set -- "$@" --skip "$case"
done <"$(dirname "$0")/needs.txt"
exec env GUEST_OTHER_THREADS=1 "$@"
