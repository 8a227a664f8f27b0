#!/bin/sh
# SPDX-License-Identifier: MIT
#
# install.sh - make install into prefixes of which the build knows nothing. It copies what is
# built, and does no more. NVIDIA's recipes find their targets, variables and files. The programs find the library, wherever both are moved; pkg-config gives
# flags that work; make uninstall leaves no file. $MAKE is the make to run.
. tests/tap.sh
export LC_ALL=C
driver=${LD_LIBRARY_PATH%%:*}
unset LD_LIBRARY_PATH MAKEFLAGS MAKELEVEL
make=${MAKE:-make}

# A tree as make left it, of its own: other tests run in the project's.
tree=$work/tree
mkdir "$tree" "$work/few"
git ls-files -z | grep -zv '^docs/runs/' | tar --null -cf - -T - | tar -C "$tree" -xf -
mkdir "$tree/build"
cp -a build/bin build/install build/lib* "$tree/build/"
cp -a src/libgdrapi.so* "$tree/src/"

# What a machine has that has no compiler, no Go, no git and no network.
for p in sh install ln sed awk grep realpath readlink basename dirname cat mkdir rm rmdir mv chmod find sort tail head tr cut id uname cksum date "$make"; do
	ln -s "$(command -v "$p")" "$work/few/$(basename "$p")"
done

# shellcheck disable=SC2016 # for that script
printf '#!/bin/sh\necho "$@"\n' >"$work/few/echo"
chmod +x "$work/few/echo"

# there TARGET VARIABLE=VALUE...: make in that tree, on that machine.
there() {
	env -i PATH="$work/few" make -s -C "$tree" LDCONFIG=: "$@"
}

state() {
	(cd "$tree" && find . -printf '%p %T@ %U\n' | sort)
}

# copies TARGET VARIABLE=VALUE...: it does, and nothing in the tree changes.
copies() {
	state >"$work/before"
	there "$@" && state >"$work/after" && diff "$work/before" "$work/after"
}

# refuses TEXT TARGET VARIABLE=VALUE...: it stops, says so in one line (make has another), and
# copies nothing.
refuses() {
	text=$1
	shift
	if there "$@" DESTDIR="$work/refused" >"$work/refusal" 2>&1; then
		return 1
	fi
	cat "$work/refusal"
	[ "$(wc -l <"$work/refusal")" -le 2 ] && grep -qF "$text" "$work/refusal" &&
		[ -z "$(find "$work/refused" -type f 2>/dev/null)" ]
}

# builds FILE TARGET VARIABLE=VALUE...: make would build that file, and then copy it.
builds() {
	file=$1
	shift
	"$make" -n -C "$tree" "$@" >"$work/plan" && awk -v file="-o $file" \
		'index($0, file) { built = NR } /^install -m 755/ { copied = NR } END { exit !built || copied <= built }' "$work/plan"
}

# runs PROGRAM: it finds its library, and answers.
runs() {
	env -i "$1" -h >/dev/null
}

# paths PROGRAM: where it looks for libraries.
paths() {
	readelf -dW "$1" | sed -n 's/.*(R\(UN\)*PATH).*\[\(.*\)\]$/\2/p'
}

# all_run FOLDER HOW: one test for each program there.
all_run() {
	for program in "$1"/*; do
		check "$2: $(basename "$program") runs" runs "$program"
	done
}

first=$work/first
# shellcheck disable=SC2016 # for that script
printf '#!/bin/sh\n[ "$1" = -NXv ] && echo "%s/lib:" || echo "$0" >>"%s"\n' "$first" "$work/ldconfigs" >"$work/few/ldconfig"
chmod +x "$work/few/ldconfig"
umask 077
check "make install prefix=" copies install prefix="$first" LDCONFIG=ldconfig
umask 022
# listed FOLDER: the files that are there, with modes, and where links lead.
listed() { (cd "$1" && find . ! -type d -printf '%M %P %l\n' | sed 's/ $//' | sort -k 2); }
is "what is installed, with its modes" "$(listed "$first")" "$(
	{
		for p in build/bin/gdrcopy_*; do echo "-rwxr-xr-x bin/${p##*/}"; done
		for p in apiperf copybw copylat sanity; do echo "lrwxrwxrwx bin/$p gdrcopy_$p"; done
		for p in gdrapi gdrapi_ext gdrconfig vkgdr; do echo "-rw-r--r-- include/$p.h"; done
		for p in cmake/gdrapi/gdrapi-config.cmake cmake/gdrapi/gdrapi-config-version.cmake pkgconfig/gdrapi.pc pkgconfig/vkgdr.pc; do echo "-rw-r--r-- lib/$p"; done
		for p in libgdrapi.so.2.6 libvkgdr.so; do echo "-rwxr-xr-x lib/$p"; done
		printf 'lrwxrwxrwx lib/%s\n' 'libgdrapi.so libgdrapi.so.2' 'libgdrapi.so.2 libgdrapi.so.2.6'
		for p in packaging/gdrcopy-keep@*; do echo "-rw-r--r-- lib/systemd/system/${p##*/}"; done
		echo "-rw-r--r-- share/gdrapi/gdrapi.supp"
		listed docs/man | sed -e 's|^-[^ ]*|-rw-r--r--|' -e 's| man| share/man/man|'
	} | sort -k 2)"
