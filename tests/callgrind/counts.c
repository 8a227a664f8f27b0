// SPDX-License-Identifier: MIT
/*
 * counts.c - makes each call once, for callgrind to count the instructions of
 * the C front. A core in C takes the place of the one in Go, whose counts do not
 * repeat: it answers at once.
 *
 * Before each call it prints a name and calls mark(), at which callgrind writes
 * down what it has counted.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"
#include "cache_range.h"
#include "gdrapi.h"
#include "gdrapi_ext.h"
#include "copy/slot.h"

#define BYTES (1u << 20)

static struct gdr_table table;
static struct gdr_slot slots[GDR_SLOT_COUNT];
static struct gdr_hazard hazards[GDR_HAZARD_COUNT];
static _Alignas(4096) unsigned char dev[BYTES], host[BYTES];

/* What the fake core hands out: slot 1 for all handles of pinned memory. */
static uint64_t handle(unsigned int index)
{
	return (uint64_t)table.epoch << GDR_HANDLE_EPOCH_SHIFT | 1ull << GDR_HANDLE_INDEX_BITS |
	       index;
}

int gdrcore_init(uint32_t epoch, uintptr_t *addr)
{
	table.epoch = epoch;
	table.slots = (uintptr_t)slots;
	table.hazards = (uintptr_t)hazards;
	*addr = (uintptr_t)&table;
	return 0;
}

int gdrcore_open(struct gdr_options *opts, uint64_t *g)
{
	(void)opts;
	*g = handle(2);
	return 0;
}

int gdrcore_close(uint64_t g)
{
	return g ? 0 : 22;
}

int gdrcore_pin(uint64_t g, uint64_t addr, uint64_t size, uint64_t token, uint32_t va_space,
		uint32_t flags, uint64_t *h)
{
	(void)g;
	(void)addr;
	(void)size;
	(void)token;
	(void)va_space;
	(void)flags;
	*h = handle(1);
	return 0;
}

int gdrcore_backend(uint64_t g, char *name, size_t size)
{
	(void)g;
	if (size < 3)
		return 34;
	memcpy(name, "rm", 3);
	return 0;
}

int gdrcore_unpin(uint64_t g, uint64_t h)
{
	return g && h ? 0 : 22;
}

int gdrcore_map(uint64_t g, uint64_t h, uint64_t size, int flags, uint64_t *va)
{
	(void)g;
	(void)flags;
	slots[1].va = (uintptr_t)dev;
	slots[1].len = size;
	slots[1].type = GDR_MAPPING_TYPE_WC;
	atomic_store(&slots[1].key, h);
	*va = slots[1].va;
	return 0;
}

int gdrcore_start_threads(void)
{
	return 0;
}

/* cuda.c has no functions. */
int gdrcore_unmap(uint64_t g, uint64_t h, uint64_t va, uint64_t size)
{
	(void)va;
	(void)size;
	atomic_store(&slots[1].key, 0);
	return g && h ? 0 : 22;
}

int gdrcore_info(uint64_t g, uint64_t h, struct gdr_core_info *info)
{
	*info = (struct gdr_core_info){ .va = slots[1].va, .page_size = 4096 };
	return g && h ? 0 : 22;
}

int gdrcore_callback_flag(uint64_t g, uint64_t h, int *flag)
{
	*flag = 0;
	return g && h ? 0 : 22;
}

int gdrcore_attribute(uint64_t g, int attr, int *value)
{
	*value = attr;
	return g ? 0 : 22;
}

int gdrcore_driver_version(uint64_t g, int *major, int *minor)
{
	*major = *minor = 1;
	return g ? 0 : 22;
}

int gdrcore_mem_alloc(uint64_t g, int device, uint64_t size, uint64_t *m)
{
	(void)device;
	(void)size;
	*m = handle(3);
	return g ? 0 : 22;
}

int gdrcore_mem_free(uint64_t g, uint64_t m)
{
	return g && m ? 0 : 22;
}

int gdrcore_mem_ptr(uint64_t g, uint64_t m, uint64_t *ptr, uint64_t *size)
{
	*ptr = *size = BYTES;
	return g && m ? 0 : 22;
}

