// SPDX-License-Identifier: MIT
/*
 * ext/extents.c - which memories a pin has (capi/extents.c), as drivers old and new tell
 * of them. The driver is this program's: it knows a list of memories.
 */
#include <stdlib.h>
#include <string.h>

#include "extents.h"
#include "tap.h"

#define PAGE 4096u
#define BASE 0x700000000000ul

enum { BUFFER_ID = 7, DEVICE_ORDINAL = 9, RANGE_START = 11, RANGE_SIZE = 12, MAPPING_SIZE = 18, MAPPING_BASE = 19 };

/* In pages from BASE. A memory of cuMemAlloc is a part of its block, which is the mapping. */
struct memory {
	uint64_t id, range, range_size, mapping, mapping_size;
};

static struct tap tap;
static bool is_old;	/* it does not know what a mapping is */
static bool fails, without_ids;
static unsigned int calls;
static struct memory memories[8];

/* A block of 512 pages with two memories in it, a page, and a reservation with two mappings. */
static const struct memory usual[8] = {
	{ 11, 16, 16, 0, 512 },
	{ 12, 32, 1, 0, 512 },
	{ 13, 1024, 2048, 1024, 512 },
	{ 14, 1024, 2048, 1536, 1024 },
	{ 15, 601, 1, 601, 1 },
};

static const struct memory *memory_at(uint64_t addr)
{
	for (size_t i = 0; i < sizeof(memories) / sizeof(memories[0]); i++) {
		const struct memory *m = &memories[i];
		uint64_t page = (addr - BASE) / PAGE;

		if (m->id && page - m->range < m->range_size && page - m->mapping < m->mapping_size)
			return m;
	}
	return NULL;
}

static uint64_t value_of(int name, const struct memory *m)
{
	switch (name) {
	case BUFFER_ID: return without_ids ? 0 : m->id;
	case RANGE_START: return BASE + m->range * PAGE;
	case RANGE_SIZE: return m->range_size * PAGE;
	case MAPPING_BASE: return BASE + m->mapping * PAGE;
	case MAPPING_SIZE: return m->mapping_size * PAGE;
	default: abort();
	}
}

/* For an address without memory it answers 0, and 0 or a NULL for each attribute. */
static int attributes(unsigned int n, int *names, void **values, uint64_t addr)
{
	const struct memory *m = memory_at(addr);

	calls++;
	for (unsigned int i = 0; i < n; i++)
		if (is_old && (names[i] == MAPPING_SIZE || names[i] == MAPPING_BASE))
			return 1;
	if (fails)
		return 700;
	for (unsigned int i = 0; i < n; i++) {
		uint64_t value = m && names[i] != DEVICE_ORDINAL ? value_of(names[i], m) : 0;
		int ordinal = m ? 3 : -2;

		if (names[i] == DEVICE_ORDINAL)
			memcpy(values[i], &ordinal, sizeof(ordinal));
		else
			memcpy(values[i], &value, sizeof(value));
	}
	return 0;
}

static const struct gdr_cuda_calls cuda = { .attributes = attributes };

/* Whether bytes of a pin of some pages can be copied; c NULL: by what is known. */
static bool are_same(const struct gdr_cuda_calls *c, struct gdr_extents *x, uint64_t page, long off, uint64_t n)
{
	return gdr_extents_are_same(c, x, BASE + page * PAGE + (uint64_t)off, n);
}

static struct gdr_extents *pin(uint64_t page, uint64_t pages)
{
	return gdr_extents_new(&cuda, BASE + page * PAGE, pages * PAGE);
}

static void reset(void)
{
	memcpy(memories, usual, sizeof(memories));
	is_old = fails = without_ids = false;
}

/* A pin of memory of cuMemAlloc, with another one and free space behind it. */
static void allocations(const char *driver)
{
	struct gdr_extents *x = pin(16, 32);

	tap_ok(&tap, x && are_same(&cuda, x, 16, 0, 16 * PAGE) && are_same(&cuda, x, 16, 0, 1) &&
	       are_same(&cuda, x, 31, PAGE - 1, 1), "%s: all of a memory, its first byte and its last", driver);
	tap_ok(&tap, x && are_same(&cuda, x, 16, 0, 17 * PAGE) && are_same(&cuda, x, 31, PAGE - 1, 2) &&
	       are_same(&cuda, x, 32, 0, PAGE), "%s: the next memory, and bytes of both", driver);
	tap_ok(&tap, x && !are_same(NULL, x, 33, 0, 1) && !are_same(NULL, x, 33, -1, 2) &&
	       !are_same(NULL, x, 16, -1, 1), "%s: it is known what is no part of it", driver);
	tap_ok(&tap, x && !are_same(&cuda, x, 33, -1, 2) && !are_same(&cuda, x, 33, 0, 1) &&
	       !are_same(&cuda, x, 16, -1, 1) && !are_same(&cuda, x, 16, -1, 2),
	       "%s: no byte before the first or after the last", driver);
	memories[1].id = 99;
	tap_ok(&tap, x && are_same(NULL, x, 16, 0, 17 * PAGE) && are_same(&cuda, x, 16, 0, 16 * PAGE) &&
	       !are_same(&cuda, x, 16, 0, 16 * PAGE + 1), "%s: the next memory became another one", driver);
	memories[1].id = 12;
	tap_ok(&tap, x && !are_same(NULL, x, 32, 0, 1) && !are_same(&cuda, x, 32, 0, 1) &&
	       are_same(NULL, x, 16, 0, 16 * PAGE), "%s: it does not come back, and the first one stays", driver);
	free(x);
	reset();
}

