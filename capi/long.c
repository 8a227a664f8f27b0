// SPDX-License-Identifier: MIT
#include "long.h"

#include <errno.h>
#include <string.h>

#include "copy/auto.h"
#include "copy/clock.h"
#include "copy/cpus.h"
#include "copy/fence.h"
#include "front.h"
#include "log.h"

/* How many threads share a long copy where the library chooses. */
#define CHOSEN_READ_THREADS 8
#define CHOSEN_WRITE_THREADS 4

_Atomic size_t gdr_long_to = SIZE_MAX, gdr_long_from = SIZE_MAX;

static size_t least_of(_Atomic size_t *a, _Atomic size_t *b, _Atomic size_t *c)
{
	size_t x = atomic_load(a), y = atomic_load(b), z = atomic_load(c);

	if (y < x)
		x = y;
	return z < x ? z : x;
}

void gdr_long_set_limits(void)
{
	atomic_store(&gdr_long_to,
		     least_of(&copy_least_shared_to, &gdr_dma_least_to, &copy_least_auto_to));
	atomic_store(&gdr_long_from,
		     least_of(&copy_least_shared_from, &gdr_dma_least_from, &copy_least_auto_from));
}

void gdr_long_policy_changed(void)
{
	bool on = copy_auto_is_on();

	copy_pool_set_by_policy(on ? CHOSEN_READ_THREADS : 1, on ? CHOSEN_WRITE_THREADS : 1);
	gdr_long_set_limits();
}

int gdr_long_start_threads(struct gdr_front *front)
{
	struct copy_cpus *cpus = NULL;
	unsigned int most;
	int rc;

	if (!copy_pool_short(atomic_load(&front->pool), COPY_THREADS_MAX))
		return 0;
	/* Files of /sys are read before the lock is taken. */
	most = copy_cpus_allowed();
	if (copy_pool_short(atomic_load(&front->pool), most))
		cpus = copy_cpus_new(copy_pool_workers(most));
	pthread_mutex_lock(&front->lock);
	rc = copy_pool_start(&front->pool, most, cpus);
	pthread_mutex_unlock(&front->lock);
	copy_cpus_free(cpus);
	if (rc == ERANGE) {
		gdr_log(GDR_LOG_WARN, "fewer threads share a copy than were asked for: the thread that starts them may run on too few CPUs; let it run on more");
		rc = 0;
	}
	if (rc)
		gdr_log(GDR_LOG_ERROR, "fewer threads share a copy than were asked for: %s; raise the limit of threads or of memory",
			strerror(rc));
	return rc;
}

void gdr_long_pinned(struct gdr_front *front, uint64_t h, uint64_t addr, uint64_t size)
{
	if (copy_auto_is_on() || atomic_load(&gdr_dma_least_to) != SIZE_MAX ||
	    atomic_load(&gdr_dma_least_from) != SIZE_MAX)
		gdr_dma_pinned(&front->dma, h, addr, size);
}

void gdr_long_mapped(struct gdr_front *front, uint64_t h, uint64_t gpu)
{
	gdr_long_start_threads(front);
	gdr_dma_mapped(atomic_load(&front->dma), h, gpu);
}

void gdr_long_forget(const struct gdr_front *front, const void *owner)
{
	copy_pool_settle(atomic_load_explicit(&front->pool, memory_order_acquire), owner);
	gdr_dma_forget(atomic_load_explicit(&front->dma, memory_order_acquire), owner);
}

static struct copy_pool *pool_of(const struct gdr_long *copy)
{
	return atomic_load_explicit(&copy->front->pool, memory_order_acquire);
}

static struct gdr_dma *dma_of(const struct gdr_long *copy)
{
	return atomic_load_explicit(&copy->front->dma, memory_order_acquire);
}

