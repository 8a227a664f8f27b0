#!/bin/sh
# SPDX-License-Identifier: MIT
#
# gvisor.sh BUILD - gdrcopy_doctor, the demo, gdrcopy_sanity, ext_share and Python in gVisor's sandbox, on a real
# GPU, with the programs of 'make gpu-programs'. The sandbox has this machine's files, no privilege
# and no network. RUNSC is gVisor's program, built where there is a network:
#
#   cd "$(mktemp -d)" && go mod init runsc && go get gvisor.dev/gvisor@v0.0.0-20260905035102-160fafc42237
#   CGO_ENABLED=0 go build -o runsc gvisor.dev/gvisor/runsc
. tests/tap.sh
build=$(cd "$1" && pwd) || exit 1
if ! [ -x "${RUNSC-}" ]; then
	skip "gVisor" "RUNSC names no program"
	printf '1..1\n0 passed, 0 failed, 1 skipped\n'
	exit
fi
[ "$(id -u)" -eq 0 ] || { echo "gvisor.sh: only root may start a sandbox: run it with sudo" >&2; exit 1; }

# config COMMAND...: the bundle's config.json, with the GPU's nodes as this machine has them.
config() {
	python3 - "$PWD" "$build" "$@" <<-'END'
		import json, os, sys
		top, build, *command = sys.argv[1:]
		nodes = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"] + [n for n in os.listdir("/dev") if n[:6] == "nvidia" and n[6:].isdigit()]
		stats = [("/dev/" + n, os.stat("/dev/" + n)) for n in nodes if os.path.exists("/dev/" + n)]
		env = {"PATH": os.environ["PATH"], "HOME": "/root", "NVIDIA_VISIBLE_DEVICES": "all",
		       "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
		       "LD_LIBRARY_PATH": build + ":" + os.environ.get("LD_LIBRARY_PATH", ""), "PYTHONPATH": top + "/python"}
		json.dump({
		    "ociVersion": "1.0.0", "root": {"path": "/"}, "hostname": "gvisor",
		    "process": {"args": command, "cwd": top, "env": ["%s=%s" % v for v in env.items()], "user": {"uid": 0, "gid": 0}},
		    "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
		               {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]}],
		    "linux": {"namespaces": [{"type": t} for t in ("pid", "ipc", "uts", "mount")],
		              "devices": [{"path": p, "type": "c", "major": os.major(s.st_rdev), "minor": os.minor(s.st_rdev), "fileMode": 0o666}
		                          for p, s in stats]},
		}, sys.stdout)
	END
}

# sandboxed COMMAND...: in gVisor, with what it prints.
sandboxed() {
	mkdir -p "$work/bundle" && config "$@" >"$work/bundle/config.json" &&
		"$RUNSC" --root="$work/state" --nvproxy=true --network=none --ignore-cgroups --platform="${PLATFORM:-systrap}" \
			--overlay2=root:memory run --bundle "$work/bundle" "gdrapi-$$"
}

# prints TEXT COMMAND...: it succeeds, and prints a line that matches.
prints() {
	text=$1
	shift
	sandboxed "$@" >"$work/out" 2>&1
	status=$?
	cat "$work/out"
	[ "$status" -eq 0 ] && grep -qE "$text" "$work/out"
}

check "the kernel is gVisor's" prints gvisor uname -r
check "gdrcopy_doctor" prints '^libgdrapi works here: gdr_open takes rm' "$build/bin/gdrcopy_doctor"
tail -n 1 "$work/out" | sed 's/^/# /'
check "the demo" prints ': equal$' "$build/bin/demo"
check "gdrcopy_sanity" prints '^Total: .* Failed: 0,' "$build/bin/gdrcopy_sanity"
tail -n 1 "$work/out" | sed 's/^/# /'
check "a buffer in another process" prints ', 0 failed' "$build/bin/ext_share"
check "Python" prints '^read: FROM the CPU$' python3 examples/write_read.py
umount "$work/state/null-netns" 2>/dev/null || : # runsc's
done_testing
