// SPDX-License-Identifier: MIT
/*
 * ext/dma.c - GDRCOPY_DMA_READ and GDRCOPY_DMA_WRITE.
 *
 * Whether the copy engine made a copy does not show in its bytes. So some cases
 * have the simulated driver refuse one of the calls that it takes, and look for
 * the line that the library writes then: the CPU must have made the copy.
 */
#include "ext/libcuda.h"

#include <sched.h>

#define BYTES (1 * MIB)
#define LEAST_READ 16384
#define LEAST_WRITE 65536
#define COPIERS 4

static int log_fd = -1;

/* From here on standard error goes to a file that logged() reads. */
static void catch_log(void)
{
	log_fd = memfd_create("log", 0);
	expect(log_fd >= 0 && dup2(log_fd, STDERR_FILENO) >= 0);
	setenv("GDRCOPY_ENABLE_LOGGING", "1", 1);
	setenv("GDRCOPY_LOG_LEVEL", "3", 1);
}

static bool logged(const char *what)
{
	char text[8192];
	ssize_t n = pread(log_fd, text, sizeof(text) - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	return strstr(text, what);
}

/* Has each call of name fail from now on; 0 ends that. */
static void refuse(const char *name, int result)
{
	void (*fail)(const char *, int, int);

	*(void **)&fail = of_driver("cuda_sim_fail");
	expect(fail != NULL);
	fail(name, result, 0);
}

static void want_dma(const char *reads, const char *writes)
{
	expect_is(setenv("GDRCOPY_DMA_READ", reads, 1), 0);
	expect_is(setenv("GDRCOPY_DMA_WRITE", writes, 1), 0);
}

/* Writes n bytes and reads them back, twice: by one call, and by small ones, which
 * no engine makes. All else must stay.
 */
static void check_copy(struct buffer *b, size_t n, size_t at, uint64_t seed)
{
	unsigned char *out = malloc(n), *in = malloc(n + 2), *slow = malloc(n + 2);

	expect(out && in && slow && at > 0 && at + n < b->size);
	fill_random(out, n, seed);
	memset(in, 0x5a, n + 2);
	for (size_t i = 0; i < n + 2; i += 1024)
		expect_is(gdr_copy_to_mapping(b->mh, b->va + at - 1 + i, in + i,
					      n + 2 - i < 1024 ? n + 2 - i : 1024), 0);
	expect_is(gdr_copy_to_mapping(b->mh, b->va + at, out, n), 0);
	expect_is(gdr_copy_from_mapping(b->mh, in + 1, b->va + at, n), 0);
	expect(!memcmp(in + 1, out, n) && in[0] == 0x5a && in[n + 1] == 0x5a);
	for (size_t i = 0; i < n + 2; i += 1024)
		expect_is(gdr_copy_from_mapping(b->mh, slow + i, b->va + at - 1 + i,
						n + 2 - i < 1024 ? n + 2 - i : 1024), 0);
	expect(!memcmp(slow, in, n + 2));
	free(out);
	free(in);
	free(slow);
}

static void check_sizes(struct buffer *b)
{
	static const size_t sizes[] = { 8, 4096, LEAST_READ - 1, LEAST_READ, LEAST_WRITE - 1,
					LEAST_WRITE, 300001 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (size_t at = 1; at < 130; at += 64)
			check_copy(b, sizes[i], at, i + at);
}

static gdr_t open_with_dma(struct buffer *b)
{
	gdr_t g;

	want_dma("16384", "65536");
	g = open_or_fail();
	make_buffer(g, b, BYTES);
	return g;
}

/*
 * Nothing that is refused from now on is the backend's: rm has a copy made, too,
 * when it pins memory for the first time.
 */
static void pin_once(gdr_t g, const struct buffer *b)
{
	gdr_mh_t mh;

	expect_is(gdr_pin_buffer(g, b->dptr, b->size, 0, 0, &mh), 0);
	expect_is(gdr_unpin_buffer(g, mh), 0);
}

static void none_unless_asked(void)
{
	struct buffer b;
	gdr_t g;

	if (!on_doubles())
		skip_case("a real driver cannot be told to refuse a call");
	unsetenv("GDRCOPY_DMA_READ");
	unsetenv("GDRCOPY_DMA_WRITE");
	catch_log();
	g = open_or_fail();
	alloc_buffer(g, &b, BYTES);
	pin_once(g, &b);
	refuse("cuStreamCreate", 999);
	refuse("cuMemcpyDtoHAsync_v2", 999);
	refuse("cuMemcpyHtoDAsync_v2", 999);
	map_buffer(g, &b);
	check_sizes(&b);
	expect(!logged("DMA"));
}

static void bytes_are_right(void)
{
	struct buffer b;

	catch_log();
	open_with_dma(&b);
	check_sizes(&b);
	expect(!logged("DMA"));
}

static void least_sizes(void)
{
	static unsigned char host[LEAST_WRITE];
	struct buffer b;

	if (!on_doubles())
		skip_case("a real driver cannot be told to refuse a call");
	catch_log();
	open_with_dma(&b);
	refuse("cuMemcpyDtoHAsync_v2", 999);
	refuse("cuMemcpyHtoDAsync_v2", 999);
	/* A thread's first copy is the CPU's in any case. */
	expect_is(gdr_copy_to_mapping(b.mh, b.va, host, 8), 0);
	expect_is(gdr_copy_to_mapping(b.mh, b.va, host, LEAST_WRITE - 1), 0);
	expect_is(gdr_copy_from_mapping(b.mh, host, b.va, LEAST_READ - 1), 0);
	expect(!logged("DMA"));
	expect_is(gdr_copy_from_mapping(b.mh, host, b.va, LEAST_READ), 0);
	expect(logged("DMA"));
}

static void one_refusal(const char *name, bool when_mapped, const char *line)
{
	struct buffer b;
	gdr_t g;

	catch_log();
	want_dma("16384", "65536");
	g = open_or_fail();
	alloc_buffer(g, &b, BYTES);
	pin_once(g, &b);
	if (!when_mapped)
		refuse(name, 999);
	map_buffer(g, &b);
	refuse(name, 999);
	check_sizes(&b);
	expect(logged(line));
	refuse(name, 0);
	check_sizes(&b);
}

/* A failed gdr_map keeps no context. */
static void keeps_nothing(void *unused)
{
	int (*state)(int device, unsigned int *flags, int *active);
	unsigned int flags;
	struct buffer b;
	int active;
	gdr_t g;

	(void)unused;
	want_dma("16384", "65536");
	g = open_or_fail();
	alloc_buffer(g, &b, BYTES);
	pin_once(g, &b);
	refuse("cuStreamCreate", 999);
	map_buffer(g, &b);
	*(void **)&state = of_driver("cuDevicePrimaryCtxGetState");
	expect_is(state(0, &flags, &active), 0);
	expect_is(active, 0);
}

struct refusal {
	const char *name;
	bool when_mapped;
	const char *line;
};

static void refuse_one(void *arg)
{
	const struct refusal *r = arg;

	one_refusal(r->name, r->when_mapped, r->line);
}

static void refusals(void)
{
	static struct refusal list[] = {
		{ "cuStreamCreate", false, "no copies by DMA" },
		{ "cuMemcpyDtoHAsync_v2", true, "a copy by DMA failed" },
		{ "cuMemcpyHtoDAsync_v2", true, "a copy by DMA failed" },
		{ "cuStreamSynchronize", true, "a copy by DMA failed" },
		{ "cuCtxPushCurrent_v2", true, "a copy by DMA failed" },
	};

	if (!on_doubles())
		skip_case("a real driver cannot be told to refuse a call");
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		expect(in_child(list[i].name, refuse_one, &list[i], 60));
	expect(in_child("a failed gdr_map", keeps_nothing, NULL, 60));
}

static void bad_environment(void)
{
	static const char *const bad[] = { "0", "-1", "64K", " 2", "x", "99999999999999999999999" };

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		want_dma(i % 2 ? bad[i] : "1", i % 2 ? "1" : bad[i]);
		errno = 0;
		expect(gdr_open() == NULL);
		expect_is(errno, EINVAL);
	}
	want_dma("", "1");
	open_or_fail();
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

enum { BLOCKING, NON_BLOCKING };

static unsigned int streams(unsigned int flags)
{
	unsigned int (*count)(unsigned int);

	*(void **)&count = of_driver("cuda_sim_streams");
	expect(count != NULL);
	return count(flags);
}

/* Whatever is mapped, and unmapped, a GPU has one stream. The host's default stream
 * must not wait for it.
 */
static void one_stream(void)
{
	struct buffer b[4];
	gdr_t g;

	if (!on_doubles())
		skip_case("a real driver does not count streams");
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

/* With a word of page-locked memory, the library needs no cuStreamSynchronize. */
static void waits_by_words(void)
{
	unsigned char *host;
	struct buffer b;

	if (!on_doubles())
		skip_case("a real driver cannot be told to refuse a call");
	catch_log();
	open_with_dma(&b);
	host = lock_memory();
	check_host_sizes(&b, host);
	refuse("cuStreamSynchronize", 999);
	check_host_sizes(&b, host);
	expect(!logged("DMA"));
	unlock_host(host);
	check_host_sizes(&b, host);
	expect(logged("a copy by DMA failed"));
}

/* Where the word does not come, or cannot be written, the driver is asked. */
static void without_words(void)
{
	unsigned char *host;
	struct buffer b;

	catch_log();
	setenv("CUDA_SIM_LAZY_WRITES", "1", 1);
	open_with_dma(&b);
	host = lock_memory();
	check_host_sizes(&b, host);
	if (on_doubles())
		refuse("cuStreamWriteValue32_v2", 801);
	check_host_sizes(&b, host);
	expect(!logged("DMA"));
}

static void words_refused(void *arg)
{
	struct buffer b;
	gdr_t g;

	catch_log();
	want_dma("16384", "65536");
	g = open_or_fail();
	alloc_buffer(g, &b, BYTES);
	pin_once(g, &b);
	refuse(arg, 999);
	map_buffer(g, &b);
	refuse(arg, 0);
	check_host_sizes(&b, lock_memory());
	expect(!logged("DMA"));
	refuse("cuStreamSynchronize", 999);
	check_sizes(&b);
	expect(logged("a copy by DMA failed"));
}

static void refusals_of_words(void)
{
	static const char *const list[] = {
		"cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2", "cuStreamWriteValue32_v2",
		"cuThreadExchangeStreamCaptureMode",
	};

	if (!on_doubles())
		skip_case("a real driver cannot be told to refuse a call");
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		expect(in_child(list[i], words_refused, (void *)list[i], 60));
}

/* The driver refuses a host buffer of which a part is page-locked. */
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
	expect(!on_doubles() || logged("a copy by DMA failed"));
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

	if (!on_doubles())
		skip_case("what is left of a mapping is the backend's matter");
	catch_log();
	g = open_with_dma(&b);
	host = lock_memory();
	check_host_sizes(&b, host);
	*(void **)&reset = of_driver("cuDevicePrimaryCtxReset_v2");
	expect(reset != NULL);
	expect_is(reset(0), 0);
	check_host_sizes(&b, host);
	expect(logged("a copy by DMA failed"));
	*(void **)&retain = of_driver("cuDevicePrimaryCtxRetain");
	expect_is(retain(&ctx, 0), 0);
	check_host_sizes(&b, host);
	expect_is(streams(NON_BLOCKING), 0);
	make_buffer(g, &next, BYTES);
	expect_is(streams(NON_BLOCKING), 1);
	check_sizes(&next);
	check_host_sizes(&b, host);
}

/* Reads into pageable memory: the engine fills chunks, which are copied out. */
#define RING_BYTES (3 * MIB)

static gdr_t open_with_ring(struct buffer *b, const char *threads)
{
	gdr_t g;

	want_dma("16384", "65536");
	setenv("GDRCOPY_READ_THREADS", threads, 1);
	g = open_or_fail();
	make_buffer(g, b, RING_BYTES);
	return g;
}

static void check_ring_sizes(struct buffer *b)
{
	static const size_t sizes[] = {
		LEAST_READ, 256 * KIB, 256 * KIB + 1, 1000003, 2 * MIB, RING_BYTES - 200,
	};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (size_t at = 1; at < 130; at += 64)
			check_copy(b, sizes[i], at, i + at);
}

/* Only the ring waits without cuStreamSynchronize for pageable memory. */
static void read_by_ring(const struct buffer *b, size_t n, bool wanted)
{
	unsigned char *in = malloc(n), *slow = malloc(n);

	expect(in && slow);
	refuse("cuStreamSynchronize", 999);
	expect_is(gdr_copy_from_mapping(b->mh, in, b->va + 5, n), 0);
	expect(logged("a copy by DMA failed") == !wanted);
	refuse("cuStreamSynchronize", 0);
	for (size_t i = 0; i < n; i += 1024)
		expect_is(gdr_copy_from_mapping(b->mh, slow + i, b->va + 5 + i, 1024), 0);
	expect(!memcmp(in, slow, n));
	free(in);
	free(slow);
}

static bool has_cpus(void)
{
	cpu_set_t set;

	expect_is(sched_getaffinity(0, sizeof(set), &set), 0);
	return CPU_COUNT(&set) > 1;
}

/* One thread alone uses the ring up to 1 MiB. */
static void with_a_ring(void *threads)
{
	bool shares = strcmp(threads, "1") && has_cpus();
	struct buffer b;

	catch_log();
	open_with_ring(&b, threads);
	check_ring_sizes(&b);
	expect(!logged("DMA"));
	if (!on_doubles())
		return;
	read_by_ring(&b, MIB, true);
	read_by_ring(&b, 2 * MIB, shares);
}

static void rings(void)
{
	expect(in_child("no threads", with_a_ring, "1", 60));
	expect(in_child("4 threads", with_a_ring, "4", 60));
	if (!on_doubles())
		skip_case("the bytes are right; a real driver cannot be told to refuse a call");
}

static void without_a_ring(void *refused)
{
	struct buffer b;
	gdr_t g;

	catch_log();
	want_dma("16384", "65536");
	g = open_or_fail();
	alloc_buffer(g, &b, RING_BYTES);
	pin_once(g, &b);
	refuse(refused, 999);
	map_buffer(g, &b);
	refuse(refused, 0);
	check_ring_sizes(&b);
	expect(!logged("DMA"));
	read_by_ring(&b, 2 * MIB, false);
}

/* The driver fails in the midst of a read. Later reads do without the ring. */
static void ring_fails(void)
{
	void (*fail)(const char *, int, int);
	struct buffer b;

	catch_log();
	open_with_ring(&b, "4");
	*(void **)&fail = of_driver("cuda_sim_fail");
	expect(fail != NULL);
	/* After two sizes of one chunk, at three places each: the second chunk of the next. */
	fail("cuMemcpyDtoHAsync_v2", 999, 8);
	check_ring_sizes(&b);
	expect(logged("a copy by DMA failed"));
}

static void ring_or_not(void)
{
	if (!on_doubles())
		skip_case("a real driver cannot be told to refuse a call");
	expect(in_child("no page-locked memory", without_a_ring, "cuMemHostRegister_v2", 60));
	ring_fails();
}

static void ring_without_words(void)
{
	struct buffer b;

	setenv("CUDA_SIM_LAZY_WRITES", "1", 1);
	open_with_ring(&b, "4");
	check_ring_sizes(&b);
}

static void *read_ring(void *arg)
{
	struct buffer *part = arg;

	for (long i = 0; i < scaled(10); i++)
		check_copy(part, 600 * KIB + i * 999, 1 + i, i + part->size);
	return NULL;
}

static void rings_at_the_same_time(void)
{
	struct buffer b, parts[3];
	pthread_t t[3];

	open_with_ring(&b, "4");
	for (int i = 0; i < 3; i++) {
		parts[i] = b;
		parts[i].va += i * (RING_BYTES / 3);
		parts[i].size = RING_BYTES / 3;
		start_thread(&t[i], 0, read_ring, &parts[i]);
	}
	for (int i = 0; i < 3; i++)
		expect_is(pthread_join(t[i], NULL), 0);
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

	setenv("GDRCOPY_READ_THREADS", "4", 1);
	open_with_dma(&b);
	locked = lock_memory();
	for (int i = 0; i < COPIERS; i++) {
		c[i] = (struct copier){ .part = b, .seed = i };
		c[i].locked = locked + i * (LOCKED / COPIERS);
		c[i].part.va += i * (BYTES / COPIERS);
		c[i].part.size = BYTES / COPIERS;
		start_thread(&t[i], 0, copy_part, &c[i]);
	}
	for (int i = 0; i < COPIERS; i++)
		expect_is(pthread_join(t[i], NULL), 0);
}

static const struct guest_case cases[] = {
	{ "no DMA unless asked", none_unless_asked, 30, 0 },
	{ "bytes by DMA", bytes_are_right, 60, 0 },
	{ "from which size on", least_sizes, 30, 0 },
	{ "what the driver refuses, the CPU does", refusals, 120, 0 },
	{ "a bad number in the environment", bad_environment, 30, 0 },
	{ "another buffer in the same slot", another_buffer, 60, 0 },
	{ "one stream for a GPU", one_stream, 30, 0 },
	{ "a part of the memory", part_of_memory, 60, 0 },
	{ "the thread's context stays", context_stays, 30, 0 },
	{ "page-locked host memory", waits_by_words, 60, 0 },
	{ "page-locked host memory, without words", without_words, 60, 0 },
	{ "no words", refusals_of_words, 120, 0 },
	{ "host memory that is page-locked in part", locked_in_part, 60, 0 },
	{ "a reset of the GPU", reset_by_the_host, 60, 0 },
	{ "a ring of chunks", rings, 120, 0 },
	{ "no ring", ring_or_not, 120, 0 },
	{ "a ring without words", ring_without_words, 60, 0 },
	{ "rings at the same time", rings_at_the_same_time, 60, 300 },
	{ "threads at the same time", at_the_same_time, 60, 300 },
	{ NULL, NULL, 0, 0 }
};

int main(int argc, char **argv)
{
	return guest_main(argc, argv, cases);
}
