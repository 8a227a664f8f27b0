/* SPDX-License-Identifier: MIT */
/*
 * copy.h - the copy routines between host memory and a mapping of GPU memory.
 */
#ifndef GDR_COPY_H
#define GDR_COPY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COPY_LINE 64u	/* bytes; also the most that one device access moves */

/* Moves n bytes from src to dst. */
typedef void copy_span(void *dst, const void *src, size_t n);

/*
 * All that is left of a small write, so that its caller ends in a jump to it:
 * writes as many bytes as its place in a table says, fences (copy_fence_store),
 * then sets *busy to 0, and returns 0.
 */
typedef int copy_last(_Atomic uint64_t *busy, void *dev, const void *host);

/* The same for a read of 0 < n <= COPY_LINE bytes, with the fence before it, too. */
typedef int copy_read(void *host, const void *dev, size_t n, _Atomic uint64_t *busy);

/*
 * One implementation. to() writes n > 0 bytes from host memory into a WC
 * mapping, from() reads n > 0 bytes out of one. Neither fences: the caller does
 * (copy_fence_*). Up to COPY_LINE bytes have functions that end the copy as well:
 * last[n] writes n of them; read() reads, with the fences that its loads need.
 *
 * gather() reads n whole lines, each from an address of its own, to one place
 * after the other, by loads that do not wait for each other. It does not fence.
 * NULL: the CPU has no such loads, or all its loads are so.
 *
 * Contract: any alignment and any n; the device side is touched by naturally
 * aligned accesses only; no byte outside [p, p + n) is written on either side,
 * or read on the host's; the two sides do not overlap. A read may load more of
 * the device's side, but of lines of COPY_LINE bytes that hold asked-for ones
 * alone: it stays on pages that the mapping has, and memory of a GPU does not
 * mind being read.
 */
struct copy_impl {
	const char *name;	/* GDRCOPY_COPY_IMPL takes this */
	bool (*usable)(void);	/* the CPU and the OS support it */
	copy_span *to;		/* the device */
	copy_span *from;
	copy_read *read;
	void (*gather)(void *lines, const void *const *devs, size_t n);
	copy_last *last[COPY_LINE + 1];	/* there is no entry 0 */
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
