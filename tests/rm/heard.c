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
#define OUT_OF_RM_MEMORY 0x51

static struct cuda_dl cu;
static gdr_t g;
static cu_ctx contexts[2];

static void (*strict)(int on);
static void (*own)(uint64_t addr, uint64_t size);
static int (*from_pool)(cu_ptr *p, size_t size, cu_stream s), (*to_pool)(cu_ptr p, cu_stream s);

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
	to_pool = need_symbol("cuMemFreeAsync");
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

static void give_pooled(cu_ptr p)
{
	expect_is(to_pool(p, NULL), 0);
	expect_is(cu.ctx_sync(), 0);
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
	gdr_mh_t mh;
	cu_ptr p;

	start();
	p = plain(PIECE);
	g = open_or_fail();
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

/* What the pool has given back is unheard: the driver says the end of one GPU's map, and others may have theirs. */
static void trimmed_pool(void)
{
	cu_ptr p[3];

	begin();
	expect_heard(plain(SMALL), SMALL);
	for (int round = 1; round < 5; round++) {
		for (int i = 0; i < 3; i++)
			p[i] = pooled(round * 20 * MIB);
		for (int i = 0; i < 3; i++)
			expect_heard(p[i], round * 20 * MIB);
		give_pooled(p[1]);
		expect_heard(p[0], round * 20 * MIB);
		expect_heard(p[2], round * 20 * MIB);
		give_pooled(p[0]);
		give_pooled(p[2]);
		for (int i = 0; i < 3; i++) {
			own(p[i], round * 20 * MIB);
			expect_is(try_pin(p[i], round * 20 * MIB), EINVAL);
			own(p[i], 0);
		}
	}
	end();
}

static void at_two_addresses(void)
{
	cu_mem mem;
	cu_ptr p;

	begin();
	p = reserved(2 * PIECE);
	mem = object_of(0);
	map_for(0, p, mem);
	map_for(0, p + PIECE, mem);
	expect_is(cu.release(mem), 0);
	expect_heard(p, 2 * PIECE);
	expect_is(cu.unmap(p, PIECE), 0);
	expect_is(try_pin(p, PIECE), EINVAL);
	expect_is(try_pin(p, 2 * PIECE), EINVAL);
	expect_heard(p + PIECE, PIECE);
	end();
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

/*
 * The other GPU reaches the pool by an object that is no memory (class 0xf8). libcuda maps it at the same
 * addresses, for that GPU alone.
 */
static void pool_for_both(void)
{
	int (*pool_of)(void **pool, int dev), (*allow)(void *pool, const struct cu_access *who, size_t n);
	struct cu_access who = { .place = { CU_PLACE_GPU, 0 }, .flags = CU_ACCESS_RW };
	void *pool;
	cu_ptr p;

	begin_on_two();
	pool_of = need_symbol("cuDeviceGetDefaultMemPool");
	allow = need_symbol("cuMemPoolSetAccess");
	for (int gpu = 0; gpu < 2; gpu++) {
		expect_is(cu.ctx_set(contexts[gpu]), 0);
		expect_is(pool_of(&pool, gpu), 0);
		who.place.id = !gpu;
		who.flags = CU_ACCESS_RW;
		expect_heard(p = pooled(PIECE), PIECE);
		expect_is(allow(pool, &who, 1), 0);
		expect_heard(p, PIECE);
		expect_heard(pooled(3 * PIECE), 3 * PIECE);
		who.flags = 0;
		expect_is(allow(pool, &who, 1), 0);
		expect_heard(p, PIECE);
		expect_heard(pooled(64 * MIB), 64 * MIB);
	}
	expect_is(gdr_close(g), 0);
}

static void with_peers(void)
{
	int (*enable)(cu_ctx to, unsigned int flags);

	begin_on_two();
	enable = need_symbol("cuCtxEnablePeerAccess");
	expect_is(enable(contexts[1], 0), 0);
	expect_is(cu.ctx_set(contexts[1]), 0);
	for (int i = 0; i < 3; i++) {
		expect_heard(plain(SMALL), SMALL);
		expect_heard(plain(8 * MIB), 8 * MIB);
	}
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

/* CUDA says what such memory is. */
static void of_the_host(void)
{
	int (*managed)(cu_ptr *p, size_t size, unsigned int flags), (*host)(void **p, size_t size, unsigned int flags),
		(*registered)(void *p, size_t size, unsigned int flags);
	void *at[3];

	begin();
	managed = need_symbol("cuMemAllocManaged");
	host = need_symbol("cuMemHostAlloc");
	registered = need_symbol("cuMemHostRegister_v2");
	expect_heard(plain(PIECE), PIECE);
	expect_is(managed((cu_ptr *)&at[0], MIB, 1), 0);
	expect_is(host(&at[1], MIB, 0), 0);
	at[2] = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	expect(at[2] != MAP_FAILED);
	expect_is(registered(at[2], MIB, 0), 0);
	for (int i = 0; i < 3; i++) {
		cu_ptr page = ((uintptr_t)at[i] + PAGE - 1) & ~(PAGE - 1);

		own(page, PAGE);
		for (int k = 0; k < 2; k++)
			expect_is(try_pin(page, PAGE), EINVAL);
	}
	expect_is(counted().heard, 1);
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

static void failed_map(void)
{
	void (*fail)(const char *name, int status, int nth);
	cu_ptr p;

	begin();
	fail = need_symbol("rm_sim_fail");
	expect_heard(plain(PIECE), PIECE);
	for (int i = 0; i < 3; i++) {
		fail("UVM_MAP", OUT_OF_RM_MEMORY, 1);
		expect(cu.mem_alloc(&p, 2 * PIECE) != 0);
		fail("UVM_MAP", 0, 0);
		p = plain(2 * PIECE);
		expect_heard(p, 2 * PIECE);
		expect_is(cu.mem_free(p), 0);
	}
	end();
}

static void checkpoint(void)
{
	int (*away)(void), (*back)(void);
	gdr_mh_t mh;
	cu_ptr p[4];
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
		expect_is(gdr_pin_buffer(g, p[1], PIECE, 0, 0, &mh), 0);
		expect_is(away(), 0);
		expect_is(back(), 0);
		expect_is(gdr_map(g, mh, &va, PIECE), EIO);
		expect_is(gdr_unpin_buffer(g, mh), 0);
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

#define SLOTS 4

/* Each memory has the handle of the one before, and tells its address. */
static void *wander(void *first)
{
	cu_ptr at = *(cu_ptr *)first;

	expect_is(cu.ctx_set(contexts[0]), 0);
	for (long i = 1; i <= scaled(4000); i++) {
		cu_ptr slot = at + i % SLOTS * PIECE;
		uint64_t mark = slot;
		cu_mem mem = object_of(0);

		map_for(0, slot, mem);
		expect_is(cu.release(mem), 0);
		expect_is(cu.to_gpu(slot, &mark, sizeof(mark)), 0);
		expect_is(cu.ctx_sync(), 0);
		expect_is(cu.unmap(slot, PIECE), 0);
	}
	atomic_store(&over, true);
	return NULL;
}

/* A pin of memory that another thread frees shows that memory, or is EINVAL. */
static void handles_again(void)
{
	uint64_t seen, wrong = 0;
	pthread_t other;
	gdr_mh_t mh;
	cu_ptr at;
	void *va;

	begin();
	at = reserved(SLOTS * PIECE);
	for (int i = 0; i < SLOTS; i++) {
		map_for(0, at + i * PIECE, object_of(0));
		expect_heard(at + i * PIECE, PIECE);
		expect_is(cu.unmap(at + i * PIECE, PIECE), 0);
	}
	expect(!pthread_create(&other, NULL, wander, &at));
	for (unsigned long i = 0; !atomic_load(&over); i++) {
		cu_ptr slot = at + i % SLOTS * PIECE;

		if (!succeeds(gdr_pin_buffer(g, slot, PIECE, 0, 0, &mh), EINVAL))
			continue;
		expect_is(gdr_map(g, mh, &va, PIECE), 0);
		seen = *(volatile uint64_t *)va;
		wrong += seen && seen != slot;
		expect_is(gdr_unpin_buffer(g, mh), 0);
	}
	expect(!pthread_join(other, NULL));
	expect_is(wrong, 0);
	end();
}

const struct guest_case cases[] = {
	{ "each kind of memory", each_kind, 30 },
	{ "bytes of the caller's own", own_bytes, 30 },
	{ "memory of before the open", before_the_open, 30 },
	{ "a pool that trims and grows", trimmed_pool, 30 },
	{ "one handle at two addresses", at_two_addresses, 30 },
	{ "memory that another GPU alone may use", for_another_gpu, 30 },
	{ "a pool for two GPUs", pool_for_both, 30 },
	{ "peer access", with_peers, 30 },
	{ "memory of two GPUs in one range", of_two_gpus, 30 },
	{ "memory of the host, registered, managed", of_the_host, 30 },
	{ "memory that is gone", gone, 30 },
	{ "an allocation that fails, and the next", failed_map, 30 },
	{ "a checkpoint", checkpoint, 30 },
	{ "other memory of the chunk comes and goes", threads, 60 },
	{ "handles that are given again", handles_again, 60 },
	{ NULL },
};
