// SPDX-License-Identifier: MIT
/* guest/buffer.c - what common.h declares and calls the library. guest/lazy and rm/libraries load the library by themselves. */
#include "common.h"

gdr_t open_or_fail(void)
{
	gdr_t g = gdr_open();

	if (!g)
		note("gdr_open: %s", strerror(errno));
	expect(g != NULL);
	return g;
}

void alloc_buffer(gdr_t g, struct buffer *b, size_t size)
{
	size_t real = 0;

	memset(b, 0, sizeof(*b));
	expect_is(gdr_mem_alloc(g, 0, size, 0, &b->mem), 0);
	expect_is(gdr_mem_get_device_ptr(g, b->mem, &b->dptr, &real), 0);
	expect(real >= size && b->dptr);
	b->size = size;
}

void map_buffer(gdr_t g, struct buffer *b)
{
	void *va = NULL;

	expect_is(gdr_pin_buffer(g, b->dptr, b->size, 0, 0, &b->mh), 0);
	expect_is(gdr_map(g, b->mh, &va, b->size), 0);
	expect(va != NULL);
	b->va = va;
}

void make_buffer(gdr_t g, struct buffer *b, size_t size)
{
	alloc_buffer(g, b, size);
	map_buffer(g, b);
}

void drop_buffer(gdr_t g, struct buffer *b)
{
	if (b->va)
		expect_is(gdr_unmap(g, b->mh, b->va, b->size), 0);
	expect_is(gdr_unpin_buffer(g, b->mh), 0);
	expect_is(gdr_mem_free(g, b->mem), 0);
	b->va = NULL;
}

void check_copies(struct buffer *b, uint64_t seed)
{
	unsigned char out[4096], in[4096];
	size_t n = b->size < sizeof(out) ? b->size : sizeof(out);

	fill_random(out, n, seed);
	memset(in, 0, sizeof(in));
	expect_is(gdr_copy_to_mapping(b->mh, b->va, out, n), 0);
	expect_is(gdr_copy_from_mapping(b->mh, in, b->va, n), 0);
	expect(!memcmp(in, out, n));
}

void whole_life(gdr_t g, uint64_t seed)
{
	struct buffer b;

	make_buffer(g, &b, 64 * KIB);
	check_copies(&b, seed);
	drop_buffer(g, &b);
}
