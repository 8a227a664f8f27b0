#!/bin/sh
# SPDX-License-Identifier: MIT
# goroot.sh DIR - writes DIR/overlay.json for `go build -overlay`, with DIR/root for
# GOROOT and DIR/root/bin/go for the command.
#
# The library is a guest: its Go runtime must take nothing of the host's. What a
# runtime takes that no setting turns off is taken out of its sources here, line
# by line, in copies that lie in DIR; Go's own files stay as they are.
#
#   the limit of open files   package syscall raises it
#   signal handlers           none is installed, none is changed but SIGSETXID's
#   file descriptors          no epoll: timers wait in a futex
#   threads                   those that capi/runtime.c has made for it
#   the host's threads        they keep nothing of Go's between two calls
#   memory                    is not locked, and not inherited by a fork
#
# Each edit says how many lines it changes: with another Go this fails, and the
# edit has to be looked at again. In the versions below they are the same lines, and
# the tests have passed with each (docs/design.md).
set -eu
known='1.24 1.25 1.26'
here=$(cd "$(dirname "$0")" && pwd)
out=$1
rm -rf "$out"
mkdir -p "$out"
out=$(cd "$out" && pwd)
# A Go that another one fetched lies in the module cache, where no file may be
# replaced: it is reached by a link.
ln -s "$(${GO:-go} env GOROOT)" "$out/root"
src=$out/root/src
list=

version=$(${GO:-go} env GOVERSION)

fail() {
	echo "goroot.sh: $version cannot build the library ($1); Go $known serve" >&2
	exit 1
}

minor=$(echo "$version" | sed -n 's/^go\([0-9]*\.[0-9]*\).*/\1/p')
case " $known " in
*" $minor "*) ;;
*) fail "nobody has looked at its runtime" ;;
esac

# edit FILE LINES SED...: a copy of FILE in which the script changes LINES lines.
edit() {
	file=$1 lines=$2
	shift 2
	copy=$out/$(echo "$file" | tr / _)
	[ -f "$src/$file" ] || fail "there is no $file"
	sed -E "$@" "$src/$file" >"$copy"
	changed=$(diff "$src/$file" "$copy" | grep -c '^[<>]' || true)
	[ "$changed" = "$lines" ] || fail "$file: $changed lines of a diff where $lines are expected"
	list="$list${list:+,}
	\"$src/$file\": \"$copy\""
}

edit syscall/rlimit.go 2 's/^func init\(\) \{$/func raiseFileLimit() {/'

# By the flags of a signal the runtime installs a handler, adds SA_ONSTACK to the
# host's, and unblocks it in its own threads. SIGSETXID's handler is the C
# library's: setuid(2) waits until it has run on every thread, Go's too, and there
# it needs the alternate stack.
edit runtime/sigtab_linux_generic.go 124 \
	-e '/"signal 33"/!s/\{_Sig[A-Za-z]+( \+ _Sig[A-Za-z]+)*,/{0,/' \
	-e 's/\{_SigSetStack \+ _SigUnblock, "signal 33"\}/{_SigSetStack, "signal 33"}/'

# No handler is Go's, so no signal is blocked around the changes of stack that one
# would have to see through. The masks of all threads are guest.c's and runtime.c's.
edit runtime/signal_unix.go 1 '/^func minitSignalMask/,/^\}/{/sigprocmask\(/d;}'
edit runtime/proc.go 5 \
	-e '/^func needm\(/,/^\}/{/^\t(sigsave\(&sigmask\)|sigblock\(false\))$/d;}' \
	-e '/^func dropm\(/,/^\}/{/^\t(sigmask := mp.sigmask|sigblock\(false\)|msigrestore\(sigmask\))$/d;}'

[ -f "$src/runtime/netpoll_epoll.go" ] || fail "there is no runtime/netpoll_epoll.go"
list="$list,
	\"$src/runtime/netpoll_epoll.go\": \"$out/netpoll.go\""
cp "$here/netpoll.go.in" "$out/netpoll.go"

# Without the key a host thread gives its M back after each call. What a start has
# left behind in C, a child of fork() forgets.
# shellcheck disable=SC2016 # the last line is sed's $
edit runtime/cgo/gcc_libinit.c 7 \
	-e 's/^#include "libcgo_unix.h"$/&\nextern int gdr_go_thread(void *(*fn)(void *), void *arg) __attribute__((weak, visibility("hidden")));/' \
	-e 's/if \(x_cgo_pthread_key_created == 0 && /if (0 \&\& /' \
	-e 's/err = pthread_create\(thread, attr, pfn, arg\);/err = gdr_go_thread(pfn, arg);/' \
	-e '$s/$/\n\nvoid gdr_go_forget_init(void) { runtime_init_done = 0; runtime_init_mu = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; runtime_init_cond = (pthread_cond_t)PTHREAD_COND_INITIALIZER; }/'

# A thread that runtime.c made has more stack than Go counts on. On a host's
# thread Go counts on 32 KiB. To ask where its stack ends takes a file.
for f in gcc_linux_amd64.c gcc_linux.c gcc_linux_arm64.c gcc_ppc64x.c; do
	edit runtime/cgo/$f 2 's/pthread_attr_getstacksize\(&attr, &size\);/size = 65536;/'
done
edit runtime/cgo/gcc_stack_unix.c 3 \
	-e 's/pthread_getattr_np\(pthread_self\(\), &attr\);.*/addr = (char *)__builtin_frame_address(0) - 65536, size = 0;/' \
	-e '/^#if defined\(__GLIBC__\)/,/^#elif/{/pthread_attr_getstack\(/d;}'

edit runtime/cgo/gcc_mmap.c 3 \
	-e 's/^#include "libcgo.h"$/&\nextern void *gdr_go_mmap(void *addr, size_t len, int prot, int flags, int fd, long off) __attribute__((weak, visibility("hidden")));/' \
	-e 's/p = mmap\(addr,/p = gdr_go_mmap(addr,/'

printf '{"Replace": {%s\n}}\n' "$list" >"$out/overlay.json"
