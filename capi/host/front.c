// SPDX-License-Identifier: MIT
/*
 * front.c - the page that a fork empties, and which handles belong to this process.
 * docs/design.md has the picture.
 */
#define _GNU_SOURCE
#include "front.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "log.h"
#include "start.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18	/* Linux 4.14 */
#endif

_Atomic(struct gdr_front *) gdr_front_page;

/*
 * The epoch of the newest core of this process or its ancestors. It outlives a fork on
 * purpose. It is written under gdr_front.lock.
 */
static _Atomic uint64_t last_epoch;

/* For kernels before 4.14, which cannot empty the page in a fork. */
static void empty_page_in_child(void)
{
	memset(atomic_load(&gdr_front_page), 0, sizeof(struct gdr_front));
}

static struct gdr_front *front_page(void)
{
	struct gdr_front *page, *theirs = NULL;
	size_t len = sizeof(struct gdr_front);

	page = atomic_load_explicit(&gdr_front_page, memory_order_acquire);
	if (page)
		return page;
	page = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return NULL;
	bool wiped = madvise(page, len, MADV_WIPEONFORK) == 0;

	if (!atomic_compare_exchange_strong(&gdr_front_page, &theirs, page)) {
		munmap(page, len);
		return theirs;
	}
	if (!wiped)
		pthread_atfork(NULL, NULL, empty_page_in_child);
	return page;
}

/* Under the lock. */
static int start_next_epoch(struct gdr_front *front, gdr_core_init *init)
{
	uint64_t epoch = atomic_load(&last_epoch) + 1;
	int rc;

	if (epoch > GDR_HANDLE_EPOCH_MAX) {
		gdr_log(GDR_LOG_ERROR, "gdr_open: %d generations of forks have opened; no more handles to tell apart",
			GDR_HANDLE_EPOCH_MAX);
		return EAGAIN;
	}
	rc = gdr_start(front, init, epoch);
	if (rc)
		return rc;
	front->epoch = epoch;
	atomic_store(&last_epoch, epoch);
	atomic_store_explicit(&front->up, 1, memory_order_release);
	return 0;
}

int gdr_front_start(const struct gdr_options *opts, gdr_core_init *init)
{
	struct gdr_front *front = front_page();
	int rc;

	if (!front)
		return ENOMEM;
	if (atomic_load_explicit(&front->up, memory_order_acquire))
		return 0;
	rc = gdr_start_prepare(opts);
	if (rc)
		return rc;
	pthread_mutex_lock(&front->lock);
	if (!atomic_load_explicit(&front->up, memory_order_relaxed))
		rc = start_next_epoch(front, init);
	pthread_mutex_unlock(&front->lock);
	return rc;
}

bool gdr_front_inherited(uint64_t handle)
{
	uint64_t epoch = handle >> GDR_HANDLE_EPOCH_SHIFT;
	struct gdr_front *front;

	if (!epoch)
		return false;
	front = gdr_front_here();
	return epoch != (front ? front->epoch : 0) && epoch <= atomic_load(&last_epoch);
}

static int refuse_inherited(void)
{
	gdr_log(GDR_LOG_ERROR, "a handle from before fork() does not work in the child; call gdr_open here (errno %d)",
		EACCES);
	return EACCES;
}

int gdr_front_close_inherited(uint64_t g)
{
	struct gdr_front *front = atomic_load(&gdr_front_page);

	for (uint32_t i = 0; i < GDR_INHERITED_MAX; i++)
		if (atomic_load(&front->inherited[i]) == g)
			return refuse_inherited();
	atomic_store(&front->inherited[atomic_fetch_add(&front->inherited_closed, 1) % GDR_INHERITED_MAX], g);
	return 0;
}

int gdr_front_admit(uint64_t a, uint64_t b)
{
	if (gdr_front_inherited(a) || gdr_front_inherited(b))
		return refuse_inherited();
	if (gdr_front_here())
		return 0;
	gdr_log(GDR_LOG_ERROR, "no gdr_t is open in this process; call gdr_open first (errno %d)", EINVAL);
	return EINVAL;
}
