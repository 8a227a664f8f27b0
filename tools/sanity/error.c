/* SPDX-License-Identifier: MIT */
/*
 * sanity/error.c - each errno value that gdrapi.h promises, with its cause.
 * badinput.c goes on from here with what no caller should ever pass.
 */
#include "sanity.h"

#include <dlfcn.h>

static const char *set_env(const char *name, const char *value)
{
	char *old = getenv(name);

	old = old ? strdup(old) : NULL;
	check_eq(value ? setenv(name, value, 1) : unsetenv(name), 0);
	return old;
}

static void errno_open(struct env *e)
{
	static const char *const bad[] = { "nonsense", "GDRDRV", "dmabuf " };
	const char *old = NULL;
	size_t i;

	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const char *was = set_env("GDRCOPY_BACKEND", bad[i]);

		if (i == 0)
			old = was;
		errno = 0;
		check(gdr_open() == NULL);
		check_eq(errno, EINVAL);
	}
	set_env("GDRCOPY_BACKEND", old);
	start(e);
	check_rc(gdr_close(e->g), 0);
	check_rc(gdr_close(e->g), EINVAL);
	check_rc(gdr_close(NULL), EINVAL);
}

static void errno_pin(struct env *e)
{
	const unsigned long top = ~0ul;
	char *host = must_alloc(4 * GPU_PAGE_SIZE);
	struct buf b;
	gdr_mh_t mh = { 77 };
	size_t i;

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, GPU_PAGE_SIZE);
	const struct { unsigned long addr; size_t size; } bad[] = {
		{ b.addr, 0 }, { 0, GPU_PAGE_SIZE }, { 0, 0 },
		{ b.addr, top }, { b.addr, top - b.addr + 1 }, { top, 2 },
		{ top - GPU_PAGE_OFFSET, GPU_PAGE_SIZE },
		{ b.addr, 1ul << 45 },	/* past the end of any allocation */
		{ (unsigned long)host, GPU_PAGE_SIZE }, { 0x10000, 1 },
	};
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		note("%zu bytes at %#lx", bad[i].size, bad[i].addr);
		check_rc(gdr_pin_buffer(e->g, bad[i].addr, bad[i].size, 0, 0,
					&mh), EINVAL);
		check_rc(gdr_pin_buffer_v2(e->g, bad[i].addr, bad[i].size, 0,
					   &mh), EINVAL);
	}
	check_eq(mh.h, 77);
	/* As the reference's, the library ignores bits that it does not know. */
	check_rc(gdr_pin_buffer_v2(e->g, b.addr, b.size, ~1u, &mh), 0);
	check_rc(gdr_unpin_buffer(e->g, mh), 0);
	check_rc(gdr_pin_buffer(e->g, b.addr, b.size, 0, 0, NULL), EINVAL);
	check_rc(gdr_pin_buffer_v2(e->g, b.addr, b.size, 0, NULL), EINVAL);
	mh.h = 77;
	check_rc(gdr_pin_buffer(NULL, b.addr, b.size, 0, 0, &mh), EINVAL);
	check_eq(mh.h, 77);
	mh = pin_only(e, b.addr, b.size);
	check_rc(gdr_unpin_buffer(e->g, mh), 0);
	check_rc(gdr_unpin_buffer(e->g, mh), EINVAL);
	buf_free(e, &b);

	/* What was pinned GPU memory a moment ago is none now. */
	buf_alloc(e, &b, MEM_VMM, GPU_PAGE_SIZE);
	unsigned long addr = b.addr;

	mh = pin_only(e, addr, b.size);
	check_rc(gdr_unpin_buffer(e->g, mh), 0);
	buf_free(e, &b);
	mh.h = 77;
	check_rc(gdr_pin_buffer(e->g, addr, GPU_PAGE_SIZE, 0, 0, &mh), EINVAL);
	check_eq(mh.h, 77);
	free(host);
}

/* CUDA is not up: there cannot be any GPU memory. */
static void pin_without_cuda(struct env *e)
{
	gdr_mh_t mh = { 77 };

	e->g = gdr_open();
	check(e->g != NULL);
	check_rc(gdr_pin_buffer(e->g, 0x7f0000000000, GPU_PAGE_SIZE, 0, 0, &mh),
		 EINVAL);
	check_eq(mh.h, 77);
	check_rc(gdr_close(e->g), 0);
}

