// SPDX-License-Identifier: MIT
/*
 * ext/auto.c - GDRCOPY_COPY=auto and gdr_set_copy_policy in a host: the bytes are
 * right, whoever copies. copy/auto.c has how it chooses.
 */
#include "ext/copies.h"
#include "ext/libcuda.h"

#define BYTES (4 * MIB)
#define COPIERS 3

static void check_sizes(struct buffer *b, long rounds)
{
	for (; rounds > 0; rounds--)
		check_these(b, (const size_t[]){ 1, 64, 4095, 4096, 16384, 65536, 65537, 300000, BYTES - 200, 0 });
}

static void by_environment(void)
{
	struct buffer b;
	gdr_t g;

	expect_is(setenv("GDRCOPY_COPY", "auto", 1), 0);
	g = open_or_fail();
	make_buffer(g, &b, BYTES);
	check_sizes(&b, scaled(14));
	sleep_us(100000);
	check_sizes(&b, 2);
}

static void by_call(void)
{
	struct buffer before, after;
	gdr_t g;

	unsetenv("GDRCOPY_COPY");
	expect_is(gdr_set_copy_policy((gdr_copy_policy_t)2), EINVAL);
	expect_is(gdr_set_copy_policy((gdr_copy_policy_t)-1), EINVAL);
	g = open_or_fail();
	make_buffer(g, &before, BYTES);
	expect_is(gdr_set_copy_policy(GDR_COPY_POLICY_AUTO), 0);
	make_buffer(g, &after, BYTES);
	check_sizes(&before, 2);
	check_sizes(&after, 2);
	expect_is(gdr_set_copy_policy(GDR_COPY_POLICY_CALLER), 0);
	check_sizes(&after, 2);
	expect_is(gdr_set_copy_threads(2, 2), 0);
	expect_is(gdr_set_copy_policy(GDR_COPY_POLICY_AUTO), 0);
	check_sizes(&after, 2);
}

static void *copy_part(void *arg)
{
	check_sizes(arg, scaled(4));
	return NULL;
}

static void at_once(void)
{
	struct buffer b[COPIERS];
	pthread_t t[COPIERS];
	gdr_t g;

	expect_is(setenv("GDRCOPY_COPY", "auto", 1), 0);
	g = open_or_fail();
	for (int i = 0; i < COPIERS; i++)
		make_buffer(g, &b[i], BYTES);
	for (int i = 0; i < COPIERS; i++)
		start_thread(&t[i], 0, copy_part, &b[i]);
	join_threads(t, COPIERS);
}

/* The engine copies page-locked host memory straight. */
static void page_locked(void)
{
	unsigned char *host = mmap(NULL, 2 * BYTES, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct buffer b;
	gdr_t g;

	expect(host != MAP_FAILED);
	expect_is(setenv("GDRCOPY_COPY", "auto", 1), 0);
	expect_is(setenv("GDRCOPY_READ_THREADS", "1", 1), 0);
	g = open_or_fail();
	make_buffer(g, &b, BYTES);
	lock_host(host, 2 * BYTES);
	for (size_t n = 4096; n <= BYTES; n *= 2)
		for (int round = 0; round < 20; round++) {
			fill_random(host, n, n + round);
			expect_is(gdr_copy_to_mapping(b.mh, b.va, host, n), 0);
			expect_is(gdr_copy_from_mapping(b.mh, host + BYTES, b.va, n), 0);
			expect(!memcmp(host, host + BYTES, n));
		}
	unlock_host(host);
	check_sizes(&b, 2);
}

const struct guest_case cases[] = {
	{ "the library chooses, by the environment", by_environment, 60, 300 },
	{ "the library chooses, by gdr_set_copy_policy", by_call, 60, 0 },
	{ "page-locked host memory", page_locked, 60, 0 },
	{ "threads at the same time", at_once, 60, 300 },
	{ 0 }
};
