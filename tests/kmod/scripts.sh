#!/bin/bash
# SPDX-License-Identifier: MIT
#
# scripts.sh - what loads, finds and installs the kernel module, with programs that stand for
# those it calls: insmod.sh, nvidia.sh, symvers.sh, kmod/Makefile, dkms.conf. No
# kernel is asked: tests/vm builds with conftest.sh, runs the unit's commands, and has DKMS run the packages' scripts.
# shellcheck disable=SC2016 # for the stubs
# shellcheck source=tests/stubs.sh
. "$(dirname "$0")/../stubs.sh"
umask 022
real sh bash awk grep sed cat find sort tail tr cut cmp cp mkdir mktemp dirname ls env printf od head
through rm
answers id 'echo "${FAKE_UID-0}"'
stub insmod
stub rmmod

# moved FILE: a copy whose paths of the system lie in $work.
moved() {
	sed -e "s|/dev/gdrdrv|$work/dev/gdrdrv|" -e "s|/proc/|$work/proc/|" "$here/$1" >"$work/moved/${1##*/}"
	chmod +x "$work/moved/${1##*/}"
}
mkdir -p "$work/moved" "$work/dev" "$work/proc" "$work/build/kmod"

# insmod.sh
moved insmod.sh
mkdir -p "$work/moved/build/kmod"
: >"$work/moved/Makefile"
stub make
load=$work/moved/insmod.sh
printf '%s\n' 'nvidia_uvm 1 0 - Live 0x0' 'nvidia 2 1 - Live 0x0' 'gdrdrv2 1 0 - Live 0x0' >"$work/proc/modules"
runs "one that was not built is built" FAILS=make "$load" <<'END'
+ make -C W/moved driver
= 9
END
: >"$work/moved/build/kmod/gdrdrv.ko"
: >"$work/a b.ko"
runs "the module that was built is loaded" "$load" <<'END'
+ rm -f W/dev/gdrdrv
+ insmod W/moved/build/kmod/gdrdrv.ko
= 0
END
runs "with its parameters" "$load" dbg_enabled=1 'x=a b' <<'END'
+ rm -f W/dev/gdrdrv
+ insmod W/moved/build/kmod/gdrdrv.ko dbg_enabled=1 'x=a b'
= 0
END
echo 'gdrdrv 1 0 - Live 0x0' >>"$work/proc/modules"
runs "another one in place of one that is loaded" "$load" "$work/a b.ko" dbg_enabled=1 <<'END'
+ rmmod gdrdrv
+ rm -f W/dev/gdrdrv
+ insmod 'W/a b.ko' dbg_enabled=1
= 0
END
runs "one that is in use stays" FAILS=rmmod "$load" <<'END'
+ rmmod gdrdrv
= 9
END
runs "no node without the module" FAILS=insmod "$load" <<'END'
+ rmmod gdrdrv
+ rm -f W/dev/gdrdrv
+ insmod W/moved/build/kmod/gdrdrv.ko
= 9
END
rm -r "$work/moved/build" "$work/moved/Makefile"
runs "a copy of the script builds nothing" "$load" <<'END'
! insmod.sh: there is no gdrdrv.ko in W/moved: name the file
= 1
END
mkdir -p "$work/moved/src/gdrdrv"
: >"$work/moved/src/gdrdrv/gdrdrv.ko"
runs "it takes the module beside it" "$load" <<'END'
+ rmmod gdrdrv
+ rm -f W/dev/gdrdrv
+ insmod W/moved/src/gdrdrv/gdrdrv.ko
= 0
END
sed -i '/^nvidia /d' "$work/proc/modules"
runs "NVIDIA's driver comes first" "$load" <<'END'
! insmod.sh: NVIDIA's driver is not loaded: run modprobe nvidia first
= 1
END
runs "for root alone" FAKE_UID=1000 "$load" <<'END'
! insmod.sh: only root may load modules: use sudo
= 1
END

