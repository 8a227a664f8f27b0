// SPDX-License-Identifier: MIT
/*
 * ext/dma.c - GDRCOPY_DMA_READ and GDRCOPY_DMA_WRITE.
 *
 * Whether the copy engine made a copy does not show in its bytes. So some cases
 * have the simulated driver refuse one of the calls that it takes, and look for
 * the line that the library writes then: the CPU must have made the copy.
 */
#include "ext/copies.h"
#include "ext/libcuda.h"

#include <setjmp.h>

#define BYTES (1 * MIB)
#define STAGED_BYTES (3 * MIB)
#define LEAST_READ 16384
#define LEAST_WRITE 65536
#define COPIERS 4

/* Has the nth call of name fail from now on, or each, if nth is 0. */
static void refuse_nth(const char *name, int result, int nth)
{
	void (*fail)(const char *, int, int);

	*(void **)&fail = of_driver("cuda_sim_fail");
	expect(fail != NULL);
	fail(name, result, nth);
}

/* Has each call of name fail from now on; 0 ends that. */
static void refuse(const char *name, int result)
{
	refuse_nth(name, result, 0);
}

enum { BLOCKING, NON_BLOCKING };

static unsigned int streams(unsigned int flags)
{
	unsigned int (*count)(unsigned int);

	*(void **)&count = of_driver("cuda_sim_streams");
	expect(count != NULL);
	return count(flags);
}

/* Counts the calls of name from now on. */
static void count(const char *name)
{
	refuse(name, 0);
	refuse_nth(name, 999, INT_MAX);
}

static long counted(const char *name)
{
	unsigned long (*calls)(const char *);

	*(void **)&calls = of_driver("cuda_sim_calls");
	expect(calls != NULL);
	return calls(name);
}

static void want_dma(const char *reads, const char *writes)
{
	expect_is(setenv("GDRCOPY_DMA_READ", reads, 1), 0);
	expect_is(setenv("GDRCOPY_DMA_WRITE", writes, 1), 0);
}

static void check_sizes(struct buffer *b)
{
	check_these(b, (const size_t[]){ 8, 4096, LEAST_READ - 1, LEAST_READ, LEAST_WRITE - 1, LEAST_WRITE, 300001, 0 });
}

static gdr_t open_with_dma_of(struct buffer *b, size_t size)
{
	gdr_t g;

	want_dma("16384", "65536");
	g = open_or_fail();
	make_buffer(g, b, size);
	return g;
}

static gdr_t open_with_dma(struct buffer *b)
{
	return open_with_dma_of(b, BYTES);
}

/*
 * Nothing that is refused from now on is the backend's: rm has a copy made, too, when it
 * pins memory for the first time. A call of name is refused meanwhile, if it is not NULL.
 */
static void pin_once(gdr_t g, const struct buffer *b, const char *name)
{
	gdr_mh_t mh;

	if (name)
		refuse(name, 999);
	expect_is(gdr_pin_buffer(g, b->dptr, b->size, 0, 0, &mh), 0);
	if (name)
		refuse(name, 0);
	expect_is(gdr_unpin_buffer(g, mh), 0);
}

static void none_unless_asked(void)
{
	struct buffer b;
	gdr_t g;

	needs_doubles("a real driver cannot be told to refuse a call");
	unsetenv("GDRCOPY_DMA_READ");
	unsetenv("GDRCOPY_DMA_WRITE");
	catch_log();
	g = open_or_fail();
	alloc_buffer(g, &b, BYTES);
	pin_once(g, &b, NULL);
	refuse("cuStreamCreate", 999);
	refuse("cuMemcpyDtoHAsync_v2", 999);
	refuse("cuMemcpyHtoDAsync_v2", 999);
	map_buffer(g, &b);
	check_sizes(&b);
	expect(!logged("copy engine"));
}

