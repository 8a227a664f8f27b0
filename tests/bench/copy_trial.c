/* SPDX-License-Identifier: MIT */
#include "copy_trial.h"

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define AVX512 __attribute__((target("avx512f,avx512bw")))
#define DIR64 __attribute__((target("avx512f,avx512bw,movdir64b")))
#define LINE 64u
#define PAGE 4096u

static bool any_cpu(void)
{
	return true;
}

static bool has_avx512(void)
{
	__builtin_cpu_init();
	return __builtin_cpu_supports("avx512bw");
}

static bool has_movdir64b(void)
{
	unsigned int a, b, c, d;

	return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & 1u << 28);
}

/* How a line is stored. */
enum how { NT, PLAIN, DIRECT };

/* By asm: intrinsics of plain accesses may be merged or dropped. */
INLINE AVX512 void put(uint8_t *d, __m512i v, const enum how how)
{
	if (how == NT)
		__asm__ __volatile__("vmovntdq %1, %0" : "=m"(*(__m512i *)d) : "v"(v));
	else
		__asm__ __volatile__("vmovdqa64 %1, %0" : "=m"(*(__m512i *)d) : "v"(v));
}

INLINE AVX512 __m512i get(const uint8_t *d, const enum how how)
{
	__m512i v;

	if (how == NT)
		__asm__ __volatile__("vmovntdqa %1, %0" : "=v"(v) : "m"(*(const __m512i *)d));
	else
		__asm__ __volatile__("vmovdqa64 %1, %0" : "=v"(v) : "m"(*(const __m512i *)d));
	return v;
}

INLINE AVX512 __m512i host_get(const uint8_t *h)
{
	return _mm512_loadu_si512(h);
}

/* group lines loaded, then stored; ahead is how far the source is prefetched. */
INLINE AVX512 void write_grouped(struct bench_op *op, const size_t group, const enum how how,
				 const size_t ahead)
{
	const uint8_t *h = op->host, *end = h + op->size;
	uint8_t *d = op->dev;
	__m512i v[16];

	for (; h + group * LINE <= end; h += group * LINE, d += group * LINE) {
#pragma GCC unroll 16
		for (size_t i = 0; i < group; i++) {
			if (ahead)
				_mm_prefetch((const char *)h + i * LINE + ahead, _MM_HINT_T0);
			v[i] = host_get(h + i * LINE);
		}
#pragma GCC unroll 16
		for (size_t i = 0; i < group; i++)
			put(d + i * LINE, v[i], how);
	}
	for (; h < end; h += LINE, d += LINE)
		put(d, host_get(h), how);
}

/* streams pages at once, a line of each in turn. */
INLINE AVX512 void write_streams(struct bench_op *op, const size_t streams)
{
	const uint8_t *h = op->host, *end = h + op->size;
	uint8_t *d = op->dev;

	for (; h < end; h += streams * PAGE, d += streams * PAGE)
		for (size_t i = 0; i < PAGE; i += LINE)
#pragma GCC unroll 4
			for (size_t s = 0; s < streams; s++)
				put(d + s * PAGE + i, host_get(h + s * PAGE + i), NT);
}

#define WRITE(name, attr, body)					\
	static attr void name(struct bench_op *op, size_t count)	\
	{								\
		for (; count; count--) {				\
			body;						\
			_mm_sfence();					\
		}							\
	}

WRITE(nt1, AVX512, write_grouped(op, 1, NT, 0))
WRITE(nt2, AVX512, write_grouped(op, 2, NT, 0))
WRITE(nt8, AVX512, write_grouped(op, 8, NT, 0))
WRITE(nt16, AVX512, write_grouped(op, 16, NT, 0))
WRITE(nt4_ahead, AVX512, write_grouped(op, 4, NT, 1024))
WRITE(plain4, AVX512, write_grouped(op, 4, PLAIN, 0))
WRITE(two_pages, AVX512, write_streams(op, 2))
WRITE(four_pages, AVX512, write_streams(op, 4))

static void nt_movsb(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		const void *h = op->host;
		void *d = op->dev;
		size_t n = op->size;

		__asm__ __volatile__("rep movsb" : "+S"(h), "+D"(d), "+c"(n) : : "memory");
		_mm_sfence();
	}
}

static AVX512 void backwards_run(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		for (size_t i = op->size; i; i -= LINE)
			put((uint8_t *)op->dev + i - LINE,
			    host_get((uint8_t *)op->host + i - LINE), NT);
		_mm_sfence();
	}
}

/* direct of every period lines by MOVDIR64B, the others by the usual store. */
INLINE DIR64 void write_mixed(struct bench_op *op, const size_t direct, const size_t period)
{
	const uint8_t *h = op->host;
	uint8_t *d = op->dev;

	for (size_t i = 0; i < op->size; i += period * LINE)
#pragma GCC unroll 8
		for (size_t k = 0; k < period; k++) {
			size_t at = i + k * LINE;

			if (k < direct)
				_movdir64b(d + at, h + at);
			else
				put(d + at, host_get(h + at), NT);
		}
}

