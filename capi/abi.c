// SPDX-License-Identifier: MIT
/*
 * abi.c - the functions of gdrapi.h and gdrapi_ext.h, but for the copies and the hits of
 * caches. It alone calls Go.
 *
 * Each checks its pointers, sees that the handles belong to this process, and
 * hands over to the core. include/gdrapi.h documents them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "../include/gdrapi.h"
#include "../include/gdrapi_ext.h"
#include "_cgo_export.h"
#include "cache_range.h"
#include "copies.h"
#include "core.h"
#include "guest/env.h"
#include "guest/front.h"
#include "guest/log.h"

/*
 * The first form of gdr_info_v2_t. It has no mapping_type at its end. Binaries older than
 * 2.4 expect it from the function gdr_get_info, which the header hides behind a macro of
 * the same name.
 */
struct info_v1 {
	unsigned char bytes[40];
};

_Static_assert(sizeof(struct info_v1) == offsetof(gdr_info_v2_t, mapping_type), "a prefix");
_Static_assert(sizeof(gdr_info_v2_t) == 48, "abi");

#undef gdr_get_info
int gdr_get_info(gdr_t g, gdr_mh_t handle, struct info_v1 *info);

static uint64_t id_of(gdr_t g)
{
	return (uintptr_t)g;
}

/*
 * Whether a call may enter the core with g and handle (0: none). missing names the place for
 * an answer that the caller did not give; NULL: none. Returns 0, or an errno value after it
 * logged a line.
 */
static int admit(const char *call, gdr_t g, uint64_t handle, const char *missing)
{
	int rc = gdr_front_admit(id_of(g), handle);

	if (rc || !missing)
		return rc;
	gdr_log(GDR_LOG_ERROR, "%s: no place for the answer: %s is NULL (errno %d)", call, missing, EINVAL);
	return EINVAL;
}

#define MISSING(place) ((place) ? NULL : #place)

static int open_inside(const struct gdr_options *opts, uint64_t *g)
{
	int rc = gdr_front_start(opts);

	if (rc)
		return rc;
	/* Waits until the runtime is up. It starts in a thread of its own. */
	rc = gdrcore_open((struct gdr_options *)opts, gdr_front.epoch, &gdr_front.table, g);
	gdr_front_up();
	return rc;
}

gdr_t gdr_open(void)
{
	struct gdr_options opts = gdr_env_options();
	uint64_t g = 0;
	int rc;

	gdr_log_set_level(opts.log_level);
	rc = INSIDE_WITH_ROOM(open_inside(&opts, &g));
	if (rc)
		errno = rc;
	return (gdr_t)(uintptr_t)g;
}

int gdr_close(gdr_t g)
{
	int rc;

	/* Nothing of the parent's is here. */
	if (gdr_front_inherited(id_of(g)))
		return 0;
	rc = gdr_front_admit(id_of(g), 0);
	if (rc)
		return rc;
	return INSIDE(gdrcore_close(id_of(g)));
}

static int pin(const char *call, gdr_t g, unsigned long addr, size_t size, uint64_t token,
	       uint32_t va_space, uint32_t flags, gdr_mh_t *handle)
{
	uint64_t h = 0;
	int rc = admit(call, g, 0, MISSING(handle));

	if (!rc)
		rc = INSIDE_WITH_ROOM(gdrcore_pin((char *)call, id_of(g), addr, size, token, va_space, flags, &h));
	if (!rc)
		handle->h = h;
	return rc;
}

int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t p2p_token,
		   uint32_t va_space, gdr_mh_t *handle)
{
	return pin(__func__, g, addr, size, p2p_token, va_space, 0, handle);
}

int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags,
		      gdr_mh_t *handle)
{
	return pin(__func__, g, addr, size, 0, 0, flags, handle);
}

int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle)
{
	int rc = gdr_front_admit(id_of(g), handle.h);

	return rc ? rc : INSIDE(gdrcore_unpin(id_of(g), handle.h));
}

int gdr_get_callback_flag(gdr_t g, gdr_mh_t handle, int *flag)
{
	int rc = admit(__func__, g, handle.h, MISSING(flag)), value = 0;

	if (!rc)
		rc = INSIDE(gdrcore_callback_flag(id_of(g), handle.h, &value));
	if (!rc)
		*flag = value;
	return rc;
}

static int copy_info(const char *call, gdr_t g, gdr_mh_t handle, void *info, size_t size)
{
	struct gdr_core_info i = { 0 };
	int rc = admit(call, g, handle.h, MISSING(info));

	if (!rc)
		rc = INSIDE(gdrcore_info((char *)call, id_of(g), handle.h, &i));
	if (!rc)
		memcpy(info, &(gdr_info_v2_t){
			.va = i.va,
			.mapped_size = i.mapped_size,
			.page_size = i.page_size,
			.tm_cycles = i.tm_cycles,
			.cycles_per_ms = i.cycles_per_ms,
			.mapped = i.mapped,
			.wc_mapping = i.mapping_type == GDR_MAPPING_TYPE_WC,
			.mapping_type = i.mapping_type,
		}, size);
	return rc;
}