# nvidia.sh: the file of the module.
find_driver=$here/kmod/nvidia.sh
real gzip
# gzip stands for xz where that is missing; zstd is a stub.
if command -v xz >"$work/said"; then real xz; else ln -s "$(command -v gzip)" "$bin/xz"; fi
stub zstd 'exec cat "$2"'
stub modprobe 'cat "$HOOKS/modprobe.says"'
stub modinfo 'eval "echo \"\${MODINFO_$2}\""'
sys=$work/sys mods=$work/sys/lib/modules/6.1.0
mkdir -p "$mods/updates" "$sys/lib/modules/6.2.0"
answers uname 'echo 6.1.0'
# kos NAME...: modules that export the symbols.
kos() {
	for f in "$@"; do echo 'ELF nvidia_p2p_get_pages' >"$mods/$f"; done
}
says_modprobe() { printf '%s\n' "$@" >"$hooks/modprobe.says"; }
says_modprobe
kos updates/nvidia-uvm.ko updates/nvidia-drm.ko.xz updates/nvidia-modeset.ko updates/nvidia-peermem.ko updates/nvidia-fs.ko
echo ELF >"$mods/updates/nvidia.ko"
runs "no module that has the symbols" SYSROOT="$sys" "$find_driver" module 6.1.0 <<'END'
+ modprobe -d W/sys -S 6.1.0 --show-depends nvidia
= 0
END
kos nvidia-z.ko nvidia-current.ko
is "the first that has them" "$(ran SYSROOT="$sys" "$find_driver" module 6.1.0 | tail -n +2)" "W/sys/lib/modules/6.1.0/nvidia-current.ko
= 0"
says_modprobe "insmod $mods/nvidia-other.ko" "insmod $mods/nvidia-z.ko NVreg_a=1 NVreg_b=2"
runs "that which modprobe loads comes before it" SYSROOT="$sys" "$find_driver" module 6.1.0 <<'END'
+ modprobe -d W/sys -S 6.1.0 --show-depends nvidia
W/sys/lib/modules/6.1.0/nvidia-z.ko
= 0
END
says_modprobe "insmod $mods/nvidia-gone.ko"
is "unless it is gone" "$(ran SYSROOT="$sys" "$find_driver" module 6.1.0 | tail -n +2)" "W/sys/lib/modules/6.1.0/nvidia-current.ko
= 0"
runs "without SYSROOT it is the system's" "$find_driver" module none-6.1 <<'END'
+ modprobe -S none-6.1 --show-depends nvidia
= 0
END
runs "another kernel has none" SYSROOT="$sys" FAILS=modprobe "$find_driver" module 6.2.0 <<'END'
+ modprobe -d W/sys -S 6.2.0 --show-depends nvidia
= 0
END
rm "$mods"/nvidia*
for z in xz gz zst; do
	kos nvidia.ko
	case $z in xz) "$bin/xz" -c "$mods/nvidia.ko" ;; gz) gzip -c "$mods/nvidia.ko" ;; *) cat "$mods/nvidia.ko" ;; esac >"$mods/nvidia.ko.$z"
	rm "$mods/nvidia.ko"
	is "packed by $z" "$(ran SYSROOT="$sys" "$find_driver" module 6.1.0 | grep -v ^+)" "W/sys/lib/modules/6.1.0/nvidia.ko.$z
= 0"
	rm "$mods/nvidia.ko.$z"
done
runs "usage of nvidia.sh" "$find_driver" modules 6.1.0 <<'END'
! usage: nvidia.sh module|source KVER
= 2
END

