// SPDX-License-Identifier: MIT
/*
 * libraries.c - several libraries of ours in one process, and another one in Go.
 *
 * A system's library and a wheel's meet like this. Each order of loading is a case. In it
 * threads pin, map and copy by each library at the same time, while others call golib, and
 * children are forked.
 */
#include "guest/api.h"
#include "guest/cuda.h"

#define OURS 2
#define THREADS 3		/* of each library */
#define PINS 60			/* of each thread */
#define CHILDREN 4
#define BYTES MIB

/* The environment's names for their files. */
static const char *const paths[] = { "OURS", "COPY", "GOLIB" };

static struct library {
	struct api api;
	gdr_t g;
} ours[OURS];
static long (*golib_sum)(long n);
static cu_ptr memory[2];	/* of a pool, which is found by a watched export, and plain */

/* One pin's life; each thread has a word of its own in the memory. */
static void cycle(const struct library *l, cu_ptr addr, long word)
{
	const struct api *a = &l->api;
	long got = 0, *at;
	void *va = NULL;
	gdr_mh_t mh;

	expect_is(a->gdr_pin_buffer(l->g, addr, BYTES, 0, 0, &mh), 0);
	expect_is(a->gdr_map(l->g, mh, &va, BYTES), 0);
	at = (long *)va + BYTES / 16 + word;
	expect_is(a->gdr_copy_to_mapping(mh, at, &word, sizeof(word)), 0);
	expect_is(a->gdr_copy_from_mapping(mh, &got, at, sizeof(got)), 0);
	expect_is(got, word);
	expect_is(a->gdr_unmap(l->g, mh, va, BYTES), 0);
	expect_is(a->gdr_unpin_buffer(l->g, mh), 0);
}

static void *pin_on(void *library)
{
	static _Atomic long threads;
	long me = atomic_fetch_add(&threads, 1) + 1;

	for (int i = 0; i < PINS; i++)
		cycle(library, memory[i & 1], me);
	return NULL;
}

static void *sum_on(void *unused)
{
	for (int i = 0; i < PINS; i++)
		expect_is(golib_sum(100), 5050);
	return NULL;
}

/* Each library opens anew in a child, while others pin in the parent. */
static void open_each(void *unused)
{
	for (int i = 0; i < OURS; i++) {
		gdr_t g = ours[i].api.gdr_open();

		expect(g != NULL);
		expect_is(ours[i].api.gdr_close(g), 0);
	}
}

static void get_memory(void)
{
	static struct cuda_dl cu;
	int (*pool)(cu_ptr *, size_t, void *);

	start_current(&cu);
	pool = need_symbol("cuMemAllocAsync");
	expect_is(pool(&memory[0], 4 * MIB, NULL), 0);
	expect_is(cu.mem_alloc(&memory[1], BYTES), 0);
	expect_is(cu.ctx_sync(), 0);
}

/* order: an index of paths for each; 2 is golib. */
static void in_order(void *order)
{
	pthread_t thread[OURS][THREADS], sum;
	int n = 0;

	for (int i = 0; i < 3; i++) {
		int which = ((const int *)order)[i];
		void *golib;

		if (which < OURS) {
			load(&ours[n++].api, getenv(paths[which]), RTLD_NOW | RTLD_LOCAL);
			continue;
		}
		golib = dlopen(getenv(paths[which]), RTLD_NOW | RTLD_LOCAL);
		expect(golib != NULL);
		*(void **)&golib_sum = find(golib, "golib_sum");
	}
	get_memory();
	for (int i = 0; i < OURS; i++)
		expect((ours[i].g = ours[i].api.gdr_open()) != NULL);
	for (int i = 0; i < OURS; i++)
		start_threads(thread[i], THREADS, pin_on, &ours[i]);
	start_thread(&sum, 0, sum_on, NULL);
	for (int i = 0; i < CHILDREN; i++)
		expect(in_child("while others pin", open_each, NULL, 20));
	for (int i = 0; i < OURS; i++)
		join_threads(thread[i], THREADS);
	join_threads(&sum, 1);
	for (int i = 0; i < OURS; i++)
		expect_is(ours[i].api.gdr_close(ours[i].g), 0);
}

const struct guest_case cases[] = {
	{ "the library, its copy, golib", NULL, 50, 0, in_order, (int[]){ 0, 1, 2 } },
	{ "the copy, the library, golib", NULL, 50, 0, in_order, (int[]){ 1, 0, 2 } },
	{ "golib, the library, its copy", NULL, 50, 0, in_order, (int[]){ 2, 0, 1 } },
	{ "the library, golib, its copy", NULL, 50, 0, in_order, (int[]){ 0, 2, 1 } },
	{ 0 }
};