static void errno_map(struct env *e)
{
	const size_t bad_sizes[] = { 0, e->page + 1, e->page + e->host_page,
				     ~0ul, ~0ul - e->host_page, 1ul << 63 };
	const int bad_flags[] = { 4, 5, 8, -1, 1 << 30 };
	void *va = &va, *again = &va;
	struct buf b;
	gdr_mh_t mh;
	size_t i;

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, 2 * GPU_PAGE_SIZE);
	mh = pin_only(e, b.addr, e->page);
	for (i = 0; i < sizeof(bad_sizes) / sizeof(bad_sizes[0]); i++) {
		check_rc(gdr_map(e->g, mh, &va, bad_sizes[i]), EINVAL);
		check_rc(gdr_map_v2(e->g, mh, &va, bad_sizes[i], 0), EINVAL);
	}
	for (i = 0; i < sizeof(bad_flags) / sizeof(bad_flags[0]); i++)
		check_rc(gdr_map_v2(e->g, mh, &va, e->page, bad_flags[i]), EINVAL);
	check_rc(gdr_map(e->g, mh, NULL, e->page), EINVAL);
	check_rc(gdr_map_v2(e->g, mh, NULL, e->page, 0), EINVAL);
	check_rc(gdr_map(NULL, mh, &va, e->page), EINVAL);
	check(va == (void *)&va);

	check_rc(gdr_map(e->g, mh, &va, e->page), 0);
	check_rc(gdr_map(e->g, mh, &again, e->page), EAGAIN);
	check_rc(gdr_map_v2(e->g, mh, &again, 1, 0), EAGAIN);
	check(again == (void *)&va);
	check(!read_faults(va));
	check_rc(gdr_unmap(e->g, mh, va, e->page), 0);
	check_rc(gdr_unpin_buffer(e->g, mh), 0);
	buf_free(e, &b);
}

static void errno_unmap(struct env *e)
{
	static const char in[8] = { 8, 1, 7, 2, 6, 3, 5, 4 };
	const size_t size = 2 * e->page;
	struct buf b;
	gdr_mh_t mh;
	char *va;

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, 2 * GPU_PAGE_SIZE);
	mh = pin_only(e, b.addr, size);
	check_rc(gdr_unmap(e->g, mh, &b, size), EINVAL);	/* not mapped */
	check_rc(gdr_map(e->g, mh, (void **)&va, size), 0);
	check_rc(gdr_unmap(e->g, mh, va + 1, size), EINVAL);
	check_rc(gdr_unmap(e->g, mh, va, 2 * GPU_PAGE_SIZE + 1), EINVAL);
	check_rc(gdr_unmap(e->g, mh, va, 0), EINVAL);
	check_rc(gdr_unmap(e->g, mh, va, ~0ul), EINVAL);
	check_rc(gdr_unmap(NULL, mh, va, size), EINVAL);
	check(!read_faults(va) && !read_faults(va + size - 1));
	check_rc(gdr_copy_to_mapping(mh, va, in, 8), 0);
	gpu_check(e, b.addr, in, 8);
	/* The whole mapping goes by a smaller size, too. */
	check(!write_faults(va));
	check_rc(gdr_unmap(e->g, mh, va, 1), 0);
	check(is_gone(va));
	/* The handle names the mapping: DPDK passes the GPU's address. */
	va = NULL;
	check_rc(gdr_map(e->g, mh, (void **)&va, size), 0);
	check(va && !write_faults(va));
	check_rc(gdr_unmap(e->g, mh, (void *)(b.addr & ~(e->host_page - 1)), size), 0);
	check(is_gone(va));
	check_rc(gdr_unmap(e->g, mh, va, size), EINVAL);
	check_rc(gdr_unpin_buffer(e->g, mh), 0);
	buf_free(e, &b);
}

