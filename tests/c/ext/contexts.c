// SPDX-License-Identifier: MIT
/*
 * ext/contexts.c - how long the library keeps a primary context, in a program that makes none:
 * until gdr_close where gdr_mem_alloc made it, and while a pin is there that did. No context is
 * current, and no reference of the program's is taken.
 *
 * A pin of rm's keeps none. The first one on a GPU tries the driver in the primary context, which
 * it makes for that time if there is none.
 */
#include "guest/cuda.h"

#define BYTES (2 * MIB)

static struct cuda_dl cu;
static int (*state)(int dev, unsigned int *flags, int *active);
static unsigned long (*contexts_made)(void);	/* of the simulated driver */
static unsigned int (*called)(char *names, size_t size);

static gdr_t open_bare(void)
{
	expect(!cuda_load(&cu));
	expect_is(cu.init(0), 0);
	state = need_symbol("cuDevicePrimaryCtxGetState");
	contexts_made = on_doubles() ? need_symbol("cuda_sim_contexts") : NULL;
	called = on_doubles() ? need_symbol("cuda_sim_called") : NULL;
	return open_or_fail();
}

static bool active(void)
{
	unsigned int flags;
	cu_ctx current;
	int is;

	expect_is(cu.ctx_get(&current), 0);
	expect(!current);
	expect_is(state(0, &flags, &is), 0);
	return is;
}

static void expect_made(unsigned long n)
{
	if (contexts_made)
		expect_is(contexts_made(), n);
}

/* Whether a pin of memory without a context makes one, and keeps it. The environment need not name the backend. */
static bool pin_keeps(gdr_t g)
{
	char name[16] = "";

	expect_is(gdr_get_backend(g, name, sizeof(name)), 0);
	return strcmp(name, "rm");
}

/* Memory of the program's own, which knows no context. */
static cu_ptr vmm(void)
{
	return make_vmm(&cu, &(size_t){ BYTES }, 1);
}

static struct buffer pinned(gdr_t g, cu_ptr p)
{
	struct buffer b = { .dptr = p, .size = BYTES };

	map_buffer(g, &b);
	check_copies(&b, 7);
	return b;
}

static void one_for_all(void)
{
	gdr_t g = open_bare();
	struct buffer b;

	for (int i = 0; i < 100; i++) {
		alloc_buffer(g, &b, BYTES);
		for (int k = 0; k < 10; k++)
			expect_is(gdr_unpin_buffer(g, pinned(g, b.dptr).mh), 0);
		expect(active());
		expect_is(gdr_mem_free(g, b.mem), 0);
	}
	expect_made(1);
	expect_is(gdr_close(g), 0);
	expect(!active());
}

static void kept_by_a_pin(void)
{
	gdr_t g = open_bare();
	cu_ptr p = vmm();
	struct buffer first = pinned(g, p), second = pinned(g, p), third;

	expect_is(active(), pin_keeps(g));
	expect_made(1);
	expect_is(gdr_unpin_buffer(g, first.mh), 0);
	expect(!active());
	check_copies(&second, 8);
	third = pinned(g, p);
	expect_made(pin_keeps(g) ? 2 : 1);
	expect_is(gdr_unpin_buffer(g, second.mh), 0);
	expect_is(active(), pin_keeps(g));
	expect_is(gdr_unpin_buffer(g, third.mh), 0);
	expect(!active());
	expect_is(gdr_close(g), 0);
}

/* Each of the library's references is released once, and none of the program's. A reset takes none away. */
static void references_of_the_program(void)
{
	gdr_t g = open_bare();
	int (*reset)(int dev) = need_symbol("cuDevicePrimaryCtxReset_v2");
	struct buffer b, kept = pinned(g, vmm());
	cu_ctx ctx;

	alloc_buffer(g, &b, BYTES);
	expect_is(reset(0), 0);
	expect(!active());
	expect_is(cu.primary_retain(&ctx, 0), 0);
	expect_is(gdr_unpin_buffer(g, kept.mh), 0);
	expect_is(gdr_close(g), 0);
	expect(active());
	expect_is(cu.primary_release(0), 0);
	expect(!active());
}

static void closed_in_child(void *g)
{
	char names[64];

	if (called)
		called(names, 0);
	expect_is(gdr_close(g), 0);
	if (called)
		expect_is(called(names, sizeof(names)), 0);
}

static void ended_by_close(void)
{
	gdr_t g = open_bare();
	char names[256];
	struct buffer b;

	alloc_buffer(g, &b, BYTES);
	pinned(g, b.dptr);
	pinned(g, vmm());
	expect(in_child("with a context of the library's", closed_in_child, g, 20));
	expect(active());
	expect_is(gdr_close(g), 0);
	expect(!active());
	expect_made(1);

	g = open_or_fail();
	if (called)
		called(names, 0);
	expect_is(gdr_close(g), 0);
	if (called)
		expect_is(called(names, sizeof(names)), 0);
}

const struct guest_case cases[] = {
	{ "100 allocations and 1,000 pins make one context", one_for_all, 60, 0 },
	{ "a pin that needs a context keeps it", kept_by_a_pin, 30, 0 },
	{ "the program's references, and its reset", references_of_the_program, 30, 0 },
	{ "a close without unpin, also in a child", ended_by_close, 30, 0 },
	{ 0 }
};
