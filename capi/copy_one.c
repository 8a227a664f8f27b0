// SPDX-License-Identifier: MIT
/*
 * copy_one.c - gdr_copy_to_mapping and gdr_copy_from_mapping: check, move, fence.
 */
#define _GNU_SOURCE
#include "copies.h"

#include <errno.h>

#include "guest/log.h"

int gdr_copy_refuse(const char *call, uint64_t key)
{
	int rc = gdr_front_admit(key, 0);

	if (rc)
		return rc;
	gdr_log(GDR_LOG_ERROR, "%s: handle %#lx is not mapped (errno %d)", call, key, EINVAL);
	return EINVAL;
}

/*
 * Up to 8 bytes of cached memory go by the portable routine, too: it makes one access of an
 * aligned word, which memcpy may not.
 */
void gdr_copy_move(uint32_t type, bool to, void *dev, void *host, size_t n)
{
	const struct copy_impl *impl = type == GDR_MAPPING_TYPE_WC ? gdr_front.impl : &copy_portable;

	if (type == GDR_MAPPING_TYPE_CACHING && n > sizeof(uint64_t))
		memcpy(to ? dev : host, to ? host : dev, n);
	else if (to)
		impl->to(dev, host, n);
	else
		impl->from(host, dev, n);
}

/* Every copy that is not the usual one: it is carried out, or refused with the reason. */
static __attribute__((noinline, cold)) int
copy_checked(uint64_t key, void *dev, void *host, size_t size, bool to)
{
	const char *call = to ? "gdr_copy_to_mapping" : "gdr_copy_from_mapping";
	struct gdr_view v = { 0 };

	if (gdr_front_is_up())
		v = gdr_slot_read(gdr_slot_of(&gdr_front.table, key), key);
	if (!v.type)
		return gdr_copy_refuse(call, key);
	if (!size)
		return 0;
	if (!host)
		return gdr_refuse(call, "h_ptr is NULL: pass host memory");
	if (!gdr_view_has(v, dev, size)) {
		gdr_log(GDR_LOG_ERROR, "%s: %zu bytes at %#lx do not lie in the mapping of handle %#lx (errno %d)",
			call, size, (uintptr_t)dev, key, EINVAL);
		return EINVAL;
	}
	if (!to)
		copy_fence_read_begin();
	gdr_copy_move(v.type, to, dev, host, size);
	if (to)
		gdr_copy_end_write();
	else
		copy_fence_read_end();
	return 0;
}

static __attribute__((noinline)) int
write_lines(void *dev, const void *host, size_t size)
{
	gdr_front.impl->to(dev, host, size);
	copy_fence_store();
	return 0;
}

static __attribute__((noinline)) int
read_lines(void *host, const void *dev, size_t size)
{
	copy_fence_read_begin();
	gdr_front.impl->from(host, dev, size);
	copy_fence_read_end();
	return 0;
}

/*
 * Whether this is the usual case: size is not 0, and the bytes lie in a live mapping of
 * write-combined memory. In a forked child the front is empty, so there is no table.
 */
static inline __attribute__((always_inline)) bool
is_usual(uint64_t key, const void *dev, const void *host, size_t size)
{
	const struct gdr_slot *slot = gdr_slot_of(&gdr_front.table, key);

	return slot && host && gdr_slot_has(slot, key, GDR_MAPPING_TYPE_WC, dev, size);
}

int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size)
{
	if (__builtin_expect(!is_usual(handle.h, map_d_ptr, h_ptr, size) ||
			     atomic_load_explicit(&gdr_front.table.mixed, memory_order_relaxed), 0))
		return copy_checked(handle.h, map_d_ptr, (void *)h_ptr, size, true);
	if (__builtin_expect(size <= COPY_LINE, 1))
		return gdr_front.write[size](map_d_ptr, h_ptr);
	return write_lines(map_d_ptr, h_ptr, size);
}

int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size)
{
	if (__builtin_expect(!is_usual(handle.h, map_d_ptr, h_ptr, size), 0))
		return copy_checked(handle.h, (void *)map_d_ptr, h_ptr, size, false);
	if (__builtin_expect(size <= COPY_LINE, 1))
		return gdr_front.impl->read(h_ptr, map_d_ptr, size);
	return read_lines(h_ptr, map_d_ptr, size);
}