int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_v2_t *info)
{
	return copy_info(__func__, g, handle, info, sizeof(*info));
}

int gdr_get_info(gdr_t g, gdr_mh_t handle, struct info_v1 *info)
{
	return copy_info(__func__, g, handle, info, sizeof(*info));
}

static int map(const char *call, gdr_t g, gdr_mh_t handle, void **va, size_t size, int flags)
{
	int rc = admit(call, g, handle.h, MISSING(va));
	uint64_t addr = 0;

	if (!rc)
		rc = INSIDE_WITH_ROOM(gdrcore_map((char *)call, id_of(g), handle.h, size, flags, &addr));
	if (!rc)
		*va = (void *)(uintptr_t)addr;
	return rc;
}

int gdr_map(gdr_t g, gdr_mh_t handle, void **va, size_t size)
{
	return map(__func__, g, handle, va, size, GDR_MAP_FLAG_DEFAULT);
}

int gdr_map_v2(gdr_t g, gdr_mh_t handle, void **va, size_t size, int flags)
{
	return map(__func__, g, handle, va, size, flags);
}

int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size)
{
	int rc = gdr_front_admit(id_of(g), handle.h);

	return rc ? rc : INSIDE(gdrcore_unmap(id_of(g), handle.h, (uintptr_t)va, size));
}

void gdr_runtime_get_version(int *major, int *minor)
{
	if (major)
		*major = GDR_API_MAJOR_VERSION;
	if (minor)
		*minor = GDR_API_MINOR_VERSION;
}

int gdr_driver_get_version(gdr_t g, int *major, int *minor)
{
	int rc = admit(__func__, g, 0, major ? MISSING(minor) : "major"), v[2] = { 0, 0 };

	if (!rc)
		rc = INSIDE(gdrcore_driver_version(id_of(g), &v[0], &v[1]));
	if (!rc) {
		*major = v[0];
		*minor = v[1];
	}
	return rc;
}

/* The Makefile writes it, and extld.sh links it: to find out the commit compiles nothing. */
extern const char gdr_version_text[] __attribute__((weak, visibility("hidden")));

const char *gdr_ext_version(void)
{
	return gdr_version_text ? gdr_version_text : "libgdrapi of an unknown build";
}

int gdr_get_backend(gdr_t g, char *name, size_t size)
{
	int rc = admit(__func__, g, 0, MISSING(name));

	return rc ? rc : INSIDE(gdrcore_backend(id_of(g), name, size));
}

int gdr_get_attribute(gdr_t g, gdr_attr_t attr, int *v)
{
	int rc, value = 0;

	if (v)
		*v = 0;
	rc = admit(__func__, g, 0, MISSING(v));
	if (!rc)
		rc = INSIDE(gdrcore_attribute(id_of(g), attr, &value));
	if (!rc)
		*v = value;
	return rc;
}

int gdr_get_mapping_type_string(gdr_mapping_type_t type, const char **str)
{
	static const char *const names[] = {
		[GDR_MAPPING_TYPE_NONE] = "None",
		[GDR_MAPPING_TYPE_WC] = "Write Combining",
		[GDR_MAPPING_TYPE_CACHING] = "Caching",
		[GDR_MAPPING_TYPE_DEVICE] = "Device",
	};

	if (!str)
		return gdr_refuse(__func__, "no place for the answer: str is NULL");
	if ((unsigned int)type >= GDR_MAPPING_TYPE_MAX)
		return gdr_refuse(__func__, "no such mapping type; gdr_mapping_type_t lists them");
	*str = names[type];
	return 0;
}

int gdr_mem_alloc(gdr_t g, int cuda_device, size_t size, unsigned int flags, gdr_mem_t *mem)
{
	int rc = admit(__func__, g, 0, MISSING(mem));
	uint64_t m = 0;

	if (!rc && flags)
		rc = gdr_refuse(__func__, "no flags are defined: pass 0");
	if (!rc)
		rc = INSIDE_WITH_ROOM(gdrcore_mem_alloc(id_of(g), cuda_device, size, &m));
	if (!rc)
		mem->h = m;
	return rc;
}

int gdr_mem_free(gdr_t g, gdr_mem_t mem)
{
	int rc = admit(__func__, g, mem.h, NULL);

	return rc ? rc : INSIDE(gdrcore_mem_free(id_of(g), mem.h));
}

