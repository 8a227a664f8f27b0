// SPDX-License-Identifier: MIT
/*
 * small.c - copies of less than one line, and the ends of longer ones.
 *
 * A write is cut into naturally aligned pieces. Few branches may come before the first
 * piece: a write of a few bytes costs a few nanoseconds, and a mispredicted branch costs
 * as much again. So each size has its own function, of straight-line code. Functions with
 * `const` sizes here are inlined with constants.
 *
 * A read is a round trip of a microsecond for every load, and the CPU does not overlap
 * plain loads of such memory. So a read makes as few loads as it can: of the whole
 * aligned words or vectors that cover its bytes.
 *
 * Device accesses are volatile, or asm volatile for a vector register. So no compiler
 * merges, splits, repeats or drops one, or turns several into a library call.
 */
#include <stdbool.h>
#include <string.h>

#include "parts.h"

#define INLINE static inline __attribute__((always_inline))

typedef uint16_t __attribute__((may_alias)) dev16;
typedef uint32_t __attribute__((may_alias)) dev32;
typedef uint64_t __attribute__((may_alias)) dev64;

/* How a 16-byte piece is accessed. Smaller pieces are accessed in one way only. */
enum wide {
	WIDE_PAIR,	/* as two of 8 bytes */
	WIDE_VECTOR,
};

#if defined(__x86_64__)
#include <emmintrin.h>

typedef __m128i vec;

INLINE vec vec_load(const void *dev)
{
	const vec *p = dev;
	vec v;

	__asm__ __volatile__("movdqa %1, %0" : "=x"(v) : "m"(*p));
	return v;
}

INLINE void vec_store(void *dev, vec v)
{
	vec *p = dev;

	__asm__ __volatile__("movdqa %1, %0" : "=m"(*p) : "x"(v));
}
#elif defined(__aarch64__)
#include <arm_neon.h>

typedef uint8x16_t vec;

INLINE vec vec_load(const void *dev)
{
	const vec __attribute__((may_alias)) *p = dev;
	vec v;

	__asm__ __volatile__("ldr %q0, %1" : "=w"(v) : "m"(*p));
	return v;
}

INLINE void vec_store(void *dev, vec v)
{
	vec __attribute__((may_alias)) *p = dev;

	__asm__ __volatile__("str %q1, %0" : "=m"(*p) : "w"(v));
}
#endif

INLINE void put8(void *dev, const void *host)
{
	uint64_t v;

	memcpy(&v, host, sizeof(v));
	*(volatile dev64 *)dev = v;
}

INLINE void put4(void *dev, const void *host)
{
	uint32_t v;

	memcpy(&v, host, sizeof(v));
	*(volatile dev32 *)dev = v;
}

INLINE void put2(void *dev, const void *host)
{
	uint16_t v;

	memcpy(&v, host, sizeof(v));
	*(volatile dev16 *)dev = v;
}

INLINE void put1(void *dev, const void *host)
{
	*(volatile uint8_t *)dev = *(const uint8_t *)host;
}

INLINE void put16(uint8_t *dev, const uint8_t *host, const enum wide wide)
{
#if defined(__x86_64__) || defined(__aarch64__)
	if (wide != WIDE_PAIR) {
		vec v;

		memcpy(&v, host, sizeof(v));
		vec_store(dev, v);
		return;
	}
#endif
	(void)wide;
	put8(dev, host);
	put8(dev + 8, host + 8);
}

/*
 * Three shapes make up any small write:
 * head: ends on a 16-byte boundary (or, below 8 bytes, on an 8-byte one);
 *	pieces grow.
 * tail: starts on a boundary of its largest piece; pieces shrink. It may be a
 *	whole line.
 * inner: lies inside one 8-byte word and touches neither end of it, so no
 *	4-byte piece fits; odd says that it starts at an odd address.
 */
