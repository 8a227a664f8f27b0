/* SPDX-License-Identifier: MIT */
/*
 * log_double.h - keeps the last line that a file of capi/ logs, for a program that is built
 * from that file itself, and counts those of errors. It comes before front_double.h, which
 * logs nothing.
 */
#ifndef LOG_DOUBLE_H
#define LOG_DOUBLE_H

#include <stdarg.h>
#include <stdio.h>

#include "guest/log.h"

static char said[512];		/* by the last line */
static _Atomic int lines;	/* of errors */

__attribute__((format(printf, 2, 3)))
void gdr_log(int level, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(said, sizeof(said), fmt, args);
	va_end(args);
	lines += level == GDR_LOG_ERROR;
}

#endif
