/* SPDX-License-Identifier: MIT */
/*
 * pool.h - threads that share long copies. There are none unless the host asks for them.
 *
 * The thread that copies is the caller. It does its own share, and then what no worker
 * has begun of the others. So a worker that sleeps, or has no CPU, never delays a copy.
 * Workers without work sleep after a short while.
 */
#ifndef GDR_COPY_POOL_H
#define GDR_COPY_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../copy/copy.h"
#include "../host/page.h"
#include "plan.h"

#pragma GCC visibility push(hidden)

/* One process's workers. A child must not touch its parent's. */
struct copy_pool;

/* How many microseconds workers look for work before they sleep. */
#define COPY_SPIN_US 50u	/* if nobody says */
#define COPY_SPIN_US_MAX 1000000000u
#define COPY_SPIN_FOREVER UINT64_MAX
void copy_pool_spin(uint64_t us);

/* CPUs that a worker may run on, in the form that the system calls take. */
struct copy_cpus {
	unsigned long bits[8192 / 8 / sizeof(unsigned long)];
};

/* How many workers there are. pool may be NULL. */
unsigned int copy_pool_count(struct copy_pool *pool);

/*
 * Gives the pool of *ref this many workers, unless it has more. cpus has the CPUs of each
 * of these, or is NULL. Callers take turns for one ref. Returns 0, or ENOMEM or EAGAIN if
 * no more can be had. The workers that exist work in each case.
 */
int copy_pool_start(copy_pool_ref *ref, unsigned int workers, const struct copy_cpus *cpus);

/*
 * How many threads are worth it for a copy of n bytes now, if no other copy has them. That
 * depends on how many are awake, and on whether it is worth waking some. wakes is the least
 * size for that, or 0 for that of copies of GPU memory. pool may be NULL.
 */
struct copy_help {
	uint32_t shares;	/* the caller's too */
	bool asleep;		/* most workers that have a share */
};
struct copy_help copy_pool_help(struct copy_pool *pool, const struct copy_plan *plan, size_t n, bool to,
				size_t wakes);

/* A copy of n > 0 bytes, as impl->to or ->from makes it. */
struct copy_job {
	const struct copy_impl *impl;
	uint8_t *dev, *host;
	size_t n;
	uint32_t shares;	/* as in struct copy_help; 1: the caller copies alone */
	uint32_t per;		/* chunks in each share: copy_pool_copy sets it */
	bool to;
};

/*
 * Makes the copy. It fences what the workers moved. The caller fences as for a copy of its
 * own. If the pool is in use, the caller copies alone. owner identifies the calling thread.
 */
void copy_pool_copy(struct copy_pool *pool, const void *owner, struct copy_job *job);

/* Called before each copy that may be shared. */
void copy_pool_note(struct copy_pool *pool, size_t n, bool to);

/*
 * Whether copies come so close to each other that the threads of one are still awake for
 * the next. pool is not NULL.
 */
bool copy_pool_is_busy(struct copy_pool *pool);

/*
 * Ends the copy that owner left by siglongjmp, if there is one. When it returns, no
 * worker is at that copy. What no thread had begun is not done.
 */
void copy_pool_settle(struct copy_pool *pool, const void *owner);

#pragma GCC visibility pop

#endif
