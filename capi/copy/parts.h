/* SPDX-License-Identifier: MIT */
/*
 * parts.h - the parts of the copy routines.
 *
 * A routine moves whole 64-byte lines in its own way. The rest of a copy is "small": a
 * head up to the first line, a tail after the last one, or a copy of less than a line.
 * All routines of a family share the small parts.
 */
#ifndef GDR_COPY_PARTS_H
#define GDR_COPY_PARTS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "copy.h"
#include "fence.h"

#define COPY_HIDDEN __attribute__((visibility("hidden")))

/* The sizes of a small copy. Each size has functions of its own. */
#define COPY_SIZES(X) \
	X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) \
	X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) \
	X(31) X(32) X(33) X(34) X(35) X(36) X(37) X(38) X(39) X(40) X(41) X(42) X(43) X(44) \
	X(45) X(46) X(47) X(48) X(49) X(50) X(51) X(52) X(53) X(54) X(55) X(56) X(57) X(58) \
	X(59) X(60) X(61) X(62) X(63)

/* Writes as many bytes as its index in the table says. */
typedef void copy_put(void *dev, const void *host);

/*
 * Writes of n < COPY_LINE bytes, with any alignment of either side. Entry n writes n
 * bytes; there is no entry 0. Device accesses are naturally aligned, of 1 to 8 bytes in
 * _pair and of 1 to 16 in _vec.
 */
extern copy_put *const copy_put_pair[COPY_LINE] COPY_HIDDEN;
#if defined(__x86_64__) || defined(__aarch64__)
extern copy_put *const copy_put_vec[COPY_LINE] COPY_HIDDEN;
#endif

/*
 * The same as functions that end the copy, with one for a whole line; and the entries of
 * copy_impl.write.
 */
#define COPY_WRITE_PAIR(n) COPY_HIDDEN copy_write copy_write_pair_##n;
#define COPY_ENTRY_PAIR(n) [n] = copy_write_pair_##n,
COPY_SIZES(COPY_WRITE_PAIR)
COPY_WRITE_PAIR(64)
#if defined(__x86_64__) || defined(__aarch64__)
#define COPY_WRITE_VEC(n) COPY_HIDDEN copy_write copy_write_vec_##n;
#define COPY_ENTRY_VEC(n) [n] = copy_write_vec_##n,
COPY_SIZES(COPY_WRITE_VEC)
COPY_WRITE_VEC(64)
#endif

/* What a copy_write does after it wrote its bytes. */
static inline int copy_end(_Atomic uint64_t *busy)
{
	copy_fence_store();
	atomic_store_explicit(busy, 0, memory_order_release);
	return 0;
}

/*
 * Reads of 0 < n < COPY_LINE bytes, with any alignment of either side. The loads are the
 * whole aligned words (_vec: vectors of 16 bytes) that cover the bytes.
 */
COPY_HIDDEN void copy_small_from(void *host, const void *dev, size_t n);
#if defined(__x86_64__) || defined(__aarch64__)
COPY_HIDDEN void copy_small_from_vec(void *host, const void *dev, size_t n);
#endif

static inline bool copy_at_line(const void *dev)
{
	return (uintptr_t)dev % COPY_LINE == 0;
}

typedef uint64_t __attribute__((may_alias)) copy_word;

/* Whether n bytes at dev lie inside one aligned block of the given size. */
static inline bool copy_in_block(const void *dev, size_t n, size_t block)
{
	return (uintptr_t)dev % block + n <= block;
}

static inline bool copy_in_word(const void *dev, size_t n)
{
	return copy_in_block(dev, n, sizeof(copy_word));
}

/* Reads n bytes that lie inside one aligned word, by one load. */
static inline void copy_word_from(void *host, const void *dev, size_t n)
{
	size_t off = (uintptr_t)dev % sizeof(copy_word);
	uint64_t v = *(const volatile copy_word *)((uintptr_t)dev - off);

	memcpy(host, (const uint8_t *)&v + off, n);
}

/* Loads the line at line and stores n bytes of it, from byte off on. */
typedef void copy_part(void *host, const void *line, size_t off, size_t n);

/*
 * Splits a write at the device side's lines. The ends go to puts. The lines between them
 * go to lines, with a line-aligned address and a multiple of COPY_LINE.
 */
