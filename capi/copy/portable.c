// SPDX-License-Identifier: MIT
/*
 * portable.c - C alone: volatile accesses of 8, 4, 2 and 1 bytes.
 *
 * A Device mapping on Arm allows these accesses only. So this routine serves Device
 * mappings on every machine, and WC mappings if there is no better routine.
 */
#include <string.h>

#include "parts.h"

typedef uint64_t __attribute__((may_alias)) dev64;

#define LINE_WORDS (COPY_LINE / sizeof(dev64))

/*
 * Written out, as -O2 does not unroll a loop of eight. All loads come first, then all
 * stores.
 */
static void lines_to(void *dev, const void *host, size_t n)
{
	volatile dev64 *d = dev;
	const uint8_t *h = host;

	for (; n; n -= COPY_LINE, d += LINE_WORDS, h += COPY_LINE) {
		uint64_t v[LINE_WORDS];

		memcpy(v, h, sizeof(v));
		d[0] = v[0];
		d[1] = v[1];
		d[2] = v[2];
		d[3] = v[3];
		d[4] = v[4];
		d[5] = v[5];
		d[6] = v[6];
		d[7] = v[7];
	}
}

static inline void keep(uint8_t *host, uint64_t v)
{
	memcpy(host, &v, sizeof(v));
}

static void lines_from(void *host, const void *dev, size_t n)
{
	const volatile dev64 *d = dev;
	uint8_t *h = host;

	for (; n; n -= COPY_LINE, d += LINE_WORDS, h += COPY_LINE) {
		uint64_t v0 = d[0], v1 = d[1], v2 = d[2], v3 = d[3];
		uint64_t v4 = d[4], v5 = d[5], v6 = d[6], v7 = d[7];

		keep(h, v0);
		keep(h + 8, v1);
		keep(h + 16, v2);
		keep(h + 24, v3);
		keep(h + 32, v4);
		keep(h + 40, v5);
		keep(h + 48, v6);
		keep(h + 56, v7);
	}
}

static bool usable(void)
{
	return true;
}

static void to(void *dev, const void *host, size_t n)
{
	copy_split_to(dev, host, n, copy_put_pair, lines_to);
}

static void from(void *host, const void *dev, size_t n)
{
	copy_split_from(host, dev, n, copy_small_from, lines_from);
}

static int read(void *host, const void *dev, size_t n, _Atomic uint64_t *busy)
{
	return copy_read_plain(host, dev, n, busy, copy_small_from, lines_from, from);
}

const struct copy_impl copy_portable = {
	.name = "portable",
	.usable = usable,
	.to = to,
	.from = from,
	.read = read,
	.write = { COPY_SIZES(COPY_ENTRY_PAIR) [COPY_LINE] = copy_write_pair_64 },
};
