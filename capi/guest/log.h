/* SPDX-License-Identifier: MIT */
/*
 * log.h - the C side's log lines, in the form of Go's.
 */
#ifndef GDR_LOG_H
#define GDR_LOG_H

#include <errno.h>

#pragma GCC visibility push(hidden)

/* Log levels; the values are those of GDRCOPY_LOG_LEVEL. */
enum { GDR_LOG_DEBUG = 1, GDR_LOG_INFO, GDR_LOG_WARN, GDR_LOG_ERROR, GDR_LOG_OFF };

/*
 * Sets the least level of the lines that are written. Before the first call each line
 * reads the level from the environment. After it none does, as the host may change the
 * environment at any time.
 */
void gdr_log_set_level(int level);

/*
 * Writes one line to standard error if its level is high enough. A copy may log in a
 * signal handler. So only integers and strings are formatted, for which the C library
 * needs no lock and no memory.
 */
void gdr_log(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Logs that call does not take its arguments, and why. Returns EINVAL. */
static inline int gdr_refuse(const char *call, const char *why)
{
	gdr_log(GDR_LOG_ERROR, "%s: %s (errno %d)", call, why, EINVAL);
	return EINVAL;
}

#pragma GCC visibility pop

#endif
