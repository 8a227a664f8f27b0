// SPDX-License-Identifier: MIT
#include "long.h"

#include <string.h>

#include "../copy/auto.h"
#include "../copy/clock.h"
#include "../copy/fence.h"
#include "dma.h"
#include "../host/front.h"

struct gdr_long_threads gdr_long_threads(void)
{
	unsigned int reads = copy_plan_of(false).threads, writes = copy_plan_of(true).threads;

	return (struct gdr_long_threads){
		.wanted = (reads > writes ? reads : writes) - 1,
		.running = copy_pool_count(atomic_load(&gdr_front_here()->pool)),
	};
}

int gdr_long_start_threads(unsigned int threads, const struct copy_cpus *cpus)
{
	struct gdr_front *front = gdr_front_here();
	int rc;

	pthread_mutex_lock(&front->lock);
	rc = copy_pool_start(&front->pool, threads, cpus);
	pthread_mutex_unlock(&front->lock);
	return rc;
}

void gdr_long_forget(const struct gdr_front *front, const void *owner)
{
	copy_pool_settle(atomic_load_explicit(&front->pool, memory_order_acquire), owner);
	gdr_dma_forget(atomic_load_explicit(&front->dma, memory_order_acquire), owner);
}

static void copy_plainly(void *dst, const void *src, size_t n)
{
	memcpy(dst, src, n);
}

/*
 * The longest copy that one core moves between page-locked memory and the host's own in
 * less time than the driver would: both sides fit into its L2 cache. It ends shorter ones
 * before threads that it wakes could help (H200, a Xeon of the fourth generation).
 */
#define ALONE_STAGED ((size_t)1 << 20)

/* What is known of a copy before it is made. It is found out once. */
struct facts {
	const struct gdr_long *copy;
	struct copy_pool *pool;		/* or NULL */
	struct gdr_dma *dma;		/* or NULL */
	struct gdr_dma_handle *engine;	/* that may make it; or NULL */
	bool told;		/* the host has the engine make it */
	bool locked;		/* the host memory; known once the engine may be the way */
	unsigned int ways;	/* that the CPU has, of which the library chooses; 0: the host did */
};

static void stage(const void *arg, void *host, void *chunk, size_t n, bool to_chunk)
{
	static const struct copy_impl plain = {
		.to = copy_plainly, .from = copy_plainly, .chunk = 8192, .wakes = SIZE_MAX,
	}, waking = {
		.to = copy_plainly, .from = copy_plainly, .chunk = 8192, .wakes = 1,
	};
	const struct facts *f = arg;

	copy_pool_copy(f->pool, f->copy->owner, f->copy->size < ALONE_STAGED ? &plain : &waking,
		       chunk, host, n, to_chunk);
}

/* The ways that the CPU has now, one bit each. */
static unsigned int ways_of_cpu(const struct gdr_long *copy, struct copy_pool *pool)
{
	switch (copy_pool_help(pool, copy->size, copy->to)) {
	case COPY_HELP_AWAKE: return 1u << COPY_ALONE | 1u << COPY_SHARED;
	case COPY_HELP_ASLEEP: return 1u << COPY_ALONE | 1u << COPY_WAKING;
	default: return 1u << COPY_ALONE;
	}
}

static struct facts facts_of(const struct gdr_long *copy)
{
	struct copy_plan plan = copy_plan_of(copy->to);
	struct facts f = {
		.copy = copy,
		.pool = atomic_load_explicit(&copy->front->pool, memory_order_acquire),
		.dma = atomic_load_explicit(&copy->front->dma, memory_order_acquire),
	};

	if (f.pool)
		copy_pool_note(f.pool, copy->size, copy->to);
	if (copy->size >= plan.chosen)
		f.ways = ways_of_cpu(copy, f.pool);
	if (f.ways || copy->size >= plan.dma)
		f.engine = gdr_dma_find(f.dma, copy->key, copy->off, copy->size);
	f.told = f.engine && copy->size >= plan.dma;
	return f;
}

/*
 * The way that takes the least time. The driver is asked about the host memory only where
 * the engine may be that way.
 */
static enum copy_way best_way(struct facts *f)
{
	size_t n = f->copy->size;
	bool to = f->copy->to;
	enum copy_way way;

	way = copy_auto_best_way(n, to, f->ways | (f->engine ? 1u << COPY_DMA : 0));
	if (!f->engine || (way != COPY_DMA && !copy_auto_is_faster(n, to, COPY_DMA_LOCKED, way)))
		return way;
	f->locked = gdr_dma_is_locked(f->engine, f->copy->host);
	return f->locked ? copy_auto_best_way(n, to, f->ways | 1u << COPY_DMA_LOCKED) : way;
}

/* Where copies come close to each other, this one may wake threads for the next ones. */
static enum copy_way way_of(struct facts *f)
{
	enum copy_way way;

	if (f->told) {
		f->locked = gdr_dma_is_locked(f->engine, f->copy->host);
		return f->locked ? COPY_DMA_LOCKED : COPY_DMA;
	}
	if (!f->ways)
		return COPY_SHARED;
	way = best_way(f);
	if ((f->ways & 1u << COPY_WAKING) && copy_pool_is_busy(f->pool) &&
	    copy_auto_is_faster(f->copy->size, f->copy->to, COPY_SHARED, way))
		return COPY_WAKING;
	return way;
}

/* The caller's own stores to the mapping must land before the engine starts. */
static bool copy_by_dma(const struct facts *f)
{
	const struct gdr_long *copy = f->copy;
	struct gdr_engine_copy by_dma = {
		.host = copy->host, .n = copy->size, .to = copy->to, .locked = f->locked,
		.owner = copy->owner, .stage = stage, .arg = f,
	};

	copy_fence_store();
	return gdr_dma_copy(f->dma, f->engine, copy->off, &by_dma);
}

static bool copy_by(const struct facts *f, enum copy_way way)
{
	const struct gdr_long *copy = f->copy;

	if (way >= COPY_DMA)
		return copy_by_dma(f);
	if (way != COPY_ALONE)
		copy_pool_copy(f->pool, copy->owner, copy->impl, copy->dev, copy->host,
			       copy->size, copy->to);
	else if (copy->to)
		copy->impl->to(copy->dev, copy->host, copy->size);
	else
		copy->impl->from(copy->host, copy->dev, copy->size);
	return true;
}

/*
 * Makes the copy in one way. If the library chose it, it learns how long that takes. false:
 * the engine has failed.
 */
static bool make(struct facts *f)
{
	const struct gdr_long *copy = f->copy;
	enum copy_way way = way_of(f);
	bool learns = f->ways && !f->told && copy_auto_learns(copy->size, copy->to, way);
	uint64_t begin = learns ? copy_now_ns() : 0;

	if (!copy_by(f, way))
		return false;
	if (learns && copy->to)
		copy_fence_store();
	if (learns)
		copy_auto_learn(copy->size, copy->to, way, copy_now_ns() - begin);
	return true;
}

void gdr_long_copy(const struct gdr_long *copy)
{
	struct facts f = facts_of(copy);

	if (make(&f))
		return;
	f.engine = NULL;
	f.told = false;
	make(&f);
}
