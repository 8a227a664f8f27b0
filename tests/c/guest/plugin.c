// SPDX-License-Identifier: MIT
/*
 * guest/plugin.c - a library whose constructor calls gdr_open. The program that loads it
 * may have a function that the constructor calls before.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>

#include "gdrapi.h"

gdr_t plugin_g;
int plugin_errno;

__attribute__((constructor)) static void open_library(void)
{
	void (*starts)(void);

	*(void **)&starts = dlsym(RTLD_DEFAULT, "guest_plugin_starts");
	if (starts)
		starts();
	plugin_g = gdr_open();
	plugin_errno = errno;
}
