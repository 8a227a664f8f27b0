// SPDX-License-Identifier: MIT
/*
 * cache_hits.c - the registration caches of gdrapi_ext.h: hits and puts.
 *
 * A hit takes no lock, makes no system call and enters no Go:
 *
 * 1. It finds the cache by its handle.
 * 2. It searches the cache's ranges for the last one that starts at or before the bytes.
 * 3. It asks the CUDA driver for the buffer ID of the memory at the bytes.
 * 4. It takes a hold of the range (cache_range.h).
 * 5. It checks the range: it is of this cache and of that allocation, has all the bytes,
 *    and is mapped. If not, the hit gives the hold back.
 *
 * Step 3 comes before step 4. The driver never gives one ID to two allocations. So memory
 * with the range's ID is the memory that the range was pinned for. It stays so while the
 * caller does not free it.
 *
 * All else enters Go, once.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>

#include "../include/gdrapi_ext.h"
#include "cache_range.h"
#include "core.h"
#include "guest/front.h"
#include "guest/log.h"

#define CU_POINTER_ATTRIBUTE_BUFFER_ID 7

/* cuPointerGetAttribute: it needs no current context. */
typedef int (*attribute_fn)(void *value, int attribute, uint64_t addr);

/*
 * The open cache with this handle, or NULL. For handle 0 it may return a cache that is
 * being closed. Such a cache has no ranges, so nothing is found in it.
 */
static inline struct cache *find_cache(uint64_t handle)
{
	const struct gdr_slot *slot = gdr_slot_of(&gdr_front.table, handle);
	struct cache *cache;

	if (!slot)
		return NULL;
	cache = (struct cache *)(uintptr_t)atomic_load_explicit(&slot->cache, memory_order_acquire);
	if (!cache || atomic_load_explicit(&cache->key, memory_order_acquire) != handle)
		return NULL;
	return cache;
}

/* The slot of a range's handle, where a cache was found. */
static inline struct gdr_slot *slot_of(uint64_t handle)
{
	return (struct gdr_slot *)gdr_slot_of(&gdr_front.table, handle);
}

/*
 * Step 5, after the hold was taken; c is the cache's handle. If it returns true, the
 * words that were read are those of one range.
 */
static inline bool confirms(const struct gdr_slot *slot, uint64_t handle, uint64_t c,
			    uint64_t addr, uint64_t size, uint64_t id, uint64_t *va)
{
	const struct range *r = &slot->range;
	uint64_t start = atomic_load_explicit(&r->start, memory_order_acquire);
	uint64_t end = atomic_load_explicit(&r->end, memory_order_acquire);
	bool good = addr >= start && addr < end && size <= end - addr;

	good &= atomic_load_explicit(&r->id, memory_order_acquire) == id;
	good &= atomic_load_explicit(&r->owner, memory_order_acquire) == c;
	*va = atomic_load_explicit(&r->va, memory_order_acquire) + (addr - start);
	good &= gdr_slot_read(slot, handle).type != 0;
	return good && range_is_there(r, handle);
}

/*
 * Returns the handle of a range that has the bytes, and takes a hold of it. 0: there is
 * none. A hold that is given back here may have kept a retired range alive. The caller
 * then asks the core, which makes room.
 */
static inline uint64_t find_and_hold(const struct cache *cache, uint64_t c, uint64_t addr,
				     uint64_t size, uint64_t *va)
{
	const struct span *spans = (const struct span *)(uintptr_t)cache->spans;
	uint32_t n = atomic_load_explicit(&cache->count, memory_order_acquire);
	uint32_t i = span_before(spans, n, addr);
	uint64_t handle, left, id = 0;
	struct gdr_slot *slot;

	if (i == n)
		return 0;
	handle = atomic_load_explicit(&spans[i].handle, memory_order_acquire);
	if (((attribute_fn)(uintptr_t)cache->attribute)(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, addr))
		return 0;
	slot = slot_of(handle);
	if (!range_hold(&slot->range, handle))
		return 0;
	if (confirms(slot, handle, c, addr, size, id, va)) {
		atomic_store_explicit(&slot->range.used, range_clock(), memory_order_relaxed);
		return handle;
	}
	range_let_go(&slot->range, handle, &left);
	return 0;
}

int gdr_cache_get(gdr_cache_t c, unsigned long addr, size_t size, gdr_mh_t *mh, void **va)
{
	struct cache *cache = find_cache(c.h);
	uint64_t handle, at;

	if (!cache || !mh || !va || !size)
		return gdr_cache_get_slowly(c, addr, size, mh, va);
	handle = find_and_hold(cache, c.h, addr, size, &at);
	if (!handle)
		return gdr_cache_get_slowly(c, addr, size, mh, va);
	mh->h = handle;
	*va = (void *)(uintptr_t)at;
	return 0;
}

static __attribute__((noinline, cold)) int put_nothing(gdr_cache_t c, gdr_mh_t mh)
{
	int rc = gdr_front_admit(c.h, mh.h);

	if (rc)
		return rc;
	if (!find_cache(c.h))
		return gdr_refuse("gdr_cache_put", "no open cache has this handle; put each handle once, before its cache or gdr_t is closed");
	gdr_log(GDR_LOG_ERROR, "gdr_cache_put: nobody holds %#lx, or it is not of this cache (errno %d)",
		mh.h, EINVAL);
	return EINVAL;
}

int gdr_cache_put(gdr_cache_t c, gdr_mh_t mh)
{
	struct cache *cache = find_cache(c.h);
	uint64_t left;
	struct range *r;

	if (!cache || (c.h ^ mh.h) >> GDR_HANDLE_EPOCH_SHIFT || !gdr_slot_is_made(&gdr_front.table, mh.h))
		return put_nothing(c, mh);
	r = &slot_of(mh.h)->range;
	if (atomic_load_explicit(&r->owner, memory_order_acquire) != c.h ||
	    !range_let_go(r, mh.h, &left))
		return put_nothing(c, mh);
	/* The last hold of an unwanted range has ended, or the cache is too big. */
	if (!holds_in(left) && (left & RETIRED || atomic_load(&cache->room) < 0))
		gdr_cache_settle(c);
	return 0;
}
