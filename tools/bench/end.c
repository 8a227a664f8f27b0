/* SPDX-License-Identifier: MIT */
/*
 * bench/end.c - how a benchmark ends before its time.
 */
#include "opt.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "progress.h"

static void say(const char *fmt, va_list ap)
{
	progress_wipe();
	fflush(stdout);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
}

void bench_die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(fmt, ap);
	va_end(ap);
	exit(BENCH_FAILED);
}

void bench_flush_stdout(const char *tool)
{
	if (fflush(stdout) || ferror(stdout))
		bench_die("%s: cannot write the output: %s", tool, strerror(errno));
}

void bench_skip(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(fmt, ap);
	va_end(ap);
	exit(BENCH_SKIPPED);
}

void bench_usage(const struct bench_tool *tool, const char *fmt, ...)
{
	va_list ap;

	progress_wipe();
	fprintf(stderr, "%s: ", tool->name);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "; see '%s --help'\n", tool->name);
	exit(BENCH_USAGE);
}
