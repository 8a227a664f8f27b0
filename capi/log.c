// SPDX-License-Identifier: MIT
/*
 * log.c - the front's few log lines. The Go core writes its own, in the same
 * form (core/log).
 */
#define _GNU_SOURCE
#include "front.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NOT_READ 0

/* Read when a gdr_open says so: a host may change its environment at any other time. */
static _Atomic int threshold = NOT_READ;

int gdr_log_read_level(void)
{
	const char *enabled = secure_getenv("GDRCOPY_ENABLE_LOGGING");
	const char *wanted = secure_getenv("GDRCOPY_LOG_LEVEL");
	int level = GDR_LOG_ERROR;

	if (!enabled)
		level = GDR_LOG_OFF;
	else if (wanted && wanted[0] >= '1' && wanted[0] <= '4' && !wanted[1])
		level = wanted[0] - '0';
	atomic_store_explicit(&threshold, level, memory_order_relaxed);
	return level;
}

static int log_level(void)
{
	int level = atomic_load_explicit(&threshold, memory_order_relaxed);

	return level == NOT_READ ? gdr_log_read_level() : level;
}

void gdr_log(int level, const char *fmt, ...)
{
	static const char *const prefixes[] = {
		[GDR_LOG_DEBUG] = "DBG:  ", [GDR_LOG_INFO] = "INFO: ",
		[GDR_LOG_WARN] = "WARN: ", [GDR_LOG_ERROR] = "ERR:  ",
	};
	char line[512];
	size_t used;
	int n, error = errno;
	va_list args;

	if (level < log_level())
		return;
	used = snprintf(line, sizeof(line), "%s", prefixes[level]);
	va_start(args, fmt);
	n = vsnprintf(line + used, sizeof(line) - used - 1, fmt, args);
	va_end(args);
	if (n < 0)
		return;
	used += n;
	if (used > sizeof(line) - 2)
		used = sizeof(line) - 2;
	line[used++] = '\n';
	/* A host may have closed its standard error: nothing is owed then. */
	if (write(STDERR_FILENO, line, used) < 0)
		errno = error;
}
