// SPDX-License-Identifier: MIT
#include "extents.h"

#include <stdatomic.h>
#include <stdlib.h>

enum {
	BUFFER_ID = 7, DEVICE_ORDINAL = 9, RANGE_START = 11, RANGE_SIZE = 12,
	MAPPING_SIZE = 18, MAPPING_BASE = 19,
};

/*
 * A memory of this size or more has a multiple of it. The engine is not for copies of
 * smaller memories.
 */
#define STEP 4096u
#define FREE_STEPS_MAX 64u	/* a pin may have a GPU page, 64 KiB, of free space at each end */
#define EXTENTS_MAX 4096u

struct extent {
	uint64_t start, end;
	_Atomic uint64_t id;	/* 0: the address means another memory since */
};

struct gdr_extents {
	size_t count;
	struct extent at[];
};

/*
 * Asked for several attributes, the driver answers 0 for an address that it does not know.
 * Asked for one, it fails, which debuggers of CUDA report.
 */
static uint64_t id_at(const struct gdr_cuda_calls *c, uint64_t addr)
{
	int name = BUFFER_ID;
	uint64_t id = 0;
	void *value = &id;

	return c->attributes(1, &name, &value, addr) ? 0 : id;
}

/*
 * The memory at addr. RANGE is a whole reservation where memory is mapped by cuMemMap;
 * MAPPING is the block that memory of cuMemAlloc is a part of. Old drivers lack MAPPING.
 */
static bool find(const struct gdr_cuda_calls *c, uint64_t addr, struct extent *x)
{
	int names[] = { BUFFER_ID, RANGE_START, RANGE_SIZE, MAPPING_BASE, MAPPING_SIZE };
	uint64_t v[5] = { 0 }, start, end;
	void *values[] = { &v[0], &v[1], &v[2], &v[3], &v[4] };

	if (c->attributes(5, names, values, addr) && c->attributes(3, names, values, addr))
		return false;
	start = v[1];
	end = v[1] + v[2];
	if (v[4]) {
		start = v[3] > start ? v[3] : start;
		end = v[3] + v[4] < end ? v[3] + v[4] : end;
	}
	*x = (struct extent){ start, end, v[0] };
	return v[0] && addr >= start && addr < end;
}

static uint64_t next_step(uint64_t addr)
{
	return (addr | (STEP - 1)) + 1;
}

int gdr_extents_device(const struct gdr_cuda_calls *c, uint64_t addr, uint64_t size)
{
	int names[] = { DEVICE_ORDINAL, BUFFER_ID }, ordinal;
	uint64_t id, end = addr + size;
	void *values[] = { &ordinal, &id };

	for (unsigned int i = 0; i < FREE_STEPS_MAX && addr < end; i++, addr = next_step(addr)) {
		ordinal = -1;
		id = 0;
		if (!c->attributes(2, names, values, addr) && id)
			return ordinal;
	}
	return -1;
}

static struct gdr_extents *grow(struct gdr_extents *x, size_t room)
{
	struct gdr_extents *more = realloc(x, sizeof(*x) + room * sizeof(x->at[0]));

	if (more && !x)
		more->count = 0;
	return more;
}

struct gdr_extents *gdr_extents_new(const struct gdr_cuda_calls *c, uint64_t addr, uint64_t size)
{
	uint64_t end = addr + size, left = FREE_STEPS_MAX;
	struct gdr_extents *x = NULL, *more;
	size_t room = 0;
	struct extent one;

	while (addr < end && left) {
		if (!find(c, addr, &one)) {
			addr = next_step(addr);
			left--;
			continue;
		}
		if (!x || x->count == room) {
			room = room ? 2 * room : 1;
			more = room <= EXTENTS_MAX ? grow(x, room) : NULL;
			if (!more)
				break;
			x = more;
		}
		x->at[x->count++] = one;
		addr = one.end;
	}
	return x;
}

/* The extent that has addr, or NULL. */
static struct extent *extent_of(struct gdr_extents *x, uint64_t addr)
{
	size_t low = 0, high = x->count;

	while (low < high) {
		size_t i = (low + high) / 2;

		if (addr < x->at[i].start)
			high = i;
		else if (addr >= x->at[i].end)
			low = i + 1;
		else
			return &x->at[i];
	}
	return NULL;
}

/* Whether both bytes are still of one memory, the extent's. Without c: as far as is known. */
static bool is_same(const struct gdr_cuda_calls *c, struct extent *e, uint64_t first, uint64_t last)
{
	uint64_t id = atomic_load_explicit(&e->id, memory_order_relaxed);

	if (id && (!c || (id_at(c, first) == id && id_at(c, last) == id)))
		return true;
	atomic_store_explicit(&e->id, 0, memory_order_relaxed);
	return false;
}

bool gdr_extents_are_same(const struct gdr_cuda_calls *c, struct gdr_extents *x, uint64_t addr,
			  uint64_t n)
{
	uint64_t end = addr + n;

	while (addr < end) {
		struct extent *e = extent_of(x, addr);

		if (!e || !is_same(c, e, addr, (end < e->end ? end : e->end) - 1))
			return false;
		addr = e->end;
	}
	return true;
}
