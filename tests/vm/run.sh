#!/bin/bash
# SPDX-License-Identifier: MIT
#
# run.sh [options] KERNEL - boot a Debian kernel under QEMU with gdrdrv and the
# simulated NVIDIA driver, and run tests in it. TAP on stdout.
#
#   KERNEL         6.1, 6.12 or 7.2; 6.1-rt, 6.1-kasan and others: see fetch.sh
#   -n RELEASE     build against NVIDIA's header of 535 or 550 (default 550), or
#                  newer or 570: see build.sh
#   -j FILE        what to run in the guest (default job-kmod.sh)
#   -f FILE[:DIR]  put a file (with the libraries it needs) into the guest's
#                  DIR (default /bin); may be repeated
#   -e NAME=VALUE  a variable for the job; may be repeated
#   -m MIB         size of the simulated GPU's BAR (default 256)
#   -M MIB         memory (default 1024)
#   -t SECONDS     give up after that long (default 1800)
#   -b DIR         modules that are built already
#   -i             one processor, whose instructions take 1 ns each; the guest's clock counts
#                  them, and skips its sleep. So nothing is late because the host is busy
#
# VM_ARCH: amd64, or arm64 for a machine of that kind, emulated. Files given with -f are
# then built for it.
# GDRAPI_VM_ACCEL: QEMU's accelerator (default kvm where that runs a guest, else
# tcg,thread=multi).
# GDRAPI_VM_BUILD: where modules are built (default build/vm of the tree).
# Uses nothing but Debian's packages; see fetch.sh. Exit status 0: all passed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
# shellcheck source=tests/vm/apt.sh
. "$here/apt.sh"

usage() {
	sed -n '4,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
}

nvidia=550 job=$here/job-kmod.sh files=() vars=() bar=256 cpus=2 limit=1800 memory=1024
modules='' clock=()
while getopts n:j:f:e:m:M:t:b:i o; do
	case $o in
	n) nvidia=$OPTARG ;;
	j) job=$OPTARG ;;
	f) files+=("$OPTARG") ;;
	e) vars+=("$OPTARG") ;;
	m) bar=$OPTARG ;;
	M) memory=$OPTARG ;;
	t) limit=$OPTARG ;;
	b) modules=$OPTARG ;;
	i) clock=(-icount "shift=0,sleep=off") ;;
	*) usage ;;
	esac
done
shift $((OPTIND - 1))
[ $# -eq 1 ] || usage
# QEMU 7.2 emulates cmpxchg16b so that it spoils the flags, and newer kernels crash.
# Without cx16 they do not use it. On a busy host a starting kernel may miss timer
# interrupts and give up. So its check is off. There a processor may also be busy for 30 s
# with work of the kernel's own (with KASAN, the drain of vmap areas). So one that hangs is
# reported after two minutes. Pointer authentication as the Arm manual suggests it is slow
# to emulate.
case $VM_ARCH in
amd64)
	need qemu-system-x86_64:qemu-system-x86 busybox:busybox-static
	machine=(qemu-system-x86_64 -cpu "max,-cx16")
	console="ttyS0 no_timer_check"
	busybox=$(command -v busybox)
	;;
arm64)
	need qemu-system-aarch64:qemu-system-arm "${VM_CROSS}gcc:gcc-${VM_CROSS%-}"
	machine=(qemu-system-aarch64 -machine virt -cpu "max,pauth-impdef=on")
	console=ttyAMA0
	busybox=$("$here/fetch.sh" busybox)
	;;
*) die "no virtual machine for $VM_ARCH" ;;
esac
need cpio:cpio
if ldd "$busybox" 2>/dev/null | grep -q '=>'; then
	die "busybox needs libraries: install busybox-static in its place"
fi

# put FILE DIR: copy a program and the libraries that it is linked to.
put() {
	local lib
	mkdir -p "$root$2"
	cp -L "$1" "$root$2/"
	# Here ldd knows nothing of them, and the C library loads libgcc_s by itself.
	if [ -n "$VM_CROSS" ]; then
		mkdir -p "$root/lib"
		cp -Ln "/usr/${VM_CROSS%-}"/lib/lib{c.so.6,dl.so.2,gcc_s.so.1,m.so.6,pthread.so.0} \
			"/usr/${VM_CROSS%-}"/lib/ld-linux-*.so.* "$root/lib/"
		return
	fi
	# A static program has none, and ldd fails for it.
	{ ldd "$1" 2>/dev/null || :; } | { grep -oE '/[^ ]+' || :; } | while read -r lib; do
		mkdir -p "$root$(dirname "$lib")"
		cp -Ln "$lib" "$root$lib"
	done
}