static void bytes_are_right(void)
{
	struct buffer b;

	catch_log();
	open_with_dma(&b);
	check_sizes(&b);
	expect(!logged("copy engine"));
}

/* More than one call of the core makes. */
static void longest(void)
{
	const size_t size = 16 * MIB + 4096;
	unsigned char *in = malloc(size), *out = malloc(size);
	struct buffer b;

	catch_log();
	open_with_dma_of(&b, size);
	for (size_t i = 0; i < size; i++)
		in[i] = i * 7 + (i >> 12) + 5 * (i >> 24);
	expect_is(gdr_copy_to_mapping(b.mh, b.va, in, size), 0);
	expect_is(gdr_copy_from_mapping(b.mh, out, b.va, size), 0);
	expect(!memcmp(in, out, size));
	expect(!logged("copy engine"));
}

static void least_sizes(void)
{
	static unsigned char host[LEAST_WRITE];
	struct buffer b;

	needs_doubles("a real driver cannot be told to refuse a call");
	catch_log();
	open_with_dma(&b);
	refuse("cuMemcpyDtoHAsync_v2", 999);
	refuse("cuMemcpyHtoDAsync_v2", 999);
	expect_is(gdr_copy_to_mapping(b.mh, b.va, host, LEAST_WRITE - 1), 0);
	expect_is(gdr_copy_from_mapping(b.mh, host, b.va, LEAST_READ - 1), 0);
	expect(!logged("copy engine"));
	expect_is(gdr_copy_from_mapping(b.mh, host, b.va, LEAST_READ), 0);
	expect(logged("copy engine"));
}

static void one_refusal(const char *name, bool in_copies, const char *line)
{
	struct buffer b;
	gdr_t g;

	catch_log();
	want_dma("16384", "65536");
	g = open_or_fail();
	alloc_buffer(g, &b, BYTES);
	if (!in_copies)
		refuse(name, 999);
	map_buffer(g, &b);
	refuse(name, 999);
	check_sizes(&b);
	expect(logged(line));
	refuse(name, 0);
	check_sizes(&b);
}

/* A pin that gets no engine keeps no context and no stream. */
static void keeps_nothing(void *unused)
{
	int (*state)(int device, unsigned int *flags, int *active);
	unsigned int flags;
	struct buffer b;
	int active;
	gdr_t g;

	want_dma("16384", "65536");
	g = open_or_fail();
	alloc_buffer(g, &b, BYTES);
	pin_once(g, &b, "cuStreamCreate");
	refuse("cuMemHostRegister_v2", 999);
	map_buffer(g, &b);
	*(void **)&state = of_driver("cuDevicePrimaryCtxGetState");
	expect_is(state(0, &flags, &active), 0);
	expect_is(active, 0);
	expect_is(streams(NON_BLOCKING), 0);
}

struct refusal {
	const char *name;
	bool in_copies;
	const char *line;
};

static void refuse_one(void *arg)
{
	const struct refusal *r = arg;

	one_refusal(r->name, r->in_copies, r->line);
}

static void refusals(void)
{
	static struct refusal list[] = {
		{ "cuMemHostRegister_v2", false, "no copies of" },
		{ "cuMemcpyDtoHAsync_v2", true, "copy engine failed" },
		{ "cuStreamSynchronize", true, "copy engine failed" },
		{ "cuCtxPushCurrent_v2", true, "copy engine failed" },
	};

	needs_doubles("a real driver cannot be told to refuse a call");
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		expect(in_child(list[i].name, refuse_one, &list[i], 60));
	expect(in_child("no engine", keeps_nothing, NULL, 60));
}

/* A handle's slot is used again: the engine must go to the new one's memory. */
static void another_buffer(void)
{
	struct buffer a, b;
	gdr_t g = open_with_dma(&a);

	check_sizes(&a);
	alloc_buffer(g, &b, BYTES);
	expect_is(gdr_unpin_buffer(g, a.mh), 0);
	map_buffer(g, &b);
	check_sizes(&b);
	map_buffer(g, &a);
	check_sizes(&a);
	check_sizes(&b);
}

