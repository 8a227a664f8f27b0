/* SPDX-License-Identifier: MIT */
/*
 * sanity/basic.c - what each function does when it is used as it should be.
 */
#include "sanity.h"

#include <dlfcn.h>
#include <pthread.h>

/* Both ways, at the start, in the middle and at the very end of a mapping. */
static void copy_both_ways(struct env *e, struct map *m, unsigned long addr,
			   size_t size)
{
	unsigned char *a = must_alloc(size), *b = must_alloc(size);

	fill(a, size, addr + 1);
	memset(b, 0, size);
	check_rc(gdr_copy_to_mapping(m->mh, m->p, a, size), 0);
	gpu_check(e, addr, a, size);
	check_rc(gdr_copy_from_mapping(m->mh, b, m->p, size), 0);
	check(memcmp(a, b, size) == 0);

	fill(a, size, addr + 2);
	gpu_write(e, addr, a, size);
	check_rc(gdr_copy_from_mapping(m->mh, b, m->p, size), 0);
	check(memcmp(a, b, size) == 0);

	check_cu(e->cu.set8(addr, 0x3c, size));
	check_cu(e->cu.ctx_sync());
	memset(a, 0x3c, size);
	a[size - 1] = 0x99;
	check_rc(gdr_copy_to_mapping(m->mh, m->p + size - 1, a + size - 1, 1), 0);
	check_rc(gdr_copy_from_mapping(m->mh, b, m->p, size), 0);
	check(memcmp(a, b, size) == 0);
	gpu_check(e, addr, a, size);
	free(b);
	free(a);
}

static void basic_on(struct env *e, enum mem_kind kind)
{
	static const size_t sizes[] = { 1, 2, 17 };	/* in GPU pages */
	size_t i;

	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		size_t size = sizes[i] * GPU_PAGE_SIZE;
		gdr_mh_t mh;
		struct map m = { 0 };
		struct buf b;

		buf_alloc(e, &b, kind, size);
		check_rc(gdr_pin_buffer(e->g, b.addr, size, 0, 0, &mh), 0);
		m.mh = mh;
		check_rc(gdr_map(e->g, mh, &m.va, size), 0);
		m.p = m.va;
		copy_both_ways(e, &m, b.addr, size);

		/* The mapping is plain memory to the CPU. */
		*(volatile uint32_t *)(m.p + 64) = 0x01020304;
		check_eq(*(volatile uint32_t *)(m.p + 64), 0x01020304);

		check_rc(gdr_unmap(e->g, mh, m.va, size), 0);
		check_rc(gdr_unpin_buffer(e->g, mh), 0);
		buf_free(e, &b);
	}
	check_rc(gdr_close(e->g), 0);
}

/* Such memory cannot be reached here, and the library must say so. */
static void expect_no_export(struct env *e, struct buf *b)
{
	gdr_mh_t mh = { 42 };

	check_rc(gdr_pin_buffer(e->g, b->addr, b->size, 0, 0, &mh), ENOTSUP);
	check_rc(gdr_pin_buffer_v2(e->g, b->addr, b->size, 0, &mh), ENOTSUP);
	check_eq(mh.h, 42);
}

static void basic_cumemalloc(struct env *e)
{
	start(e);
	basic_on(e, MEM_PLAIN);
}

static void basic_vmm(struct env *e)
{
	start(e);
	basic_on(e, MEM_VMM);
}

static void basic_mem_alloc(struct env *e)
{
	start(e);
	basic_on(e, MEM_EXT);
}

/* gdr_mem_alloc is the first use of CUDA in this process. */
static void mem_alloc_first(struct env *e)
{
	unsigned char in[300], out[300];
	unsigned long addr = 0, again;
	gdr_mem_t mem;
	struct map m;
	size_t size = 0;

	e->g = gdr_open();
	check(e->g != NULL);
	check_rc(gdr_mem_alloc(e->g, e->gpu, 1, 0, &mem), 0);
	check_rc(gdr_mem_get_device_ptr(e->g, mem, &addr, &size), 0);
	check(addr != 0);
	check(size >= e->host_page && size % e->host_page == 0);
	again = 0;
	check_rc(gdr_mem_get_device_ptr(e->g, mem, &again, NULL), 0);
	check(again == addr);
	map_make(e, &m, addr, size);
	fill(in, sizeof(in), 7);
	check_rc(gdr_copy_to_mapping(m.mh, m.p + size - 300, in, 300), 0);
	check_rc(gdr_copy_from_mapping(m.mh, out, m.p + size - 300, 300), 0);
	check(memcmp(in, out, sizeof(in)) == 0);
	map_drop(e, &m);
	check_rc(gdr_mem_free(e->g, mem), 0);
	check_rc(gdr_close(e->g), 0);
}

