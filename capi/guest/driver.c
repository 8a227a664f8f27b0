// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const char library[] = "libcuda.so.1";

/* What this process or an ancestor has loaded. A forked child has both in its memory. */
static _Atomic(void *) cuda;
struct gdr_driver_functions gdr_driver_functions;

/* Returns the library, or NULL; then dlerror has the reason. */
static void *open_library(int mode)
{
	void *lib = atomic_load(&cuda);

	if (lib)
		return lib;
	lib = dlopen(library, RTLD_NOW | mode);
	if (lib)
		atomic_store(&cuda, lib);
	return lib;
}

enum gdr_driver_state gdr_driver_load(char *why, size_t size)
{
	const char *text;

	if (open_library(RTLD_LOCAL))
		return GDR_DRIVER_LOADED;
	text = dlerror();
	snprintf(why, size, "%s", text ? text : "no reason given");
	return strstr(why, strerror(ENOENT)) ? GDR_DRIVER_NOT_FOUND : GDR_DRIVER_BROKEN;
}

bool gdr_driver_is_loaded(void)
{
	return open_library(RTLD_NOLOAD) != NULL;
}

uintptr_t gdr_driver_find(const char *name)
{
	return (uintptr_t)dlsym(atomic_load(&cuda), name);
}
