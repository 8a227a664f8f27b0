#!/bin/bash
# SPDX-License-Identifier: MIT
#
# static.sh OUT - the static checks of the kernel code, as TAP: sparse with the compiler's
# own warnings, the kernel's style, and code that must not be there. Builds under OUT.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
# shellcheck source=tests/vm/apt.sh
. "$here/apt.sh"
# shellcheck source=tests/tap.sh
. "$here/../tap.sh"

# Three style rules do not apply. A header that user space includes cannot use the kernel's
# macros for bits. nvidia_sim.c has the prototypes of nv-p2p.h, which use uint64_t. Kernels
# before 7.0 have no kzalloc_obj. STYLE=7.2 takes that kernel's rules.
style() {
	local ignore=BIT_MACRO,ALLOC_WITH_SIZEOF
	[[ $1 != */nvidia_sim.c ]] || ignore+=,PREFER_KERNEL_TYPES
	perl "$source/scripts/checkpatch.pl" --no-tree --no-signoff --strict --terse \
		--ignore "$ignore" -f "$1"
}

# refused OUT
refused() {
	! "$here/build.sh" 6.1 older "$1" && grep -q 'cannot pin persistently: install 535 or later' "$1/build.log"
}

# absent REGEX: no line of the module's code matches.
absent() { ! grep -nE "$1" "$top"/kmod/*.[ch]; }

# charged: the caller's cgroup pays for all that the module allocates for a caller.
charged() {
	absent '\bGFP_KERNEL\b' && absent '\bxa_init\(|\bDEFINE_XARRAY\(' &&
		! grep -nE '\b(xa_init_flags|DEFINE_XARRAY_FLAGS)\(' "$top"/kmod/*.[ch] | grep -v XA_FLAGS_ACCOUNT
}

need sparse:sparse perl:perl
source=$("$here/fetch.sh" style "${STYLE:-6.1}") || exit 1
# build.sh fails on any warning.
check "sparse and gcc -Wall -Wextra, kernel 6.1" \
	env GDR_MAKE=C=2 "$here/build.sh" 6.1 550 "$1/6.1-550-sparse"
check "sparse and gcc -Wall -Wextra, kernel 6.12" \
	env GDR_MAKE=C=2 "$here/build.sh" 6.12 550 "$1/6.12-550-sparse"
check "a driver that cannot pin persistently: the build says what to do" refused "$1/6.1-older"
for f in "$top"/kmod/*.[ch] "$top"/tests/kmod/{nvidia_sim*.[ch],card_sim.c} \
	"$top/examples/capture/card_uapi.h"; do
	check "checkpatch --strict ${f#"$top"/}" style "$f"
done
check "no pointer is printed" absent '%p'
check "all memory is charged" charged
check "nothing that a user could make WARN or BUG" absent '\b(WARN|BUG)(_ON)?(_ONCE)?\('
done_testing
