/* SPDX-License-Identifier: MIT */
/*
 * long.h - long copies: from which size on other threads or the GPU may help, what they
 * need for that, and who makes a copy. A copy starts no thread and no stream.
 */
#ifndef GDR_LONG_H
#define GDR_LONG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../copy/copy.h"
#include "../host/page.h"
#include "plan.h"
#include "pool.h"

#pragma GCC visibility push(hidden)

/* Threads beside the caller that share long copies: those that the host wants, and those that run. */
struct gdr_long_threads {
	unsigned int wanted, running;
};

/*
 * gdr_long_start_threads starts what is missing of this many. cpus and the result are as for
 * copy_pool_start. The caller of these two has called gdr_guest_enter; the library is open.
 */
struct gdr_long_threads gdr_long_threads(void);
int gdr_long_start_threads(unsigned int threads, const struct copy_cpus *cpus);

/* Ends what others do for a copy that owner left by siglongjmp, if there is one. */
void gdr_long_forget(const struct gdr_front *front, const void *owner);

/* A copy of copy_least_long bytes or more, through write-combined memory. */
struct gdr_long {
	const struct gdr_front *front;
	const void *owner;	/* identifies the thread, as for copy_pool_copy */
	const struct copy_impl *impl;
	uint64_t key;
	uint64_t off;		/* of dev in the mapping of key */
	void *dev, *host;
	size_t size;
	bool to;		/* the device */
};

/*
 * Makes a copy, by whom it shall be made. The caller fences as for a copy that it makes
 * itself. A copy of a signal handler that interrupted another copy is not for this.
 */
void gdr_long_copy(const struct gdr_long *copy);

#pragma GCC visibility pop

#endif
