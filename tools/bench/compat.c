/* SPDX-License-Identifier: MIT */
/*
 * --compat: the lines that NVIDIA's programs of the same names print, for scripts that read
 * those. Of GDRCopy 2.6, NVIDIA/gdrcopy fcec3ce, tests/{copybw,copylat,apiperf}.cpp and
 * tests/pplat.cu. Explanations and the histogram of apiperf are left out.
 */
#include <string.h>

#include "gpu.h"

enum { PCI_BUS = 33, PCI_DEVICE = 34, PCI_DOMAIN = 50 };

static int attribute(const struct bench_gpu *b, int attr, int dev)
{
	int value = 0;

	bench_cu(b, b->cu.device_attribute(&value, attr, dev), "cuDeviceGetAttribute");
	return value;
}

static void gpus(const struct bench_gpu *b)
{
	int n = 0, dev = 0;

	bench_cu(b, b->cu.device_count(&n), "cuDeviceGetCount");
	for (int i = 0; i < n; i++) {
		char name[256] = "";

		bench_cu(b, b->cu.device_get(&dev, i), "cuDeviceGet");
		bench_cu(b, b->cu.device_name(name, sizeof(name), dev), "cuDeviceGetName");
		printf("GPU id:%d; name: %s; Bus id: %04x:%02x:%02x\n", i, name,
		       (unsigned int)attribute(b, PCI_DOMAIN, dev),
		       (unsigned int)attribute(b, PCI_BUS, dev),
		       (unsigned int)attribute(b, PCI_DEVICE, dev));
	}
	printf("selecting device %d\n", b->opts->gpu);
}

static void alloc_fn(const struct bench_opts *o)
{
	static const char *const names[] = {
		[BENCH_MEM_EXT] = "gdr_mem_alloc",
		[BENCH_MEM_PLAIN] = "cuMemAlloc",
		[BENCH_MEM_VMM] = "cuMemCreate",
	};

	printf("gpu alloc fn: %s\n", names[o->mem]);
}

/* What is mapped begins on a page, so its offset is 0. */
static void mapping(const struct bench_map *m, const char *space)
{
	printf("map_d_ptr: %p\n", m->va);
	printf("info.va: %lx\n", (unsigned long)m->info.va);
	printf("info.mapped_size: %lu\n", (unsigned long)m->info.mapped_size);
	printf("info.page_size: %u\n", m->info.page_size);
	printf("info.mapped: %u\n", m->info.mapped);
	printf("info.wc_mapping: %u\n", m->info.wc_mapping);
	printf("page offset: 0\n");
	printf("user-space pointer:%s%p\n", space, m->va);
}

static bool is(const struct bench_row *row, const char *op, const char *who)
{
	return !strcmp(row->op, op) && !strcmp(row->who, who);
}

static void rate(const struct bench_row *row, const char *doing, const char *op, size_t offset)
{
	printf("%s test, size=%zu offset=%zu num_iters=%zu\n", doing, row->size, offset,
	       row->samples * row->batch);
	printf("%s BW: %gMB/s\n", op, bench_gbps((double)row->size, row->p50) * 1e9 / (1 << 20));
}

static void copybw(const struct bench_result *r, const struct bench_opts *o)
{
	printf("testing size: %zu\nrounded size: %zu\n", o->size, r->map->size);
	alloc_fn(o);
	printf("device ptr: %lx\n", (unsigned long)r->map->info.va);
	mapping(r->map, "");
	for (size_t i = 0; i < r->nrows; i++) {
		if (is(&r->rows[i], "write", "gdrcopy"))
			rate(&r->rows[i], "writing", "write", o->offset);
		if (is(&r->rows[i], "read", "gdrcopy"))
			rate(&r->rows[i], "reading", "read", o->offset);
	}
	puts("unmapping buffer\nunpinning buffer\nclosing gdrdrv");
}

