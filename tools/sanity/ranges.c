/* SPDX-License-Identifier: MIT */
/*
 * sanity/ranges.c - any range of an allocation can be pinned, many at once, and mapped in part.
 */
#include "sanity.h"

/* Pinned at any address, mapped only from a page on. */
static void unaligned_address(struct env *e)
{
	const size_t offsets[] = { 1, 4, 64, 513, e->page / 2, e->page - 1,
				   e->page + 1 };
	struct buf b;
	size_t i;

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, 8 * GPU_PAGE_SIZE);
	for (i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
		unsigned long addr = b.addr + offsets[i];
		void *va = &i;
		gdr_info_t info;
		gdr_mh_t mh = pin_only(e, addr, GPU_PAGE_SIZE);

		mark(&info, sizeof(info));
		check_rc(gdr_get_info(e->g, mh, &info), 0);
		check_eq(info.va, addr / e->page * e->page);
		check_eq(info.mapped_size,
			 (addr + GPU_PAGE_SIZE - info.va + e->page - 1) / e->page * e->page);
		check_rc(gdr_map(e->g, mh, &va, GPU_PAGE_SIZE), EINVAL);
		check(va == (void *)&i);
		mark(&info, sizeof(info));
		check_rc(gdr_get_info(e->g, mh, &info), 0);
		check_eq(info.mapped, 0);
		check_rc(gdr_unpin_buffer(e->g, mh), 0);
	}
	buf_free(e, &b);
}

static void unaligned_size(struct env *e)
{
	const size_t sizes[] = { 1, 3, 511, e->host_page - 1, e->host_page + 1,
				 GPU_PAGE_SIZE - 1, GPU_PAGE_SIZE + 1 };
	unsigned char in[8], out[8];
	struct buf b;
	size_t i;

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, 4 * GPU_PAGE_SIZE);
	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		size_t tail = sizes[i] < 8 ? sizes[i] : 8;
		struct map m;

		map_make(e, &m, b.addr, sizes[i]);
		fill(in, sizeof(in), i);
		check_rc(gdr_copy_to_mapping(m.mh, m.p + sizes[i] - tail, in,
					     tail), 0);
		gpu_check(e, b.addr + sizes[i] - tail, in, tail);
		check_rc(gdr_copy_from_mapping(m.mh, out, m.p + sizes[i] - tail,
					       tail), 0);
		check(memcmp(in, out, tail) == 0);
		map_drop(e, &m);
	}
	buf_free(e, &b);
}

/* Many pinnings at once, of one allocation; each shows its own piece. */
static void many_small(struct env *e)
{
	enum { N = 256 };
	const size_t piece = e->page;
	unsigned char *all = must_alloc(N * piece);
	struct map *m = must_alloc(N * sizeof(*m));
	struct buf b;
	int i, k;

	start(e);
	for (k = 0; k < MEM_KINDS; k++) {
		buf_alloc(e, &b, k, N * piece);
		fill(all, N * piece, k);
		for (i = 0; i < N; i++)
			map_make(e, &m[i], b.addr + i * piece, piece);
		for (i = N - 1; i >= 0; i--)
			check_rc(gdr_copy_to_mapping(m[i].mh, m[i].p,
						     all + i * piece, piece), 0);
		gpu_check(e, b.addr, all, N * piece);
		for (i = 0; i < N; i += 2)
			map_drop(e, &m[i]);
		for (i = 1; i < N; i += 2)
			check_eq(m[i].p[5], all[i * piece + 5]);
		for (i = 1; i < N; i += 2)
			map_drop(e, &m[i]);
		buf_free(e, &b);
	}
	free(m);
	free(all);
}

struct part {
	size_t off, size;
};

