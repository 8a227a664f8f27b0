#!/bin/bash
# SPDX-License-Identifier: MIT
#
# build.sh OUT - builds the source tarball and all packages of it in OUT, which is
# build/packages, by the commands of docs/install.md, and looks at them: lintian, the names, the same files in Debian's
# packages and in RPMs, and what is in the library.
set -uo pipefail
# shellcheck source=tests/packages/lib.sh
. "$(dirname "$0")/lib.sh"
go=${GO:-go}
rm -rf "$1"/*.tar.xz "$1/deb" "$1/rpm" "$1/tarball" "$1/nvidia"
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$here" || exit 1

# As recipes for NVIDIA's GDRCopy do it; what follows builds anew in the same folder.
recipe() (
	mkdir -p "$out/nvidia" "$work/cuda/bin" && cd "$out/nvidia" &&
		printf '#!/bin/sh\necho Cuda, release 12.8, V12.8.93\n' >"$work/cuda/bin/nvcc" && chmod +x "$work/cuda/bin/nvcc" &&
		env -u MAKEFLAGS -u MAKELEVEL PATH="$work/lsb:$PATH" CUDA="$work/cuda" "$here/packages/build-$1-packages.sh"
)
mkdir "$work/lsb"
# shellcheck disable=SC2016 # for that script
printf '#!/bin/sh\n[ $1 = -is ] && echo Some System || echo 24.04\n' >"$work/lsb/lsb_release"
chmod +x "$work/lsb/lsb_release"
check "packages/build-deb-packages.sh" recipe deb
arch=$(dpkg --print-architecture)
check "its names are those of NVIDIA's" same <(cd "$out/nvidia" && printf '%s\n' *.deb | LC_ALL=C sort) <(printf '%s\n' \
	"gdrcopy-tests_2.6-1_$arch.Some_System24_04+cuda12.8.deb" "gdrcopy_2.6-1_$arch.Some_System24_04.deb" \
	"gdrdrv-dkms_2.6-1_$arch.Some_System24_04.deb" "libgdrapi_2.6-1_$arch.Some_System24_04.deb")

check "packages/build-rpm-packages.sh" recipe rpm
check "its names and architectures, too" same <(rpm -qp --qf '%{NAME}.%{ARCH}\n' "$out"/nvidia/*.rpm 2>/dev/null) \
	<(printf '%s\n' "gdrcopy.$(uname -m)" gdrcopy-devel.noarch gdrcopy-kmod.noarch)
check "those of the files" same <(cd "$out/nvidia" && printf '%s\n' *.rpm | sed 's/-2\.6-.*\.\([^.]*\.rpm\)$/.\1/') \
	<(printf '%s\n' "gdrcopy.$(uname -m).rpm" gdrcopy-devel.noarch.rpm gdrcopy-kmod.noarch.rpm)
# shellcheck disable=SC2016 # for eval
check "gdrcopy-kmod has the unit by NVIDIA's name" eval 'rpm -qpl "$out"/nvidia/gdrcopy-kmod-*.rpm 2>/dev/null | grep -x /usr/lib/systemd/system/gdrcopy.service'
# shellcheck disable=SC2016 # for eval
check "gdrcopy has library and programs" eval 'rpm -qpl "$out"/nvidia/gdrcopy-2*.rpm 2>/dev/null | grep -c "libgdrapi.so.2$\|bin/gdrcopy_sanity$" | grep -x 2'

# By the commands of docs/install.md.
blocks docs/install.md "Build the packages" >"$work/commands"
cat "$work/commands"
check "docs/install.md: build the packages" env -u MAKEFLAGS -u MAKELEVEL GO="$go" sh -eux "$work/commands"
version=$(packaging/version.sh)
# Without them there is nothing to look at.
[ "$failed" -eq 0 ] || { done_testing; exit; }

# Debian 13's lintian has a newer standard, and lacks tags of 12's, for which there are overrides. The packages are
# Debian's on Ubuntu, too, whose debhelper installs no changelog from upstream.
lint() {
	local said
	said=$(lintian --profile debian --no-user-dirs --allow-root -I --pedantic "$out"/deb/*.changes 2>&1 | grep -vE \
		'^(I: gdrapi source: out-of-date-standards-version 4\.6\.2 |E: gdrdrv-dkms: alien-tag package-supports-alternative-init-but-no-init\.d-script |I: [a-z0-9-]+: unused-override [a-z0-9-]+ |W: libgdrapi2: wrong-name-for-upstream-changelog |N: 0 hints overridden; [0-9]+ unused overrides?$)')
	echo "$said"
	[ -z "$said" ]
}
check "lintian has nothing to say" lint

# Each package unpacked: $work/deb/NAME and $work/rpm/NAME, RPMs under Debian's names.
deb_names=(gdrcopy-keep gdrcopy-keep-dbgsym gdrcopy-tools gdrcopy-tools-dbgsym gdrdrv-dkms libgdrapi-dev libgdrapi2 libgdrapi2-dbgsym libvkgdr libvkgdr-dbgsym)
names=(gdrcopy-keep gdrcopy-tools gdrdrv-dkms libgdrapi-dev libgdrapi2 libvkgdr)
for f in "$out"/deb/*deb; do # Ubuntu's name of what is for debuggers is .ddeb
	name=$(dpkg-deb -f "$f" Package)
	mkdir -p "$work/deb/$name"
	dpkg-deb -x "$f" "$work/deb/$name"
done
for f in "$out"/rpm/*.rpm; do
	name=$(rpm -qp --qf '%{NAME}' "$f" 2>/dev/null)
	mkdir -p "$work/rpm/${name/%-devel/-dev}"
	rpm2cpio "$f" | (cd "$work/rpm/${name/%-devel/-dev}" && cpio -idm --quiet)
done
folders_of() { (cd "$1" && printf '%s\n' *); }
check "Debian's packages" same <(printf '%s\n' "${deb_names[@]}") <(folders_of "$work/deb")
check "RPMs" same <(printf '%s\n' "${names[@]}") <(folders_of "$work/rpm")

# files KIND NAME: what is in a package, less what each system adds of its own, under
# the paths of Debian.
files() {
	(cd "$work/$1/$2" && find . ! -type d) | sed -e 's|^\.||' -e "s|^/usr/lib/$(gcc -print-multiarch)/|/usr/lib64/|" \
		-e 's|^\(/usr/share/man/.*\)\.gz$|\1|' |
		grep -vE '^/usr/(share/(doc|licenses|lintian)|lib/\.build-id)/' | sort
}
for name in "${names[@]}"; do
	files deb "$name" >"$work/files-deb"
	files rpm "$name" >"$work/files-rpm"
	check "$name: the same files as .deb and .rpm" same "$work/files-deb" "$work/files-rpm"
	check "$name: some" test -s "$work/files-deb"
done

# The tarball: the same, under one folder.
mkdir -p "$work/tarball"
tar -C "$work/tarball" --strip-components=1 -xf "$out"/tarball/*.tar.xz
(cd "$work/tarball" && find . ! -type d ! -path './share/doc/*') | sed 's|^\./||' | sort >"$work/files-tarball"
for name in libgdrapi2 libgdrapi-dev libvkgdr gdrcopy-tools gdrcopy-keep; do files deb "$name"; done |
	sed -e 's|^/usr/||' -e 's|^lib64/|lib/|' | sort >"$work/files-deb"
check "the tarball has the files of the packages" same "$work/files-deb" "$work/files-tarball"

# made_of LIBRARY: the modules that it says it was linked from.
made_of() { $go version -m "$1" | awk '$1 == "dep" { print $2, $3 }'; }
linked() { awk '$1 ~ /purego$|^golang.org.x.sys$/ { print $1, $2 }' go.mod; }
for root in "$work/deb/libgdrapi2" "$work/rpm/libgdrapi2" "$work/tarball"; do
	name=${root#"$work/"}
	lib=$(find "$root" -name 'libgdrapi.so.2.6')
	check "$name: the library's symbols" tests/c/abi/symbols.sh "$lib"
	check "$name: go version -m names its modules" same <(made_of "$lib") <(linked)
	stripped() { ! readelf -SW "$lib" | grep -q '\.debug_info'; }
	check "$name: no debugging data" stripped
	check "$name: its README links to pages" grep -q '](docs/install.md' "$(find "$root" -path '*/doc/*' -name README.md ! -path '*/docs/*')"
	check "$name: the sample ucx.conf" sh -c "find '$root' -name ucx.conf | grep ."
	tells() { ! grep -rlaF "$here" "$root"; }
	check "$name: no name of the folder it was built in" tells
done
for root in "$work"/deb/lib* "$work"/rpm/lib* "$work/tarball"; do
	mapfile -t pages < <(find "$root" -name '*.md')
	[ "${#pages[@]}" -eq 0 ] || check "${root#"$work/"}: what its pages link to" tests/docs/paths.sh "${pages[@]}"
done
for p in "$work"/deb/gdrcopy-tools/usr/bin/*; do
	run_path() { ! readelf -dW "$p" | grep -E 'R(UN)?PATH'; }
	check "${p##*/}: no run path" run_path
