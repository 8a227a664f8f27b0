// SPDX-License-Identifier: MIT
/*
 * heard.c - what rm hears of memory, and pins without a question.
 *
 * The library notes what libcuda tells the simulated driver. libcuda is strict here: a question about bytes that
 * nobody has named as his own ends the process. The library's log counts the pins that were heard, and those that
 * CUDA was asked for.
 */
#include "guest/cuda.h"

#define PIECE (2 * MIB)
#define SMALL 512ul
#define PAGE GPU_PAGE_SIZE

static struct cuda_dl cu;
static gdr_t g;
static cu_ctx contexts[2];

static void (*strict)(int on);
static void (*own)(uint64_t addr, uint64_t size);
static int (*from_pool)(cu_ptr *p, size_t size, cu_stream s);

/* Pins of this process: that were heard, and that were asked for. */
struct counts {
	unsigned long heard, asked;
};

static struct counts counted(void)
{
	char text[4096], *at = text, *last = NULL;
	struct counts n = { 0, 0 };
	off_t from = lseek(STDERR_FILENO, 0, SEEK_CUR) - (off_t)(sizeof(text) - 1);
	ssize_t size = pread(STDERR_FILENO, text, sizeof(text) - 1, from > 0 ? from : 0);

	text[size > 0 ? size : 0] = '\0';
	while ((at = strstr(at, "pins of this process: ")))
		last = at++;
	if (last)
		expect_is(sscanf(last, "pins of this process: %lu heard, %lu asked for", &n.heard, &n.asked), 2);
	return n;
}

static void start(void)
{
	if (!backend_is("rm"))
		skip_case("rm alone hears");
	needs_doubles("a real driver is not strict");
	setenv("GDRCOPY_LOG_LEVEL", "1", 1);
	contexts[0] = start_current(&cu);
	strict = need_symbol("cuda_sim_strict");
	own = need_symbol("cuda_sim_own");
	from_pool = need_symbol("cuMemAllocAsync");
}

static void begin(void)
{
	start();
	g = open_or_fail();
	strict(1);
}

static void begin_on_two(void)
{
	int dev;

	begin();
	expect_is(cu.device_get(&dev, 1), 0);
	expect_is(cu.primary_retain(&contexts[1], dev), 0);
}

static void end(void)
{
	expect_is(counted().asked, 0);
	expect_is(gdr_close(g), 0);
}

static int try_pin(cu_ptr addr, size_t size)
{
	gdr_mh_t mh;
	int rc = gdr_pin_buffer(g, addr, size, 0, 0, &mh);

	if (!rc)
		expect_is(gdr_unpin_buffer(g, mh), 0);
	return rc;
}

/* CUDA's bytes are the mapping's, and the other way. The current context may copy the memory. */
static void check_word(volatile uint32_t *word, cu_ptr addr)
{
	static _Thread_local uint64_t seed;
	uint32_t out, in = 0;

	seed += addr;
	out = next_random(&seed);
	expect_is(cu.to_gpu(addr, &out, sizeof(out)), 0);
	expect_is(cu.ctx_sync(), 0);
	expect_is(*word, out);
	*word = ~out;
	expect_is(cu.from_gpu(&in, addr, sizeof(in)), 0);
	expect_is(in, ~out);
}

/* Pins the pages around size bytes, and compares. */
static void check_bytes(cu_ptr addr, size_t size)
{
	cu_ptr first = addr & ~(PAGE - 1), end = (addr + size + PAGE - 1) & ~(PAGE - 1);
	gdr_mh_t mh;
	void *va;

	expect_is(gdr_pin_buffer(g, first, end - first, 0, 0, &mh), 0);
	expect_is(gdr_map(g, mh, &va, end - first), 0);
	check_word((void *)((char *)va + (addr - first)), addr);
	check_word((void *)((char *)va + (addr - first) + size - 4), addr + size - 4);
	expect_is(gdr_unmap(g, mh, va, end - first), 0);
	expect_is(gdr_unpin_buffer(g, mh), 0);
}

static void expect_heard(cu_ptr addr, size_t size)
{
	struct counts before = counted(), after;

	check_bytes(addr, size);
	after = counted();
	expect_is(after.heard, before.heard + 1);
	expect_is(after.asked, before.asked);
}

