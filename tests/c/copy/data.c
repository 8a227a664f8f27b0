// SPDX-License-Identifier: MIT
/*
 * copy/data.c - capi/copy_one.c and capi/copy_many.c over a table and mappings of the test's: each
 * byte of a mapping and none beside it, and a reader beside two mappings of one handle in turns.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "copies.h"
#include "front_double.h"
#include "gdrapi_ext.h"
#include "tap.h"

enum { SIZE = 256 << 10, HANDLES = 3, EPOCH = 3, EDGE = 64 };

static struct tap tap;
static struct gdr_slot slots[HANDLES + 1];
static unsigned char dev[HANDLES][EDGE + SIZE + EDGE], host[SIZE + 2 * EDGE];

/* A routine for write-combined memory. */
static struct copy_impl impl;
static int moves;

static void move(void *dst, const void *src, size_t n)
{
	moves++;
	memcpy(dst, src, n);
}

static void check(bool ok, const char *what)
{
	tap_ok(&tap, ok, "%s", what);
}

static uint64_t key_of(uint64_t epoch, int i)
{
	return epoch << GDR_HANDLE_EPOCH_SHIFT | 7ull << GDR_HANDLE_INDEX_BITS | (unsigned int)(1 + i);
}

static gdr_mh_t mh(int i)
{
	return (gdr_mh_t){ key_of(EPOCH, i) };
}

static unsigned char *first(int i)
{
	return dev[i] + EDGE;
}

static void map_as(int i, uint32_t type)
{
	slot_set(&slots[1 + i], key_of(EPOCH, i), first(i), SIZE, type);
}

static void unmap(int i)
{
	slot_set(&slots[1 + i], 0, NULL, 0, 0);
}

static int copy(gdr_mh_t h, void *d, void *p, size_t n, bool to)
{
	return to ? gdr_copy_to_mapping(h, d, p, n) : gdr_copy_from_mapping(h, p, d, n);
}

static int copy_v(gdr_mh_t h, void *d, void *p, size_t n, bool to)
{
	const gdr_piece_t one = { h, d, p, n };

	return to ? gdr_copy_to_mapping_v(&one, 1) : gdr_copy_from_mapping_v(&one, 1);
}

static int (*const ways[])(gdr_mh_t, void *, void *, size_t, bool) = { copy, copy_v };

/* One copy of each way and direction: its answer, and that no other byte changes. */
static bool copies(int i, size_t at, size_t n, int want)
{
	bool ok = true;

	for (int w = 0; w < 4; w++) {
		bool to = w & 1, done = !want;
		unsigned char *d = first(i) + at, *p = host + EDGE;
		unsigned char *dst = to ? d : p;

		memset(dev[i], 0x11, sizeof(dev[i]));
		memset(host, 0x22, sizeof(host));
		for (size_t k = 0; done && k < n; k++)
			(to ? p : d)[k] = (unsigned char)(k * 7 + 1);
		ok &= ways[w / 2](mh(i), d, p, n, to) == want;
		for (size_t k = 0; done && k < n; k++)
			ok &= dst[k] == (unsigned char)(k * 7 + 1);
		ok &= dst[-1] == (to ? 0x11 : 0x22);
		if (done)
			ok &= dst[n] == (to ? 0x11 : 0x22);
	}
	return ok;
}

