// SPDX-License-Identifier: MIT
/*
 * sse2_amd64.c - 16-byte non-temporal stores, plain loads; every x86-64.
 */
#if defined(__x86_64__)
#include <emmintrin.h>

#include "parts.h"

/* One line. It is asm, as no compiler may split or drop a device access. */
static inline void store_line(void *dev, __m128i a, __m128i b, __m128i c, __m128i d)
{
	__m128i *p = dev;

	__asm__ __volatile__("movntdq %4, %0\n\t"
			     "movntdq %5, %1\n\t"
			     "movntdq %6, %2\n\t"
			     "movntdq %7, %3"
			     : "=m"(p[0]), "=m"(p[1]), "=m"(p[2]), "=m"(p[3])
			     : "x"(a), "x"(b), "x"(c), "x"(d));
}

void copy_sse2_lines_to(void *dev, const void *host, size_t n)
{
	uint8_t *d = dev;
	const __m128i *h = host;

	for (; n; n -= COPY_LINE, d += COPY_LINE, h += 4)
		store_line(d, _mm_loadu_si128(h), _mm_loadu_si128(h + 1),
			   _mm_loadu_si128(h + 2), _mm_loadu_si128(h + 3));
}

static void lines_from(void *host, const void *dev, size_t n)
{
	const __m128i *d = dev;
	__m128i *h = host;

	for (; n; n -= COPY_LINE, d += 4, h += 4) {
		__m128i v0, v1, v2, v3;

		__asm__ __volatile__("movdqa %4, %0\n\t"
				     "movdqa %5, %1\n\t"
				     "movdqa %6, %2\n\t"
				     "movdqa %7, %3"
				     : "=&x"(v0), "=&x"(v1), "=&x"(v2), "=&x"(v3)
				     : "m"(d[0]), "m"(d[1]), "m"(d[2]), "m"(d[3]));
		_mm_storeu_si128(h, v0);
		_mm_storeu_si128(h + 1, v1);
		_mm_storeu_si128(h + 2, v2);
		_mm_storeu_si128(h + 3, v3);
	}
}

static bool usable(void)
{
	return true;	/* part of x86-64 */
}

int copy_sse2_write_line(_Atomic uint64_t *busy, void *dev, const void *host)
{
	if (!copy_at_line(dev))
		return copy_write_vec_64(busy, dev, host);
	copy_sse2_lines_to(dev, host, COPY_LINE);
	return copy_end(busy);
}

static void to(void *dev, const void *host, size_t n)
{
	copy_split_to(dev, host, n, copy_put_vec, copy_sse2_lines_to);
}

static void from(void *host, const void *dev, size_t n)
{
	copy_split_from(host, dev, n, copy_small_from_vec, lines_from);
}

static int read(void *host, const void *dev, size_t n, _Atomic uint64_t *busy)
{
	return copy_read_plain(host, dev, n, busy, copy_small_from_vec, lines_from, from);
}

const struct copy_impl copy_sse2 = {
	.name = "sse2",
	.usable = usable,
	.to = to,
	.from = from,
	.read = read,
	.write = { COPY_SIZES(COPY_ENTRY_VEC) [COPY_LINE] = copy_sse2_write_line },
};
#endif