/* Pins, maps, writes and reads all the parts of one allocation at once. */
static void use_parts(struct env *e, const struct part *part, size_t n,
		      size_t total)
{
	unsigned char *model = must_alloc(total), *piece = must_alloc(total);
	struct map *m = must_alloc(n * sizeof(*m));
	struct buf b;
	size_t i;
	int k;

	for (k = 0; k < MEM_KINDS; k++) {
		buf_alloc(e, &b, k, total);
		fill(model, total, k + 99);
		gpu_write(e, b.addr, model, total);
		for (i = 0; i < n; i++)
			map_make(e, &m[i], b.addr + part[i].off, part[i].size);
		for (i = 0; i < n; i++) {
			fill(model + part[i].off, 100, i + k);
			check_rc(gdr_copy_to_mapping(m[i].mh, m[i].p,
						     model + part[i].off, 100), 0);
			check_rc(gdr_copy_from_mapping(m[i].mh, piece, m[i].p,
						       part[i].size), 0);
			check(memcmp(piece, model + part[i].off,
				     part[i].size) == 0);
		}
		gpu_check(e, b.addr, model, total);
		for (i = 0; i < n; i++)
			map_drop(e, &m[i]);
		buf_free(e, &b);
	}
	free(m);
	free(piece);
	free(model);
}

static void sub_ranges(struct env *e)
{
	const size_t p = e->page, total = 4ul << 20;
	const struct part parts[] = {
		{ 0, p }, { p, p }, { 2 * p, 3 * p }, { 7 * p, 2 * p },
		{ total / 2 - p, 2 * p }, { total - p, p },
	};

	start(e);
	use_parts(e, parts, sizeof(parts) / sizeof(parts[0]), total);
}

static void overlapping_ranges(struct env *e)
{
	const size_t p = e->page, total = 4ul << 20;
	const struct part parts[] = {
		{ p, p }, { p, 3 * p }, { 0, 2 * p }, { 3 * p, 4 * p },
		{ total - 2 * p, 2 * p }, { total - p, p }, { 0, total },
	};

	start(e);
	if (e->cu.simulated && e->backend == BE_DMABUF && !getenv("CUDA_SIM_RM"))
		skip("the simulated libcuda exports memfds, which cannot overlap at different offsets");
	use_parts(e, parts, sizeof(parts) / sizeof(parts[0]), total);
}

/* A part of a pinning mapped, unmapped, and another part mapped. */
static void partial_map(struct env *e)
{
	const size_t pages[] = { 1, 3, 2, 4 };
	unsigned char in[64], out[64];
	struct buf b;
	gdr_mh_t mh;
	size_t i;

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, 4 * e->page);
	mh = pin_only(e, b.addr, 4 * e->page);
	for (i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
		size_t size = pages[i] * e->page;
		char *va = NULL;

		check_rc(gdr_map(e->g, mh, (void **)&va, size - 10), 0);
		fill(in, sizeof(in), i);
		check_rc(gdr_copy_to_mapping(mh, va + size - 64, in, 64), 0);
		gpu_check(e, b.addr + size - 64, in, 64);
		check_rc(gdr_copy_from_mapping(mh, out, va + size - 64, 64), 0);
		check(memcmp(in, out, 64) == 0);
		check_rc(gdr_copy_to_mapping(mh, va + size - 63, in, 64), EINVAL);
		check_rc(gdr_unmap(e->g, mh, va, size), 0);
	}
	check_rc(gdr_unpin_buffer(e->g, mh), 0);
	buf_free(e, &b);
}

const struct sanity_case range_cases[] = {
	{ "unaligned_address", unaligned_address, BE_ALL, NULL },
	{ "unaligned_size", unaligned_size, BE_ALL, NULL },
	{ "many_small", many_small, BE_ALL, NULL },
	{ "sub_ranges", sub_ranges, BE_ALL, NULL },
	{ "overlapping_ranges", overlapping_ranges, BE_ALL, NULL },
	{ "partial_map", partial_map, BE_ALL, NULL },
	{ NULL, NULL, 0, NULL }
};
