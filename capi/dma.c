// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "dma.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "copy/slot.h"
#include "host/log.h"

#define GPUS_MAX 64
#define RESTS_MOST 1023u

/* One GPU. engine is NULL until a pin has made it. A pin after a reset makes another one. */
struct gpu {
	_Atomic(struct gdr_engine *) engine;
	_Atomic bool makes;	/* a thread makes the engine */
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
	struct gdr_cuda cuda;
	struct gpu gpus[GPUS_MAX];
	_Atomic bool logged;	/* a failed copy */
	struct gdr_dma_handle handles[GDR_SLOT_COUNT];
};

/* The process's, which it makes if there is none. */
static struct gdr_dma *dma_of(gdr_dma_ref *ref)
{
	struct gdr_dma *dma = atomic_load_explicit(ref, memory_order_acquire), *none = NULL;
	size_t len = sizeof(*dma);

	if (dma)
		return dma;
	dma = mmap(NULL, len, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (dma == MAP_FAILED)
		return NULL;
	madvise(dma, len, MADV_DONTFORK);
	if (!gdrcore_cuda(&dma->cuda) && atomic_compare_exchange_strong(ref, &none, dma))
		return dma;
	munmap(dma, len);
	return none;
}

/* A pin, and what is found out about it. */
struct pin {
	struct gdr_dma *dma;
	uint64_t addr, size;
	struct gpu *gpu;	/* NULL: there is no memory of a GPU */
	void *ctx;
	struct gdr_extents *memory;
	bool keeps;	/* the context, for an engine that was made in it */
};

/*
 * Finds the memory, and makes an engine if the GPU has none. While another thread makes it
 * this one goes on: the copies will find it.
 */
static int find_in_context(const struct gdr_cuda_calls *c, struct pin *p)
{
	struct gdr_engine *e = atomic_load_explicit(&p->gpu->engine, memory_order_acquire);
	int rc = 0;

	p->memory = gdr_extents_new(c, p->addr, p->size);
	if ((e && gdr_engine_is_alive(c, e)) || atomic_exchange(&p->gpu->makes, true))
		return 0;
	if (atomic_load(&p->gpu->engine) == e) {
		rc = gdr_engine_new(&p->dma->cuda, c, p->ctx, &e);
		p->keeps = !rc;
		if (!rc)
			atomic_store_explicit(&p->gpu->engine, e, memory_order_release);
	}
	atomic_store(&p->gpu->makes, false);
	return rc;
}

static int find_all(const struct gdr_cuda_calls *c, void *arg)
{
	struct pin *p = arg;
	int rc, device, ordinal = gdr_extents_device(c, p->addr, p->size);
	void *popped;

	if (ordinal < 0 || ordinal >= GPUS_MAX)
		return 0;
	p->gpu = &p->dma->gpus[ordinal];
	rc = c->device_get(&device, ordinal);
	if (!rc)
		rc = c->primary_retain(&p->ctx, device);
	if (rc)
		return rc;
	rc = c->push(p->ctx);
	if (!rc) {
		rc = find_in_context(c, p);
		c->pop(&popped);
	}
	if (!p->keeps)
		c->primary_release(device);
	return rc;
}

static void keep(struct pin *p, uint64_t key)
{
	struct gdr_dma_handle *h = &p->dma->handles[key & (GDR_SLOT_COUNT - 1)];

	atomic_store(&h->key, 0);
	free(h->memory);
	h->memory = p->memory;
	h->gpu = p->gpu;
	h->pinned = key;
}

void gdr_dma_pinned(gdr_dma_ref *ref, uint64_t key, uint64_t addr, uint64_t size)
{
	struct pin p = { .dma = dma_of(ref), .addr = addr, .size = size };
	int rc;

	if (!p.dma) {
		gdr_log(GDR_LOG_WARN, "no copies by DMA: no memory, or this process has not loaded libcuda.so.1, or that is too old");
		return;
	}
	rc = gdr_cuda_run(&p.dma->cuda, NULL, find_all, &p);
	if (p.memory)
		keep(&p, key);
	if (rc)
		gdr_log(GDR_LOG_WARN, "no copies by DMA through handle %#lx: the CUDA driver answered %d", key, rc);
}

void gdr_dma_mapped(struct gdr_dma *dma, uint64_t key, uint64_t gpu)
{
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
	for (unsigned int i = 0; dma && i < GPUS_MAX; i++) {
		struct gdr_engine *e = atomic_load_explicit(&dma->gpus[i].engine, memory_order_acquire);

		if (e)
			gdr_engine_forget(e, owner);
	}
}
