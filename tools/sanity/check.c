/* SPDX-License-Identifier: MIT */
/*
 * sanity/check.c - what a case says: notes, skips and checks.
 */
#include "sanity.h"
#include "run.h"
#include "progress.h"

#include <stdarg.h>
#include <stdio.h>

struct verdict *verdict;
bool verbose;

void note(const char *fmt, ...)
{
	va_list ap;

	if (!verbose)
		return;
	progress_wipe();
	printf("#   ");
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

void skip(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(verdict->why, sizeof(verdict->why), fmt, ap);
	va_end(ap);
	_exit(CASE_SKIPPED);
}

__attribute__((format(printf, 3, 4), noreturn))
static void fail(const char *file, int line, const char *fmt, ...)
{
	const char *base = strrchr(file, '/');
	va_list ap;

	progress_wipe();
	printf("#   %s:%d: ", base ? base + 1 : file, line);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
	_exit(CASE_FAILED);
}

/* Threads and forked children of the case count into the same number. */
static void count_check(void)
{
	__atomic_fetch_add(&verdict->checks, 1, __ATOMIC_RELAXED);
}

void check_at(bool ok, const char *what, const char *file, int line)
{
	count_check();
	if (!ok)
		fail(file, line, "this does not hold: %s", what);
}

void check_eq_at(long long got, long long want, const char *what,
		 const char *file, int line)
{
	count_check();
	if (got != want)
		fail(file, line, "%s is %lld, not %lld", what, got, want);
}

void check_rc_at(int got, int want, const char *what, const char *file,
		 int line)
{
	char name[64];

	count_check();
	if (got == want)
		return;
	snprintf(name, sizeof(name), "%s", strerror(want));
	fail(file, line, "%s gave %d (%s), not %d (%s)", what, got,
	     strerror(got), want, name);
}

void check_cu_at(const struct env *e, int result, const char *what,
		 const char *file, int line)
{
	if (result != CU_OK)
		fail(file, line, "%s gave %s (%d)", what,
		     cuda_error(&e->cu, result), result);
}

void fill(void *p, size_t size, uint64_t seed)
{
	unsigned char *b = p;
	uint64_t x = seed * 0x9e3779b97f4a7c15ull + 1;
	size_t i;

	for (i = 0; i + 8 <= size; i += 8) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(b + i, &x, 8);
	}
	for (; i < size; i++)
		b[i] = (unsigned char)(x >> (i % 8 * 8)) ^ 0x5a;
}

void *must_alloc(size_t size)
{
	void *p = malloc(size ? size : 1);

	check(p != NULL);
	return p;
}

enum { MARK = 0xeb };	/* no bit field of it is 0 */

void mark(void *p, size_t size)
{
	memset(p, MARK, size);
}

bool untouched(const void *p, size_t size)
{
	const unsigned char *b = p;
	size_t i;

	for (i = 0; i < size; i++)
		if (b[i] != MARK)
			return false;
	return true;
}
