/* SPDX-License-Identifier: MIT */
/*
 * stdout.h - the text that a function of the tools writes. Only for one thread.
 */
#ifndef GDR_TEST_STDOUT_H
#define GDR_TEST_STDOUT_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/opt.h"
#include "bench/out.h"

/* What f writes to stdout. */
static inline char *printed(void (*f)(const struct bench_result *, const struct bench_opts *),
			    const struct bench_result *r, const struct bench_opts *o)
{
	static char text[1 << 16];
	FILE *file = tmpfile();
	int keep = dup(STDOUT_FILENO);
	size_t n;

	fflush(stdout);
	if (!file || dup2(fileno(file), STDOUT_FILENO) < 0)
		abort();
	f(r, o);
	fflush(stdout);
	dup2(keep, STDOUT_FILENO);
	close(keep);
	rewind(file);
	n = fread(text, 1, sizeof(text) - 1, file);
	text[n] = 0;
	fclose(file);
	return text;
}

#endif
