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

static struct pool defaults[SIM_MAX_DEVICES];
static struct pool *pools;	/* those that were created and not destroyed */

static bool pool_known(const struct pool *pool)
{
	const struct pool *p = pools;

	while (p && p != pool)
		p = p->next;
	return p;
}

/* A chunk of it is gone. */
void pool_put(struct pool *p)
{
	p->chunks--;
	if (p->gone && !p->chunks)
		free(p);
}

unsigned long pool_live(void)
{
	unsigned long n = 0;

	for (const struct pool *p = pools; p; p = p->next)
		n++;
	return n;
}

static int create(struct pool **pool, const struct pool_props *props)
{
	static const uint8_t zeros[sizeof(props->reserved)];
	struct pool *p;

	if (!pool || !props || props->type != 1 || props->win32 || props->location.type != 1 ||
	    check_device(props->location.id) || memcmp(props->reserved, zeros, sizeof(zeros)))
		return CU_INVALID_VALUE;
	if (!rm_mode() || props->handle_types)
		return CU_NOT_SUPPORTED;
	p = calloc(1, sizeof(*p));
	if (!p)
		return CU_OUT_OF_MEMORY;
	*p = (struct pool){ .next = pools, .device = props->location.id, .max = props->max,
			    .access = 1u << props->location.id };
	pools = *pool = p;
	return CU_OK;
}

SIM_API int cuMemPoolCreate(struct pool **pool, const struct pool_props *props)
{
	int result = enter(__func__);

	if (result)
		return result;
	result = create(pool, props);
	leave();
	return result;
}

/* Its memory stays until it is freed. */
SIM_API int cuMemPoolDestroy(struct pool *pool)
{
	struct pool **link = &pools;
	int result = enter(__func__);

	if (result)
		return result;
	while (*link && *link != pool)
		link = &(*link)->next;
	if (*link) {
		*link = pool->next;
		pool->gone = true;
		if (!pool->chunks)
			free(pool);
	} else {
		result = CU_INVALID_VALUE;
	}
	leave();
	return result;
}

/* No GPU reaches another one's memory here, and a pool's own GPU never loses it. */
static bool access_ok(const struct pool *pool, const struct access_desc *d)
{
	bool own = d->location.id == pool->device;

	return d->location.type == 1 && !check_device(d->location.id) && d->flags == (own ? 3 : 0);
}

SIM_API int cuMemPoolSetAccess(struct pool *pool, const struct access_desc *map, size_t count)
{
	size_t i;
	int result = enter(__func__);

	if (result)
		return result;
	if (!pool_known(pool) || !map || !count)
		result = CU_INVALID_VALUE;
	for (i = 0; !result && i < count; i++)
		result = access_ok(pool, &map[i]) ? CU_OK : CU_INVALID_VALUE;
	leave();
	return result;
}

/* What asks for a pool that other processes share: there is none. */
static int shared(const char *name)
{
	int result = enter(name);

	if (result)
		return result;
	leave();
	return CU_INVALID_VALUE;
}

SIM_API int cuMemPoolExportToShareableHandle(void *handle, struct pool *pool, int type, uint64_t flags)
{
	(void)handle, (void)pool, (void)type, (void)flags;
	return shared(__func__);
}

SIM_API int cuMemPoolImportFromShareableHandle(struct pool **pool, void *handle, int type, uint64_t flags)
{
	(void)pool, (void)handle, (void)type, (void)flags;
	return shared(__func__);
}

SIM_API int cuMemPoolExportPointer(void *data, uint64_t addr)
{
	(void)data, (void)addr;
	return shared(__func__);
}

SIM_API int cuMemPoolImportPointer(uint64_t *addr, struct pool *pool, void *data)
{
	(void)addr, (void)pool, (void)data;
	return shared(__func__);
}

static uint64_t used(const struct pool *pool)
{
	uint64_t n = 0;

	for (const struct buffer *b = buffer_first(); b; b = b->next)
		if (b->chunk && b->chunk->pool == pool)
			n += b->size;
	return n;
}

static int alloc(struct ctx *ctx, struct pool *pool, uint64_t *addr, uint64_t size)
{
	struct buffer *b;
	int result;

	if (!rm_mode())
		return CU_NOT_SUPPORTED;
	if (!addr || !size)
		return CU_INVALID_VALUE;
	if (size > mem_free_bytes(pool->device) || (pool->max && size > pool->max - used(pool)))
		return CU_OUT_OF_MEMORY;
	result = alloc_from_pool(ctx, pool, size, &b);
	if (result)
		return result;
	b->readers = b->writers = pool->access;
	*addr = b->addr;
	return CU_OK;
}

/* Without a pool: the device's own. Memory of a graph is not modelled. */
static int alloc_async(const char *name, uint64_t *addr, size_t size, struct pool *pool, bool own,
		       struct stream *stream)
{
	struct ctx *ctx;
	bool now;
	int result = enter_ctx(name, &ctx);

	if (result)
		return result;
	if (own) {
		pool = &defaults[ctx->device];
		pool->device = ctx->device;
		pool->access = ~0u;
	} else if (!pool_known(pool)) {
		result = CU_INVALID_VALUE;
	}
	if (!result)
		result = stream_takes(stream, &now);
	if (!result)
		result = now ? alloc(ctx, pool, addr, size) : CU_NOT_SUPPORTED;
	leave();
	return result;
}

int cuMemAllocAsync(uint64_t *addr, size_t size, struct stream *stream) SIM_HOOKABLE(cuMemAllocAsync);

int cuMemAllocAsync(uint64_t *addr, size_t size, struct stream *stream)
{
	return alloc_async(__func__, addr, size, NULL, true, stream);
}

int cuMemAllocFromPoolAsync(uint64_t *addr, size_t size, struct pool *pool, struct stream *stream)
	SIM_HOOKABLE(cuMemAllocFromPoolAsync);

int cuMemAllocFromPoolAsync(uint64_t *addr, size_t size, struct pool *pool, struct stream *stream)
{
	return alloc_async(__func__, addr, size, pool, false, stream);
}

int cuMemFreeAsync(uint64_t addr, struct stream *stream) SIM_HOOKABLE(cuMemFreeAsync);

int cuMemFreeAsync(uint64_t addr, struct stream *stream)
{
	struct ctx *ctx;
	struct buffer *b;
	bool now;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	b = buffer_find(addr);
	result = stream_takes(stream, &now);
	if (!result && !now) {
		result = CU_NOT_SUPPORTED;
	} else if (result) {
		;
	} else if (!b || !b->chunk || !b->chunk->pool || b->addr != addr) {
		result = CU_INVALID_VALUE;
	} else {
		flush();
		alloc_free(b);
	}
	leave();
	return result;
}
