/* SPDX-License-Identifier: MIT */
/*
 * sanity/query.c - what the library says of itself, of a pinning and of each type of mapping.
 */
#include "sanity.h"

#include <dlfcn.h>

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
	alloc_mapped(e, &b, &m, MEM_PLAIN, GPU_PAGE_SIZE);

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
	alloc_mapped(e, &b, &m, MEM_PLAIN, GPU_PAGE_SIZE);
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
	return rc == EINVAL || (rc == EOPNOTSUPP && e->backend & BE_GDRDRV);
}

static void mapping_types(struct env *e)
{
	gdr_info_t info;
	struct buf b;
	struct map m;
	int usual, type;

	start(e);
	alloc_mapped(e, &b, &m, MEM_PLAIN, GPU_PAGE_SIZE);
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

const struct sanity_case query_cases[] = {
	{ "info", info, BE_ALL, NULL },
	{ "info_sizes", info_sizes, BE_ALL, NULL },
	{ "callback_flag", callback_flag, BE_ALL, NULL },
	{ "attributes", attributes, BE_ALL, NULL },
	{ "versions", versions, BE_ALL, NULL },
	{ "type_strings", type_strings, BE_ALL, NULL },
	{ "mapping_types", mapping_types, BE_ALL, NULL },
	{ NULL, NULL, 0, NULL }
};