/* A GPU that does not know the attribute lacks what it stands for, as GB10 does 124. */
static int device_attribute(struct env *e, int attribute)
{
	int dev, value, result;

	check_cu(e->cu.device_get(&dev, e->gpu));
	result = e->cu.device_attribute(&value, attribute, dev);
	if (result == CU_INVALID_VALUE)
		return 0;
	check_cu(result);
	return value;
}

/* rm finds it by a watched export as a dma-buf, which some drivers do not make. */
static bool needs_fd(struct env *e)
{
	return e->backend == BE_RM && !device_attribute(e, CU_DEV_DMA_BUF);
}

static void vmm_no_fd(struct env *e)
{
	struct buf b;
	struct map m;

	start(e);
	buf_alloc_vmm(e, &b, GPU_PAGE_SIZE, e->gpu, CU_EXPORT_NONE);
	if (needs_fd(e)) {
		note("it cannot be found here: checking for ENOTSUP");
		expect_no_export(e, &b);
	} else {
		map_make(e, &m, b.addr, b.size);
		copy_both_ways(e, &m, b.addr, b.size);
		map_drop(e, &m);
	}
	buf_free(e, &b);
}

static void basic_v2(struct env *e)
{
	gdr_info_t info = { .mapped = 0 };
	struct buf b;
	gdr_mh_t mh;
	struct map m = { 0 };

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, 2 * GPU_PAGE_SIZE);
	check_rc(gdr_pin_buffer_v2(e->g, b.addr, b.size, 0, &mh), 0);
	m.mh = mh;
	check_rc(gdr_map_v2(e->g, mh, &m.va, b.size, GDR_MAP_FLAG_DEFAULT), 0);
	m.p = m.va;
	check_rc(gdr_get_info_v2(e->g, mh, &info), 0);
	check_eq(info.mapped, 1);
	copy_both_ways(e, &m, b.addr, b.size);
	check_rc(gdr_unmap(e->g, mh, m.va, b.size), 0);
	check_rc(gdr_unpin_buffer(e->g, mh), 0);
	buf_free(e, &b);
}

/*
 * The attribute is that of all GPUs. rm answers 0 on arm64, as a GPU there may be coherent,
 * and forces it where the GPU is not.
 */
/* rm calls itself 2.4 where a GPU is coherent with the CPU. */
static bool is_coherent_rm(struct env *e)
{
	int major = -1, minor = -1;

	check_rc(gdr_driver_get_version(e->g, &major, &minor), 0);
	return e->backend == BE_RM && major == 2 && minor == 4;
}

/* On arm64 rm may say so only after the first pin. */
static bool can_force_pcie(struct env *e)
{
	return e->force_pcie || (e->backend == BE_RM && !is_coherent_rm(e));
}

static void force_pcie(struct env *e)
{
	gdr_info_t info;
	gdr_mh_t mh;
	struct buf b;
	struct map m = { 0 };

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, GPU_PAGE_SIZE);
	if (!can_force_pcie(e)) {
		note("not supported here: checking for EINVAL");
		check_rc(gdr_pin_buffer_v2(e->g, b.addr, b.size,
					   GDR_PIN_FLAG_FORCE_PCIE, &mh), EINVAL);
		buf_free(e, &b);
		return;
	}
	check_rc(gdr_pin_buffer_v2(e->g, b.addr, b.size,
				   GDR_PIN_FLAG_FORCE_PCIE, &mh), 0);
	m.mh = mh;
	check_rc(gdr_map(e->g, mh, &m.va, b.size), 0);
	m.p = m.va;
	mark(&info, sizeof(info));
	check_rc(gdr_get_info(e->g, mh, &info), 0);
	check(info.mapping_type == GDR_MAPPING_TYPE_WC ||
	      e->backend == BE_GDRDRV);
	copy_both_ways(e, &m, b.addr, b.size);
	check_rc(gdr_unmap(e->g, mh, m.va, b.size), 0);
	check_rc(gdr_unpin_buffer(e->g, mh), 0);
	buf_free(e, &b);
}

