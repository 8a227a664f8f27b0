#!/bin/sh
# SPDX-License-Identifier: MIT
#
# build-rpm-packages.sh - what recipes for NVIDIA's GDRCopy call: RPMs, in the current folder.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
make -C "$top" rpm
cp "$top"/build/packages/rpm/*.rpm .
ls ./*.rpm