/* Whatever is mapped, and unmapped, a GPU has one stream. The host's default stream
 * must not wait for it.
 */
static void one_stream(void)
{
	struct buffer b[4];
	gdr_t g;

	needs_doubles("a real driver does not count streams");
	g = open_with_dma(&b[0]);
	for (int i = 1; i < 4; i++)
		make_buffer(g, &b[i], BYTES);
	for (int i = 0; i < 4; i++)
		check_copy(&b[i], LEAST_WRITE, 1, i);
	expect_is(gdr_unpin_buffer(g, b[0].mh), 0);
	map_buffer(g, &b[0]);
	check_copy(&b[0], LEAST_WRITE, 1, 9);
	expect_is(streams(NON_BLOCKING), 1);
	expect_is(streams(BLOCKING), 0);
}

/* A pinning that does not begin where its memory does. */
static void part_of_memory(void)
{
	struct buffer whole, part;
	gdr_t g = open_with_dma(&whole);

	expect_is(gdr_unpin_buffer(g, whole.mh), 0);
	part = whole;
	part.dptr += 64 * KIB;
	part.size -= 64 * KIB;
	map_buffer(g, &part);
	check_sizes(&part);
}

static void context_stays(void)
{
	int (*current)(void **ctx);
	void *before, *after;
	struct buffer b;

	gdr_t g = open_with_dma(&b);

	*(void **)&current = of_driver("cuCtxGetCurrent");
	expect(current != NULL);
	expect_is(current(&before), 0);
	/* The process's first mapping, which made the stream, is seen as well: none was current. */
	expect(before == NULL);
	check_sizes(&b);
	drop_buffer(g, &b);
	expect_is(current(&after), 0);
	expect(after == NULL);
}

/* Bytes of page-locked host memory. */
#define LOCKED (2 * MIB)

