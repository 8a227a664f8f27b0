// SPDX-License-Identifier: MIT
/*
 * avx512_amd64.c - a whole line by one non-temporal store or one
 * streaming load.
 */
#if defined(__x86_64__)
#include <immintrin.h>

#include "cpu_amd64.h"
#include "parts.h"

#define AVX512 __attribute__((target("avx512f,avx512bw")))
#define GROUP_TO 4u	/* lines loaded from the host before the first is stored */
#define GROUP_FROM 8u	/* lines in flight from the device */

static inline AVX512 void store_line(uint8_t *dev, __m512i v)
{
	__m512i *p = (__m512i *)dev;

	__asm__ __volatile__("vmovntdq %1, %0" : "=m"(*p) : "v"(v));
}

static inline AVX512 __m512i load_line(const uint8_t *dev)
{
	const __m512i *p = (const __m512i *)dev;
	__m512i v;

	__asm__ __volatile__("vmovntdqa %1, %0" : "=v"(v) : "m"(*p));
	return v;
}

static AVX512 void lines_to(void *dev, const void *host, size_t n)
{
	uint8_t *d = dev;
	const uint8_t *h = host;

	for (; n >= GROUP_TO * COPY_LINE; n -= GROUP_TO * COPY_LINE) {
		__m512i v0 = _mm512_loadu_si512(h);
		__m512i v1 = _mm512_loadu_si512(h + COPY_LINE);
		__m512i v2 = _mm512_loadu_si512(h + 2 * COPY_LINE);
		__m512i v3 = _mm512_loadu_si512(h + 3 * COPY_LINE);

		store_line(d, v0);
		store_line(d + COPY_LINE, v1);
		store_line(d + 2 * COPY_LINE, v2);
		store_line(d + 3 * COPY_LINE, v3);
		d += GROUP_TO * COPY_LINE;
		h += GROUP_TO * COPY_LINE;
	}
	for (; n; n -= COPY_LINE, d += COPY_LINE, h += COPY_LINE)
		store_line(d, _mm512_loadu_si512(h));
}

static AVX512 void lines_from(void *host, const void *dev, size_t n)
{
	const uint8_t *d = dev;
	uint8_t *h = host;

	for (; n >= GROUP_FROM * COPY_LINE; n -= GROUP_FROM * COPY_LINE) {
		__m512i v0 = load_line(d);
		__m512i v1 = load_line(d + COPY_LINE);
		__m512i v2 = load_line(d + 2 * COPY_LINE);
		__m512i v3 = load_line(d + 3 * COPY_LINE);
		__m512i v4 = load_line(d + 4 * COPY_LINE);
		__m512i v5 = load_line(d + 5 * COPY_LINE);
		__m512i v6 = load_line(d + 6 * COPY_LINE);
		__m512i v7 = load_line(d + 7 * COPY_LINE);

		_mm512_storeu_si512(h, v0);
		_mm512_storeu_si512(h + COPY_LINE, v1);
		_mm512_storeu_si512(h + 2 * COPY_LINE, v2);
		_mm512_storeu_si512(h + 3 * COPY_LINE, v3);
		_mm512_storeu_si512(h + 4 * COPY_LINE, v4);
		_mm512_storeu_si512(h + 5 * COPY_LINE, v5);
		_mm512_storeu_si512(h + 6 * COPY_LINE, v6);
		_mm512_storeu_si512(h + 7 * COPY_LINE, v7);
		d += GROUP_FROM * COPY_LINE;
		h += GROUP_FROM * COPY_LINE;
	}
	for (; n; n -= COPY_LINE, d += COPY_LINE, h += COPY_LINE)
		_mm512_storeu_si512(h, load_line(d));
}

/* The mask limits the store to the wanted bytes. All others neither change nor fault. */
static inline AVX512 void keep_part(void *host, __m512i v, size_t off, size_t n)
{
	__mmask64 keep = (~0ull >> (COPY_LINE - n)) << off;

	_mm512_mask_storeu_epi8((uint8_t *)host - off, keep, v);
}

static AVX512 void part_from(void *host, const void *line, size_t off, size_t n)
{
	keep_part(host, load_line(line), off, n);
}

static AVX512 void gather(void *lines, const void *const *devs, size_t n)
{
	uint8_t *line = lines;

	for (size_t i = 0; i < n; i++, line += COPY_LINE)
		_mm512_storeu_si512(line, load_line(devs[i]));
}

static bool usable(void)
{
	uint32_t need = CPU_7_EBX_AVX512F | CPU_7_EBX_AVX512BW;

	return (cpu_leaf(7).ebx & need) == need && cpu_os_saves(XCR0_AVX512);
}

/*
 * Uses one of the upper sixteen registers. So the state that VZEROUPPER would have to
 * clear stays as it is.
 */
static AVX512 int write_line(_Atomic uint64_t *busy, void *dev, const void *host)
{
	if (!copy_at_line(dev))
		return copy_write_vec_64(busy, dev, host);
	__asm__ __volatile__("vmovdqu64 %1, %%zmm16\n\t"
			     "vmovntdq %%zmm16, %0"
			     : "=m"(*(__m512i *)dev)
			     : "m"(*(const __m512i *)host)
			     : "xmm16");
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

/* Of bytes in one line, by a plain load of it. */
static AVX512 void one_from(void *host, const void *dev, size_t n)
{
	size_t off = (uintptr_t)dev % COPY_LINE;
	const __m512i *line = (const __m512i *)((uintptr_t)dev - off);
	__m512i v;

	if (copy_in_word(dev, n)) {
		copy_short_from(host, dev, n);
		return;
	}
	__asm__ __volatile__("vmovdqa64 %1, %0" : "=v"(v) : "m"(*line));
	keep_part(host, v, off, n);
}

static int read(void *host, const void *dev, size_t n, _Atomic uint64_t *busy)
{
	return copy_read_block(host, dev, n, busy, COPY_LINE, one_from, from);
}

const struct copy_impl copy_avx512 = {
	.name = "avx512",
	.usable = usable,
	.to = to,
	.from = from,
	.read = read,
	.gather = gather,
	.write = { COPY_SIZES(COPY_ENTRY_VEC) [COPY_LINE] = write_line },
};
#endif
