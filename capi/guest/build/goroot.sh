#!/bin/sh
# SPDX-License-Identifier: MIT
# goroot.sh [DIR] - writes DIR/overlay.json for `go build -overlay`, with DIR/root for
# GOROOT and DIR/root/bin/go for the command. Without DIR it only says whether $GO may be taken.
#
# The library is a guest: its Go runtime must take nothing of the host's. What a
# runtime takes that no setting turns off is taken out of it in two places. Go's own
# files stay as they are.
#
# Here, in its Go sources:
#   the limit of open files   capi/guest/build/go_rlimit.go.in: package syscall does not raise it
#   signal handlers           capi/guest/build/go_sigtab.go.in: none is installed or changed but SIGSETXID's
#   file descriptors          capi/guest/build/go_netpoll.go.in: no epoll, timers wait in a futex
#   stacks                    128 KiB for a thread that is inside, for the host's handlers
#   masks                     not changed around a call, for speed alone
# In capi/guest/build/extld.sh, in the objects of runtime/cgo's C: threads, memory, and what a
# host's thread would keep between two calls.
#
# A file of ours that no longer fits does not compile. GDR_GO_UNTESTED=1 allows a Go that
# capi/guest/build/go_versions does not name.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
go=${GO:-go}

tested=$(sed '/^#/d' "$here/go_versions" | tr '\n' ' ')
newest=${tested% }
newest=${newest##* }
oldest=${tested%% *}
minors=$(echo "$tested" | sed -E 's/go([0-9]+\.[0-9]+)[^ ]*/\1/g')

fail() {
	echo "goroot.sh: $1" >&2
	exit 1
}

minor_of() { sed -nE 's/^(devel )?go([0-9]+\.[0-9]+).*/\2/p'; }

# since GO: is the Go that is here, whichever it would take, that one or newer?
since() {
	[ "$(printf 'go%s\n%s\n' "${installed:-0}" "$1" | sort -V | head -n 1)" = "$1" ]
}

# choices WHAT: of a Go that may not be taken. Go 1.21 is the first that fetches another; one that is older than
# go.mod says reads no go.mod of today.
choices() {
	installed=$(cd / && GOTOOLCHAIN=local "${go##* }" env GOVERSION | minor_of)
	echo "goroot.sh: $1; the library is built with Go $minors
  Take one of these:
    sh setup.sh                     installs one, on Debian and Ubuntu
    GO=/usr/lib/go-N/bin/go make    a Go of the distribution: golang-N-go in Debian and Ubuntu, golang in Fedora" >&2
	! since go1.21 || echo "    GOTOOLCHAIN=$newest make      Go fetches that version" >&2
	! since "${oldest%.*}" || echo "    GDR_GO_UNTESTED=1 make          this Go: no test of the library has been run with it" >&2
	exit 1
}

# The Go command may be another than the one in PATH: it takes the toolchain that go.mod
# or GOTOOLCHAIN names.
command -v "${go##* }" >/dev/null || fail "there is no ${go##* } here: run sh setup.sh, which installs it"
root=$($go env GOROOT) || choices "$go does not run here, see above"
version=$($go env GOVERSION)
minor=$(echo "$version" | minor_of)
case " $minors " in
*" $minor "*) ;;
*)
	[ "${GDR_GO_UNTESTED-}" = 1 ] || choices "$version is not known"
	echo "goroot.sh: $version: no test of the library has been run with it" >&2
	;;
esac