as_root=$([ "$(id -u)" -ne 0 ] || echo "$work/few/ldconfig $work/few/ldconfig")
# asked: the runs of ldconfig since the last call.
asked() { [ ! -e "$work/ldconfigs" ] || { xargs <"$work/ldconfigs"; rm "$work/ldconfigs"; }; }
is "root has the loader look at each library" "$(asked)" "$as_root"
all_run "$first/bin" "in its prefix"
is "a program looks for its library from where it lies" \
	"$(paths "$first/bin/gdrcopy_sanity")" "\$ORIGIN/../lib"
check "pkg-config gives flags that work" env LD_LIBRARY_PATH="$driver" tests/fresh/readme.sh '' "$first/lib"
mv "$first" "$work/moved"
all_run "$work/moved/bin" "in a prefix that was moved"
mv "$work/moved" "$first"
for d in bin include lib lib/cmake lib/pkgconfig share/man/man3; do echo >"$first/$d/another"; done
check "make uninstall" there uninstall prefix="$first" LDCONFIG=ldconfig
check "nor its own folder" test ! -e "$first/share/gdrapi"
is "root has the loader look for another" "$(asked)" "${as_root% *}"
is "it leaves no file but those of others" "$(find "$first" ! -type d | grep -vc '/another$') $(find "$first" -name another | wc -l)" '0 6'

# The targets and variables of NVIDIA's Makefile, as its recipes call them.
recipe=$work/recipe
is "make version" "$(there version CUDA=/usr/local/cuda)" 2.6
case $(uname -m) in
x86_64) arch=X86 ;;
aarch64) arch=ARM64 ;;
*) arch=POWER ;;
esac
is "make config" "$("$make" -s config)" "GDRAPI_ARCH=$arch"
check "make lib_install" copies lib_install LDCONFIG=ldconfig CUDA=/usr/local/cuda DESTDIR="$recipe" prefix=/opt/g exec_prefix=/opt/g
none "the loader is left alone where DESTDIR is another system" "$(asked)"
is "it is the library and its headers" "$(cd "$recipe/opt/g" && echo lib/*.so* include/gdr*)" \
	'lib/libgdrapi.so lib/libgdrapi.so.2 lib/libgdrapi.so.2.6 include/gdrapi.h include/gdrapi_ext.h include/gdrconfig.h'
check "make exes_install" copies exes_install DESTDIR="$recipe" exec_prefix=/opt/g
all_run "$recipe/opt/g/bin" "with a library that came by itself"
check "make exes_install bindir= in another folder" copies exes_install DESTDIR="$recipe" bindir=/usr/bin libdir=/usr/lib64
check "make lib exes lib_install exes_install, all at once" "$make" -s -j4 lib exes lib_install exes_install \
	LDCONFIG=: CUDA=/none prefix="$work/once"
all_run "$work/once/bin" "made and installed at once"
built_for_install() {
	"$make" -nB lib exes >"$work/plan" && grep -q -- '-o build/libgdrapi.so' "$work/plan" &&
		grep -q -- '-o build/libvkgdr.so' "$work/plan" && grep -q -- '-o build/install/.*gdrcopy_sanity' "$work/plan"
}
check "make lib exes builds all that make install wants" built_for_install
check "make DESTLIB= DESTBIN= DESTINC=" copies install prefix="$work/none" mandir="$work/dest/man" datadir="$work/dest/share" \
	DESTLIB="$work/dest/lib" DESTBIN="$work/dest/bin" DESTINC="$work/dest/include"
