// SPDX-License-Identifier: MIT
/*
 * cache - the registration cache: a program that is handed GPU addresses, as an MPI is,
 * writes a header to each without pinning anew.
 */
#include <gdrapi_ext.h>

#include "example.h"

enum { BUFFERS = 4, ROUNDS = 100, SIZE = 1 << 20 };

/* What a middleware does with an address of its caller's. */
static void write_header(gdr_cache_t cache, CUdeviceptr dev, unsigned int number)
{
	gdr_mh_t mh;
	void *cpu;

	gdr(gdr_cache_get(cache, dev, SIZE, &mh, &cpu), "gdr_cache_get");
	gdr(gdr_copy_to_mapping(mh, cpu, &number, sizeof(number)), "gdr_copy_to_mapping");
	gdr(gdr_cache_put(cache, mh), "gdr_cache_put");
}

int main(void)
{
	CUdeviceptr dev[BUFFERS];
	unsigned int got, i, round, wrong = 0;
	gdr_cache_t cache;
	gdr_t g;

	example_context();
	g = example_open();
	gdr(gdr_cache_open(g, (size_t)BUFFERS * SIZE, 0, &cache), "gdr_cache_open");
	for (i = 0; i < BUFFERS; i++)
		cu(cuMemAlloc(&dev[i], SIZE), "cuMemAlloc");

	for (round = 1; round <= ROUNDS; round++)
		for (i = 0; i < BUFFERS; i++) {
			write_header(cache, dev[i], round * BUFFERS + i);
			cu(cuMemcpyDtoH(&got, dev[i], sizeof(got)), "cuMemcpyDtoH");
			wrong += got != round * BUFFERS + i;
		}
	printf("%d headers to %d buffers, %u wrong\n", ROUNDS * BUFFERS, BUFFERS, wrong);

	/* A pinning may keep memory that is freed: the cache is emptied first. */
	gdr(gdr_cache_close(cache), "gdr_cache_close");
	for (i = 0; i < BUFFERS; i++)
		cu(cuMemFree(dev[i]), "cuMemFree");
	gdr(gdr_close(g), "gdr_close");
	return wrong != 0;
}
