/* SPDX-License-Identifier: MIT */
/*
 * tap.h - TAP output for test programs of one process.
 */
#ifndef TAP_H
#define TAP_H

#include <stdarg.h>
#include <stdio.h>

/* passed + failed + skipped is the number of the last line printed. */
struct tap {
	int passed;
	int failed;
	int skipped;
};

/* Prints one result, in one write: the library's log comes between lines. Returns ok. */
__attribute__((format(printf, 3, 4)))
static inline int tap_ok(struct tap *t, int ok, const char *fmt, ...)
{
	va_list ap;

	*(ok ? &t->passed : &t->failed) += 1;
	printf("%sok %d - ", ok ? "" : "not ",
	       t->passed + t->failed + t->skipped);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
	return ok;
}

/* Prints that nothing could be said of it, and why. */
__attribute__((format(printf, 3, 4)))
static inline void tap_skip(struct tap *t, const char *why, const char *fmt, ...)
{
	va_list ap;

	t->skipped++;
	printf("ok %d - ", t->passed + t->failed + t->skipped);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf(" # SKIP %s\n", why);
	fflush(stdout);
}

/* Prints one result: whether got is want; both are shown if not. */
static inline int tap_is(struct tap *t, long got, long want, const char *what)
{
	int ok = tap_ok(t, got == want, "%s is %ld", what, want);

	if (!ok)
		printf("# got %ld\n", got);
	return ok;
}

/* Prints the plan and the count; returns the exit status of the program. */
static inline int tap_done(const struct tap *t)
{
	printf("1..%d\n%d passed, %d failed, %d skipped\n",
	       t->passed + t->failed + t->skipped, t->passed, t->failed,
	       t->skipped);
	return t->failed || !t->passed;
}

#endif
