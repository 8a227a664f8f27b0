/* SPDX-License-Identifier: MIT */
#include "loops.h"

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define PLAIN_MAX 8

static bool always(void)
{
	return true;
}

static inline void store_fence(void)
{
#if defined(__x86_64__)
	_mm_sfence();
#elif defined(__aarch64__)
	__asm__ __volatile__("dsb st" ::: "memory");
#elif defined(__powerpc__)
	__asm__ __volatile__("sync" ::: "memory");
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

void bench_store_fence(void)
{
	store_fence();
}

/* Also keeps the compiler from making one read of many. */
static inline void load_fence(void)
{
#if defined(__x86_64__)
	_mm_lfence();
#elif defined(__aarch64__)
	__asm__ __volatile__("dmb oshld" ::: "memory");
#elif defined(__powerpc__)
	__asm__ __volatile__("sync" ::: "memory");
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/*
 * plain: a size of at most 8 bytes by one to three stores or loads, with no
 * loop and no branch. Volatile keeps each access whole.
 */
static inline __attribute__((always_inline)) void move(volatile uint8_t *d,
							const volatile uint8_t *s, size_t n)
{
	if (n & 8) {
		*(volatile uint64_t *)d = *(const volatile uint64_t *)s;
		return;
	}
	if (n & 4) {
		*(volatile uint32_t *)d = *(const volatile uint32_t *)s;
		d += 4;
		s += 4;
	}
	if (n & 2) {
		*(volatile uint16_t *)d = *(const volatile uint16_t *)s;
		d += 2;
		s += 2;
	}
	if (n & 1)
		*d = *s;
}

/* A function of its own for each size, so that the size is a constant in it. */
#define PLAIN(n)							\
	static void plain_to_##n(struct bench_op *op, size_t count)	\
	{								\
		for (; count; count--) {				\
			move(op->dev, op->host, n);			\
			store_fence();					\
		}							\
	}								\
	static void plain_from_##n(struct bench_op *op, size_t count)	\
	{								\
		for (; count; count--) {				\
			move(op->host, op->dev, n);			\
			load_fence();					\
		}							\
	}								\
	static void plain_loose_##n(struct bench_op *op, size_t count)	\
	{								\
		for (; count; count--) {				\
			move(op->host, op->dev, n);			\
			store_fence();					\
		}							\
	}

PLAIN(1)
PLAIN(2)
PLAIN(3)
PLAIN(4)
PLAIN(7)
PLAIN(8)

static bench_run *const plain_to[PLAIN_MAX + 1] = {
	[1] = plain_to_1, [2] = plain_to_2, [3] = plain_to_3,
	[4] = plain_to_4, [7] = plain_to_7, [8] = plain_to_8,
};

static bench_run *const plain_from[PLAIN_MAX + 1] = {
	[1] = plain_from_1, [2] = plain_from_2, [3] = plain_from_3,
	[4] = plain_from_4, [7] = plain_from_7, [8] = plain_from_8,
};

static bench_run *const plain_loose[PLAIN_MAX + 1] = {
	[1] = plain_loose_1, [2] = plain_loose_2, [3] = plain_loose_3,
	[4] = plain_loose_4, [7] = plain_loose_7, [8] = plain_loose_8,
};

/* libc's memcpy, which knows nothing of the mapping. */
static void libc_to(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		memcpy(op->dev, op->host, op->size);
		store_fence();
	}
}

static void libc_from(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		memcpy(op->host, op->dev, op->size);
		load_fence();
	}
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f")))
#define SSE41 __attribute__((target("sse4.1")))
#define DIR64 __attribute__((target("movdir64b")))

/* Leaf 7's registers, all 0 when there is no such leaf. */
static void leaf7(unsigned int *ebx, unsigned int *ecx)
{
	unsigned int a, d;

	*ebx = *ecx = 0;
	if (!__get_cpuid_count(7, 0, &a, ebx, ecx, &d))
		*ebx = *ecx = 0;
}

static bool has_sse41(void)
{
	return __builtin_cpu_supports("sse4.1");
}

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2");
}

static bool has_avx512(void)
{
	return __builtin_cpu_supports("avx512f");
}

static bool has_movdir64b(void)
{
	unsigned int ebx, ecx;

	leaf7(&ebx, &ecx);
	return ecx & 1u << 28;
}

static void sse2_run(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		const __m128i *s = op->host, *end = s + op->size / 16;
		__m128i *d = op->dev;

		for (; s < end; s++, d++)
			_mm_stream_si128(d, _mm_load_si128(s));
		_mm_sfence();
	}
}

