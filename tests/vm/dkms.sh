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
	cp "$top"/tests/kmod/{nvidia_sim*.[ch],card_sim.c,Kbuild} \
		"$top/examples/capture/card_uapi.h" "$top/kmod/conftest.sh" "$src/"
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
		add "$root" gdrdrv/2.6.0 && add "$root" "$2" &&
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

# skipped ROOT: DKMS does not try gdrdrv, and that is no failure.
skipped() {
	local root=$1 status=0
	mkdir -p "$root/var/lib/dkms" "$root/lib/modules/$rel"
	make -s -C "$top/kmod" install DESTDIR="$root" && add "$root" gdrdrv/2.6.0 || return
	run_dkms "$root" build gdrdrv/2.6.0 || status=$?
	# 77 is "skipped" to the scripts that DKMS has for packages.
	[ $status -eq 77 ] && run_dkms "$root" autoinstall
}

# old ROOT: with a driver that cannot pin persistently.
old() {
	local src=$1/usr/src/nvidia-530.30.02
	mkdir -p "$1/var/lib/dkms"
	sed -i '/define NVIDIA_P2P_CAP_GET_PAGES_PERSISTENT_API/d' "$src/nvidia/nv-p2p.h"
	sed -i '/^AUTOINSTALL/d' "$src/dkms.conf"
	add "$1" nvidia/530.30.02 && skipped "$1"
}

# installed ROOT: the driver is there without DKMS, as by NVIDIA's installer, with its header.
installed() {
	local root=$1
	mkdir -p "$root/var/lib/dkms" "$root/lib/modules/$rel/kernel/drivers/video" "$root/usr/src/nvidia-550.163.01/nvidia"
	cp "$out/nvidia/lib/modules/$rel/updates/dkms/nvidia.ko" "$root/lib/modules/$rel/kernel/drivers/video/" &&
		cp "$nvidia/nv-p2p.h" "$root/usr/src/nvidia-550.163.01/nvidia/" &&
		make -s -C "$top/kmod" install DESTDIR="$root" && add "$root" gdrdrv/2.6.0 && run_dkms "$root" autoinstall &&
		test -e "$root/lib/modules/$rel/updates/dkms/gdrdrv.ko"
}

# scriptlet ROOT NAME: a script of the RPM with the module's source.
scriptlet() {
	sed -n "/^%$2 -n %{kmodpkg}\$/,/^%[a-z]* -n /p" "$top/packaging/rpm/gdrapi.spec" |
		sed -e '/^[%#]/d' -e 's/%{dkmsversion}/2.6.0/g' -e "s|/lib/modules|$1&|" -e 's/%%/%/g'
}

# run_scriptlet ROOT NAME COUNT: as rpm runs it, with that many packages left. Its dkms has
# the trees of that root, and no other kernel is there.
run_scriptlet() {
	mkdir -p "$1/bin" "$1/host"
	cat >"$1/bin/dkms" <<-END
		#!/bin/sh
		action=\$1
		shift
		SYSROOT='$1' PATH='$1/host:$PATH' exec dkms "\$action" --kernelsourcedir '$kdir/usr/src/linux-headers-$rel' \\
			--dkmstree '$1/var/lib/dkms' --sourcetree '$1/usr/src' --installtree '$1/lib/modules' \\
			--no-depmod "\$@"
	END
	# shellcheck disable=SC2016 # for the shell that runs it
	printf '#!/bin/sh\n[ "$1" != -r ] || { echo %s; exit; }\nexec %s "$@"\n' \
		"$rel" "$(command -v uname)" >"$1/host/uname"
	chmod +x "$1/bin/dkms" "$1/host/uname"
	PATH=$1/bin:$1/host:$PATH sh -ec "$(scriptlet "$1" "$2")" sh "$3"
}

# built ROOT: which release the installed module is of.
built() { grep -aom1 'release=[a-z]*' "$1/lib/modules/$rel/updates/dkms/gdrdrv.ko"; }

# release ROOT NAME: put down the sources of a release.
release() {
	make -s -C "$top/kmod" install DESTDIR="$1" &&
		printf 'MODULE_INFO(release, "%s");\n' "$2" >>"$1/usr/src/gdrdrv-2.6.0/main.c"
}

# keep ROOT NAME: keep the installed modules for the virtual machine.
keep() {
	mkdir -p "$1/$2"
	cp "$1/lib/modules/$rel/updates/dkms/"*.ko "$1/$2/"
}

# upgrade ROOT: the new files are there, then rpm runs the old package's script, then the new
# one's. The module is the new one. The last package takes it away.
upgrade() {
	local root=$1
	mkdir -p "$root/var/lib/dkms" "$root/lib/modules/$rel/build"
	add "$root" nvidia/550.163.01 && run_dkms "$root" autoinstall &&
		release "$root" one && run_scriptlet "$root" posttrans 1 && [ "$(built "$root")" = release=one ] &&
		keep "$root" old &&
		release "$root" two && run_scriptlet "$root" preun 1 && run_scriptlet "$root" posttrans 2 &&
		[ "$(built "$root")" = release=two ] && keep "$root" new &&
		run_scriptlet "$root" preun 0 && [ ! -e "$root/lib/modules/$rel/updates/dkms/gdrdrv.ko" ] &&
		[ ! -e "$root/var/lib/dkms/gdrdrv/2.6.0" ]
}

# replaces ROOT: the modules of an upgrade in the guest.
replaces() {
	"$here/run.sh" -b "$1/new" -f "$1/old/gdrdrv.ko:/old" -f "$top/packaging/gdrdrv.service:/etc" \
		-e OLD="$(modinfo -F srcversion "$1/old/gdrdrv.ko")" \
		-e NEW="$(modinfo -F srcversion "$1/new/gdrdrv.ko")" \
		-j "$here/job-upgrade.sh" -t 300 6.1
}

need dkms:dkms make:make modinfo:kmod
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
driver "$out/upgrade" nvidia 550.163.01 nvidia
check "an upgrade of the RPM builds the new module" upgrade "$out/upgrade"
check "the new module replaces one that is in use, and one that is not" replaces "$out/upgrade"
check "DKMS builds gdrdrv beside a driver without DKMS" installed "$out/run"
mkdir "$out/none"
check "no driver for the kernel: gdrdrv is skipped" skipped "$out/none"
driver "$out/old" nvidia 530.30.02 nvidia
check "a driver that cannot pin persistently: gdrdrv is skipped" old "$out/old"
done_testing