/* The caller has named the bytes as his own. */
static void expect_asked(cu_ptr addr, size_t size)
{
	struct counts before = counted(), after;

	check_bytes(addr, size);
	after = counted();
	expect_is(after.heard, before.heard);
	expect_is(after.asked, before.asked + 1);
}

static cu_ptr plain(size_t size)
{
	cu_ptr p;

	expect_is(cu.mem_alloc(&p, size), 0);
	return p;
}

static cu_ptr pooled(size_t size)
{
	cu_ptr p;

	expect_is(from_pool(&p, size, NULL), 0);
	expect_is(cu.ctx_sync(), 0);
	return p;
}

static cu_ptr reserved(size_t size)
{
	cu_ptr p;

	expect_is(cu.reserve(&p, size, 0, 0, 0), 0);
	return p;
}

static cu_mem object_of(int gpu)
{
	const struct cu_mem_want want = { .type = CU_MEM_PINNED, .place = { CU_PLACE_GPU, gpu } };
	cu_mem mem;

	expect_is(cu.create(&mem, PIECE, &want, 0), 0);
	return mem;
}

/* The object at an address, for a GPU, which need not be the one that has it. */
static void map_for(int gpu, cu_ptr at, cu_mem mem)
{
	const struct cu_access access = { { CU_PLACE_GPU, gpu }, CU_ACCESS_RW };

	expect_is(cu.map(at, PIECE, 0, mem, 0), 0);
	expect_is(cu.set_access(at, PIECE, &access, 1), 0);
}

static void each_kind(void)
{
	cu_ptr vmm;

	begin();
	vmm = reserved(PIECE);
	map_for(0, vmm, object_of(0));
	for (int i = 0; i < 3; i++) {
		expect_heard(plain(SMALL), SMALL);
		expect_heard(plain(3 * PIECE), 3 * PIECE);
		expect_heard(pooled(SMALL), SMALL);
		expect_heard(vmm, PIECE);
	}
	end();
}

/* The attribute is set on bytes that are the caller's, and nothing is asked about others of their page. */
static void own_bytes(void)
{
	unsigned int (*called)(char *names, size_t size);
	char names[512];
	gdr_mh_t mh;
	cu_ptr p;

	begin();
	called = need_symbol("cuda_sim_called");
	p = plain(SMALL);
	expect_heard(p, SMALL);
	called(names, sizeof(names));
	expect_is(try_pin(p & ~(PAGE - 1), PAGE), 0);
	expect_is(called(names, sizeof(names)), 0);
	own(p, SMALL);
	expect_is(gdr_pin_bytes(g, p, SMALL, 0, &mh), 0);
	called(names, sizeof(names));
	expect(strstr(names, "cuPointerSetAttribute"));
	expect_is(gdr_unpin_buffer(g, mh), 0);
	end();
}

static void before_the_open(void)
{
	cu_ptr p, pool;
	gdr_mh_t mh;

	start();
	p = plain(PIECE);
	pool = pooled(PAGE);
	g = open_or_fail();
	expect_is(try_pin(pool, 2 * PAGE), EINVAL);	/* the second page is free space of the pool */
	expect_asked(p, PIECE);
	expect_heard(p, PIECE);	/* from then on */
	expect_is(cu.mem_free(p), 0);
	/* From 590 on its end is not heard: CUDA is asked. */
	expect_is(gdr_pin_buffer(g, p, PIECE, 0, 0, &mh), EINVAL);
	strict(1);
	expect_is(plain(PIECE), p);
	expect_heard(p, PIECE);
	expect_is(gdr_close(g), 0);
}

static void for_another_gpu(void)
{
	cu_ptr p;

	begin_on_two();
	p = reserved(PIECE);
	map_for(0, p, object_of(1));
	expect_heard(p, PIECE);
	expect_is(cu.ctx_set(contexts[1]), 0);
	expect_heard(plain(PIECE), PIECE);
	expect_heard(plain(SMALL), SMALL);
	end();
}

static void of_two_gpus(void)
{
	cu_ptr p;

	begin_on_two();
	p = reserved(2 * PIECE);
	for (int gpu = 0; gpu < 2; gpu++)
		map_for(0, p + gpu * PIECE, object_of(gpu));
	for (int i = 0; i < 2; i++) {
		expect_is(try_pin(p, 2 * PIECE), EINVAL);
		expect_is(try_pin(p + PIECE - PAGE, 2 * PAGE), EINVAL);
		expect_heard(p, PIECE);
		expect_heard(p + PIECE, PIECE);
	}
	end();
}

