/* SPDX-License-Identifier: MIT */
/*
 * cache.h - registration caches: ranges of GPU memory that stay pinned and
 * mapped while nobody uses them. gdrapi_ext.h is the contract.
 */
#ifndef GDR_CACHE_H
#define GDR_CACHE_H

#include <stdatomic.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* The caches of a process; NULL: there never was one. A child must not touch it. */
struct gdr_caches;
typedef _Atomic(struct gdr_caches *) gdr_caches_ref;

/*
 * Ends the caches of the open library g, whose pinnings the caller ends next.
 * No call on one of them is under way when it returns.
 */
void gdr_cache_forget(uint64_t g);

#pragma GCC visibility pop

#endif
