// SPDX-License-Identifier: MIT
/*
 * ext/unmap.c - an unmap is the C library's munmap, once. This program's munmap comes before
 * the C library's, counts the calls for one mapping, and may refuse them.
 */
#include "guest/cuda.h"

#define BYTES (1 * MIB)

static void *_Atomic watched;
static _Atomic int seen, refusal;

int munmap(void *p, size_t n)
{
	if (p == atomic_load(&watched)) {
		seen++;
		if (refusal) {
			errno = refusal;
			return -1;
		}
	}
	return (int)syscall(SYS_munmap, p, n);
}

static void watch(void *va, int answer)
{
	atomic_store(&watched, va);
	seen = 0;
	refusal = answer;
}

static gdr_t g;
static struct buffer b;
static gdr_cache_t cache;

static int by_unmap(void) { return gdr_unmap(g, b.mh, b.va, b.size); }
static int by_unpin(void) { return gdr_unpin_buffer(g, b.mh); }
static int by_close(void) { return gdr_close(g); }
static int by_cache(void) { return gdr_cache_close(cache); }

/* Afterwards the range is the host's, for good. */
static void once(void)
{
	static int (*const ways[])(void) = { by_unmap, by_unpin, by_close, by_cache };
	unsigned char *mine;
	void *va;

	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		g = open_with_context();
		if (ways[i] == by_cache) {
			alloc_buffer(g, &b, BYTES);
			expect_is(gdr_cache_open(g, BYTES, 0, &cache), 0);
			expect_is(gdr_cache_get(cache, b.dptr, b.size, &b.mh, &va), 0);
			b.va = va;
		} else {
			make_buffer(g, &b, BYTES);
		}
		expect(is_shared(b.va));
		watch(b.va, 0);
		expect_is(ways[i](), 0);
		expect_is(seen, 1);
		expect(!is_shared(b.va));
		mine = mmap(b.va, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		if (mine == MAP_FAILED && errno == EEXIST)
			skip_case("the range has other memory already");
		expect(mine == b.va);
		memset(mine, 7, BYTES);
		if (ways[i] != by_close)
			expect_is(gdr_close(g), 0);
		g = open_or_fail();
		whole_life(g, 1);
		expect_is(gdr_close(g), 0);
		expect_is(seen, 1);
		for (size_t k = 0; k < BYTES; k++)
			expect(mine[k] == 7);
		watch(NULL, 0);
		expect_is(munmap(mine, BYTES), 0);
	}
}

/* The mapping stays as it is, and a later unmap may end it. */
static void refused(void)
{
	g = open_with_context();
	make_buffer(g, &b, BYTES);
	for (int i = 0; i < 3; i++) {
		watch(b.va, i ? ENOMEM : EPERM);
		expect_is(by_unmap(), i ? ENOMEM : EPERM);
		check_copies(&b, i);
	}
	expect(logged("gdr_unmap: munmap of 1048576 bytes at "));
	watch(b.va, 0);
	expect_is(by_unmap(), 0);
	expect(!is_shared(b.va));
	expect_is(by_unmap(), EINVAL);
	expect_is(gdr_close(g), 0);
}

/* Nothing ends under a mapping that lives: a store through it reaches the memory that was pinned. */
static void stays(void *closes)
{
	struct cuda_dl cu;
	unsigned long before;
	uint64_t word = 0;
	cu_ptr p;
	void *va;

	g = open_or_fail();
	start_current(&cu);
	expect_is(cu.mem_alloc(&p, BYTES), 0);
	expect_is(gdr_pin_buffer(g, p, BYTES, 0, 0, &b.mh), 0);
	expect_is(gdr_map(g, b.mh, &va, BYTES), 0);
	before = count_live();
	watch(va, EPERM);
	expect_is(closes ? gdr_close(g) : gdr_unpin_buffer(g, b.mh), EPERM);
	expect_is(gdr_copy_to_mapping(b.mh, va, &word, 8), EINVAL);
	if (!closes)
		expect_is(gdr_close(g), 0);
	expect(logged("stays pinned and mapped until the process ends"));
	expect_is(count_live(), before);
	*(volatile uint64_t *)va = 0x1234567887654321;
	g = open_or_fail();
	expect_is(gdr_pin_buffer(g, p, BYTES, 0, 0, &b.mh), 0);
	expect_is(gdr_map(g, b.mh, &va, BYTES), 0);
	expect_is(gdr_copy_from_mapping(b.mh, &word, va, 8), 0);
	expect(word == 0x1234567887654321);
	expect_is(gdr_close(g), 0);
	expect_is(count_live(), before);
}

const struct guest_case cases[] = {
	{ "an unmap is munmap, once", once, 60, 0 },
	{ "a munmap that fails leaves the mapping", refused, 60, 0 },
	{ "an unpin whose munmap fails leaves the pin", NULL, 60, 0, stays, NULL },
	{ "a close whose munmap fails leaves the pin", NULL, 60, 0, stays, (void *)true },
	{ 0 }
};
