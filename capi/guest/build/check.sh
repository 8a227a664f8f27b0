#!/bin/sh
# SPDX-License-Identifier: MIT
# check.sh LIBRARY - what capi/guest/runtime.c and capi/guest/build/goroot.sh take for granted of the
# Go that the library was linked from. Whatever does not hold ends the build: the
# library would fail in a host instead.
set -eu
lib=$1
readelf=${READELF:-readelf}
symbols=$("$readelf" -sW "$lib")
sections=$("$readelf" -SW "$lib")

fail() {
	echo "check.sh: $lib: $1" >&2
	exit 1
}

# value SYMBOL: its address, as readelf prints it; each must be there once. The name is the
# last field: on POWER one more may stand before it.
value() {
	printf '%s\n' "$symbols" | awk -v name="$1" '$NF == name { if (!seen[$2]++) print $2 }'
}

# size SECTION
size() {
	printf '%s\n' "$sections" | sed 's/^ *\[ *[0-9]*\] *//' | awk -v name="$1" '$1 == name { print $5 }'
}

[ -n "$(size gdr_go_entry)" ] || fail "it has no section gdr_go_entry: go.o had no .init_array?"
[ "$(printf '%d' "0x$(size gdr_go_entry)")" -eq 8 ] || fail "gdr_go_entry is not one pointer"
case $("$readelf" -hW "$lib") in
*X86-64*) arch=amd64 ;;
*AArch64*) arch=arm64 ;;
*) arch=ppc64le ;;
esac
entry=$(value "_rt0_${arch}_linux_lib" | sed 's/^0*//')
[ -n "$entry" ] || fail "it has no _rt0_${arch}_linux_lib"
at=$(printf '%s\n' "$sections" | sed 's/^ *\[ *[0-9]*\] *//' | awk '$1 == "gdr_go_entry" { print $3 }')
"$readelf" -rW "$lib" | grep -q "^$at .* $entry\$" || fail "gdr_go_entry does not hold _rt0_${arch}_linux_lib"

for part in data noptrdata bss noptrbss; do
	start=$(value "runtime.$part") end=$(value "runtime.e$part")
	[ -n "$start" ] || fail "it has no runtime.$part"
	[ -n "$end" ] || fail "it has no runtime.e$part"
	[ "$(printf '%d' "0x$start")" -lt "$(printf '%d' "0x$end")" ] || fail "Go's $part is empty"
done

# lies_in SYMBOL START END: addresses in hexadecimal.
lies_in() {
	[ "$(printf '%d' "0x$1")" -ge "$(printf '%d' "0x$2")" ] && [ "$(printf '%d' "0x$1")" -lt "$(printf '%d' "0x$3")" ]
}

# Go's module data has a section of its own from 1.26 on, and lies among the variables
# before. A child puts it back in both places.
module=$(value runtime.firstmoduledata)
[ -n "$module" ] || fail "it has no runtime.firstmoduledata"
[ -n "$(size gdr_go_module)" ] ||
	lies_in "$module" "$(value runtime.noptrdata)" "$(value runtime.enoptrdata)" ||
	fail "Go's module data is elsewhere"

# What capi/guest/build/goroot.sh and capi/guest/build/extld.sh have taken out is not there.
! printf '%s\n' "$symbols" | grep -q 'EpollCreate' || fail "the runtime has an epoll"
for f in pthread_key_create pthread_sigmask pthread_getattr_np pthread_attr_getstack pthread_attr_getstacksize; do
	! printf '%s\n' "$symbols" | grep -q "UND $f" || fail "runtime/cgo calls $f of the C library"
done
[ "$(size gdr_go_c)" ] || fail "runtime/cgo's C has no variables of its own"
done_init=$(value runtime_init_done)
[ -z "$done_init" ] || lies_in "$done_init" "$(value __start_gdr_go_c)" "$(value __stop_gdr_go_c)" ||
	fail "runtime/cgo's C has its variables elsewhere"
