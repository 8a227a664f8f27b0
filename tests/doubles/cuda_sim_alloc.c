// SPDX-License-Identifier: MIT
/* Simulated libcuda: cuMemAlloc, host memory and pointer attributes. Test code. */
#include "cuda_sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALL (64u << 10)	/* buffers below this share chunks */
#define ALIGN 512ull		/* of the address of each */

struct host {
	struct host *next;
	uint64_t addr, size;
};

static struct chunk *chunks;
static struct host *hosts;

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static struct chunk *chunk_new(struct ctx *ctx, int *result)
{
	struct chunk *c = calloc(1, sizeof(*c));

	*result = CU_OUT_OF_MEMORY;
	if (!c)
		return NULL;
	c->ctx = ctx;
	c->mem = mem_new(ctx->device, GRANULARITY, result);
	if (!c->mem)
		goto fail;
	*result = va_take(GRANULARITY, GRANULARITY, 0, false, &c->addr);
	if (*result)
		goto fail_mem;
	*result = mem_map(c->mem, c->addr, GRANULARITY, &c->tokens);
	if (*result)
		goto fail_va;
	c->next = chunks;
	chunks = c;
	return c;
fail_va:
	va_release(c->addr);
fail_mem:
	mem_put(c->mem);
fail:
	free(c);
	return NULL;
}

static void chunk_free(struct chunk *c)
{
	struct chunk **link = &chunks;

	while (*link != c)
		link = &(*link)->next;
	*link = c->next;
	mem_unmap(c->mem, c->addr);
	va_release(c->addr);
	mem_put(c->mem);
	free(c);
}

/* The first gap of the chunk that takes size bytes, 0 if none does. */
static uint64_t chunk_gap(const struct chunk *c, uint64_t size)
{
	uint64_t at = c->addr, end = c->addr + GRANULARITY;
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

static int alloc_small(struct ctx *ctx, uint64_t size, struct buffer **b)
{
	int result = CU_OUT_OF_MEMORY;
	uint64_t at = 0;
	struct chunk *c;

	for (c = chunks; c; c = c->next) {
		at = c->ctx == ctx ? chunk_gap(c, size) : 0;
		if (at)
			break;
	}
	if (!c) {
		c = chunk_new(ctx, &result);
		if (!c)
			return result;
		at = c->addr;
	}
	*b = buffer_add(at, size, c->mem, at - c->addr);
	if (!*b) {
		if (!c->buffers)
			chunk_free(c);
		return CU_OUT_OF_MEMORY;
	}
	(*b)->chunk = c;
	c->buffers++;
	return CU_OK;
}

static int alloc_big(struct ctx *ctx, uint64_t size, struct buffer **b)
{
	struct p2p_tokens tokens;
	uint64_t addr;
	struct mem *m;
	int result;

	m = mem_new(ctx->device, round_up(size, (uint64_t)getpagesize()), &result);
	if (!m)
		return result;
	result = va_take(round_up(size, GRANULARITY), GRANULARITY, 0, false, &addr);
	if (result)
		goto out;
	result = mem_map(m, addr, m->size, &tokens);
	if (result)
		goto fail_va;
	*b = buffer_add(addr, size, m, 0);
	if (!*b)
		goto fail_map;
	(*b)->tokens = tokens;
	goto out;
fail_map:
	result = CU_OUT_OF_MEMORY;
	mem_unmap(m, addr);
fail_va:
	va_release(addr);
out:
	mem_put(m);
	return result;
}

static int alloc(struct ctx *ctx, uint64_t *addr, size_t size)
{
	struct buffer *b = NULL;
	int result;

	if (!addr || !size)
		return CU_INVALID_VALUE;
	if (size > mem_free_bytes(ctx->device))
		return CU_OUT_OF_MEMORY;
	result = size < SMALL ? alloc_small(ctx, size, &b) : alloc_big(ctx, size, &b);
	if (result)
		return result;
	b->ctx = ctx;
	b->readers = b->writers = ~0u;
	*addr = b->addr;
	return CU_OK;
}

SIM_API int cuMemAlloc_v2(uint64_t *addr, size_t size)
{
	struct ctx *ctx;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = alloc(ctx, addr, size);
	leave();
	return result;
}

static void alloc_free(struct buffer *b)
{
	struct chunk *c = b->chunk;
	uint64_t addr = b->addr;

	if (!c)
		mem_unmap(b->mem, addr);
	buffer_drop(b);
	if (!c)
		va_release(addr);
	else if (!--c->buffers)
		chunk_free(c);
}

SIM_API int cuMemFree_v2(uint64_t addr)
{
	struct ctx *ctx;
	struct buffer *b;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	b = buffer_find(addr);
	if (!b || b->handle || b->addr != addr) {
		result = CU_INVALID_VALUE;
	} else {
		flush();
		alloc_free(b);
	}
	leave();
	return result;
}

/* A context that ends takes its buffers along. */
void alloc_forget(struct ctx *ctx)
{
	struct buffer *b, *next;

	for (b = buffer_first(); b; b = next) {
		next = b->next;
		if (b->ctx == ctx)
			alloc_free(b);
	}
}

SIM_API int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	struct ctx *ctx;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	if (!free_bytes || !total) {
		result = CU_INVALID_VALUE;
	} else {
		*free_bytes = mem_free_bytes(ctx->device);
		*total = mem_total();
	}
	leave();
	return result;
}

SIM_API int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t addr)
{
	struct ctx *ctx;
	const struct buffer *b;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	b = buffer_find(addr);
	if (!base && !size) {
		result = CU_INVALID_VALUE;
	} else if (!b || b->mem->device != ctx->device) {
		/* The memory of another GPU is not found (580.159.04 says so). */
		result = CU_NOT_FOUND;
	} else {
		if (base)
			*base = b->addr;
		if (size)
			*size = b->size;
	}
	leave();
	return result;
}

static int host_alloc(void **addr, size_t size)
{
	struct host *h;
	void *p;

	if (!addr || !size)
		return CU_INVALID_VALUE;
	h = calloc(1, sizeof(*h));
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!h || p == MAP_FAILED) {
		if (p != MAP_FAILED)
			munmap(p, size);
		free(h);
		return CU_OUT_OF_MEMORY;
	}
	*h = (struct host){ .next = hosts, .addr = (uint64_t)(uintptr_t)p, .size = size };
	hosts = h;
	*addr = p;
	return CU_OK;
}

SIM_API int cuMemAllocHost_v2(void **addr, size_t size)
{
	struct ctx *ctx;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = host_alloc(addr, size);
	leave();
	return result;
}

SIM_API int cuMemFreeHost(void *addr)
{
	struct host **link = &hosts, *h;
	struct ctx *ctx;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	while (*link && (*link)->addr != (uint64_t)(uintptr_t)addr)
		link = &(*link)->next;
	h = *link;
	if (h) {
		flush();
		*link = h->next;
		munmap(addr, h->size);
		free(h);
	}
	leave();
	return h ? CU_OK : CU_INVALID_VALUE;
}

bool host_find(uint64_t addr)
{
	const struct host *h;

	for (h = hosts; h; h = h->next)
		if (addr >= h->addr && addr - h->addr < h->size)
			return true;
	return false;
}

/* Buffers and host memory; mappings of handles are vmm_live's. */
unsigned long alloc_live(void)
{
	const struct buffer *b;
	const struct host *h;
	unsigned long n = 0;

	for (b = buffer_first(); b; b = b->next)
		n += !b->handle;
	for (h = hosts; h; h = h->next)
		n++;
	return n;
}
