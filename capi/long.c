// SPDX-License-Identifier: MIT
#include "long.h"

#include <errno.h>
#include <string.h>

#include "copy/auto.h"
#include "copy/cpus.h"
#include "guest.h"
#include "log.h"

/* How many threads share a long copy where the library chooses. */
#define CHOSEN_READ_THREADS 8
#define CHOSEN_WRITE_THREADS 2

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
	int rc, error = errno;

	if (!copy_pool_short(atomic_load(&front->pool)))
		return 0;
	pthread_mutex_lock(&front->lock);
	rc = copy_pool_start(&front->pool, copy_cpus_allowed());
	pthread_mutex_unlock(&front->lock);
	if (rc == ERANGE) {
		gdr_log(GDR_LOG_WARN, "fewer threads share a copy than were asked for: the thread that starts them may run on too few CPUs; let it run on more");
		rc = 0;
	}
	if (rc)
		gdr_log(GDR_LOG_ERROR, "fewer threads share a copy than were asked for: %s; raise the limit of threads or of memory",
			strerror(rc));
	errno = error;
	return rc;
}

static __attribute__((noinline, cold)) void
prepare_dma(struct gdr_front *front, uint64_t h, uint64_t gpu)
{
	bool shares = atomic_load(&copy_least_shared_from) != SIZE_MAX;
	struct gdr_guest guest;

	/* While the lock is held, no signal comes and the thread does not end. */
	gdr_guest_enter(&guest);
	pthread_mutex_lock(&front->lock);
	gdr_dma_map(&front->dma, h, gpu, shares);
	pthread_mutex_unlock(&front->lock);
	gdr_guest_leave(&guest);
}

void gdr_long_mapped(struct gdr_front *front, uint64_t h, uint64_t gpu)
{
	gdr_long_start_threads(front);
	if (copy_auto_is_on() || atomic_load(&gdr_dma_least_to) != SIZE_MAX ||
	    atomic_load(&gdr_dma_least_from) != SIZE_MAX)
		prepare_dma(front, h, gpu);
}
