/* SPDX-License-Identifier: MIT */
/*
 * sanity/data.c - the bytes: every small size at every alignment of either
 * side, big sizes, what CUDA wrote just before, and no byte outside the range.
 */
#include "sanity.h"

#include <stdalign.h>
#include <sys/mman.h>

enum {
	LINE = 64,		/* offsets 0..63 of either side */
	MAX_SIZE = 4096,
	STRIDE = MAX_SIZE + 2 * LINE,	/* room for a copy at any offset */
	AREA = LINE * STRIDE,
	GUARD = 0xa5
};

/*
 * For one size, offset d of the GPU side goes with one offset of the host
 * side, another for each d. So every size meets every offset of each side.
 */
static size_t host_offset(size_t size, size_t d)
{
	return (d * 37 + size * 11) % LINE;
}

/* Copies of one size have this much room each, in whole lines. */
static size_t stride_of(size_t size)
{
	return (size + 2 * LINE - 1) / LINE * LINE + LINE;
}

/* The GPU must hold what a plain memcpy to the model gives, in all of it. */
static void write_every_size(struct env *e)
{
	unsigned char *model = must_alloc(AREA), *back = must_alloc(AREA);
	alignas(LINE) static unsigned char pool[2 * MAX_SIZE];
	size_t size, d;
	struct buf b;
	struct map m;

	start(e);
	alloc_mapped(e, &b, &m, MEM_PLAIN, AREA);
	fill(model, AREA, 1);
	gpu_write(e, b.addr, model, AREA);

	for (size = 0; size <= MAX_SIZE; size++) {
		size_t stride = stride_of(size);

		fill(pool, sizeof(pool), size + 2);
		for (d = 0; d < LINE; d++) {
			const unsigned char *src = pool + host_offset(size, d) +
						   d * 17 / LINE * LINE;
			size_t at = d * stride + d;

			check_rc(gdr_copy_to_mapping(m.mh, m.p + at, src, size), 0);
			memcpy(model + at, src, size);
		}
		gpu_read(e, back, b.addr, LINE * stride);
		if (memcmp(back, model, LINE * stride)) {
			for (d = 0; back[d] == model[d]; d++)
				;
			note("size %zu, GPU offset %zu: byte %zu is wrong",
			     size, d / stride, d % stride);
		}
		check(memcmp(back, model, LINE * stride) == 0);
	}
	free_mapped(e, &b, &m);
	free(back);
	free(model);
}

static void read_every_size(struct env *e)
{
	unsigned char *model = must_alloc(AREA);
	alignas(LINE) static unsigned char got[STRIDE + LINE];
	alignas(LINE) static unsigned char want[STRIDE + LINE];
	size_t size, d;
	struct buf b;
	struct map m;

	start(e);
	alloc_mapped(e, &b, &m, MEM_PLAIN, AREA);
	fill(model, AREA, 4);
	gpu_write(e, b.addr, model, AREA);

	for (size = 0; size <= MAX_SIZE; size++)
		for (d = 0; d < LINE; d++) {
			size_t at = (d * STRIDE + size * 64) % (AREA - STRIDE) /
				    LINE * LINE + d;
			size_t to = LINE + host_offset(size, d);
			size_t seen = size + 3 * LINE;

			memset(got, GUARD, seen);
			memset(want, GUARD, seen);
			memcpy(want + to, model + at, size);
			check_rc(gdr_copy_from_mapping(m.mh, got + to,
						       m.p + at, size), 0);
			if (memcmp(got, want, seen))
				note("size %zu, GPU offset %zu, host offset %zu",
				     size, d, to % LINE);
			check(memcmp(got, want, seen) == 0);
		}
	gpu_check(e, b.addr, model, AREA);	/* reading changed nothing */
	free_mapped(e, &b, &m);
	free(model);
}

static const size_t big_sizes[] = {
	4097, 5000, 8191, 65535, 65536, 65537, 262144 + 3, (1 << 20) - 1,
	1 << 20, (1 << 20) + 1, (4 << 20) + 17, (16 << 20) - 128
};
static const struct { unsigned char gpu, host; } big_offsets[] = {
	{ 0, 0 }, { 1, 0 }, { 0, 1 }, { 63, 17 }, { 8, 8 }, { 32, 63 }
};

