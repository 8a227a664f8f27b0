// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: memory pools, and memory in the order of a stream. Test code.
 *
 * They are there on the simulated driver alone: outside of it a pool's memory could be
 * exported, which a real one's cannot. No pool is shared with other processes: attribute 119 names
 * no type of handle.
 */
#include "cuda_sim.h"

#include <stdlib.h>
#include <string.h>

/* CUmemPoolProps */
struct pool_props {
	int type;	/* 1: pinned */
	int handle_types;
	struct location location;
	void *win32;
	size_t max;
	uint8_t reserved[56];	/* zeros */
};

_Static_assert(sizeof(struct pool_props) == 88, "CUmemPoolProps");

#define SPACE (64ull << 30)	/* as much as a GPU has */

static struct pool defaults[SIM_MAX_DEVICES];
static struct pool *pools;	/* those that were created and not destroyed */

static bool is_made(const struct pool *pool)
{
	return LIST_FIND(p, pools, p == pool);
}

/* Its space, at the first use: as much as there is room for. */
int pool_open(struct pool *p)
{
	uint64_t addr;
	int result = CU_OUT_OF_MEMORY;

	if (p->addr)
		return CU_OK;
	for (p->size = SPACE; result && p->size >= GRANULARITY; p->size /= 2)
		result = va_take(p->size, GRANULARITY, false, &addr);
	if (result)
		return result;
	p->size *= 2;
	result = uvm_begin(&(struct uvm){ .kind = UVM_SPACE, .addr = addr, .size = p->size, .owner = p->device }, 0,
			   &p->space);
	if (result)
		va_release(addr);
	else
		p->addr = addr;
	return result;
}

/* A destroyed pool goes with its last chunk. */
static void pool_end(struct pool *p)
{
	if (!p->gone || p->chunks)
		return;
	if (p->addr && !uvm_end(p->space))
		va_release(p->addr);
	free(p);
}

/* A chunk of it is gone. */
void pool_put(struct pool *p)
{
	p->chunks--;
	pool_end(p);
}

static int create(struct pool **pool, const struct pool_props *props)
{
	static const uint8_t zeros[sizeof(props->reserved)];
	struct pool *p;

	if (!pool || !props || props->type != 1 || props->win32 || props->location.type != 1 ||
	    check_device(props->location.id) || memcmp(props->reserved, zeros, sizeof(zeros)))
		return CU_INVALID_VALUE;
	if (!rm_mode() || props->handle_types || props->max)
		return CU_NOT_SUPPORTED;
	p = calloc(1, sizeof(*p));
	if (!p)
		return CU_OUT_OF_MEMORY;
	*p = (struct pool){ .next = pools, .device = props->location.id, .access = 1u << props->location.id };
	pools = *pool = p;
	live++;
	return CU_OK;
}

SIM_CALL(cuMemPoolCreate, (struct pool **pool, const struct pool_props *props), create(pool, props))

/* Its memory stays until it is freed. */
static int destroy(struct pool *pool)
{
	if (!is_made(pool))
		return CU_INVALID_VALUE;
	LIST_TAKE(pools, pool);
	live--;
	pool->gone = true;
	pool_end(pool);
	return CU_OK;
}

SIM_CALL(cuMemPoolDestroy, (struct pool *pool), destroy(pool))

/* A pool's own GPU never loses it. */
static bool access_ok(const struct pool *pool, const struct access_desc *d)
{
	bool own = d->location.id == pool->device;

	return d->location.type == 1 && !check_device(d->location.id) && (d->flags == 3 || (!own && !d->flags));
}

static bool is_default(const struct pool *pool)
{
	return pool >= defaults && pool < defaults + SIM_MAX_DEVICES;
}

/* One GPU's. Buffers that are there are its own, too. */
static int grant(struct pool *pool, int device, bool may)
{
	unsigned int bit = 1u << device;
	int result;

	if (device == pool->device)
		return CU_OK;
	pool->mapped = may ? pool->mapped | bit : pool->mapped & ~bit;
	result = alloc_reach(pool);
	if (!is_default(pool))
		pool->access = may ? pool->access | bit : pool->access & ~bit;
	for (struct buffer *b = buffer_first(); b; b = b->next)
		if (b->chunk && b->chunk->pool == pool)
			b->readers = b->writers = pool->access;
	return result;
}