# The folder of nv-p2p.h: the module's version, else the newest.
header() { mkdir -p "$sys/usr/src/$1" && : >"$sys/usr/src/$1/nv-p2p.h"; }
kos nvidia.ko
source_is() {
	is "nv-p2p.h: $1" "$(ran SYSROOT="$sys" "${@:3}" "$find_driver" source 6.1.0 | sed -n 's|^W/sys/usr/src/||p')" "$2"
}
source_is "there is none" ''
header nvidia-550.90
source_is "an old driver's" nvidia-550.90
header nvidia-550.127/nvidia
source_is "versions are numbers" nvidia-550.127/nvidia
header nvidia-srv-551.1/kernel/nvidia
source_is "a package's name is before the version" nvidia-srv-551.1/kernel/nvidia
header nvidia-open-560.2/kernel-open/nvidia
source_is "the open flavour's" nvidia-open-560.2/kernel-open/nvidia
for v in 550.90 550.127/nvidia; do source_is "the module's version ${v%/*}" "nvidia-$v" "MODINFO_version=${v%/*}"; done
source_is "a version without a header" nvidia-open-560.2/kernel-open/nvidia MODINFO_version=550.9
source_is "a module without a version" nvidia-open-560.2/kernel-open/nvidia FAILS=modinfo MODINFO_version=550.90
is "the module is asked for its version" "$(ran SYSROOT="$sys" "$find_driver" source 6.1.0 | grep modinfo)" \
	'+ modinfo -F version W/sys/lib/modules/6.1.0/nvidia.ko'

# symvers.sh: a module as older kernels have it, and one as newer ones have it.
mkdir -p "$work/kmod" "$work/inc/nvidia" "$work/kdir/include/config"
cp "$here/kmod/symvers.sh" "$work/kmod/"
stub nvidia.sh 'echo "${KO-}"'
ln -s "$work/stub" "$work/kmod/nvidia.sh"
real objdump objcopy
{
	n=0
	for s in nvidia_p2p_put_pages_persistent nvidia_p2p_get_pages_persistent nvidia_p2p_get_pages; do
		n=$((n + 1))
		printf '.globl __crc_%s\n.set __crc_%s, 0x8123450%d\n' $s $s $n
	done
} | cc -xassembler -c -o "$work/old.ko" -
printf '%s\n' '.section __kcrctab_gpl,"a"' '.globl __crc_other, __crc_nvidia_p2p_get_pages_persistent, __crc_nvidia_p2p_put_pages_persistent' \
	'__crc_other: .long 1' '__crc_nvidia_p2p_get_pages_persistent: .long 0x0badcafe' \
	'__crc_nvidia_p2p_put_pages_persistent: .long 0xfeedf00d' | cc -xassembler -c -o "$work/new.ko" -
for z in xz gzip cat; do "$bin/$z" <"$work/new.ko" >"$work/new.ko.${z/gzip/gz}"; done
mv "$work/new.ko.cat" "$work/new.ko.zst"
# versions [NAME=VALUE...]: what is said, and both files that are written.
versions() {
	rm -f "$work/out" "$work/header"
	ran "$@" "$work/kmod/symvers.sh" 6.1.0 "$work/kdir" "$work/inc/nvidia" "$work/out" "$work/header" | grep -v '^+ '
	cat "$work/out" "$work/header" 2>/dev/null | tr '\t' ' '
}
zeros() {
	for s in get_pages_persistent put_pages_persistent; do
		echo "0x00000000 nvidia_p2p_$s nvidia EXPORT_SYMBOL "
	done
	echo '#define GDR_NVIDIA_FLAVOUR "unknown"'
}
unversioned="! gdrdrv: no module of NVIDIA's driver for 6.1.0: building without symbol versions
= 0
$(zeros)"
is "no driver, and a kernel without versions: zeros" "$(versions)" "$unversioned"
is "it is asked for that kernel" "$(ran "$work/kmod/symvers.sh" 6.1.0 "$work/kdir" /none "$work/out" "$work/header" | head -n 1)" '+ nvidia.sh module 6.1.0'
printf '%s\n' CONFIG_A=y CONFIG_MODVERSIONS=y >"$work/kdir/include/config/auto.conf"
is "no driver, and a kernel with versions: an error" "$(versions)" \
	"! gdrdrv: no module of NVIDIA's driver with symbol versions for 6.1.0: without them gdrdrv does not load into this kernel
