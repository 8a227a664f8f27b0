/* SPDX-License-Identifier: MIT */
/*
 * copy.h - the copy routines between host memory and a mapping of GPU memory.
 */
#ifndef GDR_COPY_H
#define GDR_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COPY_LINE 64u	/* bytes; also the most that one device access moves */

/* Moves n bytes from src to dst. */
typedef void copy_span(void *dst, const void *src, size_t n);

/*
 * Writes as many bytes as its index in the table says, fences (copy_fence_store), and
 * returns 0: the tail call of a small write.
 */
typedef int copy_write(void *dev, const void *host);

/* Reads 0 < n <= COPY_LINE bytes, with the fences that its loads need, and returns 0. */
typedef int copy_read(void *host, const void *dev, size_t n);

/*
 * One implementation.
 *
 * to() writes n > 0 bytes from host memory into a WC mapping. from() reads n > 0 bytes
 * out of one. Neither fences: the caller does (copy_fence_*). Copies of up to COPY_LINE
 * bytes have functions that fence as well: write[n] writes n bytes, read() reads.
 *
 * gather() reads n whole lines, each from its own address. It stores them one after the
 * other, by loads that do not wait for each other. It does not fence. NULL: the CPU has
 * no such loads, or from() uses them already.
 *
 * Contract:
 *
 * - Any alignment and any n. The two sides do not overlap.
 * - The device side is touched by naturally aligned accesses only.
 * - No byte outside [p, p + n) is written on either side. No byte outside it is read on
 *   the host's side.
 * - A read may load more of the device's side, but only from lines of COPY_LINE bytes
 *   that hold wanted bytes. So it stays on pages that the mapping has. Reads of GPU
 *   memory have no side effects.
 */
struct copy_impl {
	const char *name;	/* GDRCOPY_COPY_IMPL takes this */
	bool (*usable)(void);	/* the CPU has the instructions, and the OS saves the registers */
	copy_span *to;		/* the device */
	copy_span *from;
	copy_read *read;
	void (*gather)(void *lines, const void *const *devs, size_t n);
	copy_write *write[COPY_LINE + 1];	/* there is no entry 0 */
};

/*
 * The implementations of this architecture, best first. A NULL pointer ends the table.
 * The entry before it is copy_portable, which is always usable.
 */
extern const struct copy_impl *const copy_impls[];

/*
 * Its device accesses are of 8, 4, 2 and 1 bytes only. So Device mappings (Arm) must use
 * it. For WC mappings it is the last resort.
 */
extern const struct copy_impl copy_portable;

/*
 * The implementation for WC mappings: the one called name, or the first usable one if
 * name is NULL. Returns NULL if name is not that of a usable implementation.
 */
const struct copy_impl *copy_select(const char *name);

#endif
