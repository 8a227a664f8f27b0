// SPDX-License-Identifier: MIT
/*
 * ext/cache.c - the registration cache: what a hit is, what goes when, and that
 * memory which is gone is never taken for what is there now.
 *
 * What is pinned shows in the process's mappings and, on the simulated drivers, in
 * the number of objects that live in them.
 */
#include "guest/cuda.h"

#define RANGE (64 * KIB)
#define GPU_2M (2 * MIB)
#define THREADS 6
#define MEMORIES 4
#define CACHES 64	/* at most in a process */

/* One range of GPU memory, as gdr_cache_get gives it. */
struct held {
	gdr_mh_t mh;
	unsigned char *va;
};

static struct held get(gdr_cache_t c, unsigned long addr, size_t size)
{
	void *va = NULL;
	struct held h;

	expect_is(gdr_cache_get(c, addr, size, &h.mh, &va), 0);
	expect(h.mh.h && va);
	h.va = va;
	return h;
}

static void put(gdr_cache_t c, struct held h)
{
	expect_is(gdr_cache_put(c, h.mh), 0);
}

/* Has it pinned, and holds it no more. */
static struct held visit(gdr_cache_t c, unsigned long addr, size_t size)
{
	struct held h = get(c, addr, size);

	put(c, h);
	return h;
}

/* A copy of no bytes is good for every mapped buffer. Addresses come back. */
static bool is_pinned(struct held h)
{
	return gdr_copy_to_mapping(h.mh, NULL, NULL, 0) == 0;
}

static bool same(struct held a, struct held b)
{
	return a.mh.h == b.mh.h;
}

static gdr_cache_t open_cache(gdr_t g, size_t most)
{
	gdr_cache_t c = { 0 };

	expect_is(gdr_cache_open(g, most, 0, &c), 0);
	expect(c.h != 0);
	return c;
}

/* How much more lives with one pinning. The first one brings things that stay. */
static unsigned long cost_of_a_pinning(gdr_t g, unsigned long addr)
{
	unsigned long before, after;
	struct buffer b = { .dptr = addr, .size = RANGE };

	map_buffer(g, &b);
	expect_is(gdr_unpin_buffer(g, b.mh), 0);
	before = count_live();
	map_buffer(g, &b);
	after = count_live();
	expect_is(gdr_unpin_buffer(g, b.mh), 0);
	expect(!on_doubles() || after > before);
	return after - before;
}

static void check_bytes(struct held h, size_t size, uint64_t seed)
{
	struct buffer b = { .mh = h.mh, .va = h.va, .size = size };

	check_copies(&b, seed);
}

/* What the GPU has at addr, by a pinning of its own. */
static void expect_bytes(gdr_t g, unsigned long addr, unsigned char want, size_t n)
{
	struct buffer b = { .dptr = addr, .size = RANGE };
	unsigned char in[256];

	expect(n <= sizeof(in));
	map_buffer(g, &b);
	expect_is(gdr_copy_from_mapping(b.mh, in, b.va, n), 0);
	for (size_t i = 0; i < n; i++)
		expect_is(in[i], want);
	expect_is(gdr_unpin_buffer(g, b.mh), 0);
}

static void fill(struct held h, unsigned char value, size_t n)
{
	unsigned char out[256];

	expect(n <= sizeof(out));
	memset(out, value, n);
	expect_is(gdr_copy_to_mapping(h.mh, h.va, out, n), 0);
}

/* GPU memory of RANGE and more, not pinned. */
static unsigned long some_memory(gdr_t g, gdr_mem_t *mem)
{
	struct buffer b;

	alloc_buffer(g, &b, GPU_2M);
	if (mem)
		*mem = b.mem;
	return b.dptr;
}

