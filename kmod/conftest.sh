#!/bin/sh
# SPDX-License-Identifier: (GPL-2.0 OR MIT)
#
# conftest.sh KDIR NVIDIA_INC OUT - find out what this kernel and this nv-p2p.h have, and
# write it to OUT as macros. It compiles small tests, as version numbers do not show
# backports.
set -eu
kdir=$1 inc=$2 out=$3
# A separate make: it must not get the caller's options.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# try NAME: a test is one object file. Its source comes on stdin.
names=
try() {
	names="$names $1"
	cat >"$tmp/$1.c"
	printf 'obj-m += %s.o\n' "$1" >>"$tmp/Kbuild"
}

printf 'ccflags-y += -I%s -Werror -Wno-unused-variable\n' "$inc" >"$tmp/Kbuild"

try SANE <<'END'
#include <linux/mm.h>
#include <linux/types.h>
#include <nv-p2p.h>
int gdr_test(struct nvidia_p2p_page_table *pt);
int gdr_test(struct nvidia_p2p_page_table *pt) { return pt->version; }
END
try VM_FLAGS_INIT <<'END'
#include <linux/mm.h>
void gdr_test(struct vm_area_struct *vma);
void gdr_test(struct vm_area_struct *vma) { vm_flags_init(vma, VM_IO); }
END
try VM_MAY_SPLIT <<'END'
#include <linux/mm.h>
static int split(struct vm_area_struct *vma, unsigned long addr) { return -1; }
extern const struct vm_operations_struct gdr_test;
const struct vm_operations_struct gdr_test = { .may_split = split };
END
try PFN_IS_MAP_MEMORY <<'END'
#include <linux/mm.h>
int gdr_test(unsigned long pfn);
int gdr_test(unsigned long pfn) { return pfn_is_map_memory(pfn); }
END
try PERSISTENT <<'END'
#include <linux/types.h>
#include <nv-p2p.h>
#ifndef NVIDIA_P2P_CAP_GET_PAGES_PERSISTENT_API
#error no persistent mappings
#endif
int gdr_test(struct nvidia_p2p_page_table **pt);
int gdr_test(struct nvidia_p2p_page_table **pt)
{
	return nvidia_p2p_get_pages_persistent(0, 0, pt, 0) +
	       nvidia_p2p_put_pages_persistent(0, *pt, 0);
}
END
try FORCE_BAR1 <<'END'
#include <linux/types.h>
#include <nv-p2p.h>
extern const int gdr_test;
const int gdr_test = NVIDIA_P2P_FLAGS_FORCE_BAR1_MAPPING;
END
try PAGE_TABLE_FLAGS <<'END'
#include <linux/types.h>
#include <nv-p2p.h>
int gdr_test(struct nvidia_p2p_page_table *pt);
int gdr_test(struct nvidia_p2p_page_table *pt) { return pt->flags; }
END

# -i: after a failed test the others must still be tried.
make -k -i -C "$kdir" M="$tmp" ${CC:+CC="$CC"} modules >"$tmp/log" 2>&1 || :
if [ ! -e "$tmp/SANE.o" ]; then
	cat "$tmp/log" >&2
	echo "gdrdrv: cannot compile against the kernel in $kdir: see above" >&2
	exit 1
fi

if [ ! -e "$tmp/PERSISTENT.o" ]; then
	echo "gdrdrv: the NVIDIA driver of $inc cannot pin persistently: install 535 or later (or 525 from 525.105.17 on), or build NVIDIA's own gdrdrv, with which libgdrapi works too" >&2
	exit 1
fi

{
	echo '/* Made by conftest.sh. */'
	for n in $names; do
		if [ -e "$tmp/$n.o" ]; then
			echo "#define GDR_HAVE_$n 1"
		else
			echo "/* no $n */"
		fi
	done
} >"$tmp/config.h"
cmp -s "$tmp/config.h" "$out" || cp "$tmp/config.h" "$out"
