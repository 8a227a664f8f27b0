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
static int (*reset)(int dev);
static unsigned long (*contexts_made)(void);	/* of the simulated driver */
static unsigned int (*called)(char *names, size_t size);

static gdr_t open_bare(void)
{
	expect(!cuda_load(&cu));
	expect_is(cu.init(0), 0);
	state = need_symbol("cuDevicePrimaryCtxGetState");
	reset = need_symbol("cuDevicePrimaryCtxReset_v2");
	contexts_made = on_doubles() ? need_symbol("cuda_sim_contexts") : NULL;
	called = on_doubles() ? need_symbol("cuda_sim_called") : NULL;
	return open_or_fail();
}

static bool active(int dev)
{
	unsigned int flags;
	cu_ctx current;
	int is;

	expect_is(cu.ctx_get(&current), 0);
	expect(!current);
	expect_is(state(dev, &flags, &is), 0);
	return is;
}

static void expect_made(unsigned long n)
{
	if (contexts_made)
		expect_is(contexts_made(), n);
}

/* What is open: the environment need not say it. */
static bool is_rm(gdr_t g)
{
	char name[16] = "";

	expect_is(gdr_get_backend(g, name, sizeof(name)), 0);
	return !strcmp(name, "rm");
}

/* Whether a pin of memory without a context makes one, and keeps it. */
static bool pin_keeps(gdr_t g)
{
	return !is_rm(g);
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
		expect(active(0));
		expect_is(gdr_mem_free(g, b.mem), 0);
	}
	expect_made(1);
	expect_is(gdr_close(g), 0);
	expect(!active(0));
}

/* A program with a context of its own has no other one by the library, but for rm's try. */
static void beside_its_own(void)
{
	int (*create)(cu_ctx *ctx, unsigned int flags, int dev);
	unsigned int flags;
	gdr_t g = open_bare();
	struct buffer b;
	int active;
	cu_ctx ctx;

	create = need_symbol("cuCtxCreate_v2");
	expect_is(create(&ctx, 0, 0), 0);
	alloc_buffer(g, &b, BYTES);
	expect_is(gdr_unpin_buffer(g, pinned(g, b.dptr).mh), 0);
	expect_is(state(0, &flags, &active), 0);
	expect(!active);
	expect_made(pin_keeps(g) ? 1 : 2);
	expect_is(gdr_mem_free(g, b.mem), 0);
	expect_is(gdr_close(g), 0);
}

static void kept_by_a_pin(void)
{
	gdr_t g = open_bare();
	cu_ptr p = vmm();
	struct buffer first = pinned(g, p), second = pinned(g, p), third;

	expect_is(active(0), pin_keeps(g));
	expect_made(1);
	expect_is(gdr_unpin_buffer(g, first.mh), 0);
	expect(!active(0));
	check_copies(&second, 8);
	third = pinned(g, p);
	expect_made(pin_keeps(g) ? 2 : 1);
	expect_is(gdr_unpin_buffer(g, second.mh), 0);
	expect_is(active(0), pin_keeps(g));
	expect_is(gdr_unpin_buffer(g, third.mh), 0);
	expect(!active(0));
	expect_is(gdr_close(g), 0);
}

/* On rm also the pin after the driver was tried. */
static void failing_pin(void)
{
	void (*fail)(const char *name, int result, int nth);
	struct buffer good;
	const char *call;
	gdr_mh_t mh;
	cu_ptr p;
	gdr_t g;

	needs_doubles("a real driver cannot be told to refuse a call");
	g = open_bare();
	fail = need_symbol(is_rm(g) ? "rm_sim_fail" : "cuda_sim_fail");
	call = is_rm(g) ? "DUP_OBJECT" : "cuMemGetHandleForAddressRange";
	p = vmm();
	for (int i = 0; i < 2; i++) {
		fail(call, is_rm(g) ? 0x51 : CU_OUT_OF_MEMORY, 0);
		expect_is(gdr_pin_buffer(g, p, BYTES, 0, 0, &mh), ENOMEM);
		if (pin_keeps(g))
			expect_made(2 * i + 1);
		expect(!active(0));
		fail(call, 0, 0);
		good = pinned(g, p);
		expect_is(gdr_unpin_buffer(g, good.mh), 0);
		expect(!active(0));
	}
	expect_is(gdr_close(g), 0);
}

