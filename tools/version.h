/* SPDX-License-Identifier: MIT */
/*
 * version.h - what --version says: the program is of the library that it runs with.
 */
#ifndef VERSION_H
#define VERSION_H

#include <stdio.h>

#include "gdrapi_ext.h"

/* Other libgdrapi libraries lack it: there it is NULL. */
extern __typeof__(gdr_ext_version) gdr_ext_version __attribute__((weak));

/* Prints one line on stdout. */
static inline void print_version(const char *program)
{
	int major = 0, minor = 0;

	gdr_runtime_get_version(&major, &minor);
	if (gdr_ext_version)
		printf("%s with %s\n", program, gdr_ext_version());
	else
		printf("%s with libgdrapi %d.%d of another maker\n", program, major, minor);
}

#endif
