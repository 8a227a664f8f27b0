// SPDX-License-Identifier: MIT
/*
 * sse41_amd64.c - SSE2's writes; reads by 16-byte streaming loads.
 *
 * A plain load from WC memory asks the device for its own bytes alone. The first MOVNTDQA
 * of a line fetches the whole line into a streaming load buffer. The next three are
 * served from that buffer. So a line takes one round trip, not four.
 */
#if defined(__x86_64__)
#include <emmintrin.h>

#include "cpu_amd64.h"
#include "parts.h"

#define GROUP 4u	/* lines whose loads are issued before the first is used */

/* One line. It is asm, as no compiler may merge or drop a device access. */
static inline void load_line(__m128i v[4], const uint8_t *dev)
{
	const __m128i *p = (const __m128i *)dev;

	__asm__ __volatile__("movntdqa %4, %0\n\t"
			     "movntdqa %5, %1\n\t"
			     "movntdqa %6, %2\n\t"
			     "movntdqa %7, %3"
			     : "=&x"(v[0]), "=&x"(v[1]), "=&x"(v[2]), "=&x"(v[3])
			     : "m"(p[0]), "m"(p[1]), "m"(p[2]), "m"(p[3]));
}

static inline void keep_line(uint8_t *host, const __m128i v[4])
{
	__m128i *p = (__m128i *)host;

	_mm_storeu_si128(p, v[0]);
	_mm_storeu_si128(p + 1, v[1]);
	_mm_storeu_si128(p + 2, v[2]);
	_mm_storeu_si128(p + 3, v[3]);
}

static void lines_from(void *host, const void *dev, size_t n)
{
	const uint8_t *d = dev;
	uint8_t *h = host;
	__m128i a[4], b[4], c[4], e[4];

	for (; n >= GROUP * COPY_LINE; n -= GROUP * COPY_LINE) {
		load_line(a, d);
		load_line(b, d + COPY_LINE);
		load_line(c, d + 2 * COPY_LINE);
		load_line(e, d + 3 * COPY_LINE);
		keep_line(h, a);
		keep_line(h + COPY_LINE, b);
		keep_line(h + 2 * COPY_LINE, c);
		keep_line(h + 3 * COPY_LINE, e);
		d += GROUP * COPY_LINE;
		h += GROUP * COPY_LINE;
	}
	for (; n; n -= COPY_LINE, d += COPY_LINE, h += COPY_LINE) {
		load_line(a, d);
		keep_line(h, a);
	}
}

static void part_from(void *host, const void *line, size_t off, size_t n)
{
	uint8_t whole[COPY_LINE];
	__m128i v[4];

	load_line(v, line);
	keep_line(whole, v);
	memcpy(host, whole + off, n);
}

static void gather(void *lines, const void *const *devs, size_t n)
{
	uint8_t *line = lines;
	__m128i v[4];

	for (size_t i = 0; i < n; i++, line += COPY_LINE) {
		load_line(v, devs[i]);
		keep_line(line, v);
	}
}

static bool usable(void)
{
	return cpu_has_sse41();
}

static void to(void *dev, const void *host, size_t n)
{
	copy_split_to(dev, host, n, copy_put_vec, copy_sse2_lines_to);
}

static void from(void *host, const void *dev, size_t n)
{
	copy_cover_from(host, dev, n, part_from, lines_from);
}

static int read(void *host, const void *dev, size_t n, _Atomic uint64_t *busy)
{
	return copy_read_block(host, dev, n, busy, sizeof(__m128i), copy_small_from_vec, from);
}

const struct copy_impl copy_sse41 = {
	.name = "sse4.1",
	.usable = usable,
	.to = to,
	.from = from,
	.read = read,
	.gather = gather,
	.write = { COPY_SIZES(COPY_ENTRY_VEC) [COPY_LINE] = copy_sse2_write_line },
};
#endif