static void hits(void)
{
	gdr_t g = open_or_fail();
	unsigned long addr = some_memory(g, NULL), one = cost_of_a_pinning(g, addr);
	unsigned long before = count_live();
	gdr_cache_t c = open_cache(g, MIB), other = open_cache(g, MIB);
	struct held a = get(c, addr, RANGE), b = get(c, addr, RANGE);
	struct held part = get(c, addr + 4099, 77);
	void *va = NULL;
	gdr_mh_t mh;

	expect_is(count_live(), before + one);
	expect(same(a, b) && a.va == b.va);
	expect(same(a, part) && part.va == a.va + 4099);
	check_bytes(a, RANGE, 1);
	/* What is refused without a hit is with one, too. */
	expect_is(gdr_cache_get(c, addr, RANGE, NULL, &va), EINVAL);
	expect_is(gdr_cache_get(c, addr, 0, &mh, &va), EINVAL);
	expect_is(gdr_cache_get(c, -RANGE, RANGE, &mh, &va), EINVAL);
	expect_is(gdr_cache_put(other, a.mh), EINVAL);
	put(c, a);
	put(c, b);
	put(c, part);
	expect_is(gdr_cache_put(c, a.mh), EINVAL);
	/* It stays, and stays whole. */
	expect(is_pinned(a));
	expect_is(count_live(), before + one);
	expect(same(get(c, addr, RANGE), a));
	check_bytes(a, RANGE, 2);
	put(c, a);
	expect_is(gdr_cache_flush(c), 0);
	expect(!is_pinned(a));
	expect_is(count_live(), before);
	expect(!same(visit(c, addr, RANGE), a));
	expect_is(gdr_cache_close(c), 0);
	expect_is(count_live(), before);
}

/* What is in no page of its own: the pages are, and other bytes of them are a hit. */
static void odd_places(void)
{
	gdr_t g = open_or_fail();
	unsigned long addr = some_memory(g, NULL);
	gdr_cache_t c = open_cache(g, MIB);
	struct held a = get(c, addr + 65 * KIB + 3, 1), b, end;
	int rc;

	fill(a, 0x77, 1);
	b = get(c, addr + 64 * KIB, RANGE);
	expect(same(a, b) && a.va == b.va + KIB + 3);
	expect_is(gdr_copy_from_mapping(b.mh, &(unsigned char){ 0 }, b.va + RANGE - 1, 1), 0);
	/* It does not reach past the allocation, where there may be another. */
	end = get(c, addr + GPU_2M - 1, 1);
	fill(end, 1, 1);
	rc = gdr_cache_get(c, addr + GPU_2M - 1, GPU_2M + 2, &a.mh, (void **)&a.va);
	expect(rc == EINVAL || rc == ENOTSUP);
	put(c, end);
	put(c, b);
	put(c, b);
}

static void oldest_goes(void)
{
	gdr_t g = open_or_fail();
	gdr_cache_t c = open_cache(g, 3 * RANGE);
	unsigned long addr[4], one, before;
	struct held h[4];

	for (int i = 0; i < 4; i++)
		addr[i] = some_memory(g, NULL);
	one = cost_of_a_pinning(g, addr[0]);
	before = count_live();
	for (int i = 0; i < 3; i++)
		h[i] = visit(c, addr[i], RANGE);
	expect(same(visit(c, addr[0], 1), h[0]));
	expect_is(count_live(), before + 3 * one);
	h[3] = visit(c, addr[3], RANGE);
	expect_is(count_live(), before + 3 * one);
	expect(is_pinned(h[0]) && !is_pinned(h[1]) && is_pinned(h[2]) && is_pinned(h[3]));
	h[1] = visit(c, addr[1], RANGE);
	expect_is(count_live(), before + 3 * one);
	expect(is_pinned(h[0]) && is_pinned(h[1]) && !is_pinned(h[2]) && is_pinned(h[3]));
	expect_is(gdr_copy_to_mapping(h[2].mh, h[2].va, "x", 1), EINVAL);
	check_bytes(h[0], RANGE, 3);
}