static void test_bounds(void)
{
	static const uint32_t types[] = { GDR_MAPPING_TYPE_WC, GDR_MAPPING_TYPE_CACHING, GDR_MAPPING_TYPE_DEVICE };

	for (size_t t = 0; t < 3; t++) {
		static const size_t sizes[] = { 1, 2, 3, 4, 8, 15, 16, 63, 64, 65, 1000, 70000, SIZE };
		bool ok = true, refused = true;

		map_as(0, types[t]);
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			ok &= copies(0, 0, sizes[i], 0) && copies(0, SIZE - sizes[i], sizes[i], 0);
			refused &= copies(0, SIZE - sizes[i] + 1, sizes[i], EINVAL);
		}
		refused &= copies(0, 0, SIZE + 1, EINVAL) && copies(0, (size_t)-1, 1, EINVAL);
		refused &= copy(mh(0), first(0), host, SIZE_MAX, true) == EINVAL;
		check(ok, "every byte of a mapping is copied, and no other");
		check(refused, "bytes that do not lie in the mapping are refused");
		for (int w = 0; w < 4; w++) {
			check(!ways[w / 2](mh(0), first(0), host, 0, w & 1), "0 bytes are copied");
			check(ways[w / 2](mh(0), first(0), NULL, 8, w & 1) == EINVAL, "no host memory is refused");
		}
		unmap(0);
	}
}

/* All pieces are checked before the first is copied. */
static void test_pieces(void)
{
	gdr_piece_t p[5];

	map_as(0, GDR_MAPPING_TYPE_WC);
	for (int to = 0; to < 2; to++)
		for (int bad = 0; bad < 5; bad++) {
			int rc;

			map_as(1, bad % 2 ? GDR_MAPPING_TYPE_CACHING : GDR_MAPPING_TYPE_DEVICE);

			for (int i = 0; i < 5; i++)
				p[i] = (gdr_piece_t){ mh(i % 2), first(i % 2) + 100 * i, host + 100 * i, 100 };
			p[bad].map_d_ptr = first(bad % 2) + SIZE - 99;
			memset(dev, 1, sizeof(dev));
			memset(host, 2, sizeof(host));
			rc = to ? gdr_copy_to_mapping_v(p, 5) : gdr_copy_from_mapping_v(p, 5);
			check(rc == EINVAL, "a bad piece is refused");
			for (int i = 0; i < 5; i++)
				check(first(i % 2)[100 * i] == 1 && host[100 * i] == 2, "and none is copied");
			p[bad].map_d_ptr = first(bad % 2) + 100 * bad;
			moves = 0;
			rc = to ? gdr_copy_to_mapping_v(p, 5) : gdr_copy_from_mapping_v(p, 5);
			for (int i = 0; i < 5; i++)
				check(!rc && !memcmp(p[i].map_d_ptr, p[i].h_ptr, 100), "pieces of two types");
			check(moves == 3, "each by the routine of its type");
		}
	check(!gdr_copy_to_mapping_v(NULL, 0) && !gdr_copy_from_mapping_v(NULL, 0), "no pieces");
	check(gdr_copy_to_mapping_v(NULL, 1) == EINVAL, "no array");
	unmap(0);
	unmap(1);
}

static _Atomic bool over;

/* The same handle again, in turns of 64 bytes and, elsewhere, of many. */
static void *map_in_turns(void *unused)
{
	while (!atomic_load(&over)) {
		slot_set(&slots[1], key_of(EPOCH, 0), first(0), 64, GDR_MAPPING_TYPE_WC);
		slot_set(&slots[1], key_of(EPOCH, 0), first(1), SIZE, GDR_MAPPING_TYPE_WC);
	}
	return unused;
}

/* No copy takes the address of one mapping with the length of the other. */
static void test_turns(void)
{
	pthread_t thread;
	long mixed = 0;

	pthread_create(&thread, NULL, map_in_turns, NULL);
	for (int i = 0; i < 10000000; i++)
		mixed += copy(mh(0), first(0) + 1000, host, 8, i % 2) != EINVAL;
	atomic_store(&over, true);
	pthread_join(thread, NULL);
	check(!mixed, "no copy sees one mapping in part and another in part");
	unmap(0);
}

int main(void)
{
	impl = copy_portable;
	impl.to = move;
	impl.from = move;
	gdr_front_use(&impl);
	front_is_up(EPOCH, slots);
	test_bounds();
	test_pieces();
	test_turns();
	return tap_done(&tap);
}
