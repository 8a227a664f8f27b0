#!/bin/sh
# SPDX-License-Identifier: MIT
#
# goroot.sh - which Go is taken, and what the build says of one that it may not take:
# setup.sh --go with programs that stand for Gos; capi/guest/build/goroot.sh with a Go whose files
# differ; capi/guest/build/extld.sh with objects that stand for runtime/cgo's.
here=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/tap.sh
. "$here/tests/tap.sh"

# .ci/run and a user's environment may name one; the cases here set their own.
unset GOTOOLCHAIN GDR_GO_UNTESTED

# The list, and those who have it written down.
versions=$(sed '/^#/d' "$here/capi/guest/build/go_versions")
oldest=$(printf '%s\n' "$versions" | head -n 1)
newest=$(printf '%s\n' "$versions" | tail -n 1)
minor=${newest#go1.}
minor=${minor%%.*}
older=$(printf '%s\n' "$versions" | tail -n 2 | head -n 1)

is "the list is in order" "$versions" "$(printf '%s\n' "$versions" | sort -V)"
is "go.mod's toolchain is the newest" "$(sed -n 's/^toolchain //p' "$here/go.mod")" "$newest"
is "go.mod's go is the oldest" "go$(sed -n 's/^go //p' "$here/go.mod")" "$oldest"
short=$(echo "$oldest" | sed -E 's/^go([0-9]+\.[0-9]+).*/\1/')
check "Debian's package asks for the oldest" grep -qF "golang-any (>= 2:$short~)" "$here/packaging/deb/debian/control"
check "the RPM's does" grep -qx "BuildRequires:  golang >= $short" "$here/packaging/rpm/gdrapi.spec"
for v in $versions; do
	check "docs/support.md has $v" grep -qwF "${v#go}" "$here/docs/support.md"
done

# fake DIR VERSION SETTING: a go command of that version, told so by GOTOOLCHAIN.
fake() {
	mkdir -p "$1"
	cat >"$1/go" <<-END
	#!/bin/sh
	case "\$*" in
	'env GOVERSION') echo $2 ;;
	'env GOTOOLCHAIN') echo "\${GOTOOLCHAIN:-$3}" ;;
	'env GOROOT') echo "\${FAKE_ROOT-}" ;;
	*) exit 2 ;;
	esac
	END
	chmod +x "$1/go"
}

# chosen VERSION SETTING [NAME=VALUE...]: what setup.sh --go prints where that is the go in
# PATH and $work/lib is /usr/lib.
chosen() {
	rm -rf "${work:?}/bin"
	[ "$1" = none ] || fake "$work/bin" "$1" "$2"
	shift 2
	env PATH="$work/bin:/usr/bin:/bin" "$@" sh "$work/setup.sh" --go
}

cp -r "$here/capi" "$work/capi"
sed "s#/usr/lib/go-#$work/lib/go-#" "$here/setup.sh" >"$work/setup.sh"
next=go1.$((minor + 1)).0
is "a known Go is taken" "$(chosen "$older" auto)" go
is "and where it may fetch none" "$(chosen "$older" local)" go
is "a newer patch of a known one, too" "$(chosen "$newest.9" local)" go
is "a newer one is brought down" "$(chosen "$next" auto)" "env GOTOOLCHAIN=$newest go"
for setting in local path auto+path go1.99.1+path; do
	is "not where it may fetch none, $setting: then make says so" "$(chosen "$next" "$setting")" go
