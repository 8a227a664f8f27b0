#!/bin/sh
# SPDX-License-Identifier: MIT
#
# go_next.sh BUILD - the newest Go that the Go module proxy has, release candidates too.
# Says what differs in the files of Go's that the library stands on, and builds the library
# with it in the folder BUILD.
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
build=$1
go=${GO:-go}

die() {
	echo "go_next.sh: $*" >&2
	exit 1
}

tested=$(sed '/^#/d' "$here/capi/guest/build/go_versions" | tail -n 1)
# sort -V has what ends in ~ before its release.
next=$(cd / && $go list -m -versions golang.org/toolchain | tr ' ' '\n' |
	sed -nE 's/^v0\.0\.1-(go1\.[0-9.]+((rc|beta)[0-9]+)?)\.linux-amd64$/\1/p' |
	sed -E 's/(rc|beta)/~\1/' | sort -V | tail -n 1 | tr -d '~')
[ -n "$next" ] || die "the Go module proxy does not say which Gos there are"
echo "# the newest Go is $next; the tests have passed with $tested"

root() {
	cd /
	GOTOOLCHAIN=$1 $go env GOROOT || die "$1 could not be fetched"
}
old=$(root "$tested") new=$(root "$next")
for f in syscall/rlimit.go runtime/sigtab_linux_generic.go runtime/netpoll.go runtime/netpoll_epoll.go \
	runtime/signal_unix.go runtime/proc.go runtime/cgocall.go runtime/cgo_mmap.go runtime/mem_linux.go \
	runtime/stack.go internal/godebugs/table.go $(cd "$new/src" && ls runtime/cgo/*.[chS]); do
	changed=$(diff -N "$old/src/$f" "$new/src/$f" | grep -c '^[<>]' || :)
	[ "$changed" -eq 0 ] || echo "# $f: $changed lines differ"
done

cd "$here"
GDR_GO_UNTESTED=1 ${MAKE:-make} --no-print-directory lib B="$build" GO="env GOTOOLCHAIN=$next $go"
grep -aqF "$next" "$build/libgdrapi.so.2" || die "the library was built with another Go"
