// SPDX-License-Identifier: MIT
/*
 * copy_small.c - copies of less than one line, and the ends of longer ones.
 *
 * The device side must be cut into naturally aligned pieces, and the number of
 * branches before the first of them must stay small: a copy of a few bytes
 * costs a few nanoseconds, a mispredicted branch costs as much again. So a
 * switch jumps to straight-line code that was cut to size by the compiler:
 * every function here that takes `const` sizes is inlined with constants.
 *
 * Device accesses are volatile, or asm volatile where a vector register is
 * needed, so that no compiler merges, splits, repeats or drops one, nor makes
 * a library call of a run of them.
 */
#include <stdbool.h>
#include <string.h>

#include "copy_parts.h"

#define INLINE static inline __attribute__((always_inline))

typedef uint16_t __attribute__((may_alias)) dev16;
typedef uint32_t __attribute__((may_alias)) dev32;
typedef uint64_t __attribute__((may_alias)) dev64;

/* How a 16-byte piece is accessed; smaller ones have but one way. */
enum wide {
	WIDE_PAIR,	/* as two of 8 bytes */
	WIDE_VECTOR,
	WIDE_STREAM,	/* a streaming load */
};

#if defined(__x86_64__)
#include <emmintrin.h>

typedef __m128i vec;

INLINE vec vec_load(const void *dev, const enum wide wide)
{
	const vec *p = dev;
	vec v;

	if (wide == WIDE_STREAM)
		__asm__ __volatile__("movntdqa %1, %0" : "=x"(v) : "m"(*p));
	else
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

INLINE vec vec_load(const void *dev, const enum wide wide)
{
	const vec __attribute__((may_alias)) *p = dev;
	vec v;

	(void)wide;
	__asm__ __volatile__("ldr %q0, %1" : "=w"(v) : "m"(*p));
	return v;
}

INLINE void vec_store(void *dev, vec v)
{
	vec __attribute__((may_alias)) *p = dev;

	__asm__ __volatile__("str %q1, %0" : "=m"(*p) : "w"(v));
}
#endif

/* 16 bytes on their way through registers. */
struct piece {
	uint64_t lo, hi;
#if defined(__x86_64__) || defined(__aarch64__)
	vec v;
#endif
};

INLINE uint64_t get8(const void *dev)
{
	return *(const volatile dev64 *)dev;
}

INLINE uint32_t get4(const void *dev)
{
	return *(const volatile dev32 *)dev;
}

INLINE uint16_t get2(const void *dev)
{
	return *(const volatile dev16 *)dev;
}

INLINE uint8_t get1(const void *dev)
{
	return *(const volatile uint8_t *)dev;
}

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

INLINE void get16(struct piece *p, const uint8_t *dev, const enum wide wide)
{
#if defined(__x86_64__) || defined(__aarch64__)
	if (wide != WIDE_PAIR) {
		p->v = vec_load(dev, wide);
		return;
	}
#endif
	(void)wide;
	p->lo = get8(dev);
	p->hi = get8(dev + 8);
}

INLINE void keep16(uint8_t *host, const struct piece *p, const enum wide wide)
{
#if defined(__x86_64__) || defined(__aarch64__)
	if (wide != WIDE_PAIR) {
		memcpy(host, &p->v, sizeof(p->v));
		return;
	}
#endif
	(void)wide;
	memcpy(host, &p->lo, sizeof(p->lo));
	memcpy(host + 8, &p->hi, sizeof(p->hi));
}

/*
 * Three shapes make up any small copy:
 * head: ends on a 16-byte boundary (or, below 8 bytes, on an 8-byte one);
 *	pieces grow.
 * tail: starts on a 16-byte boundary (or, below 8 bytes, on an 8-byte one);
 *	pieces shrink.
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
 * The same shapes for reads. All loads come before the first use of one: each
 * is a round trip over PCIe, and only loads that wait together wait once.
 */
INLINE void get_head(uint8_t *host, const uint8_t *dev, const size_t n)
{
	uint8_t b = n & 1 ? get1(dev) : 0;
	uint16_t w = n & 2 ? get2(dev + (n & 1)) : 0;
	uint32_t d = n & 4 ? get4(dev + (n & 3)) : 0;
	uint64_t q = n & 8 ? get8(dev + (n & 7)) : 0;

	if (n & 1)
		*host = b;
	if (n & 2)
		memcpy(host + (n & 1), &w, sizeof(w));
	if (n & 4)
		memcpy(host + (n & 3), &d, sizeof(d));
	if (n & 8)
		memcpy(host + (n & 7), &q, sizeof(q));
}

INLINE void get_tail(uint8_t *host, const uint8_t *dev, const size_t n, const enum wide wide)
{
	struct piece p[3];
	uint64_t q;
	uint32_t d;
	uint16_t w;
	uint8_t b;

	if (n & 32) {
		get16(&p[0], dev, wide);
		get16(&p[1], dev + 16, wide);
	}
	if (n & 16)
		get16(&p[2], dev + (n & 32), wide);
	q = n & 8 ? get8(dev + (n & 48)) : 0;
	d = n & 4 ? get4(dev + (n & 56)) : 0;
	w = n & 2 ? get2(dev + (n & 60)) : 0;
	b = n & 1 ? get1(dev + (n & 62)) : 0;

	if (n & 32) {
		keep16(host, &p[0], wide);
		keep16(host + 16, &p[1], wide);
	}
	if (n & 16)
		keep16(host + (n & 32), &p[2], wide);
	if (n & 8)
		memcpy(host + (n & 48), &q, sizeof(q));
	if (n & 4)
		memcpy(host + (n & 56), &d, sizeof(d));
	if (n & 2)
		memcpy(host + (n & 60), &w, sizeof(w));
	if (n & 1)
		host[n & 62] = b;
}

INLINE void get_inner(uint8_t *host, const uint8_t *dev, const size_t n, const size_t odd)
{
	uint8_t first = odd ? get1(dev) : 0;
	uint16_t w0 = n >= odd + 2 ? get2(dev + odd) : 0;
	uint16_t w1 = n >= odd + 4 ? get2(dev + odd + 2) : 0;
	uint16_t w2 = n >= odd + 6 ? get2(dev + odd + 4) : 0;
	uint8_t last = (n ^ odd) & 1 ? get1(dev + n - 1) : 0;

	if (odd)
		*host = first;
	if (n >= odd + 2)
		memcpy(host + odd, &w0, sizeof(w0));
	if (n >= odd + 4)
		memcpy(host + odd + 2, &w1, sizeof(w1));
	if (n >= odd + 6)
		memcpy(host + odd + 4, &w2, sizeof(w2));
	if ((n ^ odd) & 1)
		host[n - 1] = last;
}

/*
 * Lists of cases. A function cannot hold case labels, hence the macros; X is
 * the statement that a case runs with its number. The callers bound n, so the
 * compiler need not: that spares a branch before the jump.
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
 * n is 1 to 6: a range of 7 bytes touches an end of its word. The cases of 0
 * and 7 make the table whole, which spares the range check.
 */
INLINE void switch_put_inner(uint8_t *dev, const uint8_t *host, size_t n)
{
#define PUT_INNER(c) put_inner(dev, host, (c) / 2, (c) % 2)
	switch (2 * n + (uintptr_t)dev % 2) {
	CASES16(0, PUT_INNER)
	default: __builtin_unreachable();
	}
}

INLINE void switch_get_tail(uint8_t *host, const uint8_t *dev, size_t n, const enum wide wide)
{
#define GET_TAIL(n) get_tail(host, dev, n, wide)
	switch (n) {
	CASES64(GET_TAIL)
	default: __builtin_unreachable();
	}
}

INLINE void switch_get_head(uint8_t *host, const uint8_t *dev, size_t n)
{
#define GET_HEAD(n) get_head(host, dev, n)
	switch (n) {
	CASES16(0, GET_HEAD)
	default: __builtin_unreachable();
	}
}

INLINE void switch_get_inner(uint8_t *host, const uint8_t *dev, size_t n)
{
#define GET_INNER(c) get_inner(host, dev, (c) / 2, (c) % 2)
	switch (2 * n + (uintptr_t)dev % 2) {
	CASES16(0, GET_INNER)
	default: __builtin_unreachable();
	}
}

/* Whether the copy is all tail. One branch: the mask is picked without one. */
INLINE bool starts_tail(const void *dev, size_t n)
{
	return ((uintptr_t)dev & (n < 8 ? 7 : 15)) == 0;
}

/*
 * The length of the head of a misaligned copy: up to a 16-byte boundary, or up
 * to an 8-byte one if the copy ends before the former. More than n: the copy
 * ends before both, it is an inner one.
 */
INLINE size_t head_size(const void *dev, size_t n)
{
	size_t head = -(uintptr_t)dev % 16;

	return head <= n ? head : head % 8;
}

INLINE void small_to(uint8_t *dev, const uint8_t *host, size_t n, const enum wide wide)
{
	size_t head;

	if (((n ^ 4) | ((uintptr_t)dev % 4)) == 0) {
		put4(dev, host);
		return;
	}
	if (starts_tail(dev, n)) {
		switch_put_tail(dev, host, n, wide);
		return;
	}
	head = head_size(dev, n);
	if (head > n) {
		switch_put_inner(dev, host, n);
		return;
	}
	switch_put_head(dev, host, head);
	if (n > head)
		switch_put_tail(dev + head, host + head, n - head, wide);
}

INLINE void small_from(uint8_t *host, const uint8_t *dev, size_t n, const enum wide wide)
{
	size_t head;

	if (starts_tail(dev, n)) {
		switch_get_tail(host, dev, n, wide);
		return;
	}
	head = head_size(dev, n);
	if (head > n) {
		switch_get_inner(host, dev, n);
		return;
	}
	switch_get_head(host, dev, head);
	if (n > head)
		switch_get_tail(host + head, dev + head, n - head, wide);
}

void copy_small_to(void *dev, const void *host, size_t n)
{
	small_to(dev, host, n, WIDE_PAIR);
}

void copy_small_from(void *host, const void *dev, size_t n)
{
	small_from(host, dev, n, WIDE_PAIR);
}

#if defined(__x86_64__) || defined(__aarch64__)
void copy_small_to_vec(void *dev, const void *host, size_t n)
{
	small_to(dev, host, n, WIDE_VECTOR);
}

void copy_small_from_vec(void *host, const void *dev, size_t n)
{
	small_from(host, dev, n, WIDE_VECTOR);
}
#endif

#if defined(__x86_64__)
void copy_small_from_stream(void *host, const void *dev, size_t n)
{
	small_from(host, dev, n, WIDE_STREAM);
}
#endif