/* Its last byte, or its first one, may be another memory's alone. */
static void one_end(const char *driver, bool old)
{
	struct gdr_extents *x;

	is_old = old;
	x = pin(16, 16);
	memories[0].range_size = 8;
	tap_ok(&tap, x && !are_same(&cuda, x, 16, 0, 16 * PAGE), "%s: the memory became shorter", driver);
	free(x);
	reset();
	is_old = old;
	x = pin(16, 16);
	memories[0].range = 24;
	memories[0].range_size = 8;
	tap_ok(&tap, x && !are_same(&cuda, x, 16, 0, 16 * PAGE), "%s: it begins later", driver);
	free(x);
	reset();
}

/* Of a reservation with several mappings each is a memory. An old driver says but the reservation. */
static void mappings(void)
{
	struct gdr_extents *x = pin(1024, 1536);

	tap_ok(&tap, x && are_same(&cuda, x, 1024, 0, 1536 * PAGE) && !are_same(&cuda, x, 1024, 0, 1536 * PAGE + 1),
	       "mappings of a reservation: both, and no more");
	memories[3].id = 15;
	tap_ok(&tap, x && are_same(&cuda, x, 1024, 0, 512 * PAGE) && !are_same(&cuda, x, 1535, 0, PAGE + 1),
	       "the second mapping became another memory");
	free(x);
	reset();
	is_old = true;
	x = pin(1024, 1536);
	tap_ok(&tap, x && are_same(&cuda, x, 1024, 0, 512 * PAGE) && !are_same(&cuda, x, 1024, 0, 513 * PAGE),
	       "an old driver: bytes of one mapping alone");
	free(x);
	reset();
}

/* A pin may begin in free space, up to a GPU page. */
static void free_space(void)
{
	struct gdr_extents *x = gdr_extents_new(&cuda, BASE + PAGE + 100, 15 * PAGE - 50);

	tap_ok(&tap, x && are_same(&cuda, x, 16, 0, 50), "free space, and the first 50 bytes of a memory");
	tap_is(&tap, gdr_extents_device(&cuda, BASE + PAGE + 100, 15 * PAGE - 50), 3, "its GPU");
	free(x);
	x = gdr_extents_new(&cuda, BASE + PAGE + 100, 15 * PAGE - 100);
	tap_ok(&tap, !x, "free space alone");
	tap_is(&tap, gdr_extents_device(&cuda, BASE + PAGE + 100, 15 * PAGE - 100), -1, "its GPU");
	calls = 0;
	x = pin(602, 400);
	tap_ok(&tap, !x && calls <= 128, "much free space: a driver that is asked but 64 times");
	calls = 0;
	tap_ok(&tap, gdr_extents_device(&cuda, BASE + 602 * PAGE, 400 * PAGE) == -1 && calls <= 64, "and for its GPU");
	x = pin(1024 - 63, 64);
	tap_ok(&tap, x && are_same(&cuda, x, 1024, 0, PAGE), "63 pages of free space, and one of a memory");
	tap_is(&tap, gdr_extents_device(&cuda, BASE + (1024 - 63) * PAGE, 64 * PAGE), 3, "its GPU");
	free(x);
	x = pin(600, 2);
	tap_ok(&tap, x && are_same(&cuda, x, 601, 0, PAGE), "a page of free space, and a memory of a page");
	free(x);
	x = pin(31, 1000);
	tap_ok(&tap, x && are_same(&cuda, x, 31, 0, 2 * PAGE) && !are_same(&cuda, x, 31, 0, 3 * PAGE),
	       "memories, and much free space behind them");
	free(x);
}

static void failures(void)
{
	struct gdr_extents *x = pin(16, 16);

	fails = true;
	tap_ok(&tap, x && are_same(NULL, x, 16, 0, 1) && !are_same(&cuda, x, 16, 0, 1) &&
	       gdr_extents_device(&cuda, BASE + 16 * PAGE, PAGE) == -1 && !pin(16, 16),
	       "a driver that fails knows no memory");
	fails = false;
	without_ids = true;
	tap_ok(&tap, gdr_extents_device(&cuda, BASE + 16 * PAGE, PAGE) == -1 && !pin(16, 16),
	       "memory that has no number is none");
	free(x);
	reset();
}

int main(void)
{
	reset();
	allocations("a new driver");
	is_old = true;
	allocations("an old driver");
	one_end("a new driver", false);
	one_end("an old driver", true);
	mappings();
	free_space();
	failures();
	return tap_done(&tap);
}
