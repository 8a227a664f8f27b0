#!/bin/sh
# SPDX-License-Identifier: MIT
# The external linker that `go build -ldflags=-extld=` calls for libgdrapi.
#
# Before it hands over to the compiler it changes objects:
#
# 1. The Go runtime's entry goes out of .init_array, into a section of another name:
#    loading the library then starts nothing, and capi/guest/runtime.c starts the runtime when
#    it is first needed.
# 2. runtime.c sees where the variables of Go's code begin and end, and those of
#    runtime/cgo's C.
# 3. runtime/cgo's C calls gdr_go_F in runtime.c instead of the C library's function F.
#
# The Go linker calls this for small probes too; those have no go.o and pass through.
#
# GDR_CC, GDR_OBJCOPY and GDR_READELF name the tools, GDR_MAP the version script, GDR_VERSION the
# object with the text of gdr_ext_version, if there is one.
set -eu
objcopy=${GDR_OBJCOPY:-objcopy}
readelf=${GDR_READELF:-readelf}

# What capi/guest/runtime.c does instead of the C library, for runtime/cgo.
ours='malloc free mmap pthread_create pthread_key_create pthread_sigmask pthread_attr_getstacksize pthread_getattr_np pthread_attr_getstack'

# What else runtime/cgo may call. Any other function has to be looked at first: it may take
# something of the host's. The masks of setenv and sigaction are these: os.Setenv and a
# handler of Go's, of which the library has none.
theirs=$(tr -s '\n\t' ' ' <<END
	__errno_location abort clearenv fatalf fprintf fwrite memset munmap nanosleep
	pthread_attr_destroy pthread_attr_init pthread_attr_setdetachstate pthread_cond_broadcast
	pthread_cond_wait pthread_mutex_lock pthread_mutex_unlock pthread_self pthread_setspecific
	setenv sigaction sigaddset sigemptyset sigfillset sigismember stderr strerror
	threadentry unsetenv __fprintf_chk __stack_chk_fail _GLOBAL_OFFSET_TABLE_ .TOC.
	crosscall1 crosscall_ppc64 _cgo_set_stacklo _cgo_sys_thread_start _cgo_try_pthread_create
	x_cgo_getstackbound
END
)

fail() {
	echo "extld.sh: $1" >&2
	exit 1
}

# sections OBJECT: the names of those with variables.
sections() {
	"$readelf" -SW "$1" | sed 's/^ *\[ *[0-9]*\] *//' | awk '$7 ~ /W/ { print $1 }'
}

# A child of fork() puts Go's variables back (capi/guest/runtime.c): it must know of all
# the sections that they lie in. Those of no name below are the sanitizers'.
check_sections() {
	unknown=$(sections "$1" |
		grep -vE '^\.(noptrdata|data|bss|noptrbss|tbss|init_array)$|^\.data\.rel\.ro|^\.go\.(module|buildinfo|fipsinfo|fuzzcntrs)$|^__libfuzzer') || return 0
	fail "this Go has variables in sections that capi/guest/runtime.c does not know: $unknown"
}

# symbols OBJECT: "UND NAME" of what it calls, "N NAME" of what it defines for others.
symbols() {
	"$readelf" -sW "$1" | awk '$5 == "GLOBAL" { print $(NF - 1), $NF }'
}

# change_cgo OBJECT: one of runtime/cgo's.
change_cgo() {
	for name in $(symbols "$1" | sed -n 's/^UND //p'); do
		case " $ours $theirs " in
		*" $name "*) ;;
		*)
			case $name in
			__asan_* | __ubsan_* | __tsan_* | __sanitizer_*) ;;
			*) fail "runtime/cgo of this Go calls $name: find out whether a guest may, then name it in capi/guest/build/extld.sh" ;;
			esac
			;;
		esac
		called="$called $name"
	done
	# x_cgo_inittls, of Go 1.24 to 1.26, is Android's.
	! symbols "$1" | grep '^COM ' | grep -qv ' x_cgo_inittls$' ||
		fail "runtime/cgo has variables of no section: build without -fcommon"
	known='^\.(data|bss|toc|init_array|fini_array)$|^\.data\.rel\.ro|^\.(init|fini)_array\.'
	# The sanitizers' own variables need not be put back in a child.
	! symbols "$1" | grep -qE '^UND __(a|ub)san_' || known="$known|asan|^\.data\.rel(\.local)?$|^__sancov"
	unknown=$(sections "$1" | grep -vE "$known") || unknown=
	[ -z "$unknown" ] || fail "runtime/cgo has variables in sections that capi/guest/runtime.c does not know: $unknown"
	# shellcheck disable=SC2046 # options are words
	"$objcopy" $(for f in $ours; do echo "--redefine-sym $f=gdr_go_$f"; done) \
		--rename-section .data=gdr_go_c \
		--rename-section .bss=gdr_go_c,alloc,load,data,contents "$1"
}

go=
called=
objects=
for arg; do
	case $arg in
	*/go.o)
		go=$arg
		check_sections "$arg"
		"$objcopy" --rename-section .init_array=gdr_go_entry,alloc,load,data,contents \
			--rename-section .go.module=gdr_go_module \
			--globalize-symbol=runtime.data --globalize-symbol=runtime.edata \
			--globalize-symbol=runtime.noptrdata --globalize-symbol=runtime.enoptrdata \
			--globalize-symbol=runtime.bss --globalize-symbol=runtime.ebss \
			--globalize-symbol=runtime.noptrbss --globalize-symbol=runtime.enoptrbss \
			--globalize-symbol=runtime.tlsg --globalize-symbol=runtime.tls_g "$arg"
		# Copies of the library find each other by the GNU hash table (capi/guest/slot.go).
		# An entry in a section of its own is an ordinary pointer, which
		# the linker relocates; --gc-sections must not drop it.
		stubs=${arg%/go.o}/stubs
		"$(dirname "$0")/stubs.sh" "$stubs"
		set -- "$@" "-L$stubs" -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 "-Wl,--version-script=$GDR_MAP" ${GDR_VERSION:+"$GDR_VERSION"} -Wl,-z,now -Wl,-z,relro -Wl,--hash-style=gnu
		;;
	*/0*.o) objects="$objects $arg" ;;
	esac
done
# One grep tells which objects have such a name at all. Their paths are words.
# shellcheck disable=SC2086
for o in ${objects:+$(grep -la x_cgo_ $objects)}; do
	! symbols "$o" | grep -q '^[0-9]* x_cgo_' || change_cgo "$o"
done
# shellcheck disable=SC2086
for o in ${objects:+$(grep -la __isoc23_ $objects)}; do
	"$objcopy" --redefine-syms="$(dirname "$0")/glibc.syms" "$o"
done
# Where one is not called, something else is in its place.
[ -z "$go" ] || for f in $ours; do
	case " $called " in
	*" $f "*) ;;
	*) fail "runtime/cgo of this Go does not call $f: find out what it does instead" ;;
	esac
done
exec "${GDR_CC:-cc}" "$@"