/* As in MPICH's issue 7977: each of several messages of one range has a hold of its own. */
static void held_stays(void)
{
	gdr_t g = open_or_fail();
	gdr_cache_t c = open_cache(g, RANGE);
	unsigned long a = some_memory(g, NULL), b = some_memory(g, NULL);
	struct held ha = get(c, a, RANGE), part = get(c, a + RANGE / 2, RANGE / 2), hb = get(c, b, RANGE);

	/* Twice as much as it should be, but held. */
	expect(same(ha, part) && is_pinned(ha) && is_pinned(hb));
	expect_is(gdr_cache_flush(c), 0);
	check_bytes(ha, RANGE, 4);
	check_bytes(hb, RANGE, 5);
	put(c, part);
	check_bytes(ha, RANGE, 6);
	part = get(c, a, 1);
	put(c, ha);
	check_bytes(part, 1, 7);
	put(c, part);
	expect(!is_pinned(ha) && is_pinned(hb));
	put(c, hb);
	expect(is_pinned(hb));
	/* More than the cache should ever have goes with its last hold. */
	ha = get(c, a, 4 * RANGE);
	expect(!is_pinned(hb));
	check_bytes(ha, 4 * RANGE, 8);
	put(c, ha);
	expect(!is_pinned(ha));
}

/* A longer range takes the place of those in it. */
static void longer_range(void)
{
	gdr_t g = open_or_fail();
	gdr_cache_t c = open_cache(g, MIB);
	unsigned long addr = some_memory(g, NULL);
	struct held small = visit(c, addr, RANGE), kept = get(c, addr, 1), big;

	expect(same(small, kept));
	big = get(c, addr, 4 * RANGE);
	expect(!same(big, small));
	/* Who holds the small one has it on. */
	expect(is_pinned(small));
	check_bytes(small, RANGE, 7);
	expect(same(visit(c, addr, RANGE), big));
	put(c, kept);
	expect(!is_pinned(small));
	expect_is(gdr_cache_put(c, kept.mh), EINVAL);
	put(c, big);
	expect(same(visit(c, addr + 3 * RANGE, RANGE), big));
}

/* The simulated libcuda has no dma-bufs of ranges that overlap. */
static bool overlaps_are_simulated(void)
{
	return !on_doubles() || backend_is("rm");
}

/* Ranges that have some bytes in common: each is found for what it has. */
static void overlap(void)
{
	gdr_t g = open_or_fail();
	gdr_cache_t c = open_cache(g, MIB);
	unsigned long addr = some_memory(g, NULL);
	struct held a, b;

	if (!overlaps_are_simulated())
		skip_case("the simulated libcuda has no overlapping dma-bufs");
	a = visit(c, addr, 2 * RANGE);
	b = visit(c, addr + RANGE, 2 * RANGE);
	expect(!same(a, b) && is_pinned(a) && is_pinned(b));
	expect(same(visit(c, addr, 1), a));
	expect(same(visit(c, addr + RANGE - 1, 2), a));
	expect(same(visit(c, addr + RANGE, 2 * RANGE), b));
	expect(same(visit(c, addr + 2 * RANGE + 5, 1), b));
	/* In the one and the other, but in neither. */
	a = visit(c, addr + 7, 3 * RANGE - 7);
	expect(!same(a, b) && !is_pinned(b));
}

/* VMM memory in the place of other VMM memory. */

static struct cuda_dl cu;

static cu_ptr reserve(size_t size)
{
	cu_ptr at = 0;

	expect_is(cu.reserve(&at, size, 0, 0, 0), 0);
	return at;
}

static gdr_t open_with_driver(void)
{
	start_current(&cu);
	return open_or_fail();
}

