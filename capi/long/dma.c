// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "dma.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../copy/slot.h"
#include "../host/front.h"
#include "../host/log.h"
#include "plan.h"

#define RESTS_MOST 1023u

/* One GPU. engine is NULL until a pin has made it. A pin after a reset makes another one. */
struct gpu {
	_Atomic(struct gdr_engine *) engine;
	_Atomic uint32_t rests;	/* copies that the engine is not asked for */
	_Atomic uint32_t rested;	/* copies after the last failure */
};

/*
 * key is stored last by a mapping, and cleared by the slot's next pin. The rest does not
 * change while the slot is the handle's.
 */
struct gdr_dma_handle {
	_Atomic uint64_t key;
	uint64_t pinned;	/* the handle that the rest is of */
	uint64_t gpu_addr;	/* of the mapping's first byte */
	struct gpu *gpu;
	struct gdr_extents *memory;
};

struct gdr_dma {
	struct gpu gpus[GDR_GPUS_MAX];
	_Atomic bool logged;	/* a failed copy */
	struct gdr_dma_handle handles[GDR_SLOT_COUNT];
};

/* This process's, which is made if there is none. */
static struct gdr_dma *dma_here(void)
{
	gdr_dma_ref *ref = &gdr_front_here()->dma;
	struct gdr_dma *dma = atomic_load_explicit(ref, memory_order_acquire), *none = NULL;
	size_t len = sizeof(*dma);

	if (dma)
		return dma;
	dma = mmap(NULL, len, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (dma == MAP_FAILED)
		return NULL;
	madvise(dma, len, MADV_DONTFORK);
	if (atomic_compare_exchange_strong(ref, &none, dma))
		return dma;
	munmap(dma, len);
	return none;
}

bool gdr_dma_is_wanted(void)
{
	struct copy_plan reads = copy_plan_of(false), writes = copy_plan_of(true);

	return reads.dma != SIZE_MAX || writes.dma != SIZE_MAX || reads.chosen != SIZE_MAX;
}

bool gdr_dma_pinned(uint64_t key, unsigned int gpu, const struct gdr_extent *memories, size_t count)
{
	struct gdr_extents *x = malloc(sizeof(*x) + count * sizeof(x->at[0]));
	struct gdr_dma *dma = dma_here();
	struct gdr_dma_handle *h;

	if (!x || !dma) {
		free(x);
		return false;
	}
	x->count = count;
	memcpy(x->at, memories, count * sizeof(x->at[0]));
	h = &dma->handles[key & (GDR_SLOT_COUNT - 1)];
	atomic_store(&h->key, 0);
	free(h->memory);
	h->memory = x;
	h->gpu = &dma->gpus[gpu];
	h->pinned = key;
	return true;
}

void gdr_dma_set_engine(unsigned int gpu, struct gdr_engine *e, const struct gdr_engine_parts *parts)
{
	gdr_engine_begin(e, parts);
	atomic_store_explicit(&dma_here()->gpus[gpu].engine, e, memory_order_release);
}

void gdr_dma_mapped(uint64_t key, uint64_t gpu)
{
	struct gdr_dma *dma = atomic_load(&gdr_front_here()->dma);
	struct gdr_dma_handle *h;

	if (!dma)
		return;
	h = &dma->handles[key & (GDR_SLOT_COUNT - 1)];
	if (h->pinned != key)
		return;
	h->gpu_addr = gpu;
	atomic_store_explicit(&h->key, key, memory_order_release);
}

/* Whether the engine rests for this copy. */
static bool rests(struct gpu *gpu)
{
	uint32_t left = atomic_load_explicit(&gpu->rests, memory_order_relaxed);

	if (left)
		atomic_store_explicit(&gpu->rests, left - 1, memory_order_relaxed);
	return left;
}

struct gdr_dma_handle *gdr_dma_find(struct gdr_dma *dma, uint64_t key, uint64_t off, uint64_t n)
{
	struct gdr_dma_handle *h;

	if (!dma)
		return NULL;
	h = &dma->handles[key & (GDR_SLOT_COUNT - 1)];
	if (atomic_load_explicit(&h->key, memory_order_acquire) != key ||
	    !gdr_extents_are_same(NULL, h->memory, h->gpu_addr + off, n) ||
	    !atomic_load_explicit(&h->gpu->engine, memory_order_acquire) || rests(h->gpu))
		return NULL;
	return h;
}

bool gdr_dma_is_locked(const struct gdr_dma_handle *h, void *host)
{
	return gdr_engine_is_locked(atomic_load_explicit(&h->gpu->engine, memory_order_acquire), host);
}

static void learn(struct gpu *gpu, bool failed)
{
	uint32_t rested = atomic_load_explicit(&gpu->rested, memory_order_relaxed);

	if (!failed && !rested)
		return;
	rested = failed ? 2 * rested + 1 : rested / 2;
	if (rested > RESTS_MOST)
		rested = RESTS_MOST;
	atomic_store_explicit(&gpu->rested, rested, memory_order_relaxed);
	if (failed)
		atomic_store_explicit(&gpu->rests, rested, memory_order_relaxed);
}

bool gdr_dma_copy(struct gdr_dma *dma, struct gdr_dma_handle *h, uint64_t off,
		  struct gdr_engine_copy *copy)
{
	int rc;

	copy->at = h->gpu_addr + off;
	copy->memory = h->memory;
	rc = gdr_engine_copy(atomic_load_explicit(&h->gpu->engine, memory_order_acquire), copy);
	if (rc >= 0)
		learn(h->gpu, rc);
	if (rc > 0 && !atomic_exchange(&dma->logged, true))
		gdr_log(GDR_LOG_WARN, "a copy by DMA failed, and the CPU made it: the CUDA driver answered %d; this is said but once",
			rc);
	return !rc;
}

void gdr_dma_forget(struct gdr_dma *dma, const void *owner)
{
	for (unsigned int i = 0; dma && i < GDR_GPUS_MAX; i++) {
		struct gdr_engine *e = atomic_load_explicit(&dma->gpus[i].engine, memory_order_acquire);

		if (e)
			gdr_engine_forget(e, owner);
	}
}
