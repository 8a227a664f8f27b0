// SPDX-License-Identifier: MIT
/*
 * ext/bytes.c - gdr_pin_bytes pins bytes of any alignment so that they can be mapped. SYNC_MEMOPS
 * is set on bytes that are certainly the caller's, and on no others: other threads may free those.
 */
#include "guest/cuda.h"

#define BYTES (512 * KIB)
#define SMALL 4096
#define MANY 64	/* of them fill four GPU pages */

static struct cuda_dl cu;
static int (*set_attribute)(const void *value, int attribute, cu_ptr p);

static gdr_t open_current(void)
{
	start_current(&cu);
	set_attribute = need_symbol("cuPointerSetAttribute");
	return open_or_fail();
}

static bool is_sync(cu_ptr p)
{
	int value = 0;

	expect_is(cu.pointer_attribute(&value, CU_ATTR_SYNC_MEMOPS, p), 0);
	return value;
}

static void be_asynchronous(cu_ptr p)
{
	const int off = 0;

	expect_is(set_attribute(&off, CU_ATTR_SYNC_MEMOPS, p), 0);
}

/* Both ways, and at the two ends. */
static void check_bytes(gdr_t g, cu_ptr p, size_t size)
{
	static unsigned char sent[BYTES], got[BYTES];
	size_t before;
	gdr_info_t info;
	gdr_mh_t mh;
	char *va;

	expect_is(gdr_pin_bytes(g, p, size, 0, &mh), 0);
	expect_is(gdr_get_info(g, mh, &info), 0);
	before = p - info.va;
	expect(info.va <= p && before < info.page_size && !(info.va % info.page_size));
	expect(info.mapped_size >= before + size);
	expect_is(gdr_map(g, mh, (void **)&va, before + size), 0);
	fill_random(sent, size, p + size);
	expect_is(gdr_copy_to_mapping(mh, va + before, sent, size), 0);
	expect_is(cu.from_gpu(got, p, size), 0);
	expect(!memcmp(got, sent, size));
	fill_random(sent, size, p);
	expect_is(cu.to_gpu(p, sent, size), 0);
	expect_is(cu.ctx_sync(), 0);
	expect_is(gdr_copy_from_mapping(mh, got, va + before, size), 0);
	expect(!memcmp(got, sent, size));
	expect_is(gdr_unpin_buffer(g, mh), 0);
}

static void any_alignment(void)
{
	static const struct { size_t at, size; } of[] = {
		{ 4096, 4096 }, { 0, 8 }, { 0, BYTES }, { 100, 3 }, { 4095, 2 }, { 65536 - 4, 100 }, { 65536, 65536 },
		{ 65537, 65535 }, { 5 * 65536 + 4097, 131072 }, { BYTES - 1, 1 }, { 12345, BYTES - 12345 },
	};
	gdr_t g = open_current();
	struct buffer b;
	cu_ptr plain;

	alloc_buffer(g, &b, BYTES);
	expect_is(cu.mem_alloc(&plain, BYTES), 0);
	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
		check_bytes(g, b.dptr + of[i].at, of[i].size);
		check_bytes(g, plain + of[i].at, of[i].size);
	}
	expect_is(gdr_close(g), 0);
}

/* Allocations of one GPU page: the one that begins it, and the next two. */
static void fill_page(cu_ptr on_page[3])
{
	cu_ptr all[MANY];
	int found = 0;

	for (int i = 0; i < MANY; i++)
		expect_is(cu.mem_alloc(&all[i], SMALL), 0);
	for (int i = 0; i < MANY && !found; i++)
		if (!(all[i] & GPU_PAGE_OFFSET))
			on_page[found++] = all[i];
	for (int i = 0; i < MANY && found && found < 3; i++)
		if (all[i] > on_page[found - 1] && (all[i] & GPU_PAGE_MASK) == on_page[0])
			on_page[found++] = all[i];
	expect_is(found, 3);
}

static void own_bytes(void)
{
	gdr_t g = open_current();
	gdr_mh_t mh;
	cu_ptr p[3];

	fill_page(p);
	for (int way = 0; way < 5; way++) {
		bool own = way >= 2;

		for (int i = 0; i < 3; i++)
			be_asynchronous(p[i]);
		if (way == 0)
			expect_is(gdr_pin_buffer(g, p[0], GPU_PAGE_SIZE, 0, 0, &mh), 0);
		else if (way == 1)
			expect_is(gdr_pin_buffer_v2(g, p[0], GPU_PAGE_SIZE, 0, &mh), 0);
		else if (way == 2)
			expect_is(gdr_pin_buffer(g, p[1], SMALL, 0, 0, &mh), 0);
		else if (way == 3)
			expect_is(gdr_pin_buffer_v2(g, p[1] + 64, 8, 0, &mh), 0);
		else
			expect_is(gdr_pin_bytes(g, p[1] + 64, 8, ~GDR_PIN_FLAG_FORCE_PCIE, &mh), 0);	/* unknown ones are ignored */
		expect(!is_sync(p[0]) && !is_sync(p[2]));
		expect_is(is_sync(p[1]), own);
		expect_is(gdr_unpin_buffer(g, mh), 0);
	}
	/* Whole pages of the backend's are the caller's own here. */
	be_asynchronous(p[0]);
	expect_is(gdr_pin_bytes(g, p[0], SMALL, 0, &mh), 0);
	expect(is_sync(p[0]));
	expect_is(gdr_unpin_buffer(g, mh), 0);
	expect_is(gdr_close(g), 0);
}

const struct guest_case cases[] = {
	{ "bytes of any alignment", any_alignment, 10, 20 },
	{ "SYNC_MEMOPS of own bytes alone", own_bytes, 10, 20 },
	{ 0 }
};