/* NVIDIA's sizes, powers of two; of ours the copies back to back. */
static void times(const struct bench_result *r, const char *op, const char *who,
		  const char *test, const char *tabs, long iters)
{
	printf("\n%s num iters for each size: %ld\n", test, iters);
	printf("Test \t\t%s Size(B) \t Median Time(us) \t Min. Time(us)\n", tabs);
	for (size_t i = 0; i < r->nrows; i++) {
		const struct bench_row *row = &r->rows[i];

		if (is(row, op, who) && strcmp(row->mode, "alone") && !(row->size & (row->size - 1)))
			printf("%s \t %8zu \t %11.4f \t %11.4f\n", test, row->size,
			       row->p50 / 1000, row->p0 / 1000);
	}
}

static void copylat(const struct bench_result *r, const struct bench_opts *o)
{
	printf("device ptr: 0x%lx\nallocated size: %zu\n", (unsigned long)r->map->info.va,
	       r->map->size);
	alloc_fn(o);
	if (o->given[OPT_CUMEMCPY]) {
		times(r, "write", "cuMemcpy", "cuMemcpy_H2D", "", o->writes);
		times(r, "read", "cuMemcpy", "cuMemcpy_D2H", "", o->reads);
		putchar('\n');
	}
	putchar('\n');
	mapping(r->map, " ");
	printf("use cold cache: %s\n", o->given[OPT_EVICTED] ? "yes" : "no");
	times(r, "write", "gdrcopy", "gdr_copy_to_mapping", "\t", o->writes);
	times(r, "read", "gdrcopy", "gdr_copy_from_mapping", "\t", o->reads);
	puts("unmapping buffer\nunpinning buffer\nclosing gdrdrv");
}

static double call(const struct bench_result *r, const char *op, size_t size)
{
	const struct bench_row *row = bench_find(r, op, "gdrcopy", NULL, size);

	return row ? row->p50 / 1000 : 0;
}

static void apiperf(const struct bench_result *r)
{
	printf("device ptr: 0x%lx\nallocated size: %zu\n", (unsigned long)r->map->info.va,
	       r->rows[r->nrows - 1].size);
	for (size_t i = 0; i < r->nrows; i++) {
		size_t n = r->rows[i].size;

		if (!n || !is(&r->rows[i], "gdr_pin_buffer_v2", "gdrcopy"))
			continue;
		printf("Size(B)\tpin.Time(us)\tmap.Time(us)\tget_info.Time(us)\tunmap.Time(us)\tunpin.Time(us)\n");
		printf("%zu\t%f\t%f\t%f\t%f\t%f\n\n", n, call(r, "gdr_pin_buffer_v2", n),
		       call(r, "gdr_map_v2", n), call(r, "gdr_get_info", n),
		       call(r, "gdr_unmap", n), call(r, "gdr_unpin_buffer", n));
	}
	puts("closing gdrdrv");
}

/* One round trip: by the library, and answered in the host's memory unless -C says otherwise. */
static void pplat(const struct bench_result *r, const struct bench_opts *o)
{
	const struct bench_row *row = &r->rows[0];

	printf("Benchmark mode: %s\n", o->gpu_produces ? "GPU produces and CPU consumes" :
	       "CPU produces and GPU consumes");
	alloc_fn(o);
	if (o->data)
		printf("Running %ld iterations with data size %zu bytes and flag size 4 bytes.\n\n",
		       o->rounds, o->data);
	else
		printf("Running %ld iterations with flag size 4 bytes.\n\n", o->rounds);
	printf("Round-trip latency per iteration is (min) %g, (median) %g us\n", row->p0 / 1000,
	       row->p50 / 1000);
	puts("closing gdrdrv");
}

void bench_compat(const struct bench_result *r, const struct bench_opts *o)
{
	gpus(r->gpu);
	if (!strcmp(r->tool, "gdrcopy_copybw"))
		copybw(r, o);
	else if (!strcmp(r->tool, "gdrcopy_copylat"))
		copylat(r, o);
	else if (!strcmp(r->tool, "gdrcopy_apiperf"))
		apiperf(r);
	else
		pplat(r, o);
}
