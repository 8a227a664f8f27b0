#!/bin/sh
# SPDX-License-Identifier: MIT
# gdrdrv(4) against the kernel module: its parameters, requests and files.
. tests/man/pages.sh
page=$man/man4/gdrdrv.4

parameters() {
	grep -ohE 'module_param(_named)?\([a-z0-9_]+' kmod/*.c | sed 's/.*(//'
}

requests() {
	grep -ohE '^#define GDRDRV_IOC_[A-Z_0-9]+' kmod/gdrdrv_uapi.h | sed 's/.* //'
}

proc_files() {
	grep -ohE 'proc_create[a-z_]*\("[a-z_]+"' kmod/*.c | sed 's/.*("\(.*\)"/\1/'
}

check "the parameters are the module's" same "$(parameters)" "$(items "$page" Va)"
check "the requests are the module's" same "$(requests)" \
	"$(items "$page" Dv | grep '^GDRDRV_IOC_')"
check "the files in /proc are the module's" same "$(proc_files)" \
	"$(items "$page" Pa | sed -n 's|^/proc/driver/gdrdrv/||p')"
check "the version is the module's" grep -qx "The module is version $(sed -n \
	's/^MODULE_VERSION("\(.*\)");/\1/p' kmod/main.c), and serves .*" "$page"
done_testing
