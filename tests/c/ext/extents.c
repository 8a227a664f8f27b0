// SPDX-License-Identifier: MIT
/*
 * ext/extents.c - whether an address still means the memory that was pinned
 * (capi/long/engine.c). The driver is this program's.
 */
#include <stdlib.h>
#include <string.h>

#include "long/engine.h"
#include "tap.h"

#define PAGE 4096u
#define BASE 0x700000000000ul

#define BUFFER_ID 7

static struct tap tap;

/* By page from BASE on; 0: there is none. */
static uint64_t ids[64];
static bool fails;

static int attributes(unsigned int n, int *names, void **values, uint64_t addr)
{
	uint64_t page = (addr - BASE) / PAGE;

	if (n != 1 || names[0] != BUFFER_ID || page >= 64)
		abort();
	*(uint64_t *)values[0] = ids[page];
	return fails ? 700 : 0;
}

static const struct gdr_cuda_calls cuda = { .attributes = attributes };
static struct gdr_extents *x;

/* A memory of 16 pages, one of a page behind it, and free space around. */
static void reset(void)
{
	memset(ids, 0, sizeof(ids));
	for (int i = 16; i < 32; i++)
		ids[i] = 11;
	ids[32] = 12;
	fails = false;
	free(x);
	x = malloc(sizeof(*x) + 2 * sizeof(x->at[0]));
	if (!x)
		abort();
	x->count = 2;
	x->at[0] = (struct gdr_extent){ BASE + 16 * PAGE, BASE + 32 * PAGE, 11 };
	x->at[1] = (struct gdr_extent){ BASE + 32 * PAGE, BASE + 33 * PAGE, 12 };
}

/* Whether n bytes can be copied, off bytes from a page on; c NULL: by what is known. */
static bool are_same(const struct gdr_cuda_calls *c, uint64_t page, long off, uint64_t n)
{
	return gdr_extents_are_same(c, x, BASE + page * PAGE + (uint64_t)off, n);
}

static void ranges(void)
{
	reset();
	tap_ok(&tap, are_same(&cuda, 16, 0, 16 * PAGE) && are_same(&cuda, 16, 0, 1) && are_same(&cuda, 31, PAGE - 1, 1),
	       "all of a memory, its first byte and its last");
	tap_ok(&tap, are_same(&cuda, 16, 0, 17 * PAGE) && are_same(&cuda, 31, PAGE - 1, 2) && are_same(&cuda, 32, 0, PAGE),
	       "the next memory, and bytes of both");
	tap_ok(&tap, !are_same(NULL, 33, 0, 1) && !are_same(NULL, 33, -1, 2) && !are_same(NULL, 16, -1, 1),
	       "it is known what is no part of it");
	tap_ok(&tap, !are_same(&cuda, 33, -1, 2) && !are_same(&cuda, 33, 0, 1) && !are_same(&cuda, 16, -1, 1) &&
	       !are_same(&cuda, 16, -1, 2), "no byte before the first or after the last");
}

static void other_memory(void)
{
	reset();
	ids[32] = 99;
	tap_ok(&tap, are_same(NULL, 16, 0, 17 * PAGE) && are_same(&cuda, 16, 0, 16 * PAGE) &&
	       !are_same(&cuda, 16, 0, 16 * PAGE + 1), "the next memory became another one");
	ids[32] = 12;
	tap_ok(&tap, !are_same(NULL, 32, 0, 1) && !are_same(&cuda, 32, 0, 1) && are_same(NULL, 16, 0, 16 * PAGE),
	       "it does not come back, and the first one stays");
	reset();
	ids[31] = 0;
	tap_ok(&tap, !are_same(&cuda, 16, 0, 16 * PAGE), "the memory became shorter");
	reset();
	ids[16] = 0;
	tap_ok(&tap, !are_same(&cuda, 16, 0, 16 * PAGE), "it begins later");
	reset();
	fails = true;
	tap_ok(&tap, are_same(NULL, 16, 0, 1) && !are_same(&cuda, 16, 0, 1), "a driver that fails knows no memory");
}

int main(void)
{
	ranges();
	other_memory();
	free(x);
	return tap_done(&tap);
}
