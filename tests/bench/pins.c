/* SPDX-License-Identifier: MIT */
/*
 * pins - how long a pin of memory takes that is pinned for the first time.
 *
 *	pins [ROUNDS]	medians in us, one line. LD_LIBRARY_PATH says which library.
 *
 * Each round allocates, pins, unpins and frees. The pin alone is timed. Whole: 64 KiB pages around the
 * memory, as UCX and libfabric round them. Own: the bytes of the memory, SYNC_MEMOPS included.
 *
 * Built for measuring (make litmus), and not installed.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cuda_dl.h"
#include "gdrapi.h"

static struct cuda_dl cu;
static gdr_t g;
static int (*alloc_async)(cu_ptr *p, size_t size, void *stream), (*free_async)(cu_ptr p, void *stream);
static struct cu_mem_want want = { .type = CU_MEM_PINNED, .place = { .type = 1 }, .rdma = 1 };
static cu_mem mem;

static int plain(cu_ptr *p, size_t n) { return cu.mem_alloc(p, n); }

static int pool(cu_ptr *p, size_t n) { return alloc_async(p, n, NULL) || cu.ctx_sync(); }

static int vmm(cu_ptr *p, size_t n)
{
	const struct cu_access access = { .place = { .type = 1 }, .flags = CU_ACCESS_RW };

	return cu.create(&mem, n, &want, 0) || cu.reserve(p, n, 0, 0, 0) || cu.map(*p, n, 0, mem, 0) || cu.set_access(*p, n, &access, 1);
}

static int end_plain(cu_ptr p, size_t n) { (void)n; return cu.mem_free(p); }

static int end_pool(cu_ptr p, size_t n) { (void)n; return free_async(p, NULL) || cu.ctx_sync(); }

static int end_vmm(cu_ptr p, size_t n) { return cu.unmap(p, n) || cu.unreserve(p, n) || cu.release(mem); }

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The time of one pin, or -1. */
static double pin(cu_ptr p, size_t n, bool own)
{
	cu_ptr first = own ? p : p & ~(cu_ptr)(GPU_PAGE_SIZE - 1);
	size_t size = own ? n : ((p + n + GPU_PAGE_SIZE - 1) & ~(cu_ptr)(GPU_PAGE_SIZE - 1)) - first;
	double t = now();
	gdr_mh_t mh;
	int rc = gdr_pin_buffer(g, first, size, 0, 0, &mh);

	t = now() - t;
	return rc || gdr_unpin_buffer(g, mh) ? -1 : t;
}

static const struct row {
	const char *what;
	int (*get)(cu_ptr *p, size_t n);
	int (*end)(cu_ptr p, size_t n);
	size_t n;
	bool own;
} rows[] = {
	{ "512 B whole", plain, end_plain, 512, false }, { "16 KiB whole", plain, end_plain, 16 << 10, false },
	{ "8 MiB whole", plain, end_plain, 8 << 20, false }, { "pool, 4 KiB whole", pool, end_pool, 4096, false },
	{ "cuMemCreate, 2 MiB whole", vmm, end_vmm, 2 << 20, false }, { "4 KiB own", plain, end_plain, 4096, true },
	{ "3 MiB own", plain, end_plain, (3 << 20) + 512, true },
};

static bool measure(const struct row *r, size_t rounds, double *us)
{
	for (size_t i = 0; i < rounds; i++) {
		cu_ptr p;

		if (r->get(&p, r->n))
			return false;
		us[i] = pin(p, r->n, r->own);
		if (us[i] < 0 || r->end(p, r->n))
			return false;
	}
	qsort(us, rounds, sizeof(*us), by_size);
	printf("%s %.1f; ", r->what, us[rounds / 2]);
	return true;
}

/* One page, again and again. */
static bool again(size_t rounds, double *us)
{
	cu_ptr p;

	if (cu.mem_alloc(&p, GPU_PAGE_SIZE))
		return false;
	for (size_t i = 0; i < rounds; i++)
		us[i] = pin(p, GPU_PAGE_SIZE, false);
	qsort(us, rounds, sizeof(*us), by_size);
	printf("one page again %.1f\n", us[rounds / 2]);
	return us[0] >= 0;
}

int main(int argc, char **argv)
{
	size_t rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 300;
	double *us = calloc(rounds, sizeof(*us));
	cu_ctx ctx;
	cu_ptr p;

	g = gdr_open();
	if (!us || !rounds || !g || cuda_load(&cu) || cu.init(0) || cu.primary_retain(&ctx, 0) || cu.ctx_set(ctx))
		return 2;
	*(void **)&alloc_async = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAllocAsync");
	*(void **)&free_async = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemFreeAsync");
	if (!alloc_async || !free_async || cu.mem_alloc(&p, 4 << 20) || pin(p, 4 << 20, false) < 0)	/* the first pin tries the driver */
		return 2;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (!measure(&rows[i], rounds, us)) {
			fprintf(stderr, "pins: %s fails\n", rows[i].what);
			return 1;
		}
	return !again(rounds, us);
}