WRITE(dir_each, DIR64, write_mixed(op, 1, 1))
WRITE(dir_all, DIR64, write_mixed(op, 8, 8))
WRITE(dir_half, DIR64, write_mixed(op, 1, 2))
WRITE(dir_eighth, DIR64, write_mixed(op, 1, 8))

/* A store fence now and then: every lines lines. */
INLINE AVX512 void write_fenced(struct bench_op *op, const size_t lines)
{
	const uint8_t *h = op->host, *end = h + op->size;
	uint8_t *d = op->dev;

	while (h < end) {
		for (size_t i = 0; i < lines && h < end; i++, h += LINE, d += LINE)
			put(d, host_get(h), NT);
		if (h < end)
			_mm_sfence();
	}
}

WRITE(fence_16, AVX512, write_fenced(op, 16))
WRITE(fence_64, AVX512, write_fenced(op, 64))
WRITE(fence_1024, AVX512, write_fenced(op, 1024))

/*
 * What the entry of a library call costs around one store of 4 bytes: two
 * stores to announce it and one to end it, after the fence as the library does
 * or before it; and what a call alone costs.
 */
static struct {
	volatile uint64_t busy, frame;
} record __attribute__((aligned(64)));

static void announced_4(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		record.frame = 1;
		record.busy = op->mh.h;
		*(volatile uint32_t *)op->dev = *(const volatile uint32_t *)op->host;
		_mm_sfence();
		record.busy = 0;
	}
}

static void ended_early_4(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		record.frame = 1;
		record.busy = op->mh.h;
		*(volatile uint32_t *)op->dev = *(const volatile uint32_t *)op->host;
		record.busy = 0;
		_mm_sfence();
	}
}

static __attribute__((noinline)) void called(struct bench_op *op)
{
	*(volatile uint32_t *)op->dev = *(const volatile uint32_t *)op->host;
	_mm_sfence();
}

static void called_4(struct bench_op *op, size_t count)
{
	for (; count; count--)
		called(op);
}

/* Reads. */

INLINE AVX512 void read_grouped(struct bench_op *op, const size_t group, const enum how how,
				const bool ahead)
{
	const uint8_t *d = op->dev, *end = d + op->size;
	uint8_t *h = op->host;
	__m512i v[32];

	for (; d + group * LINE <= end; h += group * LINE, d += group * LINE) {
#pragma GCC unroll 32
		for (size_t i = 0; i < group; i++) {
			if (ahead)
				_mm_prefetch((const char *)d + (i + group) * LINE, _MM_HINT_NTA);
			v[i] = get(d + i * LINE, how);
		}
#pragma GCC unroll 32
		for (size_t i = 0; i < group; i++)
			_mm512_storeu_si512(h + i * LINE, v[i]);
	}
	for (; d < end; h += LINE, d += LINE)
		_mm512_storeu_si512(h, get(d, how));
}

INLINE AVX512 void read_streams(struct bench_op *op, const size_t streams)
{
	size_t part = op->size / streams;

	for (size_t i = 0; i < part; i += 4 * LINE)
#pragma GCC unroll 4
		for (size_t s = 0; s < streams; s++) {
			const uint8_t *d = (uint8_t *)op->dev + s * part + i;
			uint8_t *h = (uint8_t *)op->host + s * part + i;
			__m512i a = get(d, NT), b = get(d + LINE, NT);
			__m512i c = get(d + 2 * LINE, NT), e = get(d + 3 * LINE, NT);

			_mm512_storeu_si512(h, a);
			_mm512_storeu_si512(h + LINE, b);
			_mm512_storeu_si512(h + 2 * LINE, c);
			_mm512_storeu_si512(h + 3 * LINE, e);
		}
}

/* The results go around the host's caches. */
INLINE AVX512 void read_around(struct bench_op *op)
{
	for (size_t i = 0; i < op->size; i += 4 * LINE) {
		const uint8_t *d = (uint8_t *)op->dev + i;
		uint8_t *h = (uint8_t *)op->host + i;
		__m512i a = get(d, NT), b = get(d + LINE, NT);
		__m512i c = get(d + 2 * LINE, NT), e = get(d + 3 * LINE, NT);

		put(h, a, NT);
		put(h + LINE, b, NT);
		put(h + 2 * LINE, c, NT);
		put(h + 3 * LINE, e, NT);
	}
}

#define READ(name, attr, body)						\
	static attr void name(struct bench_op *op, size_t count)	\
	{								\
		for (; count; count--) {				\
			_mm_mfence();					\
			body;						\
			_mm_lfence();					\
		}							\
	}

READ(load1, AVX512, read_grouped(op, 1, NT, false))
READ(load4, AVX512, read_grouped(op, 4, NT, false))
READ(load16, AVX512, read_grouped(op, 16, NT, false))
READ(load24, AVX512, read_grouped(op, 24, NT, false))
READ(load32, AVX512, read_grouped(op, 32, NT, false))
READ(load8_ahead, AVX512, read_grouped(op, 8, NT, true))
READ(load8_plain, AVX512, read_grouped(op, 8, PLAIN, false))
READ(load_two, AVX512, read_streams(op, 2))
READ(load_four, AVX512, read_streams(op, 4))
READ(load_around, AVX512, read_around(op))