int gdrcore_mem_export(uint64_t g, uint64_t m, uint32_t flags, int *fd)
{
	(void)flags;
	*fd = 0;
	return g && m ? 0 : 22;
}

/* A cache that has one range of dev, if any, from its first miss on. */
static struct cache cache;
static struct span span;
static struct range ranges[GDR_SLOT_COUNT];

/* All memory is one allocation. */
static int attribute(void *value, int attribute, uint64_t addr)
{
	(void)addr;
	*(uint64_t *)value = attribute;
	return 0;
}

int gdrcore_cache_open(uint64_t g, uint64_t most, uint64_t *c)
{
	(void)g;
	*c = handle(4);
	cache = (struct cache){
		.key = *c, .room = (int64_t)most, .spans = (uintptr_t)&span, .ranges = (uintptr_t)ranges,
		.slots = (uintptr_t)slots, .attribute = (uintptr_t)attribute,
	};
	slots[4].cache = (uintptr_t)&cache;
	return 0;
}

int gdrcore_cache_get(uint64_t c, uint64_t addr, uint64_t size, uint64_t now,
		      struct gdr_core_held *out)
{
	uint64_t h = handle(1);

	span = (struct span){ .start = addr, .handle = h };
	ranges[1] = (struct range){
		.state = state_of(h) | 1, .start = addr, .end = addr + size, .id = 7,
		.va = addr, .owner = c, .used = now,
	};
	slots[1].key = h;
	cache.count = 1;
	*out = (struct gdr_core_held){ .handle = h, .va = addr };
	return 0;
}

int gdrcore_cache_settle(uint64_t c)
{
	return c ? 0 : 22;
}

int gdrcore_cache_flush(uint64_t c)
{
	cache.count = 0;
	return c ? 0 : 22;
}

int gdrcore_cache_close(uint64_t c)
{
	slots[4].cache = 0;
	return c ? 0 : 22;
}

__attribute__((noinline)) void mark(void)
{
	__asm__ __volatile__("" ::: "memory");
}

/* A line for each call, in the order of callgrind's dumps. */
#define COUNT(name, call) do {			\
	int rc_;				\
						\
	puts(name);				\
	mark();					\
	rc_ = (call);				\
	mark();					\
	if (rc_ != (want))			\
		fail(name, rc_);		\
} while (0)

static int want;

static void fail(const char *name, int rc)
{
	fprintf(stderr, "%s: %d, want %d\n", name, rc, want);
	exit(1);
}

static void count_copies(gdr_mh_t mh, unsigned char *va)
{
	static const size_t sizes[] = { 1, 2, 3, 4, 7, 8, 16, 32, 48, 63, 64, 65, 127, 128, 256,
					1024, 4096, 65536 };
	char name[80];

	for (size_t odd = 0; odd < 2; odd++)
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			size_t n = sizes[i];

			snprintf(name, sizeof(name), "gdr_copy_to_mapping,%zu%s", n, odd ? ",odd" : "");
			COUNT(name, gdr_copy_to_mapping(mh, va + 13 * odd, host, n));
			snprintf(name, sizeof(name), "gdr_copy_from_mapping,%zu%s", n, odd ? ",odd" : "");
			COUNT(name, gdr_copy_from_mapping(mh, host, va + 13 * odd, n));
		}
	COUNT("gdr_copy_to_mapping,0", gdr_copy_to_mapping(mh, va, host, 0));
	COUNT("gdr_copy_from_mapping,0", gdr_copy_from_mapping(mh, host, va, 0));
}

#define PIECES 16
static void count_many(gdr_mh_t mh, unsigned char *va)
{
	static const size_t sizes[] = { 8, 64, 1024 };
	gdr_piece_t pieces[PIECES];
	char name[80];

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		for (size_t k = 0; k < PIECES; k++)
			pieces[k] = (gdr_piece_t){ mh, va + 4096 * k, host + 1024 * k, sizes[i] };
		snprintf(name, sizeof(name), "gdr_copy_to_mapping_v,%d,%zu", PIECES, sizes[i]);
		COUNT(name, gdr_copy_to_mapping_v(pieces, PIECES));
		snprintf(name, sizeof(name), "gdr_copy_from_mapping_v,%d,%zu", PIECES, sizes[i]);
		COUNT(name, gdr_copy_from_mapping_v(pieces, PIECES));
	}
}