static void other_memory_there(void)
{
	gdr_t g = open_with_driver();
	gdr_cache_t c = open_cache(g, MIB);
	cu_ptr at = reserve(GPU_2M);
	struct held old, kept, new;

	map_new(&cu, at, GPU_2M);
	old = visit(c, at, RANGE);
	fill(old, 0xaa, 16);
	expect_is(cu.unmap(at, GPU_2M), 0);
	map_new(&cu, at, GPU_2M);
	new = get(c, at, RANGE);
	expect(!same(old, new) && !is_pinned(old));
	expect_is(gdr_copy_to_mapping(old.mh, old.va, "x", 1), EINVAL);
	fill(new, 0xbb, 16);
	expect_bytes(g, at, 0xbb, 16);
	expect_is(cu.unmap(at, GPU_2M), 0);
	map_new(&cu, at, GPU_2M);
	/* It is held: whoever has it may go on, and nobody else gets it. */
	kept = new;
	new = get(c, at, RANGE);
	expect(!same(kept, new) && is_pinned(kept));
	fill(new, 0xcc, 16);
	if (on_doubles())
		fill(kept, 0xdd, 16);
	expect_bytes(g, at, 0xcc, 16);
	put(c, kept);
	expect(!is_pinned(kept));
	put(c, new);
	expect(is_pinned(new));
}

static void no_memory_there(void)
{
	gdr_t g = open_with_driver();
	gdr_cache_t c = open_cache(g, MIB);
	cu_ptr at = reserve(GPU_2M);
	unsigned long before;
	struct held h;

	map_new(&cu, at, GPU_2M);
	cost_of_a_pinning(g, at);
	before = count_live();
	h = visit(c, at, RANGE);
	expect_is(cu.unmap(at, GPU_2M), 0);
	expect_is(gdr_cache_get(c, at, 1, &h.mh, (void **)&h.va), EINVAL);
	expect(!is_pinned(h));
	/* The mapping of the driver's is gone, too. */
	expect(!on_doubles() || count_live() < before);
	expect_is(gdr_cache_get(c, at, 1, &h.mh, (void **)&h.va), EINVAL);
	map_new(&cu, at, GPU_2M);
	visit(c, at, RANGE);
}

static void several_allocations(void)
{
	gdr_t g = open_with_driver();
	gdr_cache_t c = open_cache(g, 16 * MIB);
	cu_ptr at = reserve(2 * GPU_2M);
	struct held a, b;

	map_new(&cu, at, GPU_2M);
	map_new(&cu, at + GPU_2M, GPU_2M);
	expect_is(gdr_cache_get(c, at, 2 * GPU_2M, &a.mh, (void **)&a.va), ENOTSUP);
	expect_is(gdr_cache_get(c, at + GPU_2M - 1, 2, &a.mh, (void **)&a.va), ENOTSUP);
	a = visit(c, at, GPU_2M);
	b = visit(c, at + GPU_2M, 1);
	expect(!same(a, b) && is_pinned(a) && is_pinned(b));
	expect_is(gdr_cache_get(c, at + GPU_2M - 1, 2, &a.mh, (void **)&a.va), ENOTSUP);
	/* The second one is another now: the first is still good. */
	expect_is(cu.unmap(at + GPU_2M, GPU_2M), 0);
	expect_is(gdr_cache_get(c, at + GPU_2M - 1, 2, &a.mh, (void **)&a.va), EINVAL);
	expect(same(visit(c, at, GPU_2M), a));
	map_new(&cu, at + GPU_2M, GPU_2M);
	expect(!same(visit(c, at + GPU_2M, 1), b) && !is_pinned(b) && is_pinned(a));
}

