#!/bin/sh
# SPDX-License-Identifier: MIT
# The external linker that `go build -ldflags=-extld=` calls for libgdrapi.
#
# Before it hands over to the compiler it takes the Go runtime's entry out of
# .init_array, into a section of another name: loading the library then starts
# nothing, and capi/runtime.c starts the runtime when it is first needed. It also
# lets runtime.c see where the variables of Go's code begin and end. The Go
# linker calls this for small probes too; those have no go.o and pass through.
#
# GDR_CC and GDR_OBJCOPY name the tools, GDR_MAP the version script.
set -eu

# A child of fork() puts Go's variables back (capi/runtime.c): it must know of all
# the sections that they lie in. Those of no name below are the sanitizers'.
check_sections() {
	unknown=$("${GDR_READELF:-readelf}" -SW "$1" | sed 's/^ *\[ *[0-9]*\] *//' |
		awk '$7 ~ /W/ && $1 !~ /^\.(noptrdata|data|bss|noptrbss|tbss|init_array)$/ && $1 !~ /^\.data\.rel\.ro/ &&
		     $1 !~ /^\.go\.(module|buildinfo|fipsinfo|fuzzcntrs)$/ && $1 !~ /^__libfuzzer/ { print $1 }')
	[ -z "$unknown" ] || {
		echo "extld.sh: this Go has variables in sections that capi/runtime.c does not know:" "$unknown" >&2
		exit 1
	}
}

for arg; do
	case $arg in
	*/go.o)
		check_sections "$arg"
		"${GDR_OBJCOPY:-objcopy}" --rename-section .init_array=gdr_go_entry,alloc,load,data,contents \
			--rename-section .go.module=gdr_go_module \
			--globalize-symbol=runtime.data --globalize-symbol=runtime.edata \
			--globalize-symbol=runtime.noptrdata --globalize-symbol=runtime.enoptrdata \
			--globalize-symbol=runtime.bss --globalize-symbol=runtime.ebss \
			--globalize-symbol=runtime.noptrbss --globalize-symbol=runtime.enoptrbss "$arg"
		# An entry in a section of its own is an ordinary pointer, which
		# the linker relocates; --gc-sections must not drop it.
		stubs=${arg%/go.o}/stubs
		"$(dirname "$0")/stubs.sh" "$stubs"
		set -- "$@" "-L$stubs" -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 "-Wl,--version-script=$GDR_MAP" -Wl,-z,now -Wl,-z,relro
		;;
	*/0*.o)
		# glibc 2.38's headers name these anew; older ones have the old names.
		"${GDR_OBJCOPY:-objcopy}" --redefine-sym __isoc23_strtoul=strtoul \
			--redefine-sym __isoc23_strtoull=strtoull \
			--redefine-sym __isoc23_sscanf=__isoc99_sscanf "$arg"
		;;
	esac
done
exec "${GDR_CC:-cc}" "$@"