done
doctor=$work/deb/gdrcopy-tools/usr/bin/gdrcopy_doctor
says_version() { "$doctor" --version | grep -F "$version" | grep -F "$(packaging/version.sh --commit)"; }
check "gdrcopy_doctor --version says the release and the commit" says_version

# Fields by which a package stands in for NVIDIA's.
field() { dpkg-deb -f "$out/deb/$1"_*.deb "$2" | grep -F "$3"; }
check "libgdrapi2 provides libgdrapi" field libgdrapi2 Provides "libgdrapi (= "
check "libgdrapi2 conflicts with libgdrapi" field libgdrapi2 Conflicts libgdrapi
check "gdrcopy-tools provides gdrcopy-tests" field gdrcopy-tools Provides "gdrcopy-tests (= "
rpm_says() { rpm -qp "--$2" "$out/rpm/$1"-[0-9]*.rpm 2>/dev/null | grep -x "$3.*"; }
check "the RPM libgdrapi2 provides gdrcopy" rpm_says libgdrapi2 provides "gdrcopy = "
check "the RPM libgdrapi2 conflicts with gdrcopy" rpm_says libgdrapi2 conflicts gdrcopy
check "the RPM libgdrapi-devel provides gdrcopy-devel" rpm_says libgdrapi-devel provides "gdrcopy-devel = "
done_testing