static inline __attribute__((always_inline)) void
copy_split_to(void *dev, const void *host, size_t n, copy_put *const *puts, copy_span *lines)
{
	size_t head = -(uintptr_t)dev % COPY_LINE;
	size_t body;
	uint8_t *d = dev;
	const uint8_t *h = host;

	if (n < COPY_LINE) {
		puts[n](d, h);
		return;
	}
	if (head) {
		puts[head](d, h);
		d += head;
		h += head;
		n -= head;
	}
	body = n - n % COPY_LINE;
	if (body) {
		lines(d, h, body);
		d += body;
		h += body;
		n -= body;
	}
	if (n)
		puts[n](d, h);
}

/* The same for a read whose ends go to small. */
static inline __attribute__((always_inline)) void
copy_split_from(void *host, const void *dev, size_t n, copy_span *small, copy_span *lines)
{
	size_t head = -(uintptr_t)dev % COPY_LINE;
	size_t body;
	const uint8_t *d = dev;
	uint8_t *h = host;

	if (n < COPY_LINE) {
		small(h, d, n);
		return;
	}
	if (head) {
		small(h, d, head);
		d += head;
		h += head;
		n -= head;
	}
	body = n - n % COPY_LINE;
	if (body) {
		lines(h, d, body);
		d += body;
		h += body;
		n -= body;
	}
	if (n)
		small(h, d, n);
}

/*
 * A read by whole lines, for loads that fetch a whole line. The ends are read as lines,
 * too; part stores the wanted bytes of them.
 */
static inline __attribute__((always_inline)) void
copy_cover_from(void *host, const void *dev, size_t n, copy_part *part, copy_span *lines)
{
	size_t off = (uintptr_t)dev % COPY_LINE;
	size_t body;
	const uint8_t *d = dev;
	uint8_t *h = host;

	if (copy_in_word(dev, n)) {
		copy_word_from(host, dev, n);
		return;
	}
	if (off) {
		size_t head = n < COPY_LINE - off ? n : COPY_LINE - off;

		part(h, d - off, off, head);
		d += head;
		h += head;
		n -= head;
	}
	body = n - n % COPY_LINE;
	if (body) {
		lines(h, d, body);
		d += body;
		h += body;
		n -= body;
	}
	if (n)
		part(h, d, 0, n);
}

/* Ends a read. */
static inline int copy_end_read(_Atomic uint64_t *busy)
{
	copy_fence_read_end();
	atomic_store_explicit(busy, 0, memory_order_release);
	return 0;
}

#if defined(__x86_64__)
/* The same without a call and without stores to memory for the usual sizes. */
static inline void copy_short_from(void *host, const void *dev, size_t n)
{
	size_t off = (uintptr_t)dev % sizeof(copy_word);
	uint64_t v = *(const volatile copy_word *)((uintptr_t)dev - off) >> (8 * off);

	switch (n) {
	case 1: memcpy(host, &v, 1); break;
	case 2: memcpy(host, &v, 2); break;
	case 4: memcpy(host, &v, 4); break;
	case 8: memcpy(host, &v, 8); break;
	default: memcpy(host, &v, n); break;
	}
}
#endif

/* A read of up to a line by plain loads alone. */
static inline __attribute__((always_inline)) int
copy_read_plain(void *host, const void *dev, size_t n, _Atomic uint64_t *busy, copy_span *small,
		copy_span *lines, copy_span *from)
{
	copy_fence_load_begin();
	if (n < COPY_LINE)
		small(host, dev, n);
	else if (copy_at_line(dev))
		lines(host, dev, n);
	else
		from(host, dev, n);
	return copy_end_read(busy);
}

/* The same by one plain load if the bytes lie inside a block, else by streaming loads. */
static inline __attribute__((always_inline)) int
copy_read_block(void *host, const void *dev, size_t n, _Atomic uint64_t *busy, size_t block,
		copy_span *one, copy_span *from)
{
	if (copy_in_block(dev, n, block)) {
		copy_fence_load_begin();
		one(host, dev, n);
	} else {
		copy_fence_read_begin();
		from(host, dev, n);
	}
	return copy_end_read(busy);
}

#if defined(__x86_64__)
extern const struct copy_impl copy_sse2 COPY_HIDDEN;
extern const struct copy_impl copy_sse41 COPY_HIDDEN;
extern const struct copy_impl copy_avx2 COPY_HIDDEN;
extern const struct copy_impl copy_avx512 COPY_HIDDEN;

/* Functions that other routines use as well. */
COPY_HIDDEN copy_write copy_sse2_write_line;
COPY_HIDDEN void copy_sse2_lines_to(void *dev, const void *host, size_t n);
#endif

#if defined(__aarch64__)
extern const struct copy_impl copy_neon COPY_HIDDEN;
#endif

#endif
