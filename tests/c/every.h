/* SPDX-License-Identifier: MIT */
/*
 * every.h - each function of the headers that takes a handle, to be called with one that is
 * wrong. functions.h names them; the build ends where one has no call here.
 */
#ifndef EVERY_H
#define EVERY_H

#include <stdint.h>

#include "gdrapi.h"
#include "gdrapi_ext.h"

/* The function behind the macro's name, which fills 40 bytes. */
#undef gdr_get_info
int gdr_get_info(gdr_t g, gdr_mh_t handle, void *v1);

/* What the functions are given. All that is no handle is right. */
struct args {
	gdr_t g;
	gdr_mh_t mh;
	gdr_mem_t mem;
	gdr_cache_t cache;
	gdr_mh_t mapped;	/* for the pieces beside one of mh */
	unsigned long addr;
	size_t size;
	void *va;
};

/* Where a failed call must not write. */
static struct out {
	gdr_mh_t mh;
	gdr_mem_t mem;
	gdr_cache_t cache;
	gdr_info_v2_t info;
	unsigned long addr;
	size_t size;
	void *va;
	uint64_t offset, length;
	unsigned int count;
	int v, v2;
	unsigned char bytes[64];
} out;

/* A call with right arguments but for what a has wrong. */
#define CALL(name, ...)					\
static int call_##name(const struct args *a)		\
{							\
	return name(__VA_ARGS__);			\
}

CALL(gdr_close, a->g)
CALL(gdr_pin_buffer, a->g, a->addr, a->size, 0, 0, &out.mh)
CALL(gdr_pin_buffer_v2, a->g, a->addr, a->size, 0, &out.mh)
CALL(gdr_pin_bytes, a->g, a->addr, a->size, 0, &out.mh)
CALL(gdr_unpin_buffer, a->g, a->mh)
CALL(gdr_get_callback_flag, a->g, a->mh, &out.v)
CALL(gdr_get_info, a->g, a->mh, &out.info)
CALL(gdr_get_info_v2, a->g, a->mh, &out.info)
CALL(gdr_map, a->g, a->mh, &out.va, a->size)
CALL(gdr_map_v2, a->g, a->mh, &out.va, a->size, GDR_MAP_FLAG_DEFAULT)
CALL(gdr_unmap, a->g, a->mh, a->va, a->size)
CALL(gdr_copy_to_mapping, a->mh, a->va, out.bytes, 8)
CALL(gdr_copy_from_mapping, a->mh, out.bytes, a->va, 8)
CALL(gdr_driver_get_version, a->g, &out.v, &out.v2)
CALL(gdr_get_backend, a->g, (char *)out.bytes, sizeof(out.bytes))
CALL(gdr_mem_alloc, a->g, 0, a->size, 0, &out.mem)
CALL(gdr_mem_free, a->g, a->mem)
CALL(gdr_mem_get_device_ptr, a->g, a->mem, &out.addr, &out.size)
CALL(gdr_mem_export_dmabuf, a->g, a->mem, 0, &out.v)
CALL(gdr_export_fd, a->g, a->mh, 0, &out.v)
CALL(gdr_pin_fd, a->g, 0, 0, &out.mh)
CALL(gdr_get_object, a->g, a->mh, &out.offset, &out.length, &out.count)
CALL(gdr_cache_open, a->g, 1 << 20, 0, &out.cache)
CALL(gdr_cache_get, a->cache, a->addr, a->size, &out.mh, &out.va)
CALL(gdr_cache_put, a->cache, a->mh)
CALL(gdr_cache_flush, a->cache)
CALL(gdr_cache_close, a->cache)
#undef CALL

static int call_gdr_copy_to_mapping_v(const struct args *a)
{
	const gdr_piece_t pieces[2] = {
		{ a->mapped, a->va, out.bytes, 8 }, { a->mh, (char *)a->va + 8, out.bytes, 8 },
	};

	return gdr_copy_to_mapping_v(pieces, 2);
}

static int call_gdr_copy_from_mapping_v(const struct args *a)
{
	const gdr_piece_t pieces[2] = {
		{ a->mh, a->va, out.bytes, 8 }, { a->mapped, a->va, out.bytes, 8 },
	};

	return gdr_copy_from_mapping_v(pieces, 2);
}

static int call_gdr_get_attribute(const struct args *a)
{
	int v = 1, rc = gdr_get_attribute(a->g, GDR_ATTR_USE_PERSISTENT_MAPPING, &v);

	return v ? -1 : rc;	/* a failure stores 0 */
}

enum { TAKES_G = 1, TAKES_MH = 2, TAKES_MEM = 4, TAKES_CACHE = 8 };

#define HANDLES(name, takes) { #name, call_##name, takes },
#define OTHER(name)
#define NOTHING(name)
static const struct {
	const char *name;
	int (*call)(const struct args *a);
	int takes;
} every[] = {
#include "functions.h"
};
#undef HANDLES
#undef OTHER
#undef NOTHING

#define EVERY (sizeof(every) / sizeof(every[0]))

#endif