INLINE void put_head(uint8_t *dev, const uint8_t *host, const size_t n)
{
	if (n & 1)
		put1(dev, host);
	if (n & 2)
		put2(dev + (n & 1), host + (n & 1));
	if (n & 4)
		put4(dev + (n & 3), host + (n & 3));
	if (n & 8)
		put8(dev + (n & 7), host + (n & 7));
}

INLINE void put_tail(uint8_t *dev, const uint8_t *host, const size_t n, const enum wide wide)
{
	if (n & 64) {
		put16(dev, host, wide);
		put16(dev + 16, host + 16, wide);
		put16(dev + 32, host + 32, wide);
		put16(dev + 48, host + 48, wide);
	}
	if (n & 32) {
		put16(dev, host, wide);
		put16(dev + 16, host + 16, wide);
	}
	if (n & 16)
		put16(dev + (n & 32), host + (n & 32), wide);
	if (n & 8)
		put8(dev + (n & 48), host + (n & 48));
	if (n & 4)
		put4(dev + (n & 56), host + (n & 56));
	if (n & 2)
		put2(dev + (n & 60), host + (n & 60));
	if (n & 1)
		put1(dev + (n & 62), host + (n & 62));
}

INLINE void put_inner(uint8_t *dev, const uint8_t *host, const size_t n, const size_t odd)
{
	if (odd)
		put1(dev, host);
	if (n >= odd + 2)
		put2(dev + odd, host + odd);
	if (n >= odd + 4)
		put2(dev + odd + 2, host + odd + 2);
	if (n >= odd + 6)
		put2(dev + odd + 4, host + odd + 4);
	if ((n ^ odd) & 1)
		put1(dev + n - 1, host + n - 1);
}

/*
 * Lists of cases. A function cannot hold case labels, so these are macros. X is the
 * statement that a case runs with its number. The callers bound n, so the compiler does
 * not check it: that saves a branch before the jump.
 */
#define CASE(n, X) case (n): X(n); break;
#define CASES4(n, X) CASE(n, X) CASE((n) + 1, X) CASE((n) + 2, X) CASE((n) + 3, X)
#define CASES16(n, X) CASES4(n, X) CASES4((n) + 4, X) CASES4((n) + 8, X) CASES4((n) + 12, X)
#define CASES64(X) CASES16(0, X) CASES16(16, X) CASES16(32, X) CASES16(48, X)

INLINE void switch_put_tail(uint8_t *dev, const uint8_t *host, size_t n, const enum wide wide)
{
#define PUT_TAIL(n) put_tail(dev, host, n, wide)
	switch (n) {
	CASES64(PUT_TAIL)
	default: __builtin_unreachable();
	}
}

INLINE void switch_put_head(uint8_t *dev, const uint8_t *host, size_t n)
{
#define PUT_HEAD(n) put_head(dev, host, n)
	switch (n) {
	CASES16(0, PUT_HEAD)
	default: __builtin_unreachable();
	}
}

/*
 * n is 1 to 6: a range of 7 bytes touches an end of its word. The cases of 0 and 7 make
 * the table complete, so there is no range check.
 */
INLINE void switch_put_inner(uint8_t *dev, const uint8_t *host, size_t n)
{
#define PUT_INNER(c) put_inner(dev, host, (c) / 2, (c) % 2)
	switch (2 * n + (uintptr_t)dev % 2) {
	CASES16(0, PUT_INNER)
	default: __builtin_unreachable();
	}
}

/*
 * The length of the head of a misaligned copy: up to a 16-byte boundary, or up to an
 * 8-byte boundary if the copy ends before the 16-byte one. If the result is more than n,
 * the copy ends before both, and is an inner one.
 */
INLINE size_t head_size(const void *dev, size_t n)
{
	size_t head = -(uintptr_t)dev % 16;

	return head <= n ? head : head % 8;
}

/* A write that does not start on a boundary of its largest piece. */
INLINE void put_askew(uint8_t *dev, const uint8_t *host, size_t n, const enum wide wide)
{
	size_t head = head_size(dev, n);

	if (head > n) {
		switch_put_inner(dev, host, n);
		return;
	}
	switch_put_head(dev, host, head);
	if (n > head)
		switch_put_tail(dev + head, host + head, n - head, wide);
}

