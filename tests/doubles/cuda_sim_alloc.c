// SPDX-License-Identifier: MIT
/* Simulated libcuda: cuMemAlloc, and the chunks of pools. Test code. */
#include "cuda_sim.h"

#include <stdlib.h>
#include <unistd.h>

#include "rm_uapi.h"

#define SMALL (64u << 10)	/* buffers below this share chunks */
#define ALIGN 512ull		/* alignment of each buffer's address */
#define PITCH 512u	/* rows of cuMemAllocPitch begin at multiples of it */
#define POOL_SIZE (32ull << 20)
#define POOL_START (1ull << 20)	/* offset of the first buffer in a pool's chunk */

static struct chunk *chunks;

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

/* Other GPUs than its own reach a chunk of a pool by objects of their own, at the same addresses. */
static int chunk_reach(struct chunk *c, int device)
{
	struct uvm u = { .kind = UVM_BLOCK, .addr = c->addr, .size = c->size, .owner = c->pool->device, .fabric = true };
	int result = object_new(rm_subdevice(u.owner), RM_CLASS_FABRIC, c->size, &u.object);

	if (result)
		return result;
	result = uvm_begin(&u, 1u << device, &c->ways[device]);
	if (result)
		object_free(rm_subdevice(u.owner), u.object);
	return result;
}

static void chunk_part(struct chunk *c, int device)
{
	uint32_t object = c->ways[device]->object;

	if (uvm_end(c->ways[device]))
		return;
	object_free(rm_subdevice(c->pool->device), object);
	c->ways[device] = NULL;
}

/* The GPUs that may use the pool reach the chunk, and no others. */
static int chunk_ways(struct chunk *c, unsigned int gpus)
{
	int result = CU_OK;

	for (int i = 0; i < device_count() && !result; i++)
		if (c->ways[i] && !(gpus & 1u << i))
			chunk_part(c, i);
		else if (!c->ways[i] && gpus & 1u << i)
			result = chunk_reach(c, i);
	return result;
}

int alloc_reach(const struct pool *pool)
{
	int result = CU_OK;

	for (struct chunk *c = chunks; c && !result; c = c->next)
		if (c->pool == pool)
			result = chunk_ways(c, pool->mapped);
	return result;
}

static struct chunk *chunk_new(struct ctx *ctx, uint64_t size, struct pool *pool, int *result)
{
	struct chunk *c = calloc(1, sizeof(*c));

	*result = CU_OUT_OF_MEMORY;
	if (!c)
		return NULL;
	c->ctx = ctx;
	c->size = size;
	c->pool = pool;
	c->mem = mem_new(pool ? pool->device : ctx->device, size, result);
	if (!c->mem)
		goto fail;
	if (pool)
		*result = (c->addr = alloc_place(pool, size)) ? chunk_ways(c, pool->mapped) : CU_OUT_OF_MEMORY;
	else
		*result = va_take(size, GRANULARITY, false, &c->addr);
	if (*result)
		goto fail_mem;
	*result = mem_map(c->mem, c->addr, size, ctx, pool);
	if (*result)
		goto fail_va;
	c->next = chunks;
	chunks = c;
	if (pool)
		pool->chunks++;
	return c;
fail_va:
	if (!pool)
		va_release(c->addr);
fail_mem:
	chunk_ways(c, 0);
	mem_put(c->mem);
fail:
	free(c);
	return NULL;
}

/* The caller has unmapped it. */
static void chunk_free(struct chunk *c)
{
	LIST_TAKE(chunks, c);
	if (!c->pool)
		va_release(c->addr);
	chunk_ways(c, 0);
	mem_put(c->mem);
	if (c->pool)
		pool_put(c->pool);
	free(c);
}

/* The first gap of a pool's space that has room for size bytes; 0 if there is none. */
uint64_t alloc_place(const struct pool *pool, uint64_t size)
{
	uint64_t at = pool->addr;
	const struct chunk *c = chunks;

	while (c) {
		if (c->pool == pool && c->addr < at + size && at < c->addr + c->size) {
			at = c->addr + c->size;
			c = chunks;
		} else {
			c = c->next;
		}
	}
	return at + size <= pool->addr + pool->size ? at : 0;
}

/* The first gap of the chunk that has room for size bytes; 0 if there is none. */
static uint64_t chunk_gap(const struct chunk *c, uint64_t size)
{
	uint64_t at = c->addr + (c->pool ? POOL_START : 0), end = c->addr + c->size;
	const struct buffer *b;

	for (b = buffer_first(); b && b->addr < end; b = b->next) {
		if (b->chunk != c)
			continue;
		if (b->addr >= at && b->addr - at >= size)
			return at;
		at = round_up(b->addr + b->size, ALIGN);
	}
	return end >= at && end - at >= size ? at : 0;
}

/* A buffer in an existing chunk, or in a new one of that size. */
static int alloc_in_chunk(struct ctx *ctx, uint64_t size, uint64_t chunk_size,
			  struct pool *pool, struct buffer **b)
{
	int result = CU_OUT_OF_MEMORY;
	uint64_t at = 0;
	struct chunk *c;

