/* SPDX-License-Identifier: MIT */
/*
 * dpdk.c - what DPDK's gpudev driver for CUDA does with GDRCopy: the library is
 * loaded and opened at the first rte_gpu_mem_cpu_map, a map is a pin and a map of
 * the whole buffer, and an unmap names the mapping by the GPU's address, not by the
 * CPU's. Nothing is ever closed.
 */
#include <stdint.h>
#include <string.h>

#include "load.h"
#include "tap.h"

enum { ROUNDS = 100 };

static struct {
	gdr_t (*open)(void);
	int (*pin)(gdr_t g, unsigned long addr, size_t size, uint64_t token, uint32_t space,
		   gdr_mh_t *mh);
	int (*unpin)(gdr_t g, gdr_mh_t mh);
	int (*map)(gdr_t g, gdr_mh_t mh, void **va, size_t size);
	int (*unmap)(gdr_t g, gdr_mh_t mh, void *va, size_t size);
} gdr;

static struct cuda_dl cu;
static struct tap tap;
static gdr_t g;

static int cpu_map(cu_ptr addr, size_t size, gdr_mh_t *mh, void **va)
{
	if (!g) {
		void *lib = consumer_load();

		gdr.open = consumer_find(lib, "gdr_open");
		gdr.pin = consumer_find(lib, "gdr_pin_buffer");
		gdr.unpin = consumer_find(lib, "gdr_unpin_buffer");
		gdr.map = consumer_find(lib, "gdr_map");
		gdr.unmap = consumer_find(lib, "gdr_unmap");
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

/* 1 if what the CPU stores is what CUDA reads. */
static int same(cu_ptr addr, void *va, uint32_t value)
{
	uint32_t got = ~value;

	*(volatile uint32_t *)va = value;
	__sync_synchronize();
	return !cu.from_gpu(&got, addr, sizeof(got)) && got == value;
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
		seen += same(addr, va, (uint32_t)i * 2654435761u);
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