! gdrdrv: install the driver for 6.1.0 first, or give NVIDIA_SYMVERS=
= 1"
is "NVIDIA_SYMVERS=none" "$(versions NVIDIA_SYMVERS=none)" "$unversioned"
is "a module of an older kernel" "$(versions KO="$work/old.ko" MODINFO_license=NVIDIA)" "! gdrdrv: symbol versions of W/old.ko
= 0
0x81234502 nvidia_p2p_get_pages_persistent nvidia EXPORT_SYMBOL 
0x81234501 nvidia_p2p_put_pages_persistent nvidia EXPORT_SYMBOL 
#define GDR_NVIDIA_FLAVOUR \"proprietary\""
for z in '' .xz .gz .zst; do
	is "a module of a newer kernel, new.ko$z" "$(versions KO="$work/new.ko$z" MODINFO_license='Dual MIT/GPL')" \
		"! gdrdrv: symbol versions of W/new.ko$z
= 0
0x0badcafe nvidia_p2p_get_pages_persistent nvidia EXPORT_SYMBOL_GPL 
0xfeedf00d nvidia_p2p_put_pages_persistent nvidia EXPORT_SYMBOL_GPL 
#define GDR_NVIDIA_FLAVOUR \"open\""
done
is "a module without versions" "$(versions KO="$work/inc/../stub" | tail -n 1)" "= 1"
# symvers FILE EXPORT: a Module.symvers of a driver that was built.
symvers() { printf '0x1\tprintk\tvmlinux\tEXPORT_SYMBOL\n0x%s\tnvidia_p2p_get_pages_persistent\tnv\t%s\n' "$2" "$3" >"$1"; }
symvers "$work/inc/Module.symvers" 22 EXPORT_SYMBOL
is "Module.symvers beside the driver" "$(versions KO="$work/new.ko")" "! gdrdrv: symbol versions of W/inc/nvidia/../Module.symvers
= 0
0x22 nvidia_p2p_get_pages_persistent nv EXPORT_SYMBOL
#define GDR_NVIDIA_FLAVOUR \"proprietary\""
symvers "$work/inc/nvidia/Module.symvers" 33 EXPORT_SYMBOL_GPL
is "beside the header, before it" "$(versions)" "! gdrdrv: symbol versions of W/inc/nvidia/Module.symvers
= 0
0x33 nvidia_p2p_get_pages_persistent nv EXPORT_SYMBOL_GPL
#define GDR_NVIDIA_FLAVOUR \"open\""
symvers "$work/mine" 44 EXPORT_SYMBOL
is "NVIDIA_SYMVERS before both" "$(versions NVIDIA_SYMVERS="$work/mine" | head -n 1)" "! gdrdrv: symbol versions of W/mine"
echo '0x1 other vmlinux EXPORT_SYMBOL' >"$work/mine"
is "one that has no such symbol is passed over" "$(versions NVIDIA_SYMVERS="$work/mine" | head -n 1)" "! gdrdrv: symbol versions of W/inc/nvidia/Module.symvers"
versions >/dev/null
touch -d @1000 "$work/out" "$work/header"
ran "$work/kmod/symvers.sh" 6.1.0 "$work/kdir" "$work/inc/nvidia" "$work/out" "$work/header" >/dev/null
is "what does not change is not written anew" "$(stat -c %Y "$work/out" "$work/header" | tr '\n' ' ')" '1000 1000 '

# kmod/Makefile, with a kernel whose make says what it is given.
real make install touch rm
rm "$work/kmod/symvers.sh" "$work/kmod/nvidia.sh"
cp -r "$here/kmod" "$here/packaging" "$work/"
for s in conftest.sh nvidia.sh symvers.sh; do ln -sf "$work/stub" "$work/kmod/$s"; done
stub conftest.sh 'echo "CC=$CC"'
stub symvers.sh 'echo "NVIDIA_SYMVERS=$NVIDIA_SYMVERS"'
printf '%s\n' 'modules modules_install:' '	@echo $@ M=$(M) CC=$(CC) $(GDR_NVIDIA_INC),$(GDR_WERROR),$(GDR_WEXTRA),$(KBUILD_EXTRA_SYMBOLS),$(INSTALL_MOD_PATH); ls $(M)' >"$work/kdir/Makefile"
kmake() { ran BUILD="$work/made" KDIR="$work/kdir" "$@"; }
mkdir -p "$work/src/kernel-open/nvidia" "$work/src/nvidia" "$work/made"
: >"$work/src/kernel-open/nvidia/nv-p2p.h"
files='Kbuild
gdrdrv.h
gdrdrv_uapi.h
limit.c
main.c
memtype.c
mmap.c
mr.c
nvp2p.c'
is "make" "$(kmake SYSROOT=W make -s -C "$work/kmod" NVIDIA_SRC_DIR="$work/src" NVIDIA_SYMVERS=none GDR_WERROR=y GDR_WEXTRA=n)" \
	"+ conftest.sh W/kdir W/src/kernel-open/nvidia W/made/gdrdrv_config.h