static unsigned char *lock_memory(void)
{
	unsigned char *p = mmap(NULL, LOCKED, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	expect(p != MAP_FAILED);
	lock_host(p, LOCKED);
	return p;
}

/* The same as check_copy, out of the first half of host and into the second. */
static void check_host(struct buffer *b, unsigned char *host, size_t half, size_t n, size_t at,
		       uint64_t seed)
{
	unsigned char *in = host + half;

	expect(n + 2 <= half && at + n < b->size);
	fill_random(host, n, seed);
	memset(in, 0x5a, n + 2);
	expect_is(gdr_copy_to_mapping(b->mh, b->va + at, host, n), 0);
	expect_is(gdr_copy_from_mapping(b->mh, in + 1, b->va + at, n), 0);
	expect(!memcmp(in + 1, host, n) && in[0] == 0x5a && in[n + 1] == 0x5a);
}

static void check_host_sizes(struct buffer *b, unsigned char *host)
{
	static const size_t sizes[] = { LEAST_READ - 1, LEAST_READ, LEAST_WRITE, 300001 };

	for (int round = 0; round < 30; round++)
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
			check_host(b, host, LOCKED / 2, sizes[i], round, i + round);
}

/* Page-locked memory, before and after it is. */
static void page_locked(void)
{
	unsigned char *host;
	struct buffer b;

	catch_log();
	open_with_dma(&b);
	host = lock_memory();
	if (on_doubles())
		count("cuMemcpyHtoDAsync_v2");
	check_host_sizes(&b, host);
	expect(!on_doubles() || counted("cuMemcpyHtoDAsync_v2") == 2 * 30);
	unlock_host(host);
	if (on_doubles())
		count("cuMemcpyHtoDAsync_v2");
	check_host_sizes(&b, host);
	expect(!on_doubles() || counted("cuMemcpyHtoDAsync_v2") == 0);
	expect(!logged("copy engine"));
}

/*
 * The driver refuses a write from a host buffer of which a part is page-locked. It gets none
 * whose first or last byte is not.
 */
static void locked_in_part(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	unsigned char *host;
	struct buffer b;

	catch_log();
	open_with_dma(&b);
	host = lock_memory();
	unlock_host(host);
	lock_host(host + 4 * page, page);
	check_host_sizes(&b, host);
	expect(!logged("copy engine"));
	lock_host(host, page);
	check_host_sizes(&b, host);
	expect(!logged("copy engine"));
}

/*
 * The host resets the GPU, and uses it again. The old mapping stays, and the CPU makes its
 * copies. The engine makes those of a new one. The simulated driver ends a process that
 * uses a stream from before the reset.
 */
static void reset_by_the_host(void)
{
	int (*retain)(void **ctx, int device), (*reset)(int device);
	struct buffer b, next;
	unsigned char *host;
	void *ctx;
	gdr_t g;

	needs_doubles("what is left of a mapping is the backend's matter");
	catch_log();
	g = open_with_dma(&b);
	host = lock_memory();
	check_host_sizes(&b, host);
	*(void **)&reset = of_driver("cuDevicePrimaryCtxReset_v2");
	expect(reset != NULL);
	expect_is(reset(0), 0);
	check_host_sizes(&b, host);
	*(void **)&retain = of_driver("cuDevicePrimaryCtxRetain");
	expect_is(retain(&ctx, 0), 0);
	check_host_sizes(&b, host);
	expect_is(streams(NON_BLOCKING), 0);
	make_buffer(g, &next, BYTES);
	expect_is(streams(NON_BLOCKING), 1);
	check_sizes(&next);
	check_host_sizes(&b, host);
}

/* How many copies an engine is asked for that fails each time. */
static void fails_for_ever(void)
{
	static unsigned char host[LEAST_READ];
	struct buffer b;

	needs_doubles("a real driver cannot be told to refuse a call");
	catch_log();
	open_with_dma(&b);
	refuse("cuMemcpyDtoHAsync_v2", 999);
	for (int i = 0; i < 2000; i++)
		expect_is(gdr_copy_from_mapping(b.mh, host, b.va, sizeof(host)), 0);
	expect_is(counted("cuMemcpyDtoHAsync_v2"), 2);
}

/* A range that a cache pins is prepared for the engine, too: its first get, and a hit. */
static void range_of_a_cache(void)
{
	struct buffer b;
	gdr_cache_t c;
	gdr_t g;

	needs_doubles("a real driver counts no calls");
	g = open_with_dma(&b);
	expect_is(gdr_unpin_buffer(g, b.mh), 0);
	expect_is(gdr_cache_open(g, BYTES, 0, &c), 0);
	for (int i = 0; i < 2; i++) {
		struct buffer held = { .dptr = b.dptr, .size = BYTES };
		void *va = NULL;

		expect_is(gdr_cache_get(c, b.dptr, BYTES, &held.mh, &va), 0);
		held.va = va;
		count("cuMemcpyDtoHAsync_v2");
		check_copy(&held, LEAST_WRITE, 5000, i);
		expect_is(counted("cuMemcpyDtoHAsync_v2"), 1);
		expect_is(gdr_cache_put(c, held.mh), 0);
	}
	expect_is(gdr_cache_close(c), 0);
}

static sigjmp_buf before_fault;

static void leave_copy(int sig)
{
	siglongjmp(before_fault, 1);
}

/* A handler leaves a copy with host memory that faults. */
static void left_by_siglongjmp(void)
{
	unsigned char *bad = mmap(NULL, STAGED_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *mine, *now;
	struct buffer b;
	gdr_t g;

	catch_log();
	want_dma("16384", "65536");
	g = open_or_fail();
	make_buffer(g, &b, STAGED_BYTES);
	check_copy(&b, LEAST_WRITE, 1, 1);
	driver("cuCtxCreate_v2", (uintptr_t)&mine, 0, 0);
	expect(bad != MAP_FAILED && signal(SIGSEGV, leave_copy) != SIG_ERR);
	for (volatile int i = 0; i < 40; i++) {
		if (sigsetjmp(before_fault, 1)) {
			driver("cuCtxGetCurrent", (uintptr_t)&now, 0, 0);
			expect(now == mine);
			continue;
		}
		expect_is(gdr_copy_from_mapping(b.mh, &now, b.va, sizeof(now)), 0);
		if (i % 2)
			gdr_copy_to_mapping(b.mh, b.va, bad, 2 * MIB);
		else
			gdr_copy_from_mapping(b.mh, bad, b.va, 2 * MIB);
		expect(false);
	}
	check_sizes(&b);
	expect(!logged("copy engine"));
	if (on_doubles()) {
		count("cuMemcpyDtoHAsync_v2");
		check_copy(&b, 2 * MIB, 1, 1);
		expect_is(counted("cuMemcpyDtoHAsync_v2"), 1);
	}
	drop_buffer(g, &b);
	expect_is(gdr_close(g), 0);
}

/* Memory of cuMemAlloc at an address that the program has just freed; 0: none came back there. */
static uint64_t alloc_again(uint64_t at, size_t n)
{
	uint64_t p = 0, other[16];
	int held = 0;

	for (; held < 16; held++) {
		driver("cuMemAlloc_v2", (uintptr_t)&p, n, 0);
		if (p == at)
			break;
		other[held] = p;
	}
	for (int i = 0; i < held; i++)
		driver("cuMemFree_v2", other[i], 0, 0);
	return p == at ? p : 0;
}

/* No copy through an old handle reaches the memory that is at its address now. */
static void check_old(gdr_mh_t mh, unsigned char *va, uint64_t now, size_t n)
{
	unsigned char *host = malloc(n), *seen = malloc(n), *locked = lock_memory();

	expect(host && seen && n <= LOCKED);
	for (int i = 0; i < 30; i++) {
		unsigned char *p = i % 2 ? host : locked;

		driver("cuMemsetD8_v2", now, 0x11, n);
		driver("cuCtxSynchronize", 0, 0, 0);
		memset(p, 0xa0 + i, n);
		expect_is(gdr_copy_to_mapping(mh, va, p, n), 0);
		driver("cuMemcpyDtoH_v2", (uintptr_t)seen, now, n);
		for (size_t at = 0; at < n; at++)
			expect(seen[at] == 0x11);
		memset(p, 0, n);
		expect_is(gdr_copy_from_mapping(mh, p, va, n), 0);
		for (size_t at = 0; at < n; at++)
			expect(p[at] == (0xa0 + i) % 256);
	}
	free(host);
	free(seen);
	unlock_host(locked);
}

static void other_memory(void *when)
{
	bool before_map = !strcmp(when, "before the map");
	uint64_t p, again;
	gdr_mh_t mh;
	void *va;
	gdr_t g;

	catch_log();
	g = open_or_fail();
	use_gpu();
	driver("cuMemAlloc_v2", (uintptr_t)&p, 2 * MIB, 0);
	expect_is(gdr_pin_buffer(g, p, 2 * MIB, 0, 0, &mh), 0);
	if (!before_map)
		expect_is(gdr_map(g, mh, &va, 2 * MIB), 0);
	driver("cuMemFree_v2", p, 0, 0);
	again = alloc_again(p, 2 * MIB);
	if (!again)
		_exit(0);
	if (before_map)
		expect_is(gdr_map(g, mh, &va, 2 * MIB), 0);
	check_old(mh, va, again, 2 * MIB);
	expect(!logged("copy engine"));
	expect_is(gdr_unmap(g, mh, va, 2 * MIB), 0);
	expect_is(gdr_unpin_buffer(g, mh), 0);
}

static void same_address(void)
{
	want_dma("4096", "4096");
	expect(in_child("by DMA, freed before the map", other_memory, "before the map", 60));
	expect(in_child("by DMA, freed after the map", other_memory, "after the map", 60));
	want_dma("", "");
	setenv("GDRCOPY_COPY", "auto", 1);
	expect(in_child("by choice, freed before the map", other_memory, "before the map", 60));
	expect(in_child("by choice, freed after the map", other_memory, "after the map", 60));
}

/* A pin of whole GPU pages around a buffer that begins in the midst of one, as UCX's. */
static void window(void)
{
	uint64_t p[20];
	struct buffer b = { .size = 64 * KIB };
	gdr_t g;

	catch_log();
	want_dma("4096", "4096");
	g = open_or_fail();
	use_gpu();
	for (int i = 0; i < 20; i++)
		driver("cuMemAlloc_v2", (uintptr_t)&p[i], 20 * KIB, 0);
	/* Two neighbours in one page; before them is free space. */
	for (int i = 1; i < 20; i++) {
		if (p[i] % (64 * KIB) < 20 * KIB || p[i] % (64 * KIB) > 40 * KIB)
			continue;
		driver("cuMemFree_v2", p[i - 1], 0, 0);
		b.dptr = p[i] & ~(64 * KIB - 1);
		if (gdr_pin_buffer(g, b.dptr, b.size, 0, 0, &b.mh) == EINVAL)
			skip_case("this backend pins no range that begins in free space");
		expect_is(gdr_unpin_buffer(g, b.mh), 0);
		map_buffer(g, &b);
		expect(!logged("copy engine"));
		if (on_doubles())
			count("cuMemcpyDtoHAsync_v2");
		check_copy(&b, 16 * KIB, p[i] - b.dptr + 100, 1);
		if (on_doubles())
			expect_is(counted("cuMemcpyDtoHAsync_v2"), 1);
		return;
	}
	expect(false);
}

/* Memory of a GPU is copied by that GPU's engine. */
static void each_gpu(void)
{
	unsigned long dptr;
	struct buffer b;
	gdr_mem_t mem;
	gdr_t g;

	needs_doubles("a real driver counts no calls");
	catch_log();
	want_dma("4096", "4096");
	g = open_or_fail();
	for (int gpu = 0; gpu < 2; gpu++) {
		expect_is(gdr_mem_alloc(g, gpu, 2 * MIB, 0, &mem), 0);
		expect_is(gdr_mem_get_device_ptr(g, mem, &dptr, NULL), 0);
		b = (struct buffer){ .dptr = dptr, .size = 64 * KIB };
		map_buffer(g, &b);
		count("cuMemcpyDtoHAsync_v2");
		check_copy(&b, 16 * KIB, 100, 1);
		expect_is(counted("cuMemcpyDtoHAsync_v2"), 1);
	}
	expect(!logged("copy engine"));
}

/* Pins, maps and copies, by the engine too. */
static void *use_all(void *arg)
{
	static unsigned char slow[4096];
	struct buffer *b = arg;
	unsigned char *locked = b->va;
	gdr_t g = open_or_fail();

	map_buffer(g, b);
	for (int i = 0; i < 20; i++) {
		check_copy(b, LEAST_WRITE + i, 1, i);
		check_host(b, locked, LOCKED / 2, 300001, 1, i);
		expect_is(gdr_copy_from_mapping(b->mh, slow, b->va, sizeof(slow)), 0);
	}
	expect_is(gdr_unmap(g, b->mh, b->va, b->size), 0);
	expect_is(gdr_unpin_buffer(g, b->mh), 0);
	expect_is(gdr_close(g), 0);
	return NULL;
}

/* A capture of a CUDA graph is open meanwhile, of this thread or of another. */
static void beside_a_capture(void *whose)
{
	void *stream, *graph = NULL;
	struct buffer b;
	pthread_t t;
	gdr_t g;

	catch_log();
	g = open_or_fail();
	alloc_buffer(g, &b, BYTES);
	b.va = lock_memory();
	use_gpu();
	driver("cuStreamCreate", (uintptr_t)&stream, 1, 0);
	driver("cuStreamBeginCapture_v2", (uintptr_t)stream, 0, 0);
	if (!strcmp(whose, "this")) {
		use_all(&b);
	} else {
		start_thread(&t, 0, use_all, &b);
		expect_is(pthread_join(t, NULL), 0);
	}
	driver("cuStreamEndCapture", (uintptr_t)stream, (uintptr_t)&graph, 0);
	expect(graph && !logged("copy engine"));
}

static void captures(void)
{
	want_dma("4096", "4096");
	expect(in_child("by DMA, this thread's", beside_a_capture, "this", 60));
	expect(in_child("by DMA, another thread's", beside_a_capture, "another", 60));
	want_dma("", "");
	setenv("GDRCOPY_COPY", "auto", 1);
	expect(in_child("by choice, this thread's", beside_a_capture, "this", 60));
	expect(in_child("by choice, another thread's", beside_a_capture, "another", 60));
}

struct copier {
	struct buffer part;
	uint64_t seed;
	unsigned char *locked;	/* or NULL */
};

static void *copy_part(void *arg)
{
	struct copier *c = arg;

	for (long i = 0; i < scaled(30); i++) {
		check_copy(&c->part, LEAST_WRITE + next_random(&c->seed) % 100000,
			   1 + next_random(&c->seed) % 99, c->seed);
		check_host(&c->part, c->locked, LOCKED / COPIERS / 2,
			   LEAST_WRITE + next_random(&c->seed) % 100000, 1 + i, c->seed);
	}
	return NULL;
}

static void at_the_same_time(void)
{
	struct copier c[COPIERS];
	pthread_t t[COPIERS];
	unsigned char *locked;
	struct buffer b;

	open_with_dma(&b);
	locked = lock_memory();
	for (int i = 0; i < COPIERS; i++) {
		c[i] = (struct copier){ .part = b, .seed = i };
		c[i].locked = locked + i * (LOCKED / COPIERS);
		c[i].part.va += i * (BYTES / COPIERS);
		c[i].part.size = BYTES / COPIERS;
		start_thread(&t[i], 0, copy_part, &c[i]);
	}
	join_threads(t, COPIERS);
}

const struct guest_case cases[] = {
	{ "no DMA unless asked", none_unless_asked, 30, 0 },
	{ "bytes by DMA", bytes_are_right, 60, 0 },
	{ "so are those of more than 16 MiB", longest, 60, 0 },
	{ "from which size on", least_sizes, 30, 0 },
	{ "what the driver refuses, the CPU does", refusals, 120, 0 },
	{ "another buffer in the same slot", another_buffer, 60, 0 },
	{ "one stream for a GPU", one_stream, 30, 0 },
	{ "each GPU's engine", each_gpu, 30, 0 },
	{ "a part of the memory", part_of_memory, 60, 0 },
	{ "the thread's context stays", context_stays, 30, 0 },
	{ "page-locked host memory", page_locked, 60, 0 },
	{ "host memory that is page-locked in part", locked_in_part, 60, 0 },
	{ "a reset of the GPU", reset_by_the_host, 60, 0 },
	{ "an engine that fails is tried rarely", fails_for_ever, 60, 0 },
	{ "a range of a cache", range_of_a_cache, 60, 0 },
	{ "a copy that a handler leaves", left_by_siglongjmp, 60, 0 },
	{ "memory that was freed, and its address used again", same_address, 120, 0 },
	{ "a pin that begins in free space", window, 60, 0 },
	{ "captures of CUDA graphs", captures, 120, 0 },
	{ "threads at the same time", at_the_same_time, 60, 300 },
	{ 0 }
};