check "nothing lies elsewhere" test ! -e "$work/none"
# Each of them alone: all else goes where NVIDIA's Makefile puts something, too.
while read -r variable others; do
	is "make install $variable=: what lies elsewhere" \
		"$(there -n install "$variable=/x" | grep -oE '(/x)?/usr/local/[a-z]+' | grep -v ^/x | sort -u | xargs)" "$others"
done <<'END'
DESTLIB /usr/local/bin /usr/local/include
DESTBIN /usr/local/include /usr/local/lib
DESTINC /usr/local/bin /usr/local/lib
DESTDIR
PREFIX
prefix
END
none "nor is that removed" "$(there -n uninstall DESTLIB=/x | grep share)"
all_run "$work/dest/bin" "with NVIDIA's variables"
check "pkg-config finds it there" env LD_LIBRARY_PATH="$driver" tests/fresh/readme.sh '' "$work/dest/lib"
check "a version of the ABI that is not here is said" eval 'there version LIB_MINOR_VER=5 2>&1 | grep "the ABI is 2.6"'
is "config_arch, from anywhere" "$(cd / && "$tree/config_arch")" "$arch"
is "what NVIDIA's recipes take from src/gdrdrv is there" "$(cd "$tree/src/gdrdrv" && ls Makefile gdrdrv.h ../packages/dkms.conf)" \
	"$(printf '%s\n' ../packages/dkms.conf Makefile gdrdrv.h)"
# below FOLDER FILE: make there makes a file there.
below() {
	"$make" -s -C "$1" && [ -e "$1/$2" ] && "$make" -s -C "$1" clean && [ ! -e "$1/$2" ]
}
check "make in src" below src libgdrapi.so.2
echo 'const char gdr_version_text[] = "libgdrapi 2.6.0 (commit old, ";' >"$tree/build/version.c"
echo '2.6.0 new 0' >"$tree/VERSION"
is "a build of another commit is copied, and that is said" "$(there lib_install prefix="$recipe" 2>&1)" \
	'build/libgdrapi.so.2.6 is of commit old, and the tree is of new: make builds it anew'
rm "$tree/build/version.c"
in_src() { there lib_install prefix="$recipe" && [ -e "$tree/src/libgdrapi.so.2.6" ]; }
check "make lib_install has it there, too" in_src
check "make in tests" below tests gdrcopy_sanity
check "make drv_install builds the module first" eval 'there drv_install KDIR=/none 2>&1 | grep "no kernel headers at /none"'

# What is not built, or not as it is wanted.
check "another way from bindir to libdir" builds build/install/.._lib64/gdrcopy_sanity exes_install libdir=/opt/q/lib64 bindir=/opt/q/bin
check "a folder with a space" refuses 'a path has a space' install prefix="/opt/a b"
mv "$tree" "$work/a tree"
tree="$work/a tree"
check "a tree in a folder with a space" refuses 'a path has a space' all
mv "$tree" "$work/tree"
tree=$work/tree
mv "$tree/build/libgdrapi.so.2.6" "$work/"
check "no library" builds build/libgdrapi.so.2.6 lib_install
mv "$work/libgdrapi.so.2.6" "$tree/build/"
rm "$tree/build/bin/gdrcopy_doctor"
check "no program" builds build/bin/gdrcopy_doctor exes_install

# With folders of its own, and as a distribution does it.
other=$work/other
check "make install bindir= libdir=" "$make" -s all install LDCONFIG=: prefix="$other" bindir="$other/libexec/gdr" libdir="$other/lib64"
all_run "$other/libexec/gdr" "with folders of its own"
check "make install DESTDIR= libdir=/usr/lib" "$make" -s exes install LDCONFIG=: DESTDIR="$work/root" prefix=/usr libdir=/usr/lib
is "where the loader looks by itself, no path is in the programs" \
	"$(paths "$work/root/usr/bin/gdrcopy_sanity")" ''
none "no file names the folder of the build" \
	"$(grep -rlF "$PWD" "$work/root" || true)"
done_testing