+ symvers.sh 6.1.0 W/kdir W/src/kernel-open/nvidia W/made/nv.symvers W/made/gdrdrv_nvidia.h
gdrdrv: nv-p2p.h of W/src/kernel-open/nvidia
CC=
NVIDIA_SYMVERS=none
modules M=W/made CC=cc W/src/kernel-open/nvidia,y,n,W/made/nv.symvers,
$files
= 0"
: >"$work/src/nv-p2p.h"
mkdir -p "$work/kdir/include/config" "$work/kdir/include/generated"
# As in Debian's headers, whose kernel is 6.2.0-1.
echo 6.2.9 >"$work/kdir/include/config/kernel.release"
echo '#define UTS_RELEASE "6.2.0-1"' >"$work/kdir/include/generated/utsrelease.h"
is "make takes the release from KDIR" "$(kmake make -s -C "$work/kmod" NVIDIA_SRC_DIR="$work/src" | grep '^+ symvers')" \
	'+ symvers.sh 6.2.0-1 W/kdir W/src W/made/nv.symvers W/made/gdrdrv_nvidia.h'
is "KVER= before that" "$(kmake make -s -C "$work/kmod" NVIDIA_SRC_DIR="$work/src" KVER=6.3.0 | grep -c '^+ symvers.sh 6.3.0 ')" 1
rm -r "$work/kdir/include"
is "make CC=: the kernel's and conftest.sh's" "$(kmake make -s -C "$work/kmod" NVIDIA_SRC_DIR="$work/src" CC=cc-1 | grep CC=)" \
	"CC=cc-1
modules M=W/made CC=cc-1 W/src,,,W/made/nv.symvers,"
is "make modules_install" "$(kmake make -s -C "$work/kmod" NVIDIA_SRC_DIR="$work/src" modules_install INSTALL_MOD_PATH=/to | head -n 1)" \
	'modules_install M=W/made CC=cc W/src,,,W/made/nv.symvers,/to'
for p in conftest.sh symvers.sh; do
	is "make stops where $p fails" "$(kmake FAILS=$p make -s -C "$work/kmod" NVIDIA_SRC_DIR="$work/src" | tail -n 1)" '= 2'
done
stub nvidia.sh 'echo "$SYSROOT/src"'
is "make SYSROOT= looks there" "$(kmake make -s -C "$work/kmod" check-paths SYSROOT="$work" | tail -n 2)" "gdrdrv: nv-p2p.h of W/src
= 0"
is "make without a driver" "$(kmake make -s -C "$work/kmod" check-paths | grep "^! gdrdrv")" "! gdrdrv: nv-p2p.h not found: install the sources of NVIDIA's driver (DKMS has them) or give NVIDIA_SRC_DIR="
is "make without the kernel's headers" "$(kmake make -s -C "$work/kmod" NVIDIA_SRC_DIR="$work/src" KDIR=/none | grep -v Makefile:)" \
	'! gdrdrv: no kernel headers at /none: install them or give KDIR=