static void errno_copy(struct env *e)
{
	char host[256] = { 0 };
	struct buf b;
	struct map m;
	char *va;
	size_t i;

	start(e);
	buf_alloc(e, &b, MEM_PLAIN, GPU_PAGE_SIZE);
	map_make(e, &m, b.addr, e->page);
	va = m.va;
	const struct { char *dev, *host; size_t size; int want; } rows[] = {
		{ va, host, 1, 0 },
		{ va + e->page - 1, host, 1, 0 },
		{ va, host, 0, 0 },
		{ NULL, NULL, 0, 0 },
		{ va + e->page, host, 0, 0 },
		{ va - 1, host, 0, 0 },
		{ va, NULL, 0, 0 },
		{ va, NULL, 1, EINVAL },
		{ NULL, host, 1, EINVAL },
		{ va - 1, host, 1, EINVAL },
		{ va - 1, host, 2, EINVAL },
		{ va + e->page, host, 1, EINVAL },
		{ va + e->page - 1, host, 2, EINVAL },
		{ va, host, e->page + 1, EINVAL },
		{ va, host, ~0ul, EINVAL },
		{ va + 1, host, ~0ul, EINVAL },
		{ va, host, 1ul << 63, EINVAL },
		{ host, va, 1, EINVAL },
	};
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		note("row %zu", i);
		host[0] = (char)(i + 1);
		check_rc(gdr_copy_to_mapping(m.mh, rows[i].dev, rows[i].host,
					     rows[i].size), rows[i].want);
		if (rows[i].size == 1 && !rows[i].want)
			check_eq(*(volatile char *)rows[i].dev, i + 1);
		host[0] = 0;
		check_rc(gdr_copy_from_mapping(m.mh, rows[i].host, rows[i].dev,
					       rows[i].size), rows[i].want);
		check_eq(host[0], rows[i].size == 1 && !rows[i].want ? i + 1 : 0);
	}
	check_rc(gdr_copy_to_mapping((gdr_mh_t){ 0 }, va, host, 1), EINVAL);
	check_rc(gdr_copy_to_mapping((gdr_mh_t){ 0 }, va, host, 0), EINVAL);
	map_drop(e, &m);

	/* Pinned but not mapped. */
	m.mh = pin_only(e, b.addr, e->page);
	check_rc(gdr_copy_to_mapping(m.mh, va, host, 1), EINVAL);
	check_rc(gdr_copy_from_mapping(m.mh, host, va, 1), EINVAL);
	check_rc(gdr_copy_to_mapping(m.mh, va, host, 0), EINVAL);
	check_rc(gdr_unpin_buffer(e->g, m.mh), 0);
	buf_free(e, &b);
}

static void errno_query(struct env *e)
{
	const char *s = NULL;
	int v = 99, w = 99;
	gdr_info_t info;
	struct buf b;
	gdr_mh_t mh;
	size_t i;

	start(e);
	const struct { gdr_t g; gdr_attr_t attr; } bad[] = {
		{ e->g, 0 }, { e->g, GDR_ATTR_MAX }, { e->g, -1 }, { e->g, 1 << 30 }, { NULL, 1 },
	};
	buf_alloc(e, &b, MEM_PLAIN, GPU_PAGE_SIZE);
	mh = pin_only(e, b.addr, b.size);
	mark(&info, sizeof(info));
	check_rc(gdr_get_info(e->g, mh, NULL), EINVAL);
	check_rc(gdr_get_info(NULL, mh, &info), EINVAL);
	check(untouched(&info, sizeof(info)));
	check_rc(gdr_get_callback_flag(e->g, mh, NULL), EINVAL);
	check_rc(gdr_get_callback_flag(NULL, mh, &v), EINVAL);
	check_eq(v, 99);
	check_rc(gdr_get_attribute(e->g, 1, NULL), EINVAL);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		v = 99;
		check_rc(gdr_get_attribute(bad[i].g, bad[i].attr, &v), EINVAL);
		check_eq(v, 0);	/* the one out-parameter that a failure sets */
	}
	v = 99;
	check_rc(gdr_driver_get_version(NULL, &v, &w), EINVAL);
	check_rc(gdr_driver_get_version(e->g, NULL, &w), EINVAL);
	check_rc(gdr_driver_get_version(e->g, &v, NULL), EINVAL);
	check_rc(gdr_get_mapping_type_string(1, NULL), EINVAL);
	check_rc(gdr_get_mapping_type_string(GDR_MAPPING_TYPE_MAX, &s), EINVAL);
	check(s == NULL);
	check(v == 99 && w == 99);
	check_rc(gdr_unpin_buffer(e->g, mh), 0);
	buf_free(e, &b);
}

