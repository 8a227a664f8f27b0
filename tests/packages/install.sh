#!/bin/bash
# SPDX-License-Identifier: MIT
#
# install.sh OUT - what build.sh left in OUT is installed, used and removed in a small
# Debian, by the commands of docs/install.md, each of which runs here. The driver in it
# is the simulated one; NVIDIA's packages of the library are stand-ins made here, with
# their names, fields and files. Then the steps of the Containerfile.
#
# Needs root, and the network. What it makes is removed at its end.
set -uo pipefail
# shellcheck source=tests/packages/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/fresh/root.sh
. "$here/tests/fresh/root.sh"
[ "$(id -u)" -eq 0 ] || die "only root may make a root: run it with sudo"
# shellcheck source=/dev/null
. /etc/os-release
[ "$ID" = debian ] || die "its root is a Debian of this machine's release: run it on Debian"
out=$(cd "$1" && pwd) || exit 1
source=$(ls "$out"/gdrapi-*.tar.xz) || die "there are no packages in $out: run tests/packages/build.sh"
doc=$here/docs/install.md
root=$out/root box=$out/box multiarch=$(cc -print-multiarch)
trap 'rm -rf --one-file-system "$work" "$root" "$box"' EXIT

# step NAME COMMAND...: a check without which the next ones mean nothing.
step() {
	check "$@"
	[ "$failed" -eq 0 ] || { done_testing; exit 1; }
}

# section HEADING: the commands of that part of docs/install.md.
section() {
	blocks "$doc" "$1" >"$root/tmp/section.sh"
	cat "$root/tmp/section.sh"
	[ -s "$root/tmp/section.sh" ] && ran+=("$1") && inside 'sh -eux /tmp/section.sh'
}
ran=("Build the packages") # by build.sh

# put_tree: the source tarball as /src, the packages in it, the simulated driver as the
# system's, and this machine's Go.
put_tree() {
	local goroot
	goroot=$(cd "$here" && ${GO:-go} env GOROOT) && mkdir -p "$root/src" "$root/opt/driver" &&
		tar -C "$root/src" --strip-components=1 -xf "$source" &&
		mkdir -p "$root/src/build/packages" &&
		cp -a "$out/deb" "$out/rpm" "$out/tarball" "$out/nvidia" "$root/src/build/packages/" &&
		cp -a "$here/build/doubles/." "$root/opt/driver/" &&
		echo /opt/driver >"$root/etc/ld.so.conf.d/driver.conf" && chroot "$root" ldconfig &&
		cp -a "$goroot" "$root/usr/local/go" && ln -s ../go/bin/go "$root/usr/local/bin/go" &&
		printf 'APT::Get::Assume-Yes "true";\nAPT::Install-Recommends "false";\nAPT::Sandbox::User "root";\n' \
			>"$root/etc/apt/apt.conf.d/91test"
}

# reference NAME ARCHITECTURE DEPENDS: a package of that name, out of $work/NAME.
reference() {
	mkdir -p "$work/$1/DEBIAN" &&
		printf 'Package: %s\nVersion: 2.5-1\nArchitecture: %s\nMaintainer: nobody <nobody@gdrapi.invalid>\n%sDescription: a stand-in of the tests\n' \
			"$1" "$2" "${3:+Depends: $3
}" >"$work/$1/DEBIAN/control" &&
		dpkg-deb --build --root-owner-group "$work/$1" "$root/nvidia/" >&2
}

# references: a repository of them. Library and program say which version they are.
references() {
	local lib=$work/libgdrapi/usr/lib/$multiarch bin=$work/gdrcopy-tests/usr/bin
	local module=$work/gdrdrv-dkms/usr/src/gdrdrv-2.5
	mkdir -p "$lib" "$work/libgdrapi/usr/include" "$bin" "$module" "$root/nvidia"
	echo 'void gdr_runtime_get_version(int *a, int *b) { *a = 2; *b = 5; }' >"$work/lib.c"
	printf '%s\n' '#include <stdio.h>' 'void gdr_runtime_get_version(int *, int *);' \
		'int main(void) { int a, b; gdr_runtime_get_version(&a, &b); printf("library %d.%d\n", a, b); return 0; }' \
		>"$work/prog.c"
	cc -shared -fPIC -Wl,-soname,libgdrapi.so.2 -o "$lib/libgdrapi.so.2.5" "$work/lib.c" &&
		ln -s libgdrapi.so.2.5 "$lib/libgdrapi.so.2" && ln -s libgdrapi.so.2 "$lib/libgdrapi.so" &&
		cp "$here/include/gdrapi.h" "$work/libgdrapi/usr/include/" &&
		cc -o "$bin/gdrcopy_sanity" "$work/prog.c" "$lib/libgdrapi.so.2.5" &&
		touch "$module/Makefile" && reference libgdrapi "$(dpkg --print-architecture)" libc6 &&
		reference gdrcopy-tests "$(dpkg --print-architecture)" 'libgdrapi (>= 2.5-1)' &&
		reference gdrdrv-dkms all dkms &&
		reference gdrcopy all 'gdrdrv-dkms (>= 2.5-1), libgdrapi (>= 2.5-1), gdrcopy-tests (>= 2.5-1)' &&
		(cd "$root/nvidia" && dpkg-scanpackages . >Packages 2>/dev/null) &&
		echo 'deb [trusted=yes] file:/nvidia ./' >"$root/etc/apt/sources.list.d/nvidia.list" &&
		inside 'apt-get update'
}