/* Memory of cuMemAlloc: small allocations share a GPU page. The first byte brings all of its allocation. */
static void shared_page(void)
{
	gdr_t g = open_with_driver();
	gdr_cache_t c = open_cache(g, MIB);
	struct held a, b;
	cu_ptr p, q;

	expect_is(cu.mem_alloc(&p, 4096), 0);
	expect_is(cu.mem_alloc(&q, 4096), 0);
	if (p % 4096 || q % 4096)
		skip_case("the driver gave no whole pages");
	a = visit(c, p, 1);
	b = visit(c, q, 1);
	fill(a, 1, 16);
	fill(b, 2, 16);
	expect(same(visit(c, p + 4095, 1), a) && same(visit(c, q + 4095, 1), b));
	expect_is(cu.mem_free(q), 0);
	expect(same(visit(c, p, 4096), a));
	expect_is(gdr_cache_get(c, q, 1, &b.mh, (void **)&b.va), EINVAL);
}

/* What the header says not to do: it costs the range, and nothing else. */
static void unpinned_by_the_caller(void)
{
	gdr_t g = open_or_fail();
	gdr_cache_t c = open_cache(g, MIB);
	unsigned long addr = some_memory(g, NULL);
	struct held a = get(c, addr, RANGE), b;

	expect_is(gdr_unpin_buffer(g, a.mh), 0);
	b = get(c, addr, RANGE);
	expect(!same(a, b));
	check_bytes(b, RANGE, 8);
	put(c, b);
	expect_is(gdr_unpin_buffer(g, b.mh), 0);
	b = visit(c, addr, RANGE);
	check_bytes(b, RANGE, 9);
	expect_is(gdr_cache_flush(c), 0);
	expect_is(gdr_cache_close(c), 0);
}

/* By itself, or with its gdr_t. */
static void close_with_holds(void *all)
{
	gdr_t g = open_or_fail();
	unsigned long a = some_memory(g, NULL), b = some_memory(g, NULL), before;
	gdr_cache_t c, other;
	struct held h[3];

	cost_of_a_pinning(g, a);
	before = count_live();
	c = open_cache(g, MIB);
	other = open_cache(g, MIB);
	h[0] = get(c, a, RANGE);
	h[1] = get(c, a, 2 * RANGE);
	h[2] = visit(c, b, RANGE);
	expect_is(all ? gdr_close(g) : gdr_cache_close(c), 0);
	expect(all || count_live() == before);
	for (int i = 0; i < 3; i++) {
		expect(!is_pinned(h[i]));
		expect_is(gdr_cache_put(c, h[i].mh), EINVAL);
		expect_is(gdr_copy_to_mapping(h[i].mh, h[i].va, "x", 1), EINVAL);
	}
	expect_is(gdr_cache_flush(other), all ? EINVAL : 0);
	/* A hold of the cache before is none of the next. */
	g = all ? open_or_fail() : g;
	c = open_cache(g, MIB);
	visit(c, some_memory(g, NULL), RANGE);
	for (int i = 0; i < 3; i++)
		expect_is(gdr_cache_put(c, h[i].mh), EINVAL);
}

static void many_caches(void)
{
	gdr_t g = open_or_fail(), other = open_or_fail();
	gdr_cache_t c[CACHES], last = open_cache(other, MIB), none = { 0 };

	for (int i = 0; i < CACHES - 1; i++)
		c[i] = open_cache(g, MIB);
	expect_is(gdr_cache_open(g, MIB, 0, &none), ENOMEM);
	expect_is(gdr_cache_close(c[7]), 0);
	c[7] = open_cache(g, MIB);
	expect_is(gdr_cache_open(g, MIB, 0, &none), ENOMEM);
	expect_is(gdr_close(g), 0);
	for (int i = 0; i < CACHES - 1; i++)
		expect_is(gdr_cache_flush(c[i]), EINVAL);
	expect_is(gdr_cache_flush(last), 0);
	for (int i = 0; i < CACHES - 1; i++)
		c[i] = open_cache(other, MIB);
	expect_is(gdr_cache_open(other, MIB, 0, &none), ENOMEM);
}

struct strict {
	gdr_cache_t c;
	unsigned long addr;
	struct held h;
	_Atomic bool done;
};