static void errno_mem(struct env *e)
{
	gdr_mem_t mem = { 77 };
	unsigned long addr = 77;
	size_t size = 77;

	start(e);
	check_rc(gdr_mem_alloc(e->g, e->gpu, 0, 0, &mem), EINVAL);
	check_rc(gdr_mem_alloc(e->g, e->gpu, GPU_PAGE_SIZE, 1, &mem), EINVAL);
	check_rc(gdr_mem_alloc(e->g, e->gpu, GPU_PAGE_SIZE, 0, NULL), EINVAL);
	check_rc(gdr_mem_alloc(NULL, e->gpu, GPU_PAGE_SIZE, 0, &mem), EINVAL);
	check_rc(gdr_mem_alloc(e->g, e->gpu, ~0ul, 0, &mem), EINVAL);
	check_rc(gdr_mem_alloc(e->g, -1, GPU_PAGE_SIZE, 0, &mem), ENODEV);
	check_rc(gdr_mem_alloc(e->g, e->gpus, GPU_PAGE_SIZE, 0, &mem), ENODEV);
	check_rc(gdr_mem_alloc(e->g, e->gpu, 1ul << 42, 0, &mem), ENOMEM);
	check_eq(mem.h, 77);
	check_rc(gdr_mem_free(e->g, mem), EINVAL);
	check_rc(gdr_mem_get_device_ptr(e->g, mem, &addr, &size), EINVAL);

	check_rc(gdr_mem_alloc(e->g, e->gpu, GPU_PAGE_SIZE, 0, &mem), 0);
	check_rc(gdr_mem_get_device_ptr(e->g, mem, NULL, &size), EINVAL);
	check_rc(gdr_mem_get_device_ptr(NULL, mem, &addr, &size), EINVAL);
	check_rc(gdr_mem_free(NULL, mem), EINVAL);
	check(addr == 77 && size == 77);
	/* A handle of one kind is none of another. */
	check_rc(gdr_unpin_buffer(e->g, (gdr_mh_t){ mem.h }), EINVAL);
	check_rc(gdr_close((gdr_t)mem.h), EINVAL);
	check_rc(gdr_mem_free(e->g, mem), 0);
	check_rc(gdr_mem_free(e->g, mem), EINVAL);
	check_rc(gdr_mem_get_device_ptr(e->g, mem, &addr, &size), EINVAL);
	check(addr == 77 && size == 77);
}

/* What the NVIDIA driver answers becomes an errno, and nothing stays behind. */
static void errno_rm(struct env *e)
{
	static const struct {
		const char *request;
		int status, pin, map;
	} answers[] = {
		{ "DUP_OBJECT", 0x1b, ENOTSUP, 0 },	/* permissions */
		{ "DUP_OBJECT", 0x51, ENOMEM, 0 },	/* memory */
		{ "MAP_MEMORY", 0x1a, 0, ENOMEM },	/* BAR1 is full */
		{ "MAP_MEMORY", 0x56, 0, ENOTSUP },	/* not supported */
		{ "MAP_MEMORY", 0x77, 0, EIO },		/* not one that is known */
	};
	void (*rm_sim_fail)(const char *request, int status, int nth) = NULL;
	gdr_mh_t mh;
	struct buf b;
	struct map m;
	void *va, *lib;
	size_t i;

	start(e);
	lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (lib)
		*(void **)&rm_sim_fail = dlsym(lib, "rm_sim_fail");
	if (!rm_sim_fail)
		skip("a real driver cannot be told to refuse a request");
	alloc_mapped(e, &b, &m, MEM_PLAIN, GPU_PAGE_SIZE);
	for (i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		note("%s answers %#x", answers[i].request, answers[i].status);
		rm_sim_fail(answers[i].request, answers[i].status, 0);
		mh.h = 77;
		va = &va;
		check_rc(gdr_pin_buffer(e->g, b.addr, b.size, 0, 0, &mh), answers[i].pin);
		if (answers[i].pin) {
			check_eq(mh.h, 77);
		} else {
			check_rc(gdr_map(e->g, mh, &va, b.size), answers[i].map);
			check(va == (void *)&va);
			check_rc(gdr_unpin_buffer(e->g, mh), 0);
		}
		rm_sim_fail(answers[i].request, 0, 0);
		m.p[i] = (unsigned char)(i + 1);
		check_eq(m.p[i], i + 1);
	}
	map_drop(e, &m);
	map_make(e, &m, b.addr, b.size);
	free_mapped(e, &b, &m);
}

const struct sanity_case error_cases[] = {
	{ "errno_open", errno_open, BE_ALL, NULL },
	{ "errno_pin", errno_pin, BE_ALL, NULL },
	{ "pin_without_cuda", pin_without_cuda, BE_ALL, NULL },
	{ "errno_map", errno_map, BE_ALL, NULL },
	{ "errno_unmap", errno_unmap, BE_ALL, NULL },
	{ "errno_copy", errno_copy, BE_ALL, NULL },
	{ "errno_query", errno_query, BE_ALL, NULL },
	{ "errno_mem", errno_mem, BE_ALL, NULL },
	{ "errno_rm", errno_rm, BE_RM,
	  "only rm asks the NVIDIA driver by itself" },
	{ NULL, NULL, 0, NULL }
};