/* By the caller, and the threads that are for it. */
static void copy_by_cpu(const struct gdr_long *copy)
{
	copy_pool_copy(pool_of(copy), copy->owner, copy->impl, copy->dev, copy->host, copy->size,
		       copy->to);
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

static void stage(const void *arg, void *host, void *chunk, size_t n, bool to_chunk)
{
	static const struct copy_impl plain = {
		.to = copy_plainly, .from = copy_plainly, .chunk = 8192, .wakes = SIZE_MAX,
	}, waking = {
		.to = copy_plainly, .from = copy_plainly, .chunk = 8192, .wakes = 1,
	};
	const struct gdr_long *copy = arg;

	copy_pool_copy(pool_of(copy), copy->owner, copy->size < ALONE_STAGED ? &plain : &waking,
		       chunk, host, n, to_chunk);
}

/* The caller's own stores to the mapping must land before the engine starts. */
static bool copy_by_dma(const struct gdr_long *copy, struct gdr_dma_handle *h, bool locked)
{
	struct gdr_engine_copy by_dma = {
		.host = copy->host, .n = copy->size, .to = copy->to, .locked = locked,
		.owner = copy->owner, .stage = stage, .arg = copy,
	};

	copy_fence_store();
	return gdr_dma_copy(dma_of(copy), h, copy->off, &by_dma);
}

/* The ways that the CPU has now, one bit each. */
static unsigned int ways_of_cpu(const struct gdr_long *copy)
{
	switch (copy_pool_help(pool_of(copy), copy->size, copy->to)) {
	case COPY_HELP_AWAKE: return 1u << COPY_ALONE | 1u << COPY_SHARED;
	case COPY_HELP_ASLEEP: return 1u << COPY_ALONE | 1u << COPY_WAKING;
	default: return 1u << COPY_ALONE;
	}
}

/*
 * Chooses among the CPU's ways and the engine's, if h is not NULL. The driver is asked
 * whether the host memory is page-locked only where the engine may be the best way.
 */
static enum copy_way choose(const struct gdr_long *copy, struct gdr_dma_handle *h,
			    unsigned int ways)
{
	enum copy_way way;

	if (!h)
		return copy_auto_best_way(copy->size, copy->to, ways);
	way = copy_auto_best_way(copy->size, copy->to, ways | 1u << COPY_DMA);
	if (way != COPY_DMA && copy_auto_expect(copy->size, copy->to, COPY_DMA_LOCKED) >=
				       copy_auto_expect(copy->size, copy->to, way))
		return way;
	if (!gdr_dma_is_locked(h, copy->host))
		return way;
	return copy_auto_best_way(copy->size, copy->to, ways | 1u << COPY_DMA_LOCKED);
}

/* Wakes threads for the next copies, if copies come close to each other. */
static enum copy_way or_wake(const struct gdr_long *copy, unsigned int ways, enum copy_way way)
{
	if ((ways & 1u << COPY_WAKING) && copy_pool_is_busy(pool_of(copy)) &&
	    copy_auto_expect(copy->size, copy->to, COPY_SHARED) <
		    copy_auto_expect(copy->size, copy->to, way))
		return COPY_WAKING;
	return way;
}

static bool copy_by(const struct gdr_long *copy, struct gdr_dma_handle *h, enum copy_way way)
{
	if (way >= COPY_DMA)
		return copy_by_dma(copy, h, way == COPY_DMA_LOCKED);
	if (way != COPY_ALONE)
		copy_by_cpu(copy);
	else if (copy->to)
		copy->impl->to(copy->dev, copy->host, copy->size);
	else
		copy->impl->from(copy->host, copy->dev, copy->size);
	return true;
}

/* Makes a copy in a way, and learns how long that took. */
static bool try_way(const struct gdr_long *copy, struct gdr_dma_handle *h, enum copy_way way)
{
	bool learns = copy_auto_learns(copy->size, copy->to, way);
	uint64_t begin = learns ? copy_now_ns() : 0;

	if (!copy_by(copy, h, way))
		return false;
	if (!learns)
		return true;
	if (copy->to)
		copy_fence_store();
	copy_auto_learn(copy->size, copy->to, way, copy_now_ns() - begin);
	return true;
}

/* Makes the copy in the way that should take the least time. */
static void copy_best(const struct gdr_long *copy, struct gdr_dma_handle *h)
{
	unsigned int ways = ways_of_cpu(copy);

	if (h && try_way(copy, h, or_wake(copy, ways, choose(copy, h, ways))))
		return;
	try_way(copy, NULL, or_wake(copy, ways, choose(copy, NULL, ways)));
}

void gdr_long_copy(const struct gdr_long *copy)
{
	size_t dma = atomic_load(copy->to ? &gdr_dma_least_to : &gdr_dma_least_from);
	size_t best = atomic_load(copy->to ? &copy_least_auto_to : &copy_least_auto_from);
	struct gdr_dma_handle *h = NULL;

	if (pool_of(copy))
		copy_pool_note(pool_of(copy), copy->size, copy->to);
	if (copy->size >= dma || copy->size >= best)
		h = gdr_dma_find(dma_of(copy), copy->key, copy->off, copy->size);
	if (h && copy->size >= dma) {
		if (copy_by_dma(copy, h, gdr_dma_is_locked(h, copy->host)))
			return;
		h = NULL;
	}
	if (copy->size >= best)
		copy_best(copy, h);
	else
		copy_by_cpu(copy);
}