# has PACKAGE VERSION-PATTERN; has_not PACKAGE
# shellcheck disable=SC2016 # a format of dpkg
state() { chroot "$root" dpkg-query -W -f '${db:Status-Status} ${Version}' "$1" 2>/dev/null; }
has() {
	local s
	s=$(state "$1")
	echo "$1: ${s:-unknown}"
	# shellcheck disable=SC2053 # a pattern
	[[ $s == "installed "$2 ]]
}
has_not() { ! has "$1" '*'; }

# theirs_alone, ours_alone: who has the library's names.
theirs_alone() {
	has libgdrapi '2.5-1' && has gdrcopy-tests '2.5-1' && has_not libgdrapi2 && has_not gdrcopy-tools &&
		[ "$(inside gdrcopy_sanity)" = 'library 2.5' ] && [ ! -e "$root/usr/lib/$multiarch/libgdrapi.so.2.6" ]
}
ours_alone() {
	has libgdrapi2 '2.6*' && has gdrcopy-tools '2.6*' && has_not libgdrapi && has_not gdrcopy-tests &&
		[ "$(readlink -f "$root/usr/lib/$multiarch/libgdrapi.so")" = "$root/usr/lib/$multiarch/libgdrapi.so.2.6" ] &&
		[ ! -e "$root/usr/lib/$multiarch/libgdrapi.so.2.5" ]
}

# beside: the program is NVIDIA's; both ways give it this library, and nothing is left.
beside() {
	section "Beside NVIDIA's library" >"$work/beside" 2>&1
	cat "$work/beside"
	[ "$(grep -c '^library 2.6$' "$work/beside")" -eq 2 ] && [ "$(inside gdrcopy_sanity)" = 'library 2.5' ]
}

by_name() {
	printf '%s\n' '#include <dlfcn.h>' '#include <stdio.h>' \
		'int main(void) { void *h = dlopen("libgdrapi.so", RTLD_NOW); void *(*o)(void) = h ? (void *(*)(void))dlsym(h, "gdr_open") : 0;' \
		'  if (!o || !o()) { puts(h ? "no gdr_open" : dlerror()); return 1; } return 0; }' >"$root/tmp/by_name.c"
	inside 'cc -o /tmp/by_name /tmp/by_name.c && /tmp/by_name'
}

demo() {
	local said
	# shellcheck disable=SC2016 # the flags are the root's
	said=$(inside 'cc -o /tmp/demo -Itools examples/demo.c tools/cuda_dl.c tools/bench/timing.c $(pkg-config --cflags --libs gdrapi) -ldl && /tmp/demo')
	echo "$said"
	[ "$(grep -c ': equal$' <<<"$said")" -eq 2 ]
}

# The packages of a kernel are there, its module cannot be built: no driver. That is no
# failure of the package; DKMS has the source.
module() { section "The kernel module" && has gdrdrv-dkms '2.6*'; }
module_source() {
	inside 'dkms status gdrdrv' | grep '^gdrdrv/2.6.0.*added' && [ -e "$root/usr/src/gdrdrv-2.6.0/main.c" ] &&
		[ -e "$root/usr/lib/modules-load.d/gdrdrv.conf" ]
}

# rpms: in a root of their own. No RPM is there that theirs could be checked against or
# whose ldconfig could run: hence the options that are added to what the page has.
rpms() {
	cat >"$root/usr/local/bin/rpm" <<-'END'
		#!/bin/sh
		[ "$1" != -U ] || set -- --nodeps --noscripts "$@"
		exec /usr/bin/rpm --root /rpm "$@"
	END
	chmod +x "$root/usr/local/bin/rpm" && mkdir -p "$root/rpm" && section RPMs &&
		inside 'rpm -q libgdrapi2 gdrcopy-tools && rpm -V --nodeps libgdrapi2 gdrcopy-tools' &&
		[ -e "$root/rpm/usr/lib64/libgdrapi.so" ] &&
		inside 'rpm -e --noscripts gdrcopy-tools libgdrapi2' && [ ! -e "$root/rpm/usr/lib64/libgdrapi.so.2.6" ]
}

from_source() { section "From source" && inside 'command -v gdrcopy_doctor | grep /usr/local/ && gdrcopy_doctor'; }

# nothing_left: of ours, but in the folders that this test put down.
nothing_left() {
	local left
	left=$(find "$root" -xdev \( -path "$root/src" -o -path "$root/nvidia" -o -path "$root/rpm" -o -path "$root/tmp" -o \
		-path "$root/proc" -o -path "$root/opt/driver" -o -path "$root/usr/local/go" -o -path "$root/root" \) -prune -o \
		\( -name '*gdrapi*' -o -name 'gdrcopy*' -o -name 'gdr_*' -o -name '*gdrdrv*' \) -print)
	echo "$left"
	[ -z "$left" ]
}

