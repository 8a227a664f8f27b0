#!/bin/sh
# SPDX-License-Identifier: MIT
#
# needed.sh TARGET... - is all there that these targets of make take? If not, it names the packages
# of all that is missing. PYTHON is the Python that makes wheels.
set -eu
missing=

# need PACKAGE COMMAND...: of that package, if the command fails.
need() {
	package=$1
	shift
	"$@" >/dev/null 2>&1 || missing="$missing $package"
}

# programs PROGRAM:PACKAGE...
programs() {
	for p; do need "${p#*:}" command -v "${p%:*}"; done
}

[ "$*" = wheel ] || programs tar:tar xz:xz-utils
[ "$*" = wheel ] || [ ! -e "$(dirname "$0")/../.git" ] || programs git:git
for target; do
	case $target in
	deb)
		programs make:make gcc:gcc dpkg-buildpackage:dpkg-dev dh:debhelper
		# dpkg-buildpackage asks for it by name.
		need build-essential dpkg -s build-essential
		;;
	rpm) programs make:make gcc:gcc rpmbuild:rpm ;;
	tarball) programs make:make gcc:gcc strip:binutils ;;
	wheel) need python3-pip "${PYTHON:-python3}" -m pip --version ;;
	esac
done
[ -n "$missing" ] || exit 0
missing=$(printf '%s\n' "$missing" | xargs -n 1 | sort -u | xargs)
echo "make $*: Debian's packages are missing: apt-get install $missing" >&2
exit 1
