// SPDX-License-Identifier: MIT
/*
 * ext/cache_cuda.c - a libcuda.so.1 for ext/cache_tsan.c, of the one function that the
 * registration cache calls. Memory is in allocations of 2 MiB from address 2 MiB on,
 * with the IDs that the test sets; 0 is no memory. From cache_cuda_split on, if that is
 * set, an address has another ID: two allocations lie in what the driver calls one range.
 */
#include <stdatomic.h>
#include <stdint.h>

#define SHIFT 21
#define ALLOCATIONS 8

enum { BUFFER_ID = 7, RANGE_START_ADDR = 11, RANGE_SIZE = 12 };

extern _Atomic uint64_t cache_cuda_ids[ALLOCATIONS];
int cuPointerGetAttribute(void *value, int attribute, uint64_t addr);

_Atomic uint64_t cache_cuda_ids[ALLOCATIONS];
extern _Atomic uint64_t cache_cuda_split;
_Atomic uint64_t cache_cuda_split;

int cuPointerGetAttribute(void *value, int attribute, uint64_t addr)
{
	uint64_t i = addr >> SHIFT, id;

	id = i < ALLOCATIONS ? atomic_load(&cache_cuda_ids[i]) : 0;
	if (!id)
		return 1;
	if (attribute == BUFFER_ID)
		*(uint64_t *)value = cache_cuda_split && addr >= cache_cuda_split ? id + 1000 : id;
	else if (attribute == RANGE_START_ADDR)
		*(uint64_t *)value = i << SHIFT;
	else if (attribute == RANGE_SIZE)
		*(uint64_t *)value = 1u << SHIFT;
	else
		return 1;
	return 0;
}
