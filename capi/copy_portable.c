// SPDX-License-Identifier: MIT
/*
 * copy_portable.c - C alone: volatile accesses of 8, 4, 2 and 1 bytes.
 *
 * The accesses are what a Device mapping on Arm allows; so this routine serves
 * those on every machine, and WC mappings where there is nothing better.
 */
#include <string.h>

#include "copy_parts.h"

typedef uint64_t __attribute__((may_alias)) dev64;

#define LINE_WORDS (COPY_LINE / sizeof(dev64))

static void lines_to(void *dev, const void *host, size_t n)
{
	volatile dev64 *d = dev;
	const uint8_t *h = host;

	for (; n; n -= COPY_LINE, d += LINE_WORDS, h += COPY_LINE) {
		uint64_t v[LINE_WORDS];

		memcpy(v, h, sizeof(v));
		for (size_t i = 0; i < LINE_WORDS; i++)
			d[i] = v[i];
	}
}

static void lines_from(void *host, const void *dev, size_t n)
{
	const volatile dev64 *d = dev;
	uint8_t *h = host;

	for (; n; n -= COPY_LINE, d += LINE_WORDS, h += COPY_LINE) {
		uint64_t v[LINE_WORDS];

		for (size_t i = 0; i < LINE_WORDS; i++)
			v[i] = d[i];
		memcpy(h, v, sizeof(v));
	}
}

static bool usable(void)
{
	return true;
}

static void to(void *dev, const void *host, size_t n)
{
	copy_split(dev, host, dev, n, copy_small_to, lines_to);
}

static void from(void *host, const void *dev, size_t n)
{
	copy_split(host, dev, dev, n, copy_small_from, lines_from);
}

const struct copy_impl copy_portable = {
	.name = "portable",
	.usable = usable,
	.to = to,
	.from = from,
};
