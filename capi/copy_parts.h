/* SPDX-License-Identifier: MIT */
/*
 * copy_parts.h - what the copy routines are put together from.
 *
 * A routine moves whole 64-byte lines its own way. What is left of a copy, a
 * head up to the first line and a tail after the last one, or a copy of less
 * than a line, is "small" and is common to all routines of a family.
 */
#ifndef GDR_COPY_PARTS_H
#define GDR_COPY_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "copy.h"

#define COPY_LINE 64u
#define COPY_HIDDEN __attribute__((visibility("hidden")))

/*
 * 0 < n < COPY_LINE bytes, any alignment of either side. Device accesses are
 * naturally aligned: of 1 to 8 bytes in the plain ones, of 1 to 16 in the
 * _vec ones. _stream reads its 16-byte pieces with streaming loads (SSE4.1).
 */
COPY_HIDDEN void copy_small_to(void *dev, const void *host, size_t n);
COPY_HIDDEN void copy_small_from(void *host, const void *dev, size_t n);
#if defined(__x86_64__) || defined(__aarch64__)
COPY_HIDDEN void copy_small_to_vec(void *dev, const void *host, size_t n);
COPY_HIDDEN void copy_small_from_vec(void *host, const void *dev, size_t n);
#endif
#if defined(__x86_64__)
COPY_HIDDEN void copy_small_from_stream(void *host, const void *dev, size_t n);
#endif

/* Moves n bytes from src to dst. */
typedef void copy_span(void *dst, const void *src, size_t n);

/*
 * Splits a copy at the device side's lines; dev is the one of dst and src that
 * is the device's. lines gets a line-aligned device address and n > 0, a
 * multiple of COPY_LINE. small gets what copy_small_* take.
 */
static inline __attribute__((always_inline)) void
copy_split(void *dst, const void *src, const void *dev, size_t n, copy_span *small,
	   copy_span *lines)
{
	size_t head = -(uintptr_t)dev % COPY_LINE;
	size_t body;
	uint8_t *d = dst;
	const uint8_t *s = src;

	if (n < COPY_LINE) {
		small(d, s, n);
		return;
	}
	if (head) {
		small(d, s, head);
		d += head;
		s += head;
		n -= head;
	}
	body = n - n % COPY_LINE;
	if (body) {
		lines(d, s, body);
		d += body;
		s += body;
		n -= body;
	}
	if (n)
		small(d, s, n);
}

#if defined(__x86_64__)
extern const struct copy_impl copy_sse2 COPY_HIDDEN;
extern const struct copy_impl copy_sse41 COPY_HIDDEN;
extern const struct copy_impl copy_avx2 COPY_HIDDEN;
extern const struct copy_impl copy_avx512 COPY_HIDDEN;
extern const struct copy_impl copy_movdir64b COPY_HIDDEN;

/* The line movers that another routine borrows. */
COPY_HIDDEN void copy_sse2_lines_to(void *dev, const void *host, size_t n);
COPY_HIDDEN void copy_sse41_lines_from(void *host, const void *dev, size_t n);
#endif

#if defined(__aarch64__)
extern const struct copy_impl copy_neon COPY_HIDDEN;
extern const struct copy_impl copy_ls64 COPY_HIDDEN;
#endif

#endif