/* One line, by one plain load, with lesser fences; and what each fence takes. */
#define ONE_LINE(name, before, how, after)					\
	static AVX512 void name(struct bench_op *op, size_t count)		\
	{									\
		for (; count; count--) {					\
			before;							\
			_mm512_storeu_si512(op->host, get(op->dev, how));	\
			after;							\
		}								\
	}

#define LOCKED() __asm__ __volatile__("lock; addl $0, -64(%%rsp)" ::: "memory")

ONE_LINE(line_mm, _mm_mfence(), NT, _mm_lfence())
ONE_LINE(line_ll, _mm_lfence(), PLAIN, _mm_lfence())
ONE_LINE(line_locked, LOCKED(), PLAIN, _mm_lfence())
ONE_LINE(line_l, (void)0, PLAIN, _mm_lfence())
ONE_LINE(line_loose, (void)0, PLAIN, (void)0)

static DIR64 void read_direct(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		_mm_mfence();
		for (size_t i = 0; i < op->size; i += LINE)
			_movdir64b((uint8_t *)op->host + i, (uint8_t *)op->dev + i);
		_mm_mfence();
	}
}

/* Whether lfence or a locked instruction may stand in for the first fence. */
static AVX512 void load8_locked(struct bench_op *op, size_t count)
{
	for (; count; count--) {
		__asm__ __volatile__("lock; addl $0, -64(%%rsp)" ::: "memory");
		read_grouped(op, 8, NT, false);
		_mm_lfence();
	}
}

const struct copy_trial copy_trials[] = {
	{ "store called", false, 4, 4, any_cpu, called_4 },
	{ "announced", false, 4, 4, any_cpu, announced_4 },
	{ "ended early", false, 4, 4, any_cpu, ended_early_4 },
	{ "nt x1", false, LINE, SIZE_MAX, has_avx512, nt1 },
	{ "nt x2", false, LINE, SIZE_MAX, has_avx512, nt2 },
	{ "nt x8", false, LINE, SIZE_MAX, has_avx512, nt8 },
	{ "nt x16", false, LINE, SIZE_MAX, has_avx512, nt16 },
	{ "nt x4 ahead", false, LINE, SIZE_MAX, has_avx512, nt4_ahead },
	{ "plain x4", false, LINE, SIZE_MAX, has_avx512, plain4 },
	{ "2 pages", false, 2 * PAGE, SIZE_MAX, has_avx512, two_pages },
	{ "4 pages", false, 4 * PAGE, SIZE_MAX, has_avx512, four_pages },
	{ "backwards", false, LINE, SIZE_MAX, has_avx512, backwards_run },
	{ "rep movsb", false, LINE, SIZE_MAX, any_cpu, nt_movsb },
	{ "direct x1", false, LINE, SIZE_MAX, has_movdir64b, dir_each },
	{ "direct", false, 8 * LINE, SIZE_MAX, has_movdir64b, dir_all },
	{ "direct 1/2", false, 2 * LINE, SIZE_MAX, has_movdir64b, dir_half },
	{ "direct 1/8", false, 8 * LINE, SIZE_MAX, has_movdir64b, dir_eighth },
	{ "fence 1 KiB", false, LINE, SIZE_MAX, has_avx512, fence_16 },
	{ "fence 4 KiB", false, LINE, SIZE_MAX, has_avx512, fence_64 },
	{ "fence 64 KiB", false, LINE, SIZE_MAX, has_avx512, fence_1024 },
	{ "line m nt l", true, LINE, LINE, has_avx512, line_mm },
	{ "line l ld l", true, LINE, LINE, has_avx512, line_ll },
	{ "line lock ld", true, LINE, LINE, has_avx512, line_locked },
	{ "line ld l", true, LINE, LINE, has_avx512, line_l },
	{ "line ld", true, LINE, LINE, has_avx512, line_loose },
	{ "load x1", true, LINE, SIZE_MAX, has_avx512, load1 },
	{ "load x4", true, LINE, SIZE_MAX, has_avx512, load4 },
	{ "load x16", true, LINE, SIZE_MAX, has_avx512, load16 },
	{ "load x24", true, LINE, SIZE_MAX, has_avx512, load24 },
	{ "load x32", true, LINE, SIZE_MAX, has_avx512, load32 },
	{ "x8 prefetch", true, LINE, SIZE_MAX, has_avx512, load8_ahead },
	{ "x8 plain", true, LINE, SIZE_MAX, has_avx512, load8_plain },
	{ "x8 locked", true, LINE, SIZE_MAX, has_avx512, load8_locked },
	{ "2 streams", true, 512, SIZE_MAX, has_avx512, load_two },
	{ "4 streams", true, 1024, SIZE_MAX, has_avx512, load_four },
	{ "nt results", true, 256, SIZE_MAX, has_avx512, load_around },
	{ "movdir64b rd", true, LINE, SIZE_MAX, has_movdir64b, read_direct },
	{ NULL, false, 0, 0, NULL, NULL }
};
#else
const struct copy_trial copy_trials[] = { { NULL, false, 0, 0, NULL, NULL } };
#endif