/* From here on this thread may call getpid, as the simulated driver does, and end. */
static void allow_no_calls(void)
{
	static struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpid, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { .len = sizeof(code) / sizeof(code[0]), .filter = code };

	expect_is(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	expect_is(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

static void *hit_in_strict_mode(void *arg)
{
	struct strict *s = arg;

	s->h = visit(s->c, s->addr, RANGE);
	allow_no_calls();
	for (int i = 0; i < 1000; i++) {
		gdr_mh_t mh;
		void *va;

		if (gdr_cache_get(s->c, s->addr + i, 64, &mh, &va) || mh.h != s->h.mh.h ||
		    gdr_cache_put(s->c, mh))
			syscall(SYS_exit, 0);
	}
	atomic_store(&s->done, true);
	syscall(SYS_exit, 0);
	return NULL;
}

static void no_system_calls(void)
{
	struct strict s = { .done = false };
	gdr_t g;

	needs_doubles("what a real driver does in cuPointerGetAttribute is its own");
	g = open_or_fail();
	s.addr = some_memory(g, NULL);
	s.c = open_cache(g, MIB);
	run_thread(0, hit_in_strict_mode, &s);
	expect(atomic_load(&s.done));
}

static _Atomic bool stop;

/*
 * Threads that use parts of some memories through one cache, which is too small for
 * all, while the memories are freed and allocated anew. Each thread has a part of
 * its own in each memory; what it wrote last must be there, in the memory that there
 * is now, as a pinning made for the purpose shows it.
 */
struct shared_memory {
	pthread_rwlock_t lock;	/* written: it is being freed */
	gdr_mem_t mem;
	unsigned long addr;
	unsigned char last[THREADS];	/* 0: nothing was written to this memory */
};

static struct shared_memory memories[MEMORIES];
static gdr_t shared_g;
static gdr_cache_t shared_cache;
static _Atomic long uses, renewals, flushes;
static size_t longest;	/* range */

static void use_part(struct shared_memory *m, int me, uint64_t *seed)
{
	size_t at = (size_t)me * RANGE, size = 1 + next_random(seed) % longest;
	unsigned char in[64];
	struct held h;

	expect_is(pthread_rwlock_rdlock(&m->lock), 0);
	h = get(shared_cache, m->addr + at, size);
	if (m->last[me] && size >= sizeof(in)) {
		expect_is(gdr_copy_from_mapping(h.mh, in, h.va, sizeof(in)), 0);
		for (size_t i = 0; i < sizeof(in); i++)
			expect_is(in[i], m->last[me]);
	}
	if (size >= sizeof(in)) {
		m->last[me] = 1 + next_random(seed) % 255;
		fill(h, m->last[me], sizeof(in));
	}
	put(shared_cache, h);
	expect_is(pthread_rwlock_unlock(&m->lock), 0);
	atomic_fetch_add(&uses, 1);
}

static void *use(void *arg)
{
	int me = (int)(uintptr_t)arg;
	uint64_t seed = me + 1;

	while (!atomic_load(&stop))
		use_part(&memories[next_random(&seed) % MEMORIES], me, &seed);
	return NULL;
}

static void renew(struct shared_memory *m)
{
	expect_is(pthread_rwlock_wrlock(&m->lock), 0);
	for (int i = 0; i < THREADS; i++)
		if (m->last[i])
			expect_bytes(shared_g, m->addr + i * RANGE, m->last[i], 64);
	expect_is(gdr_mem_free(shared_g, m->mem), 0);
	m->addr = some_memory(shared_g, &m->mem);
	memset(m->last, 0, sizeof(m->last));
	expect_is(pthread_rwlock_unlock(&m->lock), 0);
	atomic_fetch_add(&renewals, 1);
}

static void many_threads(void)
{
	unsigned long before, one;
	pthread_t t[THREADS];
	double end;
	uint64_t seed = 77;

	longest = overlaps_are_simulated() ? 2 * RANGE : RANGE;
	shared_g = open_or_fail();
	for (int i = 0; i < MEMORIES; i++) {
		pthread_rwlock_init(&memories[i].lock, NULL);
		memories[i].addr = some_memory(shared_g, &memories[i].mem);
	}
	one = cost_of_a_pinning(shared_g, memories[0].addr);
	before = count_live();
	shared_cache = open_cache(shared_g, 10 * RANGE);
	for (uintptr_t i = 0; i < THREADS; i++)
		start_thread(&t[i], 0, use, (void *)i);
	for (end = seconds_now() + scaled(3); seconds_now() < end; sleep_us(300)) {
		renew(&memories[next_random(&seed) % MEMORIES]);
		if (next_random(&seed) % 8 == 0) {
			expect_is(gdr_cache_flush(shared_cache), 0);
			atomic_fetch_add(&flushes, 1);
		}
	}
	atomic_store(&stop, true);
	join_threads(t, THREADS);
	note("%ld uses, %ld renewals, %ld flushes", atomic_load(&uses), atomic_load(&renewals),
	     atomic_load(&flushes));
	/* Not more than it may have: 10 of them, each of one page. */
	expect(count_live() <= before + 10 * one + MEMORIES * 10);
	expect_is(gdr_cache_flush(shared_cache), 0);
	expect_is(gdr_cache_close(shared_cache), 0);
	expect_is(count_live(), before);
}

/* One range, many threads, all at once: it is pinned once. */
static unsigned long missed;

static void *get_once(void *unused)
{
	while (!atomic_load(&stop))
		;
	return (void *)get(shared_cache, missed, RANGE).mh.h;
}

static void same_miss(void)
{
	unsigned long one, before;
	pthread_t t[THREADS];
	void *h[THREADS];

	shared_g = open_or_fail();
	missed = some_memory(shared_g, NULL);
	one = cost_of_a_pinning(shared_g, missed);
	shared_cache = open_cache(shared_g, MIB);
	before = count_live();
	for (int n = 0; n < 20; n++) {
		atomic_store(&stop, false);
		start_threads(t, THREADS, get_once, NULL);
		atomic_store(&stop, true);
		for (int k = 0; k < THREADS; k++)
			expect_is(pthread_join(t[k], &h[k]), 0);
		expect_is(count_live(), before + one);
		for (int k = 0; k < THREADS; k++) {
			expect(h[k] == h[0]);
			expect_is(gdr_cache_put(shared_cache, (gdr_mh_t){ (uintptr_t)h[k] }), 0);
		}
		expect_is(gdr_cache_flush(shared_cache), 0);
		expect_is(count_live(), before);
	}
}

const struct guest_case cases[] = {
	{ "hits, and what stays pinned", hits, 30, 0 },
	{ "odd places and sizes", odd_places, 30, 0 },
	{ "the oldest goes", oldest_goes, 30, 0 },
	{ "what is held stays", held_stays, 30, 0 },
	{ "a longer range", longer_range, 30, 0 },
	{ "ranges that overlap", overlap, 30, 0 },
	{ "other memory at the address", other_memory_there, 30, 0 },
	{ "no memory at the address", no_memory_there, 30, 0 },
	{ "several allocations", several_allocations, 30, 0 },
	{ "allocations that share a page", shared_page, 30, 0 },
	{ "unpinned by the caller", unpinned_by_the_caller, 30, 0 },
	{ "closed with holds", NULL, 30, 0, close_with_holds, NULL },
	{ "gdr_close with an open cache", NULL, 30, 0, close_with_holds, (void *)true },
	{ "many caches", many_caches, 30, 0 },
	{ "a hit makes no system call", no_system_calls, 30, 0 },
	{ "many threads", many_threads, 60, 300 },
	{ "the same miss in many threads", same_miss, 60, 0 },
	{ 0 }
};