static void tokens(struct env *e)
{
	struct cu_tokens t = { 1, 1 };
	struct buf b;
	gdr_mh_t mh;

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, GPU_PAGE_SIZE);
	if (e->backend == BE_GDRDRV && !e->persistent) {
		int rc = e->cu.pointer_attribute(&t, CU_ATTR_P2P_TOKENS, b.raw);

		if (rc != CU_OK)
			skip("this driver gives no tokens: %s",
			     cuda_error(&e->cu, rc));
	}
	check_rc(gdr_pin_buffer(e->g, b.addr, b.size, t.p2p_token, t.va_space,
				&mh), 0);
	check_rc(gdr_unpin_buffer(e->g, mh), 0);
	buf_free(e, &b);
}

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

/* Many allocations at once, of all kinds in turn. */
static void many_buffers(struct env *e)
{
	enum { N = 48 };
	struct buf b[N];
	struct map m[N];
	int i;

	start(e);
	for (i = 0; i < N; i++) {
		uint64_t tag = 0x1111 + i;

		buf_alloc(e, &b[i], i % MEM_KINDS, 1);
		map_make(e, &m[i], b[i].addr, b[i].size);
		check_rc(gdr_copy_to_mapping(m[i].mh, m[i].p + 8 * i, &tag,
					     sizeof(tag)), 0);
	}
	for (i = 0; i < N; i++) {
		uint64_t tag = 0x1111 + i;

		gpu_check(e, b[i].addr + 8 * i, &tag, sizeof(tag));
		map_drop(e, &m[i]);
		buf_free(e, &b[i]);
	}
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

static void info(struct env *e)
{
	gdr_info_t i;
	struct buf b;
	gdr_mh_t mh;
	void *va = NULL;

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, 2 * GPU_PAGE_SIZE);
	mh = pin_only(e, b.addr, GPU_PAGE_SIZE + 1);
	mark(&i, sizeof(i));
	check_rc(gdr_get_info(e->g, mh, &i), 0);
	check_eq(i.va, b.addr);
	check_eq(i.page_size, e->page);
	check_eq(i.mapped_size, (GPU_PAGE_SIZE + e->page) / e->page * e->page);
	check_eq(i.mapped, 0);
	check_eq(i.wc_mapping, 0);
	check_eq(i.mapping_type, GDR_MAPPING_TYPE_NONE);
	if (e->backend != BE_GDRDRV)
		check(i.tm_cycles == 0 && i.cycles_per_ms == 0);

	check_rc(gdr_map(e->g, mh, &va, GPU_PAGE_SIZE + 1), 0);
	check(va && !read_faults((char *)va + GPU_PAGE_SIZE));
	check_rc(gdr_get_info(e->g, mh, &i), 0);
	check_eq(i.va, b.addr);
	check_eq(i.mapped, 1);
	check(i.mapping_type > GDR_MAPPING_TYPE_NONE &&
	      i.mapping_type < GDR_MAPPING_TYPE_MAX);
	check_eq(i.wc_mapping, i.mapping_type == GDR_MAPPING_TYPE_WC);
	if (e->backend == BE_DMABUF && device_attribute(e, CU_DEV_HOST_PAGE_TABLES))
		check_eq(i.mapping_type, GDR_MAPPING_TYPE_CACHING);
	note("mapping type %d, page %u", i.mapping_type, i.page_size);

	check_rc(gdr_unmap(e->g, mh, va, GPU_PAGE_SIZE + 1), 0);
	check_rc(gdr_get_info(e->g, mh, &i), 0);
	check(!i.mapped && i.mapping_type == GDR_MAPPING_TYPE_NONE);
	check_rc(gdr_unpin_buffer(e->g, mh), 0);
	buf_free(e, &b);
}

