/* SPDX-License-Identifier: MIT */
/*
 * dpdk.c - what DPDK's gpudev driver for CUDA does with GDRCopy: the library is
 * loaded and opened at the first rte_gpu_mem_cpu_map, a map is a pin and a map of
 * the whole buffer, and an unmap names the mapping by the GPU's address, not by the
 * CPU's. Nothing is ever closed. DPDK's user has loads and stores alone; the copies here
 * are the test's.
 */
#include <stdint.h>
#include <string.h>

#include "load.h"
#include "tap.h"

enum { ROUNDS = 100 };

static struct consumer_gdr gdr;
static struct cuda_dl cu;
static struct tap tap;
static gdr_t g;

static int cpu_map(cu_ptr addr, size_t size, gdr_mh_t *mh, void **va)
{
	if (!g) {
		consumer_functions(consumer_load(), &gdr);
		g = gdr.open();
		if (!g)
			return -1;
	}
	if (gdr.pin(g, addr, size, 0, 0, mh))
		return -1;
	return gdr.map(g, *mh, va, size) ? -1 : 0;
}

static int cpu_unmap(cu_ptr addr, size_t size, gdr_mh_t mh)
{
	if (gdr.unmap(g, mh, (void *)(uintptr_t)addr, size))
		return -1;
	return gdr.unpin(g, mh) ? -1 : 0;
}

/* 1 if what the CPU stores, and what it copies, is what CUDA reads, and what it loads. */
static int same(cu_ptr addr, gdr_mh_t mh, void *va, uint32_t value)
{
	uint32_t want[2] = { value, ~value }, got[2] = { 0 }, back[2] = { 0 };

	*(volatile uint32_t *)va = want[0];
	__sync_synchronize();
	if (gdr.to(mh, (uint32_t *)va + 1, &want[1], sizeof(want[1])) ||
	    cu.from_gpu(got, addr, sizeof(got)) || gdr.from(mh, back, va, sizeof(back)))
		return 0;
	return !memcmp(got, want, sizeof(want)) && !memcmp(back, want, sizeof(want));
}

static void buffer(size_t size)
{
	int i, maps = 0, seen = 0, unmaps = 0;
	cu_ptr mem, addr;

	if (!tap_ok(&tap, !cu.mem_alloc(&mem, size + GPU_PAGE_SIZE), "memory of %zu bytes", size))
		return;
	addr = (mem + GPU_PAGE_OFFSET) & GPU_PAGE_MASK;
	for (i = 0; i < ROUNDS; i++) {
		gdr_mh_t mh;
		void *va;

		if (cpu_map(addr, size, &mh, &va))
			break;
		maps++;
		seen += same(addr, mh, va, (uint32_t)i * 2654435761u);
		unmaps += !cpu_unmap(addr, size, mh);
	}
	tap_is(&tap, maps, ROUNDS, "mapped");
	tap_is(&tap, seen, ROUNDS, "seen by both sides");
	tap_is(&tap, unmaps, ROUNDS, "unmapped by the GPU's address, and unpinned");
	tap_is(&tap, cu.mem_free(mem), 0, "cuMemFree");
}

int main(void)
{
	consumer_cuda(&cu);
	buffer(GPU_PAGE_SIZE);
	buffer(4096);
	buffer(3 << 20);
	return tap_done(&tap);
}