= 2'
is "make clean" "$(kmake make -s -C "$work/kmod" clean NVIDIA_SRC_DIR=x; find "$work" -name made)" '= 0'
rm "$work"/kmod/{conftest,nvidia,symvers}.sh
cp "$here"/kmod/*.sh "$work/kmod/"
chmod 700 "$work"/kmod/*
is "make install" "$(ran make -s -C "$work/kmod" install DESTDIR="$work/root" prefix=/opt; tree "$work/root" | grep -v ^d)" "= 0
-rw-r--r-- opt/lib/modules-load.d/gdrdrv.conf
-rw-r--r-- opt/lib/systemd/system/gdrdrv.service
$(printf '%s\n' "$files" Makefile dkms.conf conftest.sh nvidia.sh symvers.sh | sort |
	sed -e 's|^|-rw-r--r-- opt/src/gdrdrv-2.6.0/|' -e '/\.sh$/s/-rw-r--r--/-rwxr-xr-x/')"
: >"$work/root/opt/lib/systemd/system/other.service"
is "make uninstall" "$(ran make -s -C "$work/kmod" uninstall DESTDIR="$work/root" prefix=/opt; tree "$work/root" | grep -v ^d)" "= 0
-rw-r--r-- opt/lib/systemd/system/other.service"

# What the system reads.
settings() { sed -e 's/ *#.*//' -e '/^$/d' "$here/packaging/$1"; }
is "modules-load.d" "$(settings gdrdrv.modules-load.conf)" gdrdrv
mkdir -p "$work/dkms"/{nvidia-srv/1/source/kernel-open/nvidia,nvidia/2/source/nvidia,nvidia-current/3/source/kernel/nvidia,other/1/source/nvidia}
for f in "$work"/dkms/*/*/source/{,kernel/,kernel-open/}nvidia; do [ ! -d "$f" ] || : >"$f/nv-p2p.h"; done
mkdir -p "$work/dkms/nvidia-none/1/source/nvidia"
cp "$here/packaging/dkms.conf" "$work/kmod/"
printf '#!/bin/sh\n[ "$2" != 6.1 ] || echo "%s"\n' "$work/installed" >"$work/kmod/nvidia.sh"
# excluded TREE KERNEL: what DKMS is told to skip.
excluded() {
	dkms_tree=$1 kernelver=$2 bash -c '. "$0"; echo "${BUILD_EXCLUSIVE_KERNEL:-no} $AUTOINSTALL"' "$work/kmod/dkms.conf"
}
absent="no-driver-that-pins-persistently "
mkdir "$work/installed"
is "DKMS skips a kernel without a driver" "$(excluded /none 6.2)" "$absent"
is "and a driver without a header" "$(excluded /none 6.1)" "$absent"
: >"$work/installed/nv-p2p.h"
is "or whose header has no persistent pins" "$(excluded /none 6.1; excluded "$work/dkms" 6.1)" "$absent
$absent"
echo '#define NVIDIA_P2P_CAP_GET_PAGES_PERSISTENT_API' >"$work/installed/nv-p2p.h"
is "it builds for a driver that was installed without DKMS" "$(excluded /none 6.1; excluded /none 6.2)" "no yes
$absent"
echo '#define NVIDIA_P2P_CAP_GET_PAGES_PERSISTENT_API' >"$work/dkms/nvidia/2/source/nvidia/nv-p2p.h"
is "and for one by DKMS" "$(excluded "$work/dkms" 6.2)" "no yes"
is "dkms.conf" "$(ran dkms_tree="$work/dkms" kernelver=6.1 kernel_source_dir=/k bash -c '. "$0"
for v in PACKAGE_NAME PACKAGE_VERSION BUILT_MODULE_NAME BUILT_MODULE_LOCATION DEST_MODULE_LOCATION MAKE CLEAN AUTOINSTALL; do echo "$v=${!v}"; done
printf "%s\n" "${BUILD_DEPENDS[@]}" | sort' "$work/kmod/dkms.conf")" 'PACKAGE_NAME=gdrdrv
PACKAGE_VERSION=2.6.0
BUILT_MODULE_NAME=gdrdrv
BUILT_MODULE_LOCATION=out/
DEST_MODULE_LOCATION=/updates/dkms
MAKE=make KVER=6.1 KDIR=/k BUILD=W/dkms/gdrdrv/2.6.0/build/out
CLEAN=make BUILD=W/dkms/gdrdrv/2.6.0/build/out clean
AUTOINSTALL=yes
nvidia
nvidia-current
nvidia-srv
= 0'

done_testing
