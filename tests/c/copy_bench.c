// SPDX-License-Identifier: MIT
/*
 * copy_bench.c - nanoseconds a call of each copy routine, on plain memory.
 *
 * For a look at the cost of the code itself. Memory here is cached RAM, so the
 * figures say nothing about a GPU's BAR; docs/measurements.md has those. It
 * asserts nothing. Each figure is the best of several batches; a write counts
 * its store fence, a read its two fences.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "copy.h"
#include "copy_fence.h"

#define BATCHES 7
#define BATCH_BYTES (4u << 20)
#define MAX_BYTES (1u << 20)

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static void write_once(const struct copy_impl *impl, void *dev, void *host, size_t n)
{
	impl->to(dev, host, n);
	copy_fence_store();
}

static void read_once(const struct copy_impl *impl, void *dev, void *host, size_t n)
{
	copy_fence_read_begin();
	impl->from(host, dev, n);
	copy_fence_read_end();
}

static double best(void (*once)(const struct copy_impl *, void *, void *, size_t),
		   const struct copy_impl *impl, void *dev, void *host, size_t n)
{
	size_t calls = BATCH_BYTES / (n < 256 ? 256 : n);
	double least = 0;

	for (int batch = 0; batch < BATCHES; batch++) {
		double t = now_ns();

		for (size_t i = 0; i < calls; i++)
			once(impl, dev, host, n);
		t = (now_ns() - t) / calls;
		if (!batch || t < least)
			least = t;
	}
	return least;
}

int main(void)
{
	static const size_t sizes[] = { 1, 4, 8, 15, 32, 63, 64, 100, 256, 4096, 65536, MAX_BYTES };
	static const size_t offsets[] = { 0, 5 };
	uint8_t *dev = aligned_alloc(4096, MAX_BYTES + 4096);
	uint8_t *host = aligned_alloc(4096, MAX_BYTES + 4096);
	int status = 1;

	if (!dev || !host) {
		fputs("copy_bench: out of memory\n", stderr);
		goto out;
	}
	memset(dev, 1, MAX_BYTES + 4096);
	memset(host, 2, MAX_BYTES + 4096);
	printf("%-10s %9s %7s %12s %12s\n", "routine", "bytes", "offset", "write ns", "read ns");
	for (size_t i = 0; copy_impls[i]; i++) {
		const struct copy_impl *impl = copy_impls[i];

		if (!impl->usable())
			continue;
		for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
			for (size_t o = 0; o < sizeof(offsets) / sizeof(offsets[0]); o++)
				printf("%-10s %9zu %7zu %12.1f %12.1f\n", impl->name, sizes[s],
				       offsets[o],
				       best(write_once, impl, dev + offsets[o], host, sizes[s]),
				       best(read_once, impl, dev + offsets[o], host, sizes[s]));
	}
	status = 0;
out:
	free(dev);
	free(host);
	return status;
}