# containerfile: its COPY, RUN and ENV lines in the folder $box, as a build would.
containerfile() {
	local line op args env=()
	local deb=$out/deb root=$box
	while IFS= read -r line; do
		op=${line%% *} args=${line#* }
		echo "+ $line"
		case $op in
		COPY)
			# shellcheck disable=SC2086 # a list of patterns, and where they go
			set -- $args
			mkdir -p "$box/${*: -1}" && (cd "$deb" && eval "cp -t '$box/${*: -1}' ${*:1:$#-1}") || return
			;;
		RUN) inside "$args" || return ;;
		ENV) env+=("$args") ;;
		CMD) cmd=$(tr -d '["],' <<<"$args") ;;
		FROM | ARG) ;;
		*) echo "the test knows no $op"; return 1 ;;
		esac
	done < <(sed -e '/^#/d' -e ':a' -e '/\\$/{N;s/\\\n *//;ba' -e '}' "$here/packaging/containers/Containerfile")
	printf '%s\n' "${env[@]}"
	[ "${env[*]}" = NVIDIA_DRIVER_CAPABILITIES=compute,utility ]
}
cmd=

# The packages are for this system, and so are the doubles.
step "a root made by debootstrap" make_root "$VERSION_CODENAME"
step "its network" set_network
mkdir -p "$root/src"
step "the image's root, a copy" cp -a "$root" "$box"
step "the tree, the packages, the driver, Go" put_tree
step "NVIDIA's packages, stand-ins" references
step "they are installed" inside 'apt-get install gdrcopy gcc libc6-dev pkg-config rpm linux-headers-cloud-amd64'
step "they have the library's names" theirs_alone

step "a folder of its own" section "A folder of its own"
step "beside NVIDIA's library" beside
check "RPMs" rpms

step "our packages in their place" section "Debian and Ubuntu"
check "they have the library's names now" ours_alone
check "what depends on NVIDIA's is still installed" has gdrcopy 2.5-1
check "apt finds nothing broken" inside 'apt-get check'
check "README.md's first program" inside 'tests/fresh/readme.sh'
check "make demo's program" demo
check "a program that loads libgdrapi.so by that name" by_name
check "the programs" inside gdrcopy_sanity
check "the kernel module, where nothing can build it" module
check "its source, and what loads it" module_source

step "back to NVIDIA's packages" section "Back to NVIDIA's packages"
check "they have the library's names again" theirs_alone
check "and the module's" has gdrdrv-dkms 2.5-1
check "no source of ours is left to DKMS" test ! -e "$root/var/lib/dkms/gdrdrv/2.6.0" -a ! -e "$root/usr/src/gdrdrv-2.6.0"

step "from source" from_source
step "our packages again" section "Debian and Ubuntu"
step "the kernel module again" section "The kernel module"
step "remove" section Remove
check "nothing is left" nothing_left

# Under NVIDIA's names, by the commands of its recipes, in the place of ours and back.
recipe_alone() {
	has libgdrapi '2.6*' && has gdrcopy-tests '2.6*' && has gdrdrv-dkms '2.6*' && has gdrcopy '2.6*' &&
		has_not libgdrapi2 && has_not libgdrapi-dev && has_not gdrcopy-tools && inside gdrcopy_sanity && inside tests/fresh/readme.sh
}
step "our packages, once more" section "Debian and Ubuntu"
step "a recipe's packages in their place, as in a container" inside 'cd build/packages/nvidia && dpkg -i gdrcopy_*.deb libgdrapi_*.deb gdrcopy-tests_*.deb'
check "apt finds nothing broken without the module" inside 'apt-get check'
step "the recipe's module" inside 'dpkg -i build/packages/nvidia/gdrdrv-dkms_*.deb'
check "they have the names, the library and its headers" recipe_alone
step "our packages in the recipe's place" section "Debian and Ubuntu"
check "they have the library's names" ours_alone
check "apt finds nothing broken then" inside 'apt-get check'
inside 'apt-get purge gdrcopy libgdrapi2 libgdrapi-dev gdrcopy-tools gdrdrv-dkms' >/dev/null 2>&1
check "nothing of either is left" nothing_left

step "the steps of the Containerfile" containerfile
cp -a "$root/opt/driver" "$box/opt/" && cp "$root/etc/ld.so.conf.d/driver.conf" "$box/etc/ld.so.conf.d/" && chroot "$box" ldconfig
in_box() { local root=$box; inside "$1"; }
check "its command" in_box "setpriv --reuid=nobody --clear-groups $cmd"
check "the image has no list of packages and no package" test ! -e "$box/tmp/packages" -a -z "$(ls "$box/var/lib/apt/lists")"

# Every command of docs/install.md has run.
check "all of docs/install.md" same <(headings "$doc" | sort) <(printf '%s\n' "${ran[@]}" | sort -u)
done_testing