static void big_copies(struct env *e)
{
	const size_t total = 16 << 20;
	unsigned char *model = must_alloc(total), *host = must_alloc(total);
	unsigned char *back = must_alloc(total);
	size_t i, k;
	struct buf b;
	struct map m;

	start(e);
	alloc_mapped(e, &b, &m, MEM_PLAIN, total);
	fill(model, total, 5);
	gpu_write(e, b.addr, model, total);
	for (i = 0; i < sizeof(big_sizes) / sizeof(big_sizes[0]); i++)
		for (k = 0; k < sizeof(big_offsets) / sizeof(big_offsets[0]); k++) {
			size_t n = big_sizes[i], gpu = big_offsets[k].gpu;
			size_t off = big_offsets[k].host;

			/* One offset of the biggest sizes is enough to read. */
			if (n > 2 << 20 && k != i % 3)
				continue;
			fill(host, n + off, i * 100 + k);
			memcpy(model + gpu, host + off, n);
			check_rc(gdr_copy_to_mapping(m.mh, m.p + gpu,
						     host + off, n), 0);
			gpu_check(e, b.addr, model, n + 2 * LINE < total ?
				  n + 2 * LINE : total);
			memset(back, GUARD, n + 2 * LINE);
			check_rc(gdr_copy_from_mapping(m.mh, back + off,
						       m.p + gpu, n), 0);
			check(memcmp(back + off, host + off, n) == 0);
			check_eq(back[off + n], GUARD);
			if (off)
				check_eq(back[off - 1], GUARD);
		}
	gpu_check(e, b.addr, model, total);
	free_mapped(e, &b, &m);
	free(back);
	free(host);
	free(model);
}

/* Host memory that ends, and one that begins, at a page nobody may touch. */
static void host_guards(struct env *e)
{
	const size_t p = e->host_page;
	unsigned char *area, *edge[2], copy[2048];
	struct buf b;
	struct map m;
	size_t n;
	int i;

	start(e);
	area = mmap(NULL, 3 * p, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	check(area != MAP_FAILED);
	check_eq(mprotect(area, p, PROT_NONE), 0);
	check_eq(mprotect(area + 2 * p, p, PROT_NONE), 0);
	check(read_faults(area) && read_faults(area + 2 * p));
	alloc_mapped(e, &b, &m, MEM_PLAIN, GPU_PAGE_SIZE);
	for (n = 1; n <= sizeof(copy); n += n < 300 ? 1 : 97) {
		edge[0] = area + p;
		edge[1] = area + 2 * p - n;
		for (i = 0; i < 2; i++) {
			/* At the very ends of the mapping too. */
			unsigned char *at = i ? m.p + b.size - n : m.p;

			fill(copy, n, n);
			memcpy(edge[i], copy, n);
			check_rc(gdr_copy_to_mapping(m.mh, at, edge[i], n), 0);
			memset(edge[i], 0, n);
			check_rc(gdr_copy_from_mapping(m.mh, edge[i], at, n), 0);
			check(memcmp(edge[i], copy, n) == 0);
		}
	}
	free_mapped(e, &b, &m);
	munmap(area, 3 * p);
}

/*
 * A cuMemcpy that has returned is seen: no call to wait for it in between, except for memory of
 * cuMemCreate, which has no SYNC_MEMOPS. What is pinned is not made of whole GPU pages: of those
 * the library does not know whose they are, and sets nothing.
 */
static void sync_memops(struct env *e)
{
	static const size_t sizes[] = { 4, 256, 4096, 65536, 262144 };
	const size_t max = 262144, own = max + 64;
	unsigned char *in = must_alloc(max), *out = must_alloc(max);
	size_t i;
	struct buf b;
	struct map m;
	int round, k;

	start(e);
	for (k = 0; k < MEM_KINDS; k++) {
		buf_alloc(e, &b, k, own);
		map_make(e, &m, b.addr, own);
		for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
			for (round = 0; round < 20; round++) {
				fill(in, sizes[i], i * 1000 + round);
				check_cu(e->cu.to_gpu(b.addr, in, sizes[i]));
				if (k != MEM_PLAIN)
					check_cu(e->cu.ctx_sync());
				check_rc(gdr_copy_from_mapping(m.mh, out, m.p,
							       sizes[i]), 0);
				check(memcmp(in, out, sizes[i]) == 0);
			}
		free_mapped(e, &b, &m);
	}
	free(out);
	free(in);
}

const struct sanity_case data_cases[] = {
	{ "write_every_size", write_every_size, BE_ALL, NULL },
	{ "read_every_size", read_every_size, BE_ALL, NULL },
	{ "big_copies", big_copies, BE_ALL, NULL },
	{ "host_guards", host_guards, BE_ALL, NULL },
	{ "sync_memops", sync_memops, BE_ALL, NULL },
	{ NULL, NULL, 0, NULL }
};
