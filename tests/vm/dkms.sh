#!/bin/bash
# SPDX-License-Identifier: MIT
#
# dkms.sh OUT - DKMS builds gdrdrv after NVIDIA's driver, with the package names of
# several distributions. Then both modules load together. TAP.
#
# It runs DKMS itself, with separate trees under OUT. The driver is the simulated one, in
# a source package like NVIDIA's. Each pair of modules is loaded in a virtual machine.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
# shellcheck source=tests/vm/apt.sh
. "$here/apt.sh"
# shellcheck source=tests/tap.sh
. "$here/../tap.sh"

# driver ROOT NAME VERSION MODULE: the source package of a driver.
driver() {
	local src=$1/usr/src/$2-$3
	mkdir -p "$src/nvidia"
	cp "$top"/tests/kmod/{nvidia_sim*.[ch],Kbuild} "$top/tests/doubles/rm_uapi.h" \
		"$top/kmod/conftest.sh" "$src/"
	cp "$nvidia/nv-p2p.h" "$src/nvidia/"
	printf 'MODULE_VERSION("%s");\n' "$3" >>"$src/nvidia_sim.c"
	cat >"$src/build.sh" <<-'END'
		#!/bin/sh
		set -e
		./conftest.sh "$1" "$PWD/nvidia" "$PWD/gdrdrv_config.h"
		make -C "$1" M="$PWD" GDR_NVIDIA_INC="$PWD/nvidia" GDR_CONFIG="$PWD/gdrdrv_config.h" modules
	END
	chmod +x "$src/build.sh"
	cat >"$src/dkms.conf" <<-END
		PACKAGE_NAME="$2"
		PACKAGE_VERSION="$3"
		BUILT_MODULE_NAME[0]="nvidia"
		DEST_MODULE_NAME[0]="$4"
		DEST_MODULE_LOCATION[0]="/updates/dkms"
		MAKE[0]="./build.sh \$kernel_source_dir"
		AUTOINSTALL="yes"
	END
}

# run_dkms ROOT COMMAND...: run DKMS with the trees of that root.
run_dkms() {
	local root=$1
	shift
	SYSROOT=$root dkms "$@" -k "$rel" --kernelsourcedir "$kdir/usr/src/linux-headers-$rel" \
		--dkmstree "$root/var/lib/dkms" --sourcetree "$root/usr/src" \
		--installtree "$root/lib/modules" --no-depmod
}

add() { # ROOT NAME/VERSION
	run_dkms "$1" add "${2%/*}/${2#*/}"
}

# install ROOT DRIVER/VERSION: as at the first boot of a kernel.
install() {
	local root=$1
	mkdir -p "$root/var/lib/dkms" "$root/lib/modules/$rel"
	make -s -C "$top/kmod" install DESTDIR="$root" &&
		add "$root" gdrdrv/2.6 && add "$root" "$2" &&
		run_dkms "$root" autoinstall &&
		test -e "$root/lib/modules/$rel/updates/dkms/gdrdrv.ko"
}

# loads ROOT MODULE: load both in the guest. Its kernel compares symbol versions.
loads() {
	local m=$1/lib/modules/$rel/updates/dkms
	mkdir -p "$1/vm"
	cp "$m/gdrdrv.ko" "$1/vm/" && cp "$m/$2.ko" "$1/vm/nvidia.ko" &&
		"$here/run.sh" -b "$1/vm" -j "$here/job-load.sh" -t 300 6.1
}

# refused ROOT: without a driver for the kernel, no module is built.
refused() {
	local root=$1 log
	mkdir -p "$root/var/lib/dkms" "$root/lib/modules/$rel" "$root/usr/src/nvidia-550.1"
	cp "$nvidia/nv-p2p.h" "$root/usr/src/nvidia-550.1/"
	make -s -C "$top/kmod" install DESTDIR="$root" && add "$root" gdrdrv/2.6 || return
	! run_dkms "$root" autoinstall || return
	log=$root/var/lib/dkms/gdrdrv/2.6/build/make.log
	cat "$log"
	grep -q 'install the driver' "$log"
}

# newest ROOT: versions compare as numbers, and an installed driver's header comes first.
newest() {
	local v
	for v in 99.1 550.90 550.127; do
		mkdir -p "$1/usr/src/nvidia-$v"
		: >"$1/usr/src/nvidia-$v/nv-p2p.h"
	done
	v=$(SYSROOT=$1 "$top/kmod/nvidia.sh" source none)
	echo "$v"
	[ "$v" = "$1/usr/src/nvidia-550.127" ]
}

need dkms:dkms make:make
kdir=$("$here/fetch.sh" kernel 6.1) && nvidia=$("$here/fetch.sh" nvidia 550) || exit 1
rel=$(cat "$kdir/release")
rm -rf "$1/dkms"
mkdir -p "$1/dkms"
out=$(cd "$1/dkms" && pwd)
while read -r name version module; do
	driver "$out/$name" "$name" "$version" "$module"
	check "DKMS builds gdrdrv after $name, module $module" install "$out/$name" "$name/$version"
	check "gdrdrv and $module load" loads "$out/$name" "$module"
done <<'END'
nvidia 550.163.01 nvidia
nvidia-current 550.163.01 nvidia-current
nvidia-open 550.163.01 nvidia
nvidia-srv 550.163.01 nvidia
END
check "no driver for the kernel: the build says so, and fails" refused "$out/none"
check "the newest header by version" newest "$out/newest"
done_testing