# accelerator KERNEL: kvm, if a guest runs to its end with it. A device alone proves
# nothing: the processor or the host may not support or allow it.
accelerator() {
	if [ -z "$VM_CROSS" ] && [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo &&
		timeout 20 qemu-system-x86_64 -accel kvm -cpu max -m 512 \
			-display none -no-reboot -nodefaults \
			-kernel "$1" -append panic=-1 >/dev/null 2>&1; then
		echo kvm
	else
		echo tcg,thread=multi
	fi
}

kdir=$("$here/fetch.sh" kernel "$1")
tmp=$(mktemp -d)
qemu=''
trap '[ -z "$qemu" ] || kill "$qemu"; rm -rf "$tmp"' EXIT
trap 'exit 143' HUP INT TERM
root=$tmp/root
mkdir -p "$root"/{bin,proc,sys,dev,tmp,etc}
echo root:x:0: >"$root/etc/group"

if [ -z "$modules" ]; then
	modules=${GDRAPI_VM_BUILD:-$top/build/vm}/$1-$nvidia
	"$here/build.sh" "$1" "$nvidia" "$modules"
fi
cp "$modules"/*.ko "$root/"
cp "$busybox" "$root/bin/"
"${VM_CROSS}gcc" -std=gnu11 -O1 -Wall -Wextra -Werror -static -pthread \
	-o "$root/bin/kmod_test" "$top/tests/kmod/kmod_test.c"
for f in ${files[@]+"${files[@]}"}; do
	d=/bin
	[[ $f == *:* ]] && d=${f#*:}
	put "${f%%:*}" "$d"
done
{
	for v in ${vars[@]+"${vars[@]}"}; do
		printf 'export %s=%q\n' "${v%%=*}" "${v#*=}"
	done
	cat "$job"
} >"$root/job"
cp "$here/guest-init.sh" "$root/init"
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet) | gzip -1 >"$tmp/initrd"

log=$tmp/serial
accel=${GDRAPI_VM_ACCEL:-$(accelerator "$kdir/vmlinuz")}
[ ${#clock[@]} -eq 0 ] || { accel=tcg,thread=single; cpus=1; }
timeout "$limit" nice -n 10 "${machine[@]}" -accel "$accel" \
	${clock[@]+"${clock[@]}"} -smp "$cpus" -m "$memory" -display none -no-reboot -nodefaults \
	-kernel "$kdir/vmlinuz" -initrd "$tmp/initrd" \
	-append "panic=-1 quiet log_buf_len=4M nokaslr rdinit=/init console=$console \
		watchdog_thresh=60 rcupdate.rcu_cpu_stall_timeout=120" \
	-object "memory-backend-ram,id=bar,size=${bar}M,share=on" \
	-device ivshmem-plain,memdev=bar -serial "file:$log" &
qemu=$!
# In the background, so that a signal to this shell ends the guest, too.
wait "$qemu" || say "QEMU: status $?"
qemu=''

# Each program in the guest numbers its own lines. Number all lines anew, and count.
tr -d '\r' <"$log" | awk '
	/^(ok|not ok) / {
		word = /^not/ ? "not ok" : "ok"
		bad += /^not/
		skipped += / # SKIP /
		sub(/^(not )?ok [0-9]* ?(- )?/, "")
		printf "%s %d - %s\n", word, ++n, $0
		next
	}
	/^GUEST DONE$/ { done = 1; next }
	/^[0-9]+\.\.[0-9]+$/ { next }
	{ print "# " $0 }
	END {
		if (!done) { print "not ok " ++n " - the guest came to its end"; bad++ }
		if (!n) { print "not ok " ++n " - the guest ran something"; bad++ }
		printf "1..%d\n", n
		printf "%d passed, %d failed, %d skipped\n", \
			n - bad - skipped, bad, skipped
		exit bad != 0
	}'
