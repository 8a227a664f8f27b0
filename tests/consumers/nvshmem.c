/* SPDX-License-Identifier: MIT */
/*
 * nvshmem.c - what NVSHMEM's transports do with GDRCopy: libgdrapi.so.2 is opened before
 * cuInit. The heap is one reservation, of chunks of 512 MiB that cuMemCreate makes. Chunks
 * are pinned and mapped, one alone or several at once, as the heap grows. Atomics are loads
 * and stores through the mapping, by ibrc, or copies of 8 bytes, by libfabric.
 */
#include <stdint.h>
#include <string.h>

#include "load.h"
#include "tap.h"

enum { CHUNKS = 4, COUNTERS = 16 };
static const size_t chunk = (size_t)512 << 20;

static struct consumer_gdr gdr;
static struct cuda_dl cu;
static struct tap tap;
static cu_mem chunks[CHUNKS];
static cu_ptr heap;

static int make_heap(void)
{
	struct cu_mem_want want = {
		.type = CU_MEM_PINNED, .fd_type = CU_EXPORT_FD, .place = { .type = CU_PLACE_GPU }, .rdma = 1,
	};
	struct cu_access access = { .place = want.place, .flags = CU_ACCESS_RW };
	int i, rc = cu.reserve(&heap, CHUNKS * chunk, chunk, 0, 0);

	for (i = 0; i < CHUNKS && !rc; i++) {
		rc = cu.create(&chunks[i], chunk, &want, 0);
		if (!rc)
			rc = cu.map(heap + i * chunk, chunk, 0, chunks[i], 0);
		if (!rc)
			rc = cu.set_access(heap + i * chunk, chunk, &access, 1);
	}
	return rc;
}

static int free_heap(void)
{
	int i, rc = 0;

	for (i = 0; i < CHUNKS; i++)
		rc |= cu.unmap(heap + i * chunk, chunk) || cu.release(chunks[i]);
	return rc | cu.unreserve(heap, CHUNKS * chunk);
}

/* A counter at each 16th of the memory, by a load and a store, and by copies beside it. */
static int atomics(gdr_mh_t mh, char *cpu, cu_ptr gpu, size_t size)
{
	uint64_t at, want[2], got[2], value;
	int i;

	for (i = 0; i < COUNTERS; i++) {
		at = size / COUNTERS * (uint64_t)i + size / COUNTERS - sizeof(want);
		want[0] = gpu + at;
		want[1] = ~want[0];
		if (cu.to_gpu(gpu + at, want, sizeof(want)) || cu.ctx_sync())
			return -1;
		*(volatile uint64_t *)(cpu + at) += 1;
		__sync_synchronize();
		if (gdr.from(mh, &value, cpu + at + 8, sizeof(value)) || value != want[1])
			return -1;
		value += 1;
		if (gdr.to(mh, cpu + at + 8, &value, sizeof(value)) || cu.from_gpu(got, gpu + at, sizeof(got)) ||
		    got[0] != want[0] + 1 || got[1] != want[1] + 1)
			return -1;
	}
	return 0;
}

/* The chunks from the first on, n of them in one pin. */
static void use(gdr_t g, int first, int n)
{
	cu_ptr gpu = heap + (size_t)first * chunk;
	size_t size = (size_t)n * chunk;
	gdr_info_t info;
	gdr_mh_t mh;
	void *base;

	if (!tap_is(&tap, gdr.pin(g, gpu, size, 0, 0, &mh), 0, "gdr_pin_buffer of chunks"))
		return;
	if (tap_is(&tap, gdr.map(g, mh, &base, size), 0, "gdr_map")) {
		tap_ok(&tap, !gdr.info(g, mh, &info) && info.va == gpu && info.mapped_size == size, "gdr_get_info");
		tap_ok(&tap, !atomics(mh, base, gpu, size), "atomics in %d chunks from chunk %d on", n, first);
		tap_is(&tap, gdr.unmap(g, mh, base, size), 0, "gdr_unmap");
	}
	tap_is(&tap, gdr.unpin(g, mh), 0, "gdr_unpin_buffer");
}

int main(void)
{
	void *lib = dlopen("libgdrapi.so.2", RTLD_LAZY);
	int major = 0, minor = 0;
	gdr_t g;

	if (!lib) {
		printf("# %s\n", dlerror());
		return 1;
	}
	consumer_functions(lib, &gdr);
	g = gdr.open();
	if (!tap_ok(&tap, g != NULL, "gdr_open before cuInit"))
		return tap_done(&tap);
	tap_ok(&tap, !gdr.driver_version(g, &major, &minor) && major == 2, "driver %d.%d", major, minor);
	consumer_cuda(&cu);
	if (tap_is(&tap, make_heap(), 0, "a heap of chunks")) {
		use(g, 0, 1);
		use(g, CHUNKS - 1, 1);
		use(g, 0, CHUNKS);
		tap_is(&tap, free_heap(), 0, "the heap's end");
	}
	tap_is(&tap, gdr.close(g), 0, "gdr_close");
	tap_is(&tap, dlclose(lib), 0, "dlclose");
	return tap_done(&tap);
}
