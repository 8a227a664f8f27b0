// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "env.h"

#define NOT_READ 0

static _Atomic int threshold = NOT_READ;

void gdr_log_set_level(int level)
{
	atomic_store_explicit(&threshold, level, memory_order_relaxed);
}

static int log_level(void)
{
	int level = atomic_load_explicit(&threshold, memory_order_relaxed);

	return level == NOT_READ ? gdr_env_log_level() : level;
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
	/* The host may have closed its standard error. Then the line is lost. */
	if (write(STDERR_FILENO, line, used) < 0)
		errno = error;
}