static int set_access(struct pool *pool, const struct access_desc *map, size_t count)
{
	int result = CU_OK;

	if ((!is_default(pool) && !is_made(pool)) || !map || !count)
		return CU_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		if (!access_ok(pool, &map[i]))
			return CU_INVALID_VALUE;
	for (size_t i = 0; i < count && !result; i++)
		result = grant(pool, map[i].location.id, map[i].flags);
	return result;
}

SIM_CALL(cuMemPoolSetAccess, (struct pool *pool, const struct access_desc *map, size_t count),
	 set_access(pool, map, count))

/* What asks for a pool that other processes share: there is none. */
SIM_CALL(cuMemPoolExportToShareableHandle, (void *handle, struct pool *pool, int type, uint64_t flags),
	 ((void)handle, (void)pool, (void)type, (void)flags, CU_INVALID_VALUE))
SIM_CALL(cuMemPoolImportFromShareableHandle, (struct pool **pool, void *handle, int type, uint64_t flags),
	 ((void)pool, (void)handle, (void)type, (void)flags, CU_INVALID_VALUE))
SIM_CALL(cuMemPoolExportPointer, (void *data, uint64_t addr), ((void)data, (void)addr, CU_INVALID_VALUE))
SIM_CALL(cuMemPoolImportPointer, (uint64_t *addr, struct pool *pool, void *data),
	 ((void)addr, (void)pool, (void)data, CU_INVALID_VALUE))

static int alloc(struct ctx *ctx, struct pool *pool, uint64_t *addr, uint64_t size, const void *caller)
{
	struct buffer *b;
	int result;

	if (!rm_mode())
		return CU_NOT_SUPPORTED;
	if (!addr || !size)
		return CU_INVALID_VALUE;
	if (size > mem_free_bytes(pool->device))
		return CU_OUT_OF_MEMORY;
	result = alloc_from_pool(ctx, pool, size, &b);
	if (result)
		return result;
	b->readers = b->writers = pool->access;
	*addr = b->addr;
	strict_made(b->addr, size, caller);
	return CU_OK;
}

/* The device's own. */
static struct pool *default_pool(int device)
{
	struct pool *p = &defaults[device];

	p->device = device;
	p->access = ~0u;
	return p;
}

static int give_default(struct pool **pool, int device)
{
	int result = pool ? check_device(device) : CU_INVALID_VALUE;

	if (!result)
		*pool = default_pool(device);
	return result;
}

SIM_CALL(cuDeviceGetDefaultMemPool, (struct pool **pool, int device),
	 rm_mode() ? give_default(pool, device) : CU_NOT_SUPPORTED)

/* Memory of a graph is not modelled. */
static int alloc_async(uint64_t *addr, size_t size, struct pool *pool, struct stream *stream, const void *caller)
{
	bool now;
	int result = stream_takes(stream, &now);

	if (result)
		return result;
	return now ? alloc(current_ctx(), pool, addr, size, caller) : CU_NOT_SUPPORTED;
}

SIM_CALL_CTX(cuMemAllocAsync, (uint64_t *addr, size_t size, struct stream *stream),
		    alloc_async(addr, size, default_pool(current_ctx()->device), stream, CALLER))
SIM_CALL_CTX(cuMemAllocFromPoolAsync,
		    (uint64_t *addr, size_t size, struct pool *pool, struct stream *stream),
		    is_default(pool) || is_made(pool) ? alloc_async(addr, size, pool, stream, CALLER) : CU_INVALID_VALUE)

static int free_async(uint64_t addr, const struct stream *stream)
{
	struct buffer *b = buffer_find(addr);
	bool now;
	int result = stream_takes(stream, &now);

	if (result)
		return result;
	if (!now)
		return CU_NOT_SUPPORTED;
	if (!b || !b->chunk || !b->chunk->pool || b->addr != addr)
		return CU_INVALID_VALUE;
	flush();
	return alloc_free(b);
}

SIM_CALL_CTX(cuMemFreeAsync, (uint64_t addr, struct stream *stream),
		    free_async(addr, stream))
