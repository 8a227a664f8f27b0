/* SPDX-License-Identifier: MIT */
/*
 * pool.h - threads that share long copies. There are none unless the host
 * asks for them.
 *
 * The thread that copies is the caller; it does a share itself, and what of the
 * others' no worker has begun, so a worker that sleeps or is not on a CPU never
 * holds a copy up. Workers that have nothing to do sleep after a short while.
 */
#ifndef GDR_COPY_POOL_H
#define GDR_COPY_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "copy.h"

#pragma GCC visibility push(hidden)

#define COPY_THREADS_MAX 64u

/*
 * How many bytes a shared copy has at least: SIZE_MAX when one thread copies.
 * A fork leaves them as they are: a child wants what its parent wanted.
 */
extern _Atomic size_t copy_least_shared_to, copy_least_shared_from;

/* One process's workers. A child must not touch its parent's. */
struct copy_pool;
typedef _Atomic(struct copy_pool *) copy_pool_ref;

/*
 * Sets how many threads share a copy, the caller among them: 1 to
 * COPY_THREADS_MAX. Starts none. EINVAL changes nothing.
 */
int copy_pool_want(unsigned int reads, unsigned int writes);

/*
 * The same for what the environment asks for: copy_pool_want goes before it. 1 and 1
 * ask for nothing.
 */
void copy_pool_ask(unsigned int reads, unsigned int writes);

/*
 * How many microseconds workers look for work before they sleep, up to
 * COPY_SPIN_US_MAX, or COPY_SPIN_FOREVER. COPY_SPIN_UNSET changes nothing.
 */
#define COPY_SPIN_US_MAX 1000000000u
#define COPY_SPIN_FOREVER UINT64_MAX
#define COPY_SPIN_UNSET (UINT64_MAX - 1)
void copy_pool_spin(uint64_t us);

/* Whether the pool, which may be NULL, has fewer workers than are wanted. */
bool copy_pool_short(struct copy_pool *pool);

/*
 * Makes the pool of *ref have as many workers as are wanted, but less than most,
 * which is not 0. Calls for one ref take turns. Returns 0; ENOMEM or EAGAIN when
 * no more can be had, and ERANGE when most was in the way. Those that there are
 * do their work in each case.
 */
int copy_pool_start(copy_pool_ref *ref, unsigned int most);

/*
 * Moves n > 0 bytes as impl->to or ->from does, by all the threads that are
 * worth it, and fences what the workers moved. The caller fences as for a copy of
 * its own. If the pool is in use, or is NULL, the caller does all.
 *
 * owner tells one thread from another.
 */
void copy_pool_copy(struct copy_pool *pool, const void *owner, const struct copy_impl *impl,
		    void *dev, void *host, size_t n, bool to);

/*
 * Whether threads would help with a copy of n bytes now, if they help with no other:
 * that depends on how many are awake, and on whether it is worth waking some.
 */
enum copy_help { COPY_NO_HELP, COPY_HELP_AWAKE, COPY_HELP_ASLEEP };
enum copy_help copy_pool_help(struct copy_pool *pool, size_t n, bool to);

/* A copy begins that may be shared: called for each, before it. */
void copy_pool_note(struct copy_pool *pool, size_t n, bool to);

/*
 * Whether copies come so close to each other that threads which work for one are
 * awake for the next. pool is not NULL.
 */
bool copy_pool_is_busy(struct copy_pool *pool);

/*
 * How many threads share a copy if nobody has said so by copy_pool_want or the
 * environment; 1 and 1 at first.
 */
void copy_pool_suggest(unsigned int reads, unsigned int writes);

/*
 * Ends the copy that owner left in the midst by siglongjmp, if there is one: when
 * it returns, no worker is at it, and what none had begun is not done.
 */
void copy_pool_settle(struct copy_pool *pool, const void *owner);

#pragma GCC visibility pop

#endif
