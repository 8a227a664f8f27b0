// SPDX-License-Identifier: MIT
#include "long.h"

#include <string.h>

#include "../copy/clock.h"
#include "../copy/fence.h"
#include "../host/front.h"
#include "auto.h"
#include "dma.h"

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
	struct copy_plan plan;
	struct copy_pool *pool;		/* or NULL */
	struct copy_help help;		/* of the pool */
	struct gdr_dma *dma;		/* or NULL */
	struct gdr_dma_handle *engine;	/* that may make it; or NULL */
	bool told;		/* the host has the engine make it */
	bool locked;		/* the host memory; known once the engine may be the way */
	unsigned int ways;	/* that the CPU has, of which the library chooses; 0: the host did */
};

static void copy_by_cpu(const struct facts *f, const struct copy_impl *impl, void *dev, void *host,
			size_t n, uint32_t shares)
{
	struct copy_job job = {
		.impl = impl, .dev = dev, .host = host, .n = n, .shares = shares, .to = f->copy->to,
	};

	copy_pool_copy(f->pool, f->copy->owner, &job);
}

static void stage(const void *arg, void *host, void *chunk, size_t n)
{
	static const struct copy_impl plain = { .to = copy_plainly, .from = copy_plainly, .chunk = 8192 };
	const struct facts *f = arg;
	size_t wakes = f->copy->size < ALONE_STAGED ? SIZE_MAX : 1;

	copy_by_cpu(f, &plain, chunk, host, n, copy_pool_help(f->pool, &f->plan, n, f->copy->to, wakes).shares);
}

static unsigned int ways_of_cpu(struct copy_help help)
{
	if (help.shares < 2)
		return 1u << COPY_ALONE;
	return 1u << COPY_ALONE | 1u << (help.asleep ? COPY_WAKING : COPY_SHARED);
}

static struct facts facts_of(const struct gdr_long *copy)
{
	struct facts f = {
		.copy = copy,
		.plan = copy_plan_of(copy->to),
		.pool = atomic_load_explicit(&copy->front->pool, memory_order_acquire),
		.dma = atomic_load_explicit(&copy->front->dma, memory_order_acquire),
	};

	if (f.pool)
		copy_pool_note(f.pool, copy->size, copy->to);
	f.help = copy_pool_help(f.pool, &f.plan, copy->size, copy->to, 0);
	if (copy->size >= f.plan.chosen)
		f.ways = ways_of_cpu(f.help);
	if (f.ways || copy->size >= f.plan.dma)
		f.engine = gdr_dma_find(f.dma, copy->key, copy->off, copy->size);
	f.told = f.engine && copy->size >= f.plan.dma;
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

	if (way < COPY_DMA)
		copy_by_cpu(f, copy->impl, copy->dev, copy->host, copy->size,
			    way == COPY_ALONE ? 1 : f->help.shares);
	else if (!copy_by_dma(f))
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
