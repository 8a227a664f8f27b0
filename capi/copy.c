// SPDX-License-Identifier: MIT
/*
 * copy.c - gdr_copy_to_mapping and gdr_copy_from_mapping. docs/design.md has a copy and an
 * unmap in steps.
 */
#define _GNU_SOURCE
#include "copies.h"

#include <errno.h>

#include "guest/log.h"

int gdr_copy_refuse(uint64_t key)
{
	int rc = gdr_front_admit(key, 0);

	if (rc)
		return rc;
	gdr_log(GDR_LOG_ERROR, "gdr_copy: handle %#lx is not mapped (errno %d)", key, EINVAL);
	return EINVAL;
}

/*
 * Moves bytes through a mapping of any type. Up to 8 bytes of cached memory go by the
 * portable routine, too: it makes one access of an aligned word, which memcpy may not.
 */
static inline void move_bytes(uint32_t type, bool to, void *dev, void *host, size_t n)
{
	const struct copy_impl *impl = type == GDR_MAPPING_TYPE_WC ? gdr_front.impl : &copy_portable;

	if (type == GDR_MAPPING_TYPE_CACHING && n > sizeof(uint64_t))
		memcpy(to ? dev : host, to ? host : dev, n);
	else if (to)
		impl->to(dev, host, n);
	else
		impl->from(host, dev, n);
}

int gdr_copy_move(const struct copy *c, struct gdr_view v)
{
	const struct gdr_slot *slot = gdr_slot_of(&gdr_front.table, c->key);
	uint8_t *dev = c->dev, *host = c->host;
	size_t left = c->size, n;

	while (left) {
		if (!v.type || !gdr_view_has(v, dev, left))
			return gdr_copy_refuse(c->key);
		/* The next piece begins on a line. */
		n = left <= COPY_LOOK ? left : COPY_LOOK - (uintptr_t)dev % COPY_LINE;
		move_bytes(v.type, c->to, dev, host, n);
		dev += n;
		host += n;
		left -= n;
		if (left)
			v = gdr_slot_read(slot, c->key);
	}
	return 0;
}

static int move_fenced(const struct copy *c, struct gdr_view v)
{
	int rc;

	if (!c->to)
		copy_fence_read_begin();
	rc = gdr_copy_move(c, v);
	if (c->to)
		gdr_copy_end_write();
	else
		copy_fence_read_end();
	return rc;
}

/*
 * Every copy that is not the usual one: it is carried out, or refused with the reason. The
 * arguments are scalars, so that the usual copy builds no struct for this call.
 */
static __attribute__((noinline, cold)) int
copy_checked(uint64_t key, void *dev, void *host, size_t size, bool to)
{
	const struct copy c = { .key = key, .dev = dev, .host = host, .size = size, .to = to };
	struct gdr_view v = { 0 };

	if (gdr_front_is_up())
		v = gdr_slot_read(gdr_slot_of(&gdr_front.table, key), key);
	if (!v.type)
		return gdr_copy_refuse(key);
	if (!size)
		return 0;
	if (!gdr_view_has(v, dev, size)) {
		gdr_log(GDR_LOG_ERROR, "gdr_copy: %zu bytes at %#lx do not lie in the mapping of handle %#lx (errno %d)",
			size, (uintptr_t)dev, key, EINVAL);
		return EINVAL;
	}
	return host ? move_fenced(&c, v) : EINVAL;
}

/* Copies that look at their slot again. */
static __attribute__((noinline)) int
copy_longer(uint64_t key, void *dev, void *host, size_t size, bool to)
{
	const struct copy c = { .key = key, .dev = dev, .host = host, .size = size, .to = to };

	return move_fenced(&c, gdr_slot_read(gdr_slot_of(&gdr_front.table, key), key));
}

static __attribute__((noinline)) int
write_lines(uint64_t key, void *dev, const void *host, size_t size)
{
	if (size > COPY_LOOK)
		return copy_longer(key, dev, (void *)host, size, true);
	gdr_front.impl->to(dev, host, size);
	copy_fence_store();
	return 0;
}

static __attribute__((noinline)) int
read_lines(uint64_t key, void *host, const void *dev, size_t size)
{
	if (size > COPY_LOOK)
		return copy_longer(key, (void *)dev, host, size, false);
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
	return write_lines(handle.h, map_d_ptr, h_ptr, size);
}

int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size)
{
	if (__builtin_expect(!is_usual(handle.h, map_d_ptr, h_ptr, size), 0))
		return copy_checked(handle.h, (void *)map_d_ptr, h_ptr, size, false);
	if (__builtin_expect(size <= COPY_LINE, 1))
		return gdr_front.impl->read(h_ptr, map_d_ptr, size);
	return read_lines(handle.h, h_ptr, map_d_ptr, size);
}
