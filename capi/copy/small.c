// SPDX-License-Identifier: MIT
/*
 * small.c - copies of less than one line, and the ends of longer ones.
 *
 * A write is cut into naturally aligned pieces. Few branches may come before the first
 * piece: a write of a few bytes costs a few nanoseconds, and a mispredicted branch costs
 * as much again. So each size has its own function, of straight-line code. Functions with
 * `const` sizes here are inlined with constants.
 *
 * Device accesses are volatile, or asm volatile for a vector register. So no compiler
 * merges, splits, repeats or drops one, or turns several into a library call.
 */
#include <stdbool.h>
#include <string.h>

#include "parts.h"

#define INLINE static inline __attribute__((always_inline))

INLINE void put16(uint8_t *dev, const uint8_t *host)
{
#if COPY_VEC == 16
	typedef uint8_t __attribute__((vector_size(16), may_alias)) vec;
	vec v;

	memcpy(&v, host, sizeof(v));
#if defined(__x86_64__)
	__asm__ __volatile__("movdqa %1, %0" : "=m"(*(vec *)dev) : "x"(v));
#else
	__asm__ __volatile__("str %q1, %0" : "=m"(*(vec *)dev) : "w"(v));
#endif
#else
	copy_put8(dev, host);
	copy_put8(dev + 8, host + 8);
#endif
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
		copy_put1(dev, host);
	if (n & 2)
		copy_put2(dev + (n & 1), host + (n & 1));
	if (n & 4)
		copy_put4(dev + (n & 3), host + (n & 3));
	if (n & 8)
		copy_put8(dev + (n & 7), host + (n & 7));
}

INLINE void put_tail(uint8_t *dev, const uint8_t *host, const size_t n)
{
	if (n & 64) {
		put16(dev, host);
		put16(dev + 16, host + 16);
		put16(dev + 32, host + 32);
		put16(dev + 48, host + 48);
	}
	if (n & 32) {
		put16(dev, host);
		put16(dev + 16, host + 16);
	}
	if (n & 16)
		put16(dev + (n & 32), host + (n & 32));
	if (n & 8)
		copy_put8(dev + (n & 48), host + (n & 48));
	if (n & 4)
		copy_put4(dev + (n & 56), host + (n & 56));
	if (n & 2)
		copy_put2(dev + (n & 60), host + (n & 60));
	if (n & 1)
		copy_put1(dev + (n & 62), host + (n & 62));
}

INLINE void put_inner(uint8_t *dev, const uint8_t *host, const size_t n, const size_t odd)
{
	if (odd)
		copy_put1(dev, host);
	if (n >= odd + 2)
		copy_put2(dev + odd, host + odd);
	if (n >= odd + 4)
		copy_put2(dev + odd + 2, host + odd + 2);
	if (n >= odd + 6)
		copy_put2(dev + odd + 4, host + odd + 4);
	if ((n ^ odd) & 1)
		copy_put1(dev + n - 1, host + n - 1);
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

INLINE void switch_put_tail(uint8_t *dev, const uint8_t *host, size_t n)
{
#define PUT_TAIL(n) put_tail(dev, host, n)
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
INLINE void put_askew(uint8_t *dev, const uint8_t *host, size_t n)
{
	size_t head = head_size(dev, n);

	if (head > n) {
		switch_put_inner(dev, host, n);
		return;
	}
	switch_put_head(dev, host, head);
	if (n > head)
		switch_put_tail(dev + head, host + head, n - head);
}

/* The alignment that a tail of n bytes must start on. */
INLINE uintptr_t tail_align(const size_t n)
{
	return n >= COPY_VEC ? COPY_VEC : n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1;
}

#if COPY_VEC == 16
static __attribute__((noinline)) void askew(uint8_t *dev, const uint8_t *host, size_t n)
{
	put_askew(dev, host, n);
}

#define PUT(n) \
static void put_##n(void *dev, const void *host) \
{ \
	if ((uintptr_t)dev % tail_align(n)) \
		askew(dev, host, n); \
	else \
		put_tail(dev, host, n); \
}
#define ENTRY(n) [n] = put_##n,
COPY_SIZES(PUT)
void (*const copy_puts[COPY_LINE])(void *, const void *) = { COPY_SIZES(ENTRY) };
#endif

/*
 * A write of one size, which ends the copy. It jumps to the end of a misaligned copy, so
 * it saves no register.
 */
static __attribute__((noinline)) int
write_askew(void *dev, const void *host, size_t n)
{
	put_askew(dev, host, n);
	return copy_end();
}

#define WRITE(n) \
int copy_write_##n(void *dev, const void *host) \
{ \
	if ((uintptr_t)dev % tail_align(n)) \
		return write_askew(dev, host, n); \
	put_tail(dev, host, n); \
	return copy_end(); \
}
COPY_SIZES(WRITE)
WRITE(64)