/* Old binaries pass 40 bytes to the function behind the macro. */
static void info_sizes(struct env *e)
{
	int (*v1)(gdr_t, gdr_mh_t, void *);
	unsigned char one[64], two[64];
	struct buf b;
	struct map m;
	void *f;

	start(e);
	f = dlsym(RTLD_DEFAULT, "gdr_get_info");
	check(f != NULL);
	check(f != dlsym(RTLD_DEFAULT, "gdr_get_info_v2"));
	memcpy(&v1, &f, sizeof(f));
	buf_alloc(e, &b, MEM_PLAIN, GPU_PAGE_SIZE);
	map_make(e, &m, b.addr, b.size);

	mark(one, sizeof(one));
	mark(two, sizeof(two));
	check_rc(v1(e->g, m.mh, one), 0);
	check_rc(gdr_get_info_v2(e->g, m.mh, (gdr_info_v2_t *)(void *)two), 0);
	check(untouched(one + 40, sizeof(one) - 40));
	check(untouched(two + 48, sizeof(two) - 48));
	check(memcmp(one, two, 20) == 0);	/* va, mapped_size, page_size */
	check(memcmp(one + 24, two + 24, 12) == 0);	/* the cycles */
	check_eq(one[36] & 3, two[36] & 3);
	check_eq(one[36] & 1, 1);
	map_drop(e, &m);

	mark(one, sizeof(one));
	check_rc(v1(e->g, m.mh, one), EINVAL);
	check_rc(v1(e->g, m.mh, NULL), EINVAL);
	check(untouched(one, sizeof(one)));
	buf_free(e, &b);
}

static void callback_flag(struct env *e)
{
	struct buf b;
	struct map m;
	int flag;

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, GPU_PAGE_SIZE);
	map_make(e, &m, b.addr, b.size);
	flag = -1;
	check_rc(gdr_get_callback_flag(e->g, m.mh, &flag), 0);
	check_eq(flag, 0);
	buf_free(e, &b);
	flag = -1;
	check_rc(gdr_get_callback_flag(e->g, m.mh, &flag), 0);
	check_eq(flag, !e->persistent);
	check_rc(gdr_unpin_buffer(e->g, m.mh), 0);
	flag = -1;
	check_rc(gdr_get_callback_flag(e->g, m.mh, &flag), EINVAL);
	check_eq(flag, -1);
}

static void attributes(struct env *e)
{
	int v[GDR_ATTR_MAX], a;

	start(e);
	for (a = 1; a < GDR_ATTR_MAX; a++) {
		v[a] = -1;
		check_rc(gdr_get_attribute(e->g, a, &v[a]), 0);
		check(v[a] == 0 || v[a] == 1);
	}
	check_eq(v[GDR_ATTR_USING_DMA_BUF_MMAP], e->backend == BE_DMABUF);
	if (e->backend != BE_GDRDRV)
		check_eq(v[GDR_ATTR_USE_PERSISTENT_MAPPING], 1);
	if (e->backend == BE_DMABUF)
		check_eq(v[GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE], 1);
}

static void versions(struct env *e)
{
	int major = -1, minor = -1;

	gdr_runtime_get_version(&major, &minor);	/* before gdr_open */
	check_eq(major, 2);
	check_eq(minor, 6);
	gdr_runtime_get_version(NULL, NULL);

	start(e);
	major = minor = -1;
	check_rc(gdr_driver_get_version(e->g, &major, &minor), 0);
	if (e->backend == BE_GDRDRV) {
		check((major << 16 | minor) >= MINIMUM_GDRDRV_VERSION);
	} else {
		check_eq(major, 2);
		check_eq(minor, is_coherent_rm(e) && !e->force_pcie ? 4 : 6);
	}
}

static void type_strings(struct env *e)
{
	static const char *const want[] = { "None", "Write Combining",
					    "Caching", "Device" };
	const char *s;
	int i;

	(void)e;
	for (i = 0; i < GDR_MAPPING_TYPE_MAX; i++) {
		s = NULL;
		check_rc(gdr_get_mapping_type_string(i, &s), 0);
		check(s && strcmp(s, want[i]) == 0);
	}
	s = want[0];
	check_rc(gdr_get_mapping_type_string(GDR_MAPPING_TYPE_MAX, &s), EINVAL);
	check_rc(gdr_get_mapping_type_string(-1, &s), EINVAL);
	check(s == want[0]);
}

