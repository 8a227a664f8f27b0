// SPDX-License-Identifier: MIT
/*
 * neon_arm64.c - lines by pairs of 16-byte registers.
 *
 * WC on Arm is Normal Non-cacheable memory. The CPU gathers stores to it and does not
 * order them. So a line is written by two store pairs in a row.
 */
#if defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>

#include "parts.h"

#define GROUP 4u	/* lines in flight from the device: 16 of 32 registers */

/* A whole line as one operand. */
struct line {
	uint8_t bytes[COPY_LINE];
} __attribute__((may_alias));

static inline void store_line(uint8_t *dev, uint8x16x4_t v)
{
	struct line *p = (struct line *)dev;

	__asm__ __volatile__("stp %q1, %q2, [%5]\n\t"
			     "stp %q3, %q4, [%5, #32]"
			     : "=m"(*p)
			     : "w"(v.val[0]), "w"(v.val[1]), "w"(v.val[2]), "w"(v.val[3]),
			       "r"(dev));
}

static inline uint8x16x4_t load_line(const uint8_t *dev)
{
	const struct line *p = (const struct line *)dev;
	uint8x16x4_t v;

	__asm__ __volatile__("ldp %q0, %q1, [%5]\n\t"
			     "ldp %q2, %q3, [%5, #32]"
			     : "=&w"(v.val[0]), "=&w"(v.val[1]), "=&w"(v.val[2]),
			       "=&w"(v.val[3])
			     : "m"(*p), "r"(dev));
	return v;
}

/* Plain register loads and stores: a structure access (LD4) would interleave. */
static inline uint8x16x4_t load_host(const uint8_t *host)
{
	uint8x16x4_t v;

	v.val[0] = vld1q_u8(host);
	v.val[1] = vld1q_u8(host + 16);
	v.val[2] = vld1q_u8(host + 32);
	v.val[3] = vld1q_u8(host + 48);
	return v;
}

static inline void keep_line(uint8_t *host, uint8x16x4_t v)
{
	vst1q_u8(host, v.val[0]);
	vst1q_u8(host + 16, v.val[1]);
	vst1q_u8(host + 32, v.val[2]);
	vst1q_u8(host + 48, v.val[3]);
}

static void lines_to(void *dev, const void *host, size_t n)
{
	uint8_t *d = dev;
	const uint8_t *h = host;

	for (; n; n -= COPY_LINE, d += COPY_LINE, h += COPY_LINE)
		store_line(d, load_host(h));
}

static void lines_from(void *host, const void *dev, size_t n)
{
	const uint8_t *d = dev;
	uint8_t *h = host;

	for (; n >= GROUP * COPY_LINE; n -= GROUP * COPY_LINE) {
		uint8x16x4_t v0 = load_line(d);
		uint8x16x4_t v1 = load_line(d + COPY_LINE);
		uint8x16x4_t v2 = load_line(d + 2 * COPY_LINE);
		uint8x16x4_t v3 = load_line(d + 3 * COPY_LINE);

		keep_line(h, v0);
		keep_line(h + COPY_LINE, v1);
		keep_line(h + 2 * COPY_LINE, v2);
		keep_line(h + 3 * COPY_LINE, v3);
		d += GROUP * COPY_LINE;
		h += GROUP * COPY_LINE;
	}
	for (; n; n -= COPY_LINE, d += COPY_LINE, h += COPY_LINE)
		keep_line(h, load_line(d));
}

static bool usable(void)
{
	return getauxval(AT_HWCAP) & (1ul << 1);	/* HWCAP_ASIMD */
}

static int write_line(_Atomic uint64_t *busy, void *dev, const void *host)
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
	copy_split_from(host, dev, n, copy_small_from_vec, lines_from);
}

static int read(void *host, const void *dev, size_t n, _Atomic uint64_t *busy)
{
	return copy_read_plain(host, dev, n, busy, copy_small_from_vec, lines_from, from);
}

const struct copy_impl copy_neon = {
	.name = "neon",
	.usable = usable,
	.to = to,
	.from = from,
	.read = read,
	.write = { COPY_SIZES(COPY_ENTRY_VEC) [COPY_LINE] = write_line },
};
#endif
