// SPDX-License-Identifier: MIT
/* Simulated libcuda: host memory and managed memory. Test code. */
#include "cuda_sim.h"

#include <stdlib.h>
#include <sys/mman.h>

struct host {
	struct host *next;
	uint64_t addr, size;
	bool managed;
};

static struct host *hosts;

static int host_alloc(uint64_t *addr, size_t size, bool managed)
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
	*h = (struct host){ .next = hosts, .addr = (uint64_t)(uintptr_t)p, .size = size,
			    .managed = managed };
	hosts = h;
	*addr = h->addr;
	return CU_OK;
}

SIM_API int cuMemAllocHost_v2(void **addr, size_t size)
{
	struct ctx *ctx;
	uint64_t a;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = host_alloc(addr ? &a : NULL, size, false);
	if (!result)
		*addr = (void *)(uintptr_t)a;
	leave();
	return result;
}

int cuMemAllocManaged(uint64_t *addr, size_t size, unsigned int flags)
	SIM_HOOKABLE(cuMemAllocManaged);

/* flags: attached to all streams, 1, or to the host, 2. */
int cuMemAllocManaged(uint64_t *addr, size_t size, unsigned int flags)
{
	struct ctx *ctx;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = flags == 1 || flags == 2 ? host_alloc(addr, size, true) : CU_INVALID_VALUE;
	leave();
	return result;
}

/* The memory that starts there. */
int host_free(uint64_t addr, bool managed)
{
	struct host **link = &hosts, *h;

	while (*link && ((*link)->addr != addr || (*link)->managed != managed))
		link = &(*link)->next;
	h = *link;
	if (!h)
		return CU_INVALID_VALUE;
	flush();
	*link = h->next;
	munmap((void *)(uintptr_t)addr, h->size);
	free(h);
	return CU_OK;
}

int cuMemFreeHost(void *addr) SIM_HOOKABLE(cuMemFreeHost);

int cuMemFreeHost(void *addr)
{
	struct ctx *ctx;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = host_free((uint64_t)(uintptr_t)addr, false);
	leave();
	return result;
}

bool host_find(uint64_t addr, bool *managed)
{
	const struct host *h;

	for (h = hosts; h; h = h->next) {
		if (addr < h->addr || addr - h->addr >= h->size)
			continue;
		*managed = h->managed;
		return true;
	}
	return false;
}

unsigned long host_live(void)
{
	const struct host *h;
	unsigned long n = 0;

	for (h = hosts; h; h = h->next)
		n++;
	return n;
}
