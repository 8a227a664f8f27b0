// SPDX-License-Identifier: MIT
/*
 * log.c - the front's few log lines. The Go core writes its own, in the same
 * form (core/log).
 */
#include "front.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int gdr_log_level(void)
{
	const char *level = getenv("GDRCOPY_LOG_LEVEL");

	if (!getenv("GDRCOPY_ENABLE_LOGGING"))
		return GDR_LOG_OFF;
	if (!level || level[0] < '1' || level[0] > '4' || level[1])
		return GDR_LOG_ERROR;
	return level[0] - '0';
}

void gdr_log(int level, const char *fmt, ...)
{
	static const char *const prefixes[] = {
		[GDR_LOG_DEBUG] = "DBG:  ", [GDR_LOG_INFO] = "INFO: ",
		[GDR_LOG_WARN] = "WARN: ", [GDR_LOG_ERROR] = "ERR:  ",
	};
	char line[512];
	size_t used;
	va_list args;
	int n;

	if (level < gdr_log_level())
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
		return;
}
