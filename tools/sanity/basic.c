/* SPDX-License-Identifier: MIT */
/*
 * sanity/basic.c - the life of one mapping, of each kind of memory and by each pin.
 */
#include "sanity.h"

static void basic_on(struct env *e, enum mem_kind kind)
{
	static const size_t sizes[] = { 1, 2, 17 };	/* in GPU pages */
	size_t i;

	start(e);
	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		size_t size = sizes[i] * GPU_PAGE_SIZE;
		struct map m = { .size = size };
		struct buf b;

		buf_alloc(e, &b, kind, size);
		check_rc(gdr_pin_buffer(e->g, b.addr, size, 0, 0, &m.mh), 0);
		check_rc(gdr_map(e->g, m.mh, &m.va, size), 0);
		m.p = m.va;
		copy_both_ways(e, &m, b.addr, size);

		/* The mapping is plain memory to the CPU. */
		*(volatile uint32_t *)(m.p + 64) = 0x01020304;
		check_eq(*(volatile uint32_t *)(m.p + 64), 0x01020304);

		free_mapped(e, &b, &m);
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
	basic_on(e, MEM_PLAIN);
}

static void basic_vmm(struct env *e)
{
	basic_on(e, MEM_VMM);
}

static void basic_mem_alloc(struct env *e)
{
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

/* rm hears of it on GPUs with memory of their own. On GB10 only a dma-buf says where it lies, and there is none. */
static bool needs_fd(struct env *e)
{
	return is_coherent_rm(e) && !device_attribute(e, CU_DEV_DMA_BUF);
}

/* A sandbox, or a driver that is not known, may keep rm from hearing. */
static bool is_unheard(struct env *e, struct buf *b)
{
	gdr_mh_t mh;
	int rc;

	if (e->backend != BE_RM || e->cu.simulated || device_attribute(e, CU_DEV_DMA_BUF))
		return false;
	rc = gdr_pin_buffer(e->g, b->addr, b->size, 0, 0, &mh);
	if (!rc)
		check_rc(gdr_unpin_buffer(e->g, mh), 0);
	return rc == ENOTSUP;
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
	} else if (is_unheard(e, &b)) {
		skip("this driver exports nothing as a dma-buf, and does not let rm hear");
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
	struct map m = { .size = 2 * GPU_PAGE_SIZE };
	struct buf b;

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, m.size);
	check_rc(gdr_pin_buffer_v2(e->g, b.addr, b.size, 0, &m.mh), 0);
	check_rc(gdr_map_v2(e->g, m.mh, &m.va, b.size, GDR_MAP_FLAG_DEFAULT), 0);
	m.p = m.va;
	check_rc(gdr_get_info_v2(e->g, m.mh, &info), 0);
	check_eq(info.mapped, 1);
	copy_both_ways(e, &m, b.addr, b.size);
	free_mapped(e, &b, &m);
}

/*
 * The attribute is that of all GPUs. rm answers 0 on arm64, as a GPU there may be coherent,
 * and forces it where the GPU is not. It may say so only after the first pin.
 */
static bool can_force_pcie(struct env *e)
{
	return e->force_pcie || (e->backend == BE_RM && !is_coherent_rm(e));
}

static void force_pcie(struct env *e)
{
	struct map m = { .size = GPU_PAGE_SIZE };
	gdr_info_t info;
	struct buf b;

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, m.size);
	if (!can_force_pcie(e)) {
		note("not supported here: checking for EINVAL");
		check_rc(gdr_pin_buffer_v2(e->g, b.addr, b.size,
					   GDR_PIN_FLAG_FORCE_PCIE, &m.mh), EINVAL);
		buf_free(e, &b);
		return;
	}
	check_rc(gdr_pin_buffer_v2(e->g, b.addr, b.size,
				   GDR_PIN_FLAG_FORCE_PCIE, &m.mh), 0);
	check_rc(gdr_map(e->g, m.mh, &m.va, b.size), 0);
	m.p = m.va;
	mark(&info, sizeof(info));
	check_rc(gdr_get_info(e->g, m.mh, &info), 0);
	check(info.mapping_type == GDR_MAPPING_TYPE_WC ||
	      e->backend == BE_GDRDRV);
	copy_both_ways(e, &m, b.addr, b.size);
	free_mapped(e, &b, &m);
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

const struct sanity_case basic_cases[] = {
	{ "basic_cumemalloc", basic_cumemalloc, BE_ALL, NULL },
	{ "basic_vmm", basic_vmm, BE_ALL, NULL },
	{ "basic_mem_alloc", basic_mem_alloc, BE_ALL, NULL },
	{ "basic_v2", basic_v2, BE_ALL, NULL },
	{ "mem_alloc_first", mem_alloc_first, BE_ALL, NULL },
	{ "vmm_no_fd", vmm_no_fd, BE_ALL, NULL },
	{ "force_pcie", force_pcie, BE_ALL, NULL },
	{ "tokens", tokens, BE_ALL, NULL },
	{ NULL, NULL, 0, NULL }
};