static AVX2 void avx2_run(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		const __m256i *s = op->host, *end = s + op->size / 32;
		__m256i *d = op->dev;

		for (; s < end; s++, d++)
			_mm256_stream_si256(d, _mm256_load_si256(s));
		_mm_sfence();
	}
}

static AVX512 void avx512_run(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		const uint8_t *s = op->host, *end = s + op->size;
		uint8_t *d = op->dev;

		for (; s < end; s += 64, d += 64)
			_mm512_stream_si512((void *)d, _mm512_load_si512(s));
		_mm_sfence();
	}
}

static DIR64 void movdir64b_run(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		const uint8_t *s = op->host, *end = s + op->size;
		uint8_t *d = op->dev;

		for (; s < end; s += 64, d += 64)
			_movdir64b(d, s);
		_mm_sfence();
	}
}

/* The reads load a line, or two of AVX2, before they store the first of it. */
static inline __attribute__((always_inline)) SSE41 void sse41_load(struct bench_op *op)
{
	__m128i *s = op->dev, *end = s + op->size / 16, *d = op->host;

	for (; end - s >= 4; s += 4, d += 4) {
		__m128i a = _mm_stream_load_si128(s);
		__m128i b = _mm_stream_load_si128(s + 1);
		__m128i c = _mm_stream_load_si128(s + 2);
		__m128i e = _mm_stream_load_si128(s + 3);

		_mm_store_si128(d, a);
		_mm_store_si128(d + 1, b);
		_mm_store_si128(d + 2, c);
		_mm_store_si128(d + 3, e);
	}
	for (; s < end; s++, d++)
		_mm_store_si128(d, _mm_stream_load_si128(s));
}

static SSE41 void sse41_read(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		_mm_mfence();
		sse41_load(op);
		load_fence();
	}
}

static SSE41 void sse41_loosely(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		sse41_load(op);
		store_fence();
	}
}

static inline __attribute__((always_inline)) AVX2 void avx2_load(struct bench_op *op)
{
	__m256i *s = op->dev, *end = s + op->size / 32, *d = op->host;

	for (; end - s >= 4; s += 4, d += 4) {
		__m256i a = _mm256_stream_load_si256(s);
		__m256i b = _mm256_stream_load_si256(s + 1);
		__m256i c = _mm256_stream_load_si256(s + 2);
		__m256i e = _mm256_stream_load_si256(s + 3);

		_mm256_store_si256(d, a);
		_mm256_store_si256(d + 1, b);
		_mm256_store_si256(d + 2, c);
		_mm256_store_si256(d + 3, e);
	}
	for (; s < end; s++, d++)
		_mm256_store_si256(d, _mm256_stream_load_si256(s));
}

static AVX2 void avx2_read(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		_mm_mfence();
		avx2_load(op);
		load_fence();
	}
}

static AVX2 void avx2_loosely(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		avx2_load(op);
		store_fence();
	}
}

static AVX512 void avx512_read(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		uint8_t *s = op->dev, *end = s + op->size, *d = op->host;

		_mm_mfence();
		for (; s < end; s += 64, d += 64)
			_mm512_store_si512(d, _mm512_stream_load_si512(s));
		load_fence();
	}
}
#endif

const struct bench_loop bench_loops[] = {
	{ "plain", false, false, always, plain_to, 0, NULL },
	{ "plain", true, false, always, plain_from, 0, NULL },
	{ "memcpy", false, false, always, NULL, 1, libc_to },
	{ "memcpy", true, false, always, NULL, 1, libc_from },
	{ "plain loose", true, true, always, plain_loose, 0, NULL },
#if defined(__x86_64__)
	{ "sse2", false, false, always, NULL, 16, sse2_run },
	{ "avx2", false, false, has_avx2, NULL, 32, avx2_run },
	{ "avx512", false, false, has_avx512, NULL, 64, avx512_run },
	{ "movdir64b", false, false, has_movdir64b, NULL, 64, movdir64b_run },
	{ "sse4.1", true, false, has_sse41, NULL, 16, sse41_read },
	{ "avx2", true, false, has_avx2, NULL, 32, avx2_read },
	{ "avx512", true, false, has_avx512, NULL, 64, avx512_read },
	{ "sse4.1 loose", true, true, has_sse41, NULL, 16, sse41_loosely },
	{ "avx2 loose", true, true, has_avx2, NULL, 32, avx2_loosely },
#endif
	{ NULL, false, false, NULL, NULL, 0, NULL }
};

bench_run *bench_loop_of(const struct bench_loop *l, size_t size)
{
	if (l->plain)
		return size <= PLAIN_MAX ? l->plain[size] : NULL;
	return size % l->unit == 0 ? l->run : NULL;
}