/* The alignment that a tail of n bytes must start on. */
INLINE uintptr_t tail_align(const size_t n, const enum wide wide)
{
	if (n >= 16 && wide != WIDE_PAIR)
		return 16;
	return n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1;
}

/*
 * One function for each size, and the table of them. Then the same as functions that end
 * the copy. These jump to the end of a misaligned copy, so that none of them saves a
 * register.
 */
#define ASKEW(kind, WIDE) \
static __attribute__((noinline)) void askew_##kind(uint8_t *dev, const uint8_t *host, size_t n) \
{ \
	put_askew(dev, host, n, WIDE); \
} \
static __attribute__((noinline)) int \
last_askew_##kind(_Atomic uint64_t *busy, void *dev, const void *host, size_t n) \
{ \
	put_askew(dev, host, n, WIDE); \
	return copy_end(busy); \
}

#define PUT(n, kind, WIDE) \
static void put_##kind##_##n(void *dev, const void *host) \
{ \
	if (((uintptr_t)dev & (tail_align(n, WIDE) - 1)) == 0) \
		put_tail(dev, host, n, WIDE); \
	else \
		askew_##kind(dev, host, n); \
}

#define LAST(n, kind, WIDE) \
int copy_write_##kind##_##n(_Atomic uint64_t *busy, void *dev, const void *host) \
{ \
	if ((uintptr_t)dev & (tail_align(n, WIDE) - 1)) \
		return last_askew_##kind(busy, dev, host, n); \
	put_tail(dev, host, n, WIDE); \
	return copy_end(busy); \
}

#define PUT_PAIR(n) PUT(n, pair, WIDE_PAIR)
#define LAST_PAIR(n) LAST(n, pair, WIDE_PAIR)
#define ENTRY_PAIR(n) [n] = put_pair_##n,
ASKEW(pair, WIDE_PAIR)
COPY_SIZES(PUT_PAIR)
COPY_SIZES(LAST_PAIR)
LAST_PAIR(64)
copy_put *const copy_put_pair[COPY_LINE] = { COPY_SIZES(ENTRY_PAIR) };

#if defined(__x86_64__) || defined(__aarch64__)
#define PUT_VEC(n) PUT(n, vec, WIDE_VECTOR)
#define LAST_VEC(n) LAST(n, vec, WIDE_VECTOR)
#define ENTRY_VEC(n) [n] = put_vec_##n,
ASKEW(vec, WIDE_VECTOR)
COPY_SIZES(PUT_VEC)
COPY_SIZES(LAST_VEC)
LAST_VEC(64)
copy_put *const copy_put_vec[COPY_LINE] = { COPY_SIZES(ENTRY_VEC) };
#endif

/* How many words less than a line may touch, if it starts at the end of one. */
#define COVER_WORDS (COPY_LINE / 8 + 1)

void copy_small_from(void *host, const void *dev, size_t n)
{
	size_t off = (uintptr_t)dev % 8, words = (off + n + 7) / 8;
	const volatile dev64 *p = (const dev64 *)((uintptr_t)dev - off);
	uint64_t v[COVER_WORDS];

	for (size_t i = 0; i < words; i++)
		v[i] = p[i];
	memcpy(host, (const uint8_t *)v + off, n);
}

#if defined(__x86_64__) || defined(__aarch64__)
#define COVER_VECS (COPY_LINE / 16 + 1)

void copy_small_from_vec(void *host, const void *dev, size_t n)
{
	size_t off = (uintptr_t)dev % 16, vecs = (off + n + 15) / 16;
	const uint8_t *p = (const uint8_t *)dev - off;
	vec v[COVER_VECS];

	if (copy_in_word(dev, n)) {
		copy_word_from(host, dev, n);
		return;
	}
	for (size_t i = 0; i < vecs; i++)
		v[i] = vec_load(p + 16 * i);
	memcpy(host, (const uint8_t *)v + off, n);
}
#endif