int gdr_mem_get_device_ptr(gdr_t g, gdr_mem_t mem, unsigned long *dptr, size_t *size)
{
	int rc = admit(__func__, g, mem.h, MISSING(dptr));
	uint64_t addr = 0, len = 0;

	if (!rc)
		rc = INSIDE(gdrcore_mem_ptr(id_of(g), mem.h, &addr, &len));
	if (rc)
		return rc;
	*dptr = addr;
	if (size)
		*size = len;
	return 0;
}

int gdr_mem_export_dmabuf(gdr_t g, gdr_mem_t mem, unsigned int flags, int *fd)
{
	int rc = admit(__func__, g, mem.h, MISSING(fd)), out = -1;

	if (!rc)
		rc = INSIDE_WITH_ROOM(gdrcore_mem_export(id_of(g), mem.h, flags, &out));
	if (!rc)
		*fd = out;
	return rc;
}

int gdr_export_fd(gdr_t g, gdr_mh_t handle, unsigned int flags, int *fd)
{
	int rc = admit(__func__, g, handle.h, MISSING(fd)), out = -1;

	if (!rc)
		rc = INSIDE_WITH_ROOM(gdrcore_export_fd(id_of(g), handle.h, flags, &out));
	if (!rc)
		*fd = out;
	return rc;
}

int gdr_get_object(gdr_t g, gdr_mh_t handle, uint64_t *offset, uint64_t *length, unsigned int *count)
{
	int rc = admit(__func__, g, handle.h, offset && length && count ? NULL : "one of them");
	uint64_t at = 0, size = 0;
	unsigned int n = 0;

	if (!rc)
		rc = INSIDE(gdrcore_object(id_of(g), handle.h, &at, &size, &n));
	if (rc)
		return rc;
	*offset = at;
	*length = size;
	*count = n;
	return 0;
}

int gdr_pin_bytes(gdr_t g, unsigned long addr, size_t size, unsigned int flags, gdr_mh_t *handle)
{
	int rc = admit(__func__, g, 0, MISSING(handle));
	uint64_t h = 0;

	if (!rc)
		rc = INSIDE_WITH_ROOM(gdrcore_pin_bytes(id_of(g), addr, size, flags, &h));
	if (!rc)
		handle->h = h;
	return rc;
}

int gdr_pin_fd(gdr_t g, int fd, unsigned int flags, gdr_mh_t *handle)
{
	int rc = admit(__func__, g, 0, MISSING(handle));
	uint64_t h = 0;

	if (!rc && flags)
		rc = gdr_refuse(__func__, "no flags are defined: pass 0");
	if (!rc)
		rc = INSIDE_WITH_ROOM(gdrcore_pin_fd(id_of(g), fd, &h));
	if (!rc)
		handle->h = h;
	return rc;
}

int gdr_cache_open(gdr_t g, size_t max_bytes, unsigned int flags, gdr_cache_t *c)
{
	int rc = admit(__func__, g, 0, MISSING(c));
	uint64_t h = 0;

	if (!rc && !max_bytes)
		rc = gdr_refuse(__func__, "a cache of 0 bytes keeps nothing: ask for more");
	if (!rc && flags)
		rc = gdr_refuse(__func__, "no flags are defined: pass 0");
	if (!rc)
		rc = INSIDE_WITH_ROOM(gdrcore_cache_open(id_of(g), max_bytes, &h));
	if (!rc)
		c->h = h;
	return rc;
}

int gdr_cache_get_slowly(gdr_cache_t c, unsigned long addr, size_t size, gdr_mh_t *mh, void **va)
{
	int rc = gdr_front_admit(c.h, 0);
	uint64_t h = 0, at = 0;

	if (rc)
		return rc;
	if (!mh || !va)
		return gdr_refuse("gdr_cache_get", "no place for the answer: mh or va is NULL");
	if (!addr || !size || addr + size < addr)
		return gdr_refuse("gdr_cache_get", "the range is empty, or wraps");
	rc = INSIDE_WITH_ROOM(gdrcore_cache_get(c.h, addr, size, range_clock(), &h, &at));
	if (rc)
		return rc;
	mh->h = h;
	*va = (void *)(uintptr_t)at;
	return 0;
}

void gdr_cache_settle(gdr_cache_t c)
{
	(void)INSIDE(gdrcore_cache_settle(c.h));
}

int gdr_cache_flush(gdr_cache_t c)
{
	int rc = gdr_front_admit(c.h, 0);

	return rc ? rc : INSIDE(gdrcore_cache_flush(c.h));
}

int gdr_cache_close(gdr_cache_t c)
{
	int rc = gdr_front_admit(c.h, 0);

	return rc ? rc : INSIDE(gdrcore_cache_close(c.h));
}
