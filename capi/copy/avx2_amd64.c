// SPDX-License-Identifier: MIT
/*
 * avx2_amd64.c - 32-byte non-temporal stores and streaming loads.
 */
#if defined(__x86_64__)
#include <immintrin.h>

#include "cpu_amd64.h"
#include "parts.h"

#define AVX2 __attribute__((target("avx2")))
#define GROUP 8u	/* lines in flight: all 16 registers */

static inline AVX2 void store_line(uint8_t *dev, __m256i a, __m256i b)
{
	__m256i *p = (__m256i *)dev;

	__asm__ __volatile__("vmovntdq %2, %0\n\t"
			     "vmovntdq %3, %1"
			     : "=m"(p[0]), "=m"(p[1])
			     : "x"(a), "x"(b));
}

static inline AVX2 void load_line(__m256i v[2], const uint8_t *dev)
{
	const __m256i *p = (const __m256i *)dev;

	__asm__ __volatile__("vmovntdqa %2, %0\n\t"
			     "vmovntdqa %3, %1"
			     : "=&x"(v[0]), "=&x"(v[1])
			     : "m"(p[0]), "m"(p[1]));
}

static inline AVX2 void keep_line(uint8_t *host, const __m256i v[2])
{
	_mm256_storeu_si256((__m256i *)host, v[0]);
	_mm256_storeu_si256((__m256i *)(host + 32), v[1]);
}

static AVX2 void lines_to(void *dev, const void *host, size_t n)
{
	uint8_t *d = dev;
	const uint8_t *h = host;

	for (; n; n -= COPY_LINE, d += COPY_LINE, h += COPY_LINE)
		store_line(d, _mm256_loadu_si256((const __m256i *)h),
			   _mm256_loadu_si256((const __m256i *)(h + 32)));
}

static AVX2 void lines_from(void *host, const void *dev, size_t n)
{
	const uint8_t *d = dev;
	uint8_t *h = host;
	__m256i v0[2], v1[2], v2[2], v3[2], v4[2], v5[2], v6[2], v7[2];

	for (; n >= GROUP * COPY_LINE; n -= GROUP * COPY_LINE) {
		load_line(v0, d);
		load_line(v1, d + COPY_LINE);
		load_line(v2, d + 2 * COPY_LINE);
		load_line(v3, d + 3 * COPY_LINE);
		load_line(v4, d + 4 * COPY_LINE);
		load_line(v5, d + 5 * COPY_LINE);
		load_line(v6, d + 6 * COPY_LINE);
		load_line(v7, d + 7 * COPY_LINE);
		keep_line(h, v0);
		keep_line(h + COPY_LINE, v1);
		keep_line(h + 2 * COPY_LINE, v2);
		keep_line(h + 3 * COPY_LINE, v3);
		keep_line(h + 4 * COPY_LINE, v4);
		keep_line(h + 5 * COPY_LINE, v5);
		keep_line(h + 6 * COPY_LINE, v6);
		keep_line(h + 7 * COPY_LINE, v7);
		d += GROUP * COPY_LINE;
		h += GROUP * COPY_LINE;
	}
	for (; n; n -= COPY_LINE, d += COPY_LINE, h += COPY_LINE) {
		load_line(v0, d);
		keep_line(h, v0);
	}
}

static AVX2 void part_from(void *host, const void *line, size_t off, size_t n)
{
	uint8_t whole[COPY_LINE];
	__m256i v[2];

	load_line(v, line);
	keep_line(whole, v);
	memcpy(host, whole + off, n);
}

static AVX2 void gather(void *lines, const void *const *devs, size_t n)
{
	uint8_t *line = lines;
	__m256i v[2];

	for (size_t i = 0; i < n; i++, line += COPY_LINE) {
		load_line(v, devs[i]);
		keep_line(line, v);
	}
}

static bool usable(void)
{
	return (cpu_leaf(7).ebx & CPU_7_EBX_AVX2) && cpu_os_saves(XCR0_AVX);
}

static AVX2 int write_line(_Atomic uint64_t *busy, void *dev, const void *host)
{
	if (!copy_at_line(dev))
		return copy_write_vec_64(busy, dev, host);
	lines_to(dev, host, COPY_LINE);
	return copy_end(busy);
}

static void to(void *dev, const void *host, size_t n)
{
	copy_split_to(dev, host, n, copy_put_vec, lines_to);
}

static void from(void *host, const void *dev, size_t n)
{
	copy_cover_from(host, dev, n, part_from, lines_from);
}

/* Of bytes in one half of a line, by a plain load of it. */
static AVX2 void one_from(void *host, const void *dev, size_t n)
{
	size_t off = (uintptr_t)dev % sizeof(__m256i);
	const __m256i *half = (const __m256i *)((uintptr_t)dev - off);
	uint8_t whole[sizeof(__m256i)];
	__m256i v;

	if (copy_in_word(dev, n)) {
		copy_short_from(host, dev, n);
		return;
	}
	__asm__ __volatile__("vmovdqa %1, %0" : "=x"(v) : "m"(*half));
	_mm256_storeu_si256((__m256i *)whole, v);
	memcpy(host, whole + off, n);
}

static int read(void *host, const void *dev, size_t n, _Atomic uint64_t *busy)
{
	return copy_read_block(host, dev, n, busy, sizeof(__m256i), one_from, from);
}

const struct copy_impl copy_avx2 = {
	.name = "avx2",
	.usable = usable,
	.to = to,
	.from = from,
	.read = read,
	.gather = gather,
	.write = { COPY_SIZES(COPY_ENTRY_VEC) [COPY_LINE] = write_line },
};
#endif