/* What a backend answers to a request for a type that it does not give. */
static bool is_no_such_type(const struct env *e, int rc)
{
	if (e->backend & (BE_GDRDRV | BE_RM))
		return rc == EOPNOTSUPP || rc == EINVAL;
	return rc == EINVAL;
}

static void mapping_types(struct env *e)
{
	gdr_info_t info;
	struct buf b;
	struct map m;
	int usual, type;

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, GPU_PAGE_SIZE);
	map_make(e, &m, b.addr, b.size);
	mark(&info, sizeof(info));
	check_rc(gdr_get_info(e->g, m.mh, &info), 0);
	usual = (int)info.mapping_type;
	check(usual > GDR_MAPPING_TYPE_NONE && usual < GDR_MAPPING_TYPE_MAX);
	map_drop(e, &m);

	for (type = GDR_MAPPING_TYPE_WC; type < GDR_MAPPING_TYPE_MAX; type++) {
		gdr_mh_t mh = pin_only(e, b.addr, b.size);
		int rc;

		m = (struct map){ .mh = mh, .size = b.size };
		rc = gdr_map_v2(e->g, mh, &m.va, b.size, type);
		if (type == usual)
			check_rc(rc, 0);
		if (rc == 0) {
			m.p = m.va;
			mark(&info, sizeof(info));
			check_rc(gdr_get_info(e->g, mh, &info), 0);
			check_eq(info.mapping_type, type);
			copy_both_ways(e, &m, b.addr, b.size);
			map_drop(e, &m);
			continue;
		}
		note("type %d: %s", type, strerror(rc));
		check(is_no_such_type(e, rc));
		check(m.va == NULL);
		check_rc(gdr_map(e->g, mh, &m.va, b.size), 0);
		check(m.va && !read_faults(m.va));
		map_drop(e, &m);
	}
	buf_free(e, &b);
}

/* Live mappings of all memory kinds and all types that can be had, at once. */
static void mixed(struct env *e)
{
	enum { MAX = 2 * MEM_KINDS * GDR_MAPPING_TYPE_MAX };
	unsigned types = 0;
	struct buf b[MAX];
	struct map m[MAX];
	int n = 0, kind, type, i;

	start(e);
	for (kind = 0; kind < MEM_KINDS; kind++)
		for (type = 0; type < 2 * GDR_MAPPING_TYPE_MAX; type++) {
			bool pcie = type >= GDR_MAPPING_TYPE_MAX;
			gdr_info_t info;

			if (pcie && !e->force_pcie)
				continue;
			buf_alloc(e, &b[n], kind, GPU_PAGE_SIZE);
			m[n] = (struct map){ .size = b[n].size };
			check_rc(gdr_pin_buffer_v2(e->g, b[n].addr, b[n].size,
						   pcie, &m[n].mh), 0);
			if (gdr_map_v2(e->g, m[n].mh, &m[n].va, b[n].size,
				       type % GDR_MAPPING_TYPE_MAX)) {
				check(m[n].va == NULL);
				check_rc(gdr_unpin_buffer(e->g, m[n].mh), 0);
				buf_free(e, &b[n]);
				continue;
			}
			m[n].p = m[n].va;
			mark(&info, sizeof(info));
			check_rc(gdr_get_info(e->g, m[n].mh, &info), 0);
			check(info.mapping_type > GDR_MAPPING_TYPE_NONE &&
			      info.mapping_type < GDR_MAPPING_TYPE_MAX);
			types |= 1u << info.mapping_type;
			n++;
		}
	note("%d mappings, set of types %#x", n, types);
	check(n >= 2);
	for (i = 0; i < n; i++)
		copy_both_ways(e, &m[i], b[i].addr, b[i].size);
	for (i = 0; i < n; i++) {
		map_drop(e, &m[i]);
		buf_free(e, &b[i]);
	}
}

