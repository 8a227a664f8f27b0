/* SPDX-License-Identifier: MIT */
/*
 * parts.h - the parts of the copy routines.
 *
 * A routine moves whole 64-byte lines in its own way. The rest of a copy is "small": a
 * head up to the first line, a tail after the last one, or a copy of less than a line.
 * All routines share the small writes.
 */
#ifndef GDR_COPY_PARTS_H
#define GDR_COPY_PARTS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "copy.h"
#include "fence.h"

#define COPY_HIDDEN __attribute__((visibility("hidden")))

/*
 * Writes n bytes to where n divides the address, by one volatile store: no compiler merges,
 * splits, repeats or drops it.
 */
#define COPY_PUT(n, type) \
static inline void copy_put##n(void *dev, const void *host) \
{ \
	typedef type __attribute__((may_alias)) word; \
	word v; \
\
	memcpy(&v, host, sizeof(v)); \
	*(volatile word *)dev = v; \
}
COPY_PUT(1, uint8_t)
COPY_PUT(2, uint16_t)
COPY_PUT(4, uint32_t)
COPY_PUT(8, uint64_t)

/* Bytes of the widest access of a small write to WC memory. */
#if defined(__x86_64__) || defined(__aarch64__)
#define COPY_VEC 16u

/* Entry n writes 0 < n < COPY_LINE bytes, with any alignment of either side, by aligned stores. */
extern void (*const copy_puts[COPY_LINE])(void *dev, const void *host) COPY_HIDDEN;
#else
#define COPY_VEC 8u
#endif

/* The sizes of a small copy. A write of each has a function, which ends the copy. */
#define COPY_SIZES(X) \
	X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) \
	X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) \
	X(31) X(32) X(33) X(34) X(35) X(36) X(37) X(38) X(39) X(40) X(41) X(42) X(43) X(44) \
	X(45) X(46) X(47) X(48) X(49) X(50) X(51) X(52) X(53) X(54) X(55) X(56) X(57) X(58) \
	X(59) X(60) X(61) X(62) X(63)
#define COPY_WRITE(n) COPY_HIDDEN copy_write copy_write_##n;
#define COPY_ENTRY(n) [n] = copy_write_##n,
COPY_SIZES(COPY_WRITE)
COPY_WRITE(64)

/* What a copy_write does after it wrote its bytes. */
static inline int copy_end(void)
{
	copy_fence_store();
	return 0;
}

/* Whether n bytes at dev lie inside one aligned block of the given size. */
static inline bool copy_in_block(const void *dev, size_t n, size_t block)
{
	return (uintptr_t)dev % block + n <= block;
}

/* Reads n bytes that lie inside one aligned word, by one load. */
static inline void copy_word_from(void *host, const void *dev, size_t n)
{
	size_t off = (uintptr_t)dev % sizeof(uint64_t);
	const volatile uint64_t __attribute__((may_alias)) *word = (const void *)((uintptr_t)dev - off);
	uint64_t v = *word >> (8 * off);

	/* Known sizes need no call. */
	switch (n) {
	case 1: memcpy(host, &v, 1); break;
	case 2: memcpy(host, &v, 2); break;
	case 4: memcpy(host, &v, 4); break;
	case 8: memcpy(host, &v, 8); break;
	default: memcpy(host, &v, n); break;
	}
}

/*
 * Splits a copy at the lines of the device's side. Each of the ends lies in one line.
 * lines gets a line-aligned address and a multiple of COPY_LINE.
 */
static inline __attribute__((always_inline)) void
copy_split(void *to, const void *from, size_t n, const void *dev, copy_span *end, copy_span *lines)
{
	size_t part = -(uintptr_t)dev % COPY_LINE;
	uint8_t *t = to;
	const uint8_t *f = from;

	if (part) {
		part = part < n ? part : n;
		end(t, f, part);
		t += part;
		f += part;
		n -= part;
	}
	part = n - n % COPY_LINE;
	if (part) {
		lines(t, f, part);
		t += part;
		f += part;
		n -= part;
	}
	if (n)
		end(t, f, n);
}

#if defined(__x86_64__)
extern const struct copy_impl copy_sse41 COPY_HIDDEN;
extern const struct copy_impl copy_avx2 COPY_HIDDEN;
extern const struct copy_impl copy_avx512 COPY_HIDDEN;
#elif defined(__aarch64__)
extern const struct copy_impl copy_neon COPY_HIDDEN;
#endif

#endif