static void gone(void)
{
	cu_ptr p, vmm;

	begin();
	p = plain(2 * PIECE);
	vmm = reserved(2 * PIECE);
	map_for(0, vmm, object_of(0));
	map_for(0, vmm + PIECE, object_of(0));
	expect_is(cu.mem_free(p), 0);
	expect_is(try_pin(p, PAGE), EINVAL);	/* before anything was tried */
	expect_heard(vmm, 2 * PIECE);
	expect_is(cu.unmap(vmm + PIECE, PIECE), 0);
	expect_is(try_pin(vmm, 2 * PIECE), EINVAL);
	expect_is(try_pin(vmm + PIECE, PAGE), EINVAL);
	expect_heard(vmm, PIECE);
	map_for(0, vmm + PIECE, object_of(0));
	expect_heard(vmm, 2 * PIECE);
	end();
}

/* cuda-checkpoint makes the memory anew, for another client. What was pinned before is not it, and shows old bytes. */
static void checkpoint(void)
{
	int (*away)(void), (*back)(void);
	gdr_mh_t mh, of_freed;
	cu_ptr p[4], freed;
	void *va;

	begin();
	away = need_symbol("cuda_sim_checkpoint");
	back = need_symbol("cuda_sim_restore");
	p[0] = plain(SMALL);
	p[1] = plain(PIECE);
	p[2] = pooled(PIECE);
	p[3] = reserved(PIECE);
	map_for(0, p[3], object_of(0));
	for (int round = 0; round < 2; round++) {
		freed = plain(PIECE);
		expect_is(gdr_pin_buffer(g, p[1], PIECE, 0, 0, &mh), 0);
		expect_is(gdr_pin_buffer(g, freed, PIECE, 0, 0, &of_freed), 0);
		expect_is(cu.mem_free(freed), 0);
		expect_is(away(), 0);
		expect_is(back(), 0);
		expect_is(gdr_map(g, mh, &va, PIECE), EIO);
		expect_is(gdr_map(g, of_freed, &va, PIECE), 0);
		expect_is(gdr_unpin_buffer(g, mh), 0);
		expect_is(gdr_unpin_buffer(g, of_freed), 0);
		for (int i = 0; i < 4; i++)
			expect_heard(p[i], i ? PIECE : SMALL);
	}
	end();
}

static _Atomic bool over;

/* Makes and frees small memory, whose chunk others use, and large memory. */
static void *make_and_free(void *context)
{
	uint64_t seed = (uintptr_t)&seed;
	cu_ptr p[8] = { 0 };

	expect_is(cu.ctx_set(context), 0);
	while (!atomic_load(&over)) {
		int i = next_random(&seed) % 8;

		if (p[i])
			expect_is(cu.mem_free(p[i]), 0);
		p[i] = plain(next_random(&seed) % 8 ? SMALL << next_random(&seed) % 5 : PIECE);
	}
	return NULL;
}

static void *pin_own(void *context)
{
	expect_is(cu.ctx_set(context), 0);
	for (long i = 0; i < scaled(150); i++) {
		size_t size = i % 8 ? SMALL : PIECE;
		cu_ptr p = plain(size);

		check_bytes(p, size);
		expect_is(cu.mem_free(p), 0);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t t[4];

	begin();
	expect_heard(plain(SMALL), SMALL);
	for (int i = 0; i < 4; i++)
		expect(!pthread_create(&t[i], NULL, i < 2 ? make_and_free : pin_own, contexts[0]));
	for (int i = 3; i >= 0; i--) {
		expect(!pthread_join(t[i], NULL));
		if (i == 2)
			atomic_store(&over, true);
	}
	expect_is(counted().heard, 2 * scaled(150) + 1);
	end();
}

const struct guest_case cases[] = {
	{ "each kind of memory", each_kind, 30 },
	{ "bytes of the caller's own", own_bytes, 30 },
	{ "memory of before the open", before_the_open, 30 },
	{ "memory that another GPU alone may use", for_another_gpu, 30 },
	{ "memory of two GPUs in one range", of_two_gpus, 30 },
	{ "memory that is gone", gone, 30 },
	{ "a checkpoint", checkpoint, 30 },
	{ "other memory of the chunk comes and goes", threads, 60 },
	{ NULL },
};