static void two_pins(struct env *e)
{
	unsigned char in[1000], out[1000];
	struct buf b;
	struct map one, two;

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, GPU_PAGE_SIZE);
	map_make(e, &one, b.addr, b.size);
	map_make(e, &two, b.addr, b.size);
	check(one.mh.h != two.mh.h);
	check(one.va != two.va);
	fill(in, sizeof(in), 3);
	check_rc(gdr_copy_to_mapping(one.mh, one.p + 3, in, sizeof(in)), 0);
	check_rc(gdr_copy_from_mapping(two.mh, out, two.p + 3, sizeof(out)), 0);
	check(memcmp(in, out, sizeof(in)) == 0);
	/* A pointer into the one mapping does not fit the other's handle. */
	check_rc(gdr_copy_to_mapping(one.mh, two.p, in, 8), EINVAL);
	map_drop(e, &one);
	check_rc(gdr_copy_from_mapping(two.mh, out, two.p + 3, sizeof(out)), 0);
	check(memcmp(in, out, sizeof(in)) == 0);
	map_drop(e, &two);
	buf_free(e, &b);
}

/* Two gdr_t over the same memory; neither knows the other's handle. */
static void two_opens(struct env *e)
{
	uint32_t in = 0xfeedface, out = 0;
	gdr_t first, second;
	struct map a, b;
	struct buf buf;

	start(e);
	first = e->g;
	second = gdr_open();
	check(second != NULL && second != first);
	buf_alloc(e, &buf, MEM_PLAIN, GPU_PAGE_SIZE);
	map_make(e, &a, buf.addr, buf.size);
	e->g = second;
	map_make(e, &b, buf.addr, buf.size);
	check_rc(gdr_copy_to_mapping(a.mh, a.p, &in, 4), 0);
	check_rc(gdr_close(first), 0);
	check_rc(gdr_copy_from_mapping(b.mh, &out, b.p, 4), 0);
	check_eq(out, in);
	check(!write_faults(b.p) && is_gone(a.p) && *(volatile unsigned char *)b.p == WRITTEN);
	map_drop(e, &b);
	check_rc(gdr_close(second), 0);
	buf_free(e, &buf);
}

struct thread_arg {
	struct env *e;
	struct buf *b;
	struct map m;
};

static void *pin_in_thread(void *p)
{
	struct thread_arg *t = p;
	struct env *e = t->e;
	cu_ctx before = NULL, after = NULL;

	check_cu(e->cu.ctx_get(&before));
	check(before == NULL);
	map_make(e, &t->m, t->b->addr, t->b->size);
	check_cu(e->cu.ctx_get(&after));
	check(after == NULL);
	return NULL;
}

/* A thread with no CUDA context pins; its work outlives it. */
static void child_thread(struct env *e)
{
	struct thread_arg t = { .e = e };
	pthread_t thread;
	struct buf b;
	cu_ctx ctx;
	int k;

	start(e);
	for (k = 0; k < MEM_KINDS; k++) {
		buf_alloc(e, &b, k, GPU_PAGE_SIZE);
		t.b = &b;
		check_rc(pthread_create(&thread, NULL, pin_in_thread, &t), 0);
		check_rc(pthread_join(thread, NULL), 0);
		copy_both_ways(e, &t.m, b.addr, b.size);
		map_drop(e, &t.m);
		buf_free(e, &b);
	}
	check_cu(e->cu.ctx_get(&ctx));
	check(ctx == e->ctx);
}

struct worker {
	struct env e;		/* a copy: e.g may be the worker's own */
	unsigned long addr;
	int number;
};

static void *work(void *p)
{
	struct worker *w = p;
	unsigned char in[777], out[777];
	bool own = w->number % 2;
	int i;

	if (own)
		w->e.g = gdr_open();
	check(w->e.g != NULL);
	for (i = 0; i < 40; i++) {
		struct map m;

		map_make(&w->e, &m, w->addr, GPU_PAGE_SIZE);
		fill(in, sizeof(in), w->number * 1000 + i);
		check_rc(gdr_copy_to_mapping(m.mh, m.p + i, in, sizeof(in)), 0);
		check_rc(gdr_copy_from_mapping(m.mh, out, m.p + i,
					       sizeof(out)), 0);
		check(memcmp(in, out, sizeof(in)) == 0);
		map_drop(&w->e, &m);
	}
	if (own)
		check_rc(gdr_close(w->e.g), 0);
	return NULL;
}