[ $# -gt 0 ] || exit 0
rm -rf "$1"
mkdir -p "$1"
out=$(cd "$1" && pwd)

# A Go that another one fetched lies in the module cache, where no file may be
# replaced: it is reached by a link.
ln -s "$root" "$out/root"
src=$out/root/src
list=

# replace FILE BY: in the overlay.
replace() {
	[ -f "$src/$1" ] || fail "$version has no $1"
	list="$list${list:+,}
	\"$src/$1\": \"$2\""
}

# ours FILE BY: a file of ours in the place of FILE.
ours() {
	cp "$here/$2" "$out/${2%.in}"
	replace "$1" "$out/${2%.in}"
}

# changes FILE LINES SED...: does the script change LINES lines of FILE? The changed file lies
# in the overlay's folder.
changes() {
	file=$1 lines=$2 copy=$out/$(echo "$1" | tr / _)
	shift 2
	[ -f "$copy" ] || cp "$src/$file" "$copy" || return 1
	sed -E "$@" "$copy" >"$copy.new"
	[ "$(diff "$copy" "$copy.new" | grep -c '^[<>]')" = "$lines" ] || return 1
	mv "$copy.new" "$copy"
}

ours syscall/rlimit.go go_rlimit.go.in
ours runtime/sigtab_linux_generic.go go_sigtab.go.in
ours runtime/netpoll_epoll.go go_netpoll.go.in

# A handler of the host's may run on the stack that the Go code of a host's thread has, and
# on the alternate stack that Go gives the thread.
changes runtime/proc.go 2 '/^func oneNewExtraM\(/,/^\}/s/^\tgp := malg\(4096\)$/\tgp := malg(128 << 10)/' ||
	fail "$version makes the stack of a host's thread elsewhere than in runtime/proc.go: find out where"
changes runtime/os_linux.go 2 's/^\tmp\.gsignal = malg\(32 \* 1024\)/\tmp.gsignal = malg(128 << 10)/' ||
	fail "$version makes alternate stacks elsewhere than in runtime/os_linux.go: find out where"
replace runtime/proc.go "$out/runtime_proc.go"
replace runtime/os_linux.go "$out/runtime_os_linux.go"

# No handler is Go's, so no signal is blocked around the changes of stack that one
# would have to see through. The masks of all threads are enter.c's and runtime.c's.
# With Go's masks a call takes 2.5 us, without 1.5. Both files are changed, or none.
cp "$out/runtime_proc.go" "$out/runtime_proc.go.masks"
if changes runtime/signal_unix.go 1 '/^func minitSignalMask/,/^\}/{/sigprocmask\(/d;}' &&
	changes runtime/proc.go 5 \
		-e '/^func needm\(/,/^\}/{/^\t(sigsave\(&sigmask\)|sigblock\(false\))$/d;}' \
		-e '/^func dropm\(/,/^\}/{/^\t(sigmask := mp.sigmask|sigblock\(false\)|msigrestore\(sigmask\))$/d;}'; then
	replace runtime/signal_unix.go "$out/runtime_signal_unix.go"
else
	mv "$out/runtime_proc.go.masks" "$out/runtime_proc.go"
	echo "goroot.sh: $version changes the signal mask by other lines: they stay, and calls are slower" >&2
fi

# The index of the heap's arenas is 32 MiB in one piece; in two levels, as Go has it on Windows,
# it is 512 KiB. The memory is resident after mlockall(MCL_CURRENT).
changes runtime/malloc.go 2 's/^\tarenaL1Bits = 6 \* \(_64bit \* goos.IsWindows\)$/\tarenaL1Bits = 6 * _64bit/' ||
	fail "$version has its index of arenas elsewhere than in runtime/malloc.go: find out where"
replace runtime/malloc.go "$out/runtime_malloc.go"

# A runtime ends the process at the start for a setting in GODEBUG that it once had. Go 1.24
# and 1.25 keep no list of those.
table=$src/internal/godebugs/table.go
grep -q '^var Removed ' "$table" || [ "$minor" = 1.24 ] || [ "$minor" = 1.25 ] || fail "$version says nowhere which GODEBUG settings it has removed"
for name in $(sed -nE 's/.*"GODEBUG=([^"]*)".*/\1/p' "$here/../runtime.c" | tr ',' ' '); do
	sed '1,/^var Removed /d' "$table" | grep -q "Name: \"${name%%=*}\"" &&
		fail "$version has removed the GODEBUG setting ${name%%=*}, which capi/guest/runtime.c gives it"
done

printf '{"Replace": {%s\n}}\n' "$list" >"$out/overlay.json"
