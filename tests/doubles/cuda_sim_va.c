// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: device addresses. Test code.
 *
 * They come from a range of this process's addresses that cannot be read or written. So a
 * CPU access to a device pointer faults, and no host pointer equals a device pointer.
 */
#include "cuda_sim.h"

#include <stdlib.h>
#include <sys/mman.h>

#define SPACE_MAX (1ull << 40)
#define SPACE_MIN (1ull << 30)

static uint64_t space, space_size;
static struct va *vas;
static struct buffer *buffers;

/* Less than SPACE_MAX if a limit of the process or a tool does not allow so much. */
int va_init(void)
{
	uint64_t size;
	void *p = MAP_FAILED;

	for (size = SPACE_MAX; size >= SPACE_MIN && p == MAP_FAILED; size /= 2) {
		p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		space_size = size;
	}
	if (p == MAP_FAILED)
		return CU_OUT_OF_MEMORY;
	/* A core dump does not need it. */
	madvise(p, space_size, MADV_DONTDUMP);
	space = ((uint64_t)(uintptr_t)p + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
	space_size -= GRANULARITY;
	return CU_OK;
}

bool va_is_device(uint64_t addr, uint64_t size)
{
	return size < UINT64_MAX - addr && addr < space + space_size && addr + size > space;
}

static bool place(uint64_t *addr, uint64_t size, uint64_t align, uint64_t limit)
{
	uint64_t start = (*addr + align - 1) / align * align;

	if (start < *addr || start > limit || limit - start < size)
		return false;
	*addr = start;
	return true;
}

/* Reserve size bytes at the lowest free address. As in the real driver, a freed address is soon used again. */
int va_take(uint64_t size, uint64_t align, bool reservation, uint64_t *addr)
{
	uint64_t end = space + space_size, at = space;
	struct va **link, *v;

	if (align < GRANULARITY)
		align = GRANULARITY;
	for (link = &vas; *link; link = &(*link)->next) {
		if (place(&at, size, align, (*link)->addr))
			goto found;
		at = (*link)->addr + (*link)->size;
	}
	if (!place(&at, size, align, end))
		return CU_OUT_OF_MEMORY;
found:
	v = calloc(1, sizeof(*v));
	if (!v)
		return CU_OUT_OF_MEMORY;
	*v = (struct va){ .next = *link, .addr = at, .size = size, .reservation = reservation };
	*link = v;
	live += reservation;
	*addr = at;
	return CU_OK;
}

void va_release(uint64_t addr)
{
	struct va *v = va_find(addr);

	LIST_TAKE(vas, v);
	live -= v->reservation;
	free(v);
}

struct va *va_find(uint64_t addr)
{
	return LIST_FIND(v, vas, addr >= v->addr && addr - v->addr < v->size);
}

/* The new buffer has a reference to m of its own. */
struct buffer *buffer_add(uint64_t addr, uint64_t size, struct mem *m, uint64_t offset)
{
	struct buffer **link = &buffers, *b = calloc(1, sizeof(*b));

	if (!b)
		return NULL;
	while (*link && (*link)->addr < addr)
		link = &(*link)->next;
	b->next = *link;
	b->addr = addr;
	b->size = size;
	b->mem = mem_get(m);
	b->offset = offset;
	b->id = next_id();
	*link = b;
	live++;
	return b;
}

void buffer_drop(struct buffer *b)
{
	LIST_TAKE(buffers, b);
	live--;
	strict_gone(b->addr);
	mem_put(b->mem);
	free(b);
}

struct buffer *buffer_find(uint64_t addr)
{
	return LIST_FIND(b, buffers, addr >= b->addr && addr - b->addr < b->size);
}

struct buffer *buffer_first(void)
{
	return buffers;
}