static void threads(struct env *e)
{
	enum { N = 8 };
	struct worker w[N];
	pthread_t t[N];
	struct buf b;
	int i;

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, N * GPU_PAGE_SIZE);
	for (i = 0; i < N; i++) {
		w[i] = (struct worker){ *e, b.addr + i * GPU_PAGE_SIZE, i };
		check_rc(pthread_create(&t[i], NULL, work, &w[i]), 0);
	}
	for (i = 0; i < N; i++)
		check_rc(pthread_join(t[i], NULL), 0);
	check_rc(gdr_close(e->g), 0);
	buf_free(e, &b);
}

static void two_gpus(struct env *e)
{
	const uint64_t in[2] = { 0x1111111111111111, 0x2222222222222222 };
	int gpu[2] = { e->gpu, (e->gpu + 1) % e->gpus }, dev, i, k;
	cu_ctx ctx[2];
	struct buf b[2];
	struct map m[2];
	uint64_t out;

	if (e->gpus < 2)
		skip("one GPU here");
	start(e);
	ctx[0] = e->ctx;
	check_cu(e->cu.device_get(&dev, gpu[1]));
	check_cu(e->cu.primary_retain(&ctx[1], dev));
	for (k = 0; k < MEM_KINDS; k++) {
		for (i = 0; i < 2; i++) {
			check_cu(e->cu.ctx_set(ctx[i]));
			buf_alloc_on(e, &b[i], k, GPU_PAGE_SIZE, gpu[i]);
		}
		/* The first is pinned while the other's context is current. */
		for (i = 0; i < 2; i++)
			map_make(e, &m[i], b[i].addr, b[i].size);
		for (i = 0; i < 2; i++)
			check_rc(gdr_copy_to_mapping(m[i].mh, m[i].p, &in[i], 8), 0);
		for (i = 0; i < 2; i++) {
			check_rc(gdr_copy_from_mapping(m[i].mh, &out, m[i].p, 8), 0);
			check_eq(out, in[i]);
			check_cu(e->cu.ctx_set(ctx[i]));
			gpu_check(e, b[i].addr, &in[i], 8);
			map_drop(e, &m[i]);
			buf_free(e, &b[i]);
		}
	}
	check_cu(e->cu.ctx_set(e->ctx));
	check_cu(e->cu.primary_release(dev));
}

const struct sanity_case basic_cases[] = {
	{ "basic_cumemalloc", basic_cumemalloc, BE_ALL, NULL },
	{ "basic_vmm", basic_vmm, BE_ALL, NULL },
	{ "basic_mem_alloc", basic_mem_alloc, BE_ALL, NULL },
	{ "basic_v2", basic_v2, BE_ALL, NULL },
	{ "mem_alloc_first", mem_alloc_first, BE_ALL, NULL },
	{ "vmm_no_fd", vmm_no_fd, BE_ALL, NULL },
	{ "force_pcie", force_pcie, BE_ALL, NULL },
	{ "tokens", tokens, BE_ALL, NULL },
	{ "unaligned_address", unaligned_address, BE_ALL, NULL },
	{ "unaligned_size", unaligned_size, BE_ALL, NULL },
	{ "many_small", many_small, BE_ALL, NULL },
	{ "many_buffers", many_buffers, BE_ALL, NULL },
	{ "sub_ranges", sub_ranges, BE_ALL, NULL },
	{ "overlapping_ranges", overlapping_ranges, BE_ALL, NULL },
	{ "partial_map", partial_map, BE_ALL, NULL },
	{ "info", info, BE_ALL, NULL },
	{ "info_sizes", info_sizes, BE_ALL, NULL },
	{ "callback_flag", callback_flag, BE_ALL, NULL },
	{ "attributes", attributes, BE_ALL, NULL },
	{ "versions", versions, BE_ALL, NULL },
	{ "type_strings", type_strings, BE_ALL, NULL },
	{ "mapping_types", mapping_types, BE_ALL, NULL },
	{ "mixed", mixed, BE_ALL, NULL },
	{ "two_pins", two_pins, BE_ALL, NULL },
	{ "two_opens", two_opens, BE_ALL, NULL },
	{ "child_thread", child_thread, BE_ALL, NULL },
	{ "threads", threads, BE_ALL, NULL },
	{ "two_gpus", two_gpus, BE_ALL, NULL },
	{ NULL, NULL, 0, NULL }
};
