/* SPDX-License-Identifier: MIT */
/*
 * copy.h - the copy routines between host memory and a mapping of GPU memory.
 */
#ifndef GDR_COPY_H
#define GDR_COPY_H

#include <stdbool.h>
#include <stddef.h>

/*
 * One implementation. to() writes n > 0 bytes from host memory into a WC
 * mapping, from() reads n > 0 bytes out of one. Neither fences: the caller
 * does (copy_fence_*). Contract: any alignment and any n; the device side is
 * touched by naturally aligned accesses only; no byte outside [p, p + n) of
 * either side is read or written; the two sides do not overlap.
 */
struct copy_impl {
	const char *name;	/* GDRCOPY_COPY_IMPL takes this */
	bool (*usable)(void);	/* the CPU and the OS support it */
	void (*to)(void *dev, const void *host, size_t n);
	void (*from)(void *host, const void *dev, size_t n);
};

/* The implementations of this architecture, best first; a NULL pointer ends
 * the table. The entry before it is copy_portable, which is always usable.
 */
extern const struct copy_impl *const copy_impls[];

/* Its device accesses are of 8, 4, 2 and 1 bytes only. So Device mappings (Arm)
 * must use it; for WC mappings it is the last resort.
 */
extern const struct copy_impl copy_portable;

/* What WC mappings use: the first usable one, or the one that name names.
 * Returns NULL when name is neither NULL nor a usable implementation's.
 */
const struct copy_impl *copy_select(const char *name);

#endif