done
is "an older one is brought up" "$(chosen go1.22.3 auto)" "env GOTOOLCHAIN=$newest go"
is "one that cannot fetch is not asked to" "$(chosen go1.19.8 auto)" go
is "GOTOOLCHAIN's Go is taken" "$(chosen "$next" auto GOTOOLCHAIN="$older")" go
is "GDR_GO_UNTESTED=1 takes a newer one" "$(chosen "$next" auto GDR_GO_UNTESTED=1)" "env GOTOOLCHAIN=local go"
is "and changes nothing of a known one" "$(chosen "$older" auto GDR_GO_UNTESTED=1)" go
for v in "$oldest" "$newest" "$next"; do
	n=${v#go1.}
	fake "$work/lib/go-1.${n%%.*}/bin" "$v" auto
done
is "before that, the newest known that Debian keeps" "$(chosen "$next" local)" "$work/lib/go-1.$minor/bin/go"
is "and without any go in PATH" "$(chosen none auto)" "$work/lib/go-1.$minor/bin/go"

# goroot: capi/guest/build/goroot.sh's output and status, with the Go in $work/bin.
goroot() {
	PATH="$work/bin:/usr/bin:/bin" env FAKE_ROOT="$work/root" "$@" GO= "$here/capi/guest/build/goroot.sh" "$work/out" 2>&1
}

# says TEXT COMMAND...: it fails, and says TEXT.
says() {
	text=$1
	shift
	if "$@" >"$work/said-by" 2>&1 || ! grep -qF -e "$text" "$work/said-by"; then
		cat "$work/said-by"
		return 1
	fi
}

fake "$work/bin" "$next" local
for choice in 'sh setup.sh' '-go in Debian' "GOTOOLCHAIN=$newest make" 'GDR_GO_UNTESTED=1 make'; do
	check "an unknown Go: make names $choice" says "$choice" goroot env
done
# make's targets that build no library first ask the same.
for target in check check-abi lint; do
	check "no Go: make $target says so" says 'there is no go-none here: run sh setup.sh' \
		make -s -C "$here" "$target" GO=go-none B="$work/b"
done
fake "$work/bin" go1.19.8 auto
check "a Go that is too old: make check names setup.sh" says 'sh setup.sh' make -s -C "$here" check GO="$work/bin/go" B="$work/b"
for choice in GOTOOLCHAIN GDR_GO_UNTESTED; do
	check "and not $choice, which it does not know or could not use" sh -c "! grep -q $choice '$work/said-by'"
done
fake "$work/bin" go1.21.9 local
check "Go 1.21 knows GOTOOLCHAIN" says "GOTOOLCHAIN=$newest make" goroot env
check "and reads no go.mod of today" sh -c "! grep -q GDR_GO_UNTESTED '$work/said-by'"
fake "$work/bin" "$next" local
real=$(${GO:-go} env GOROOT)
for f in syscall/rlimit.go runtime/sigtab_linux_generic.go runtime/netpoll_epoll.go runtime/signal_unix.go \
	runtime/os_linux.go runtime/proc.go runtime/malloc.go internal/godebugs/table.go; do
	mkdir -p "$work/root/src/${f%/*}"
	cp "$real/src/$f" "$work/root/src/$f"
done
check "GDR_GO_UNTESTED=1 goes on" goroot GDR_GO_UNTESTED=1
is "and warns" "$(goroot GDR_GO_UNTESTED=1)" "goroot.sh: $next: no test of the library has been run with it"
fake "$work/bin" "$newest" local
check "a known Go: nothing is said" test -z "$(goroot env)"
check "seven files are replaced" test "$(grep -c '": "' "$work/out/overlay.json")" -eq 7
sed -i 's/sigblock(false)/sigblock(!true)/' "$work/root/src/runtime/proc.go"
check "other lines of masks stay" goroot env
check "all of them" test "$(grep -c '": "' "$work/out/overlay.json")" -eq 6
check "in both files" grep -q 'sigsave(&sigmask)' "$work/out/runtime_proc.go"
check "the stack is changed" grep -q 'malg(128 << 10)' "$work/out/runtime_proc.go"
for f in runtime/proc.go runtime/os_linux.go; do
	sed -i.was 's/malg(/malloc_g(/' "$work/root/src/$f"
	check "another stack in $f ends the build" says "elsewhere than in $f" goroot env
	mv "$work/root/src/$f.was" "$work/root/src/$f"
done
sed -i.was 's/^\tarenaL1Bits = /&2 + /' "$work/root/src/runtime/malloc.go"
check "another index of arenas ends the build" says 'elsewhere than in runtime/malloc.go' goroot env
mv "$work/root/src/runtime/malloc.go.was" "$work/root/src/runtime/malloc.go"
sed -i 's/^var Removed .*/&\n\t{Name: "updatemaxprocs", Removed: 99},/' "$work/root/src/internal/godebugs/table.go"
check "a GODEBUG setting that Go has removed ends the build" says 'has removed the GODEBUG setting updatemaxprocs' goroot env
cp "$real/src/internal/godebugs/table.go" "$work/root/src/internal/godebugs/table.go"
mv "$work/root/src/runtime/netpoll_epoll.go" "$work/root/src/runtime/netpoll_poll.go"
check "a file that is gone ends the build" says 'has no runtime/netpoll_epoll.go' goroot env

# extld SOURCE: capi/guest/build/extld.sh with an object of that C, which declares nothing, in the place of
# runtime/cgo's.
extld() {
	mkdir -p "$work/link"
	echo 'long runtime_data; int x_cgo_init(void); int x;' | cc -xc -c -o "$work/link/go.o" -
	echo "$1" | cc -xc -std=gnu89 -w -fno-builtin -c -o "$work/link/000001.o" - &&
		GDR_CC=true GDR_MAP=none "$here/capi/guest/build/extld.sh" "$work/link/go.o" "$work/link/000001.o" 2>&1
}

mends='malloc(), free(), mmap(), pthread_create(), pthread_key_create(), pthread_sigmask(), pthread_attr_getstacksize(), pthread_getattr_np(), pthread_attr_getstack()'
all=$(echo "$mends" | sed 's/[(]/ (/g; s/,/;/g; s/ (/(/g')
check "runtime/cgo that calls what it did links" extld "void x_cgo_init(void) { $all; abort(); }"
check "none of it is the C library's" sh -c "nm -u '$work/link/000001.o' | grep -c gdr_go_ | grep -qx 9"
check "its variables have a section" sh -c "readelf -SW '$work/link/000001.o' | grep -q ' gdr_go_c '"
check "a new call of runtime/cgo ends the build" says 'calls timer_create' extld "void x_cgo_init(void) { $all; timer_create(); }"
for f in malloc free mmap pthread_create pthread_key_create pthread_sigmask pthread_attr_getstacksize pthread_getattr_np pthread_attr_getstack; do
	check "runtime/cgo without $f ends the build" says "does not call $f:" \
		extld "void x_cgo_init(void) { $(echo "$all" | sed "s/\<$f()/0/"); }"
done
check "so does a variable in another section" says 'sections that capi/guest/runtime.c does not know' \
	extld "int x __attribute__((section(\"other\"))); void x_cgo_init(void) { $all; }"
done_testing
