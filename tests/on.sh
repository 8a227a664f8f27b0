#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs a program on one backend, with the doubles that the environment names.
#
#   on.sh BACKEND PROGRAM [ARGUMENT...]  on rm by $RM_SIM, the simulated driver
#   on.sh                                lists the backends that need no kernel;
#                                        rm is simulated on x86-64 alone
set -eu
if [ $# -eq 0 ]; then
	case $(uname -m) in
	x86_64) echo dmabuf rm ;;
	*) echo dmabuf ;;
	esac
	exit
fi
GDRCOPY_BACKEND=$1
export GDRCOPY_BACKEND
shift
if [ "$GDRCOPY_BACKEND" = rm ]; then
	exec "$RM_SIM" "$@"
fi
exec "$@"