	for (c = chunks; c; c = c->next) {
		at = c->ctx == ctx && c->pool == pool ? chunk_gap(c, size) : 0;
		if (at)
			break;
	}
	if (!c) {
		c = chunk_new(ctx, chunk_size, pool, &result);
		if (!c)
			return result;
		at = chunk_gap(c, size);
	}
	*b = buffer_add(at, size, c->mem, at - c->addr);
	if (!*b) {
		if (!c->buffers && !mem_unmap(c->addr))
			chunk_free(c);
		return CU_OUT_OF_MEMORY;
	}
	(*b)->chunk = c;
	c->buffers++;
	return CU_OK;
}

static int alloc_big(struct ctx *ctx, uint64_t size, struct buffer **b)
{
	uint64_t addr;
	struct mem *m;
	int result;

	m = mem_new(ctx->device, round_up(size, GPU_PAGE), &result);
	if (!m)
		return result;
	result = va_take(round_up(size, GRANULARITY), GRANULARITY, false, &addr);
	if (result)
		goto out;
	result = mem_map(m, addr, m->size, ctx, false);
	if (result)
		goto fail_va;
	*b = buffer_add(addr, size, m, 0);
	if (*b)
		goto out;
	result = CU_OUT_OF_MEMORY;
	mem_unmap(addr);
fail_va:
	va_release(addr);
out:
	mem_put(m);
	return result;
}

static int alloc(struct ctx *ctx, uint64_t *addr, size_t size, const void *caller)
{
	struct buffer *b = NULL;
	int result;

	if (!addr || !size)
		return CU_INVALID_VALUE;
	if (size > mem_free_bytes(ctx->device))
		return CU_OUT_OF_MEMORY;
	result = size < SMALL ? alloc_in_chunk(ctx, size, GRANULARITY, NULL, &b) :
				alloc_big(ctx, size, &b);
	if (result)
		return result;
	b->ctx = ctx;
	b->readers = b->writers = ~0u;
	*addr = b->addr;
	strict_made(b->addr, size, caller);
	return CU_OK;
}

SIM_CALL_CTX(cuMemAlloc_v2, (uint64_t *addr, size_t size), alloc(current_ctx(), addr, size, CALLER))

static int alloc_pitch(struct ctx *ctx, uint64_t *addr, size_t *pitch, size_t width, size_t height, unsigned int element,
		       const void *caller)
{
	size_t row = round_up(width, PITCH);
	int result;

	if (!pitch || !width || !height || row < width || row > SIZE_MAX / height ||
	    (element != 4 && element != 8 && element != 16))
		return CU_INVALID_VALUE;
	result = alloc(ctx, addr, row * height, caller);
	if (!result)
		*pitch = row;
	return result;
}

SIM_CALL_CTX(cuMemAllocPitch_v2, (uint64_t *addr, size_t *pitch, size_t width, size_t height, unsigned int element),
		    alloc_pitch(current_ctx(), addr, pitch, width, height, element, CALLER))

/* Nothing has changed if this fails. */
int alloc_free(struct buffer *b)
{
	struct chunk *c = b->chunk;
	uint64_t addr = b->addr;
	int result = !c || c->buffers == 1 ? mem_unmap(c ? c->addr : addr) : CU_OK;

	if (result)
		return result;
	buffer_drop(b);
	if (!c)
		va_release(addr);
	else if (!--c->buffers)
		chunk_free(c);
	return CU_OK;
}

static int free_at(uint64_t addr)
{
	struct buffer *b = buffer_find(addr);

	if (!b)
		return host_free(addr, true);
	if (b->handle || b->import || b->addr != addr)
		return CU_INVALID_VALUE;
	kernel_wait();
	flush();
	return alloc_free(b);
}

/* The address identifies the context. As in the real driver, none needs to be current. */
SIM_CALL(cuMemFree_v2, (uint64_t addr), free_at(addr))

/* Frees the buffers of a context that ends. What UVM does not let go stays. */
void alloc_forget(struct ctx *ctx)
{
	struct buffer *b, *next;

	for (b = buffer_first(); b; b = next) {
		next = b->next;
		if (b->ctx == ctx && b->import)
			ipc_close(b);
		else if (b->ctx == ctx)
			alloc_free(b);
	}
}

/* Memory of a pool, which counts in chunks of the context. */
int alloc_from_pool(struct ctx *ctx, struct pool *pool, uint64_t size, struct buffer **b)
{
	uint64_t chunk_size = round_up(size + POOL_START, GRANULARITY);
	int result = pool_open(pool);

	if (!result)
		result = alloc_in_chunk(ctx, size, chunk_size > POOL_SIZE ? chunk_size : POOL_SIZE, pool, b);
	if (!result)
		(*b)->ctx = ctx;
	return result;
}

SIM_CALL_CTX(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total),
	     GIVE(free_bytes, mem_free_bytes(current_ctx()->device)) ?: GIVE(total, mem_total()))

/* Memory of another GPU is not found. 580.159.04 does the same. */
static int address_range(uint64_t *base, size_t *size, uint64_t addr)
{
	const struct buffer *b = buffer_find(addr);

	if (!base && !size)
		return CU_INVALID_VALUE;
	if (!b || b->mem->device != current_ctx()->device)
		return CU_NOT_FOUND;
	if (base)
		*base = b->addr;
	if (size)
		*size = b->size;
	return CU_OK;
}

SIM_QUESTION(enter_ctx, cuMemGetAddressRange_v2, addr, (uint64_t *base, size_t *size, uint64_t addr),
	     address_range(base, size, addr))
