// SPDX-License-Identifier: MIT
/*
 * portable.c - C alone: volatile accesses of 8, 4, 2 and 1 bytes.
 *
 * A Device mapping on Arm allows these accesses only. So this routine serves Device
 * mappings on every machine, and WC mappings if there is no better routine.
 */
#include "parts.h"

typedef uint64_t __attribute__((may_alias)) vec;

static bool usable(void)
{
	return true;
}

static inline __attribute__((always_inline)) vec load_dev(const void *dev)
{
	return *(const volatile vec *)dev;
}

static inline __attribute__((always_inline)) void store_dev(void *dev, vec v)
{
	*(volatile vec *)dev = v;
}

static void put_word(void *dev, const void *host, size_t size)
{
	switch (size) {
	case 1: copy_put1(dev, host); break;
	case 2: copy_put2(dev, host); break;
	case 4: copy_put4(dev, host); break;
	default: copy_put8(dev, host); break;
	}
}

/* Pieces grow up to the first word, and shrink after the last one. */
static void put_words(void *dev, const void *host, size_t n)
{
	uint8_t *d = dev;
	const uint8_t *h = host;
	size_t i = 0, size;

	for (size = 1; size < 8 && i + size <= n; size *= 2)
		if ((uintptr_t)(d + i) & size) {
			put_word(d + i, h + i, size);
			i += size;
		}
	for (size = 8; size; size /= 2)
		for (; i + size <= n; i += size)
			put_word(d + i, h + i, size);
}

#define NAME "portable"
#define ROUTINE copy_portable
#define TARGET
#define load_one load_dev
#define STREAMS 0
#define GROUP 1u
#define PUT(dev, host, n) put_words(dev, host, n)
#include "routine.h"
