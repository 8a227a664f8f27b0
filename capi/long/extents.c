// SPDX-License-Identifier: MIT
#include "extents.h"

#define BUFFER_ID 7	/* a CUpointer_attribute */

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

/* The extent that has addr, or NULL. */
static struct gdr_extent *extent_of(struct gdr_extents *x, uint64_t addr)
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
static bool is_same(const struct gdr_cuda_calls *c, struct gdr_extent *e, uint64_t first, uint64_t last)
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
		struct gdr_extent *e = extent_of(x, addr);

		if (!e || !is_same(c, e, addr, (end < e->end ? end : e->end) - 1))
			return false;
		addr = e->end;
	}
	return true;
}
