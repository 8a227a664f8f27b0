#!/bin/sh
# SPDX-License-Identifier: MIT
# sanity.sh FOLDER EMULATOR... - runs gdrcopy_sanity under an emulator. Where the emulator
# does not keep memory from a child of fork(), the cases that fork after gdr_open are
# skipped, for the library and the tests count on it.
set -eu
bin=$1
shift
if why=$("$@" "$bin/fork_advice"); then
	exec "$@" "$bin/gdrcopy_sanity"
fi
echo "# the emulator does not do MADV_WIPEONFORK and MADV_DONTFORK ($why): what forks is skipped"
exec "$@" "$bin/gdrcopy_sanity" \
	--skip fork_after_open,fork_with_mapping,fork_opens_again,fork_twice,fork_exits,fork_while_busy