static void count_pinned(gdr_t g, gdr_mh_t mh)
{
	gdr_info_t info;
	void *va;
	int flag;

	COUNT("gdr_map", gdr_map(g, mh, &va, BYTES));
	COUNT("gdr_copy_to_mapping,first", gdr_copy_to_mapping(mh, va, host, 8));
	count_copies(mh, va);
	count_many(mh, va);
	COUNT("gdr_get_info_v2", gdr_get_info_v2(g, mh, &info));
	COUNT("gdr_get_callback_flag", gdr_get_callback_flag(g, mh, &flag));
	COUNT("gdr_unmap", gdr_unmap(g, mh, va, BYTES));
	want = 22;
	COUNT("gdr_copy_to_mapping,unmapped", gdr_copy_to_mapping(mh, va, host, 8));
	want = 0;
	COUNT("gdr_map_v2", gdr_map_v2(g, mh, &va, BYTES, 0));
	COUNT("gdr_unpin_buffer", gdr_unpin_buffer(g, mh));
}

static void count_memory(gdr_t g)
{
	gdr_mem_t mem;
	unsigned long ptr;
	size_t size;

	COUNT("gdr_mem_alloc", gdr_mem_alloc(g, 0, BYTES, 0, &mem));
	COUNT("gdr_mem_get_device_ptr", gdr_mem_get_device_ptr(g, mem, &ptr, &size));
	COUNT("gdr_mem_free", gdr_mem_free(g, mem));
}

static void count_cache(gdr_t g)
{
	unsigned long addr = (uintptr_t)dev;
	gdr_cache_t c;
	gdr_mh_t mh;
	void *va;

	COUNT("gdr_cache_open,first", gdr_cache_open(g, BYTES, 0, &c));
	COUNT("gdr_cache_get,first", gdr_cache_get(c, addr, BYTES, &mh, &va));
	COUNT("gdr_cache_put", gdr_cache_put(c, mh));
	COUNT("gdr_cache_get,hit", gdr_cache_get(c, addr, BYTES, &mh, &va));
	want = 22;
	COUNT("gdr_cache_put,twice", (gdr_cache_put(c, mh), gdr_cache_put(c, mh)));
	want = 0;
	COUNT("gdr_cache_flush", gdr_cache_flush(c));
	COUNT("gdr_cache_get,miss", gdr_cache_get(c, addr, BYTES, &mh, &va));
	COUNT("gdr_cache_close", gdr_cache_close(c));
}

int main(void)
{
	const char *text;
	gdr_mh_t mh;
	gdr_t g;
	int major, minor;
	char name[16];

	setvbuf(stdout, NULL, _IOLBF, 0);
	COUNT("gdr_runtime_get_version", (gdr_runtime_get_version(&major, &minor), 0));
	/* Not counted: it starts threads, and what they have run by its end differs. */
	g = gdr_open();
	if (!g)
		return 1;
	COUNT("gdr_open", (g = gdr_open(), g == NULL));
	COUNT("gdr_set_copy_threads", gdr_set_copy_threads(1, 1));
	COUNT("gdr_get_backend", gdr_get_backend(g, name, sizeof(name)));
	COUNT("gdr_driver_get_version", gdr_driver_get_version(g, &major, &minor));
	COUNT("gdr_get_attribute", gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &major));
	COUNT("gdr_get_mapping_type_string",
	      gdr_get_mapping_type_string(GDR_MAPPING_TYPE_WC, &text));
	count_memory(g);
	COUNT("gdr_pin_buffer_v2", gdr_pin_buffer_v2(g, (uintptr_t)dev, BYTES, 0, &mh));
	COUNT("gdr_pin_buffer", gdr_pin_buffer(g, (uintptr_t)dev, BYTES, 0, 0, &mh));
	count_pinned(g, mh);
	COUNT("gdr_close", gdr_close(g));
	g = gdr_open();
	count_cache(g);
	COUNT("gdr_close,caches", gdr_close(g));
	return 0;
}
