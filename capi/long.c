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

void gdr_long_choose(void)
{
	bool on = copy_auto_is_on();

	copy_pool_suggest(on ? CHOSEN_READ_THREADS : 1, on ? CHOSEN_WRITE_THREADS : 1);
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

static __attribute__((noinline, cold)) void
prepare_dma(struct gdr_front *front, uint64_t h, uint64_t gpu)
{
	pthread_mutex_lock(&front->lock);
	gdr_dma_map(&front->dma, h, gpu);
	pthread_mutex_unlock(&front->lock);
}

void gdr_long_mapped(struct gdr_front *front, uint64_t h, uint64_t gpu)
{
	gdr_long_start_threads(front);
	if (copy_auto_is_on() || atomic_load(&gdr_dma_least_to) != SIZE_MAX ||
	    atomic_load(&gdr_dma_least_from) != SIZE_MAX)
		prepare_dma(front, h, gpu);
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
 * The longest read that one core copies out of page-locked memory in less time than the
 * driver would: both sides fit into its L2 cache. It ends shorter ones before threads that
 * it wakes could help (H200, a Xeon of the fourth generation).
 */
#define ALONE_OUT ((size_t)1 << 20)

/* Copies a part of a read out of the ring. */
static void copy_out(const void *arg, void *to, void *locked, size_t n)
{
	static const struct copy_impl plain = {
		.from = copy_plainly, .chunk = 8192, .wakes = SIZE_MAX,
	}, waking = {
		.from = copy_plainly, .chunk = 8192, .wakes = 1,
	};
	const struct gdr_long *copy = arg;

	copy_pool_copy(pool_of(copy), copy->owner, copy->size < ALONE_OUT ? &plain : &waking,
		       locked, to, n, false);
}

static bool is_for_ring(const struct gdr_long *copy)
{
	return !copy->to && (copy->size <= ALONE_OUT ||
			     copy_pool_help(pool_of(copy), copy->size, false) != COPY_NO_HELP);
}

/* The caller's own stores to the mapping must land before the engine starts. */
static bool copy_by_dma(const struct gdr_long *copy, bool locked)
{
	const struct gdr_dma_copy by_dma = {
		.key = copy->key, .off = copy->off, .host = copy->host, .n = copy->size,
		.to = copy->to, .locked = locked,
		.out = !locked && is_for_ring(copy) ? copy_out : NULL, .arg = copy,
	};

	copy_fence_store();
	return gdr_dma_copy(dma_of(copy), &by_dma);
}

/*
 * The least copies for which the driver is asked about the host memory. The engine takes 7
 * us for any read, and one core writes less than this in half the engine's time (H200).
 */
#define ASKS_LEAST_FROM ((size_t)8 << 10)
#define ASKS_LEAST_TO ((size_t)512 << 10)

static enum copy_way way_of_dma(const struct gdr_long *copy)
{
	if (copy->size < (copy->to ? ASKS_LEAST_TO : ASKS_LEAST_FROM))
		return COPY_DMA;
	return gdr_dma_is_locked(dma_of(copy), copy->host) ? COPY_DMA_LOCKED : COPY_DMA;
}

/* The ways that a copy can be made now, one bit each. */
static unsigned int ways_for(const struct gdr_long *copy)
{
	unsigned int ways = 1u << COPY_ALONE;

	if (gdr_dma_has(dma_of(copy), copy->key))
		ways |= 1u << way_of_dma(copy);
	switch (copy_pool_help(pool_of(copy), copy->size, copy->to)) {
	case COPY_HELP_AWAKE: return ways | 1u << COPY_SHARED;
	case COPY_HELP_ASLEEP: return ways | 1u << COPY_WAKING;
	default: return ways;
	}
}

static enum copy_way choose(const struct gdr_long *copy)
{
	unsigned int ways = ways_for(copy);
	enum copy_way way = copy_auto_choose(copy->size, copy->to, ways);

	/* Wakes threads for the next copies, if copies come close to each other. */
	if ((ways & 1u << COPY_WAKING) && copy_pool_is_busy(pool_of(copy)) &&
	    copy_auto_expect(copy->size, copy->to, COPY_SHARED) <
		    copy_auto_expect(copy->size, copy->to, way))
		return COPY_WAKING;
	return way;
}

/* Returns the way that the copy was made in the end. */
static enum copy_way copy_by(const struct gdr_long *copy, enum copy_way way)
{
	if (way >= COPY_DMA && copy_by_dma(copy, way == COPY_DMA_LOCKED))
		return way;
	if (way == COPY_SHARED || way == COPY_WAKING) {
		copy_by_cpu(copy);
		return way;
	}
	if (copy->to)
		copy->impl->to(copy->dev, copy->host, copy->size);
	else
		copy->impl->from(copy->host, copy->dev, copy->size);
	return COPY_ALONE;
}

/* Makes the copy in the way that should take the least time. */
static void copy_best(const struct gdr_long *copy)
{
	enum copy_way way = choose(copy);
	bool learns = copy_auto_learns(copy->size, copy->to, way);
	uint64_t begin = learns ? copy_now_ns() : 0;

	way = copy_by(copy, way);
	if (!learns)
		return;
	if (copy->to)
		copy_fence_store();
	copy_auto_learn(copy->size, copy->to, way, copy_now_ns() - begin);
}

void gdr_long_copy(const struct gdr_long *copy)
{
	_Atomic size_t *least_dma = copy->to ? &gdr_dma_least_to : &gdr_dma_least_from;
	_Atomic size_t *least_auto = copy->to ? &copy_least_auto_to : &copy_least_auto_from;

	if (pool_of(copy))
		copy_pool_note(pool_of(copy), copy->size, copy->to);
	if (copy->size >= atomic_load(least_dma) && gdr_dma_has(dma_of(copy), copy->key) &&
	    copy_by_dma(copy, gdr_dma_is_locked(dma_of(copy), copy->host)))
		return;
	if (copy->size >= atomic_load(least_auto))
		copy_best(copy);
	else
		copy_by_cpu(copy);
}