/* Also after a reset, by which the program ends the context under us, and where it makes it anew. */
static void references_of_the_program(void)
{
	gdr_t g = open_bare();
	struct buffer b, again;
	cu_ctx ctx;

	alloc_buffer(g, &b, BYTES);
	again = pinned(g, vmm());
	expect_is(reset(0), 0);
	expect(!active(0));
	expect_is(cu.primary_retain(&ctx, 0), 0);
	expect_is(gdr_unpin_buffer(g, again.mh), 0);
	again = pinned(g, b.dptr);
	expect_is(gdr_unpin_buffer(g, again.mh), 0);
	expect_is(gdr_mem_free(g, b.mem), 0);
	expect(active(0));
	expect_is(gdr_close(g), 0);
	expect(active(0));
	expect_is(cu.primary_release(0), 0);
	expect(!active(0));

	g = open_or_fail();
	alloc_buffer(g, &b, BYTES);
	expect_is(reset(0), 0);
	again = pinned(g, b.dptr);
	expect_is(active(0), pin_keeps(g));
	expect_is(gdr_close(g), 0);
	expect(!active(0));
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
	expect(active(0));
	expect_is(gdr_close(g), 0);
	expect(!active(0));
	expect_made(1);

	g = open_or_fail();
	if (called)
		called(names, 0);
	expect_is(gdr_close(g), 0);
	if (called)
		expect_is(called(names, sizeof(names)), 0);
}

/* The host closes what a pin has opened. On dmabuf nothing is left to end then. */
static void failing_unpin(void)
{
	bool was[256];
	struct buffer b;
	gdr_t g;

	needs_doubles("a real driver opens files for the context");
	g = open_bare();
	for (int fd = 3; fd < 256; fd++)
		was[fd] = fcntl(fd, F_GETFD) >= 0;
	b = pinned(g, vmm());
	expect_is(active(0), pin_keeps(g));
	for (int fd = 3; fd < 256; fd++)
		if (!was[fd])
			close(fd);
	expect_is(gdr_unpin_buffer(g, b.mh), is_rm(g) ? EBADF : 0);
	expect(!active(0));
	expect_is(gdr_close(g), 0);
}

static void several_gpus(void)
{
	gdr_t g = open_bare();
	unsigned long p;
	gdr_mem_t mem;
	struct buffer b;
	int n;

	expect_is(cu.device_count(&n), 0);
	if (n < 2)
		skip_case("one GPU");
	expect_is(gdr_mem_alloc(g, 1, BYTES, 0, &mem), 0);
	expect_is(gdr_mem_get_device_ptr(g, mem, &p, NULL), 0);
	pinned(g, p);
	expect(active(1) && !active(0));
	b = pinned(g, vmm());
	expect(active(1));
	expect_is(active(0), pin_keeps(g));
	expect_is(gdr_unpin_buffer(g, b.mh), 0);
	expect(active(1) && !active(0));
	expect_is(gdr_close(g), 0);
	expect(!active(1) && !active(0));
}

const struct guest_case cases[] = {
	{ "100 allocations and 1,000 pins make one context", one_for_all, 60, 0 },
	{ "a context of the program's own is enough", beside_its_own, 30, 0 },
	{ "a pin that needs a context keeps it", kept_by_a_pin, 30, 0 },
	{ "a pin that fails keeps none", failing_pin, 30, 0 },
	{ "the program's references, and its reset", references_of_the_program, 30, 0 },
	{ "a close without unpin, also in a child", ended_by_close, 30, 0 },
	{ "an unpin that fails", failing_unpin, 30, 0 },
	{ "several GPUs", several_gpus, 30, 0 },
	{ 0 }
};
