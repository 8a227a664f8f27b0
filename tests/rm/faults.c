// SPDX-License-Identifier: MIT
/*
 * faults.c - each call that a buffer's life makes of the drivers fails, each of its times.
 *
 * Whoever called gets ENOMEM, as the driver says. Nothing is left behind, and the library works
 * on. Each failure has a process of its own: what the library has learned of a driver it
 * knows until the process ends.
 *
 * And a driver differs from those that are known. Memory is refused, or its bytes are right. And other
 * memory of the same GPU page goes, or comes, between two calls.
 *
 * rm asks CUDA for memory that it has not heard of. Here that is all memory, if the driver's version is
 * not known. Cases of heard memory say so.
 */
#include "guest/cuda.h"

#define PIECE (2 * MIB)
#define PIECES 3
#define SIZE (PIECES * PIECE)
#define NOT_SUPPORTED 801
#define OUT_OF_MEMORY 2

static struct cuda_dl cu;
static gdr_t g;

/* Of the simulated drivers. */
static void (*fail_cuda)(const char *name, int result, int nth);
static void (*fail_rm)(const char *name, int result, int nth);
static unsigned int (*called)(char *names, size_t size);
static unsigned long (*calls)(const char *name);
static unsigned long (*live)(void);
static void (*differ)(uint32_t ipc_offset, uint32_t ipc_client, uint32_t export_offset);

/* What a child tells. */
static struct outcome {
	char names[2048];	/* of CUDA's functions that were called */
	int rc;
	bool is_over;		/* the call is not made so often */
	unsigned long left;	/* in the drivers, at the end */
} *outcome;

enum { ALLOC = -1 };

struct kind {
	int fd_type;		/* of cuMemCreate, or ALLOC: memory of cuMemAlloc */
	bool is_blind;		/* nothing is exported as a dma-buf: for rm alone */
	int times;		/* the most that a call is made */
	bool is_heard;		/* for rm alone: the driver's version is known */
};

/* The requests to the kernel, and what makes them ENOMEM. */
static const struct request {
	const char *name;
	int result;
} requests[] = {
	{ "OPEN", ENOMEM }, { "MMAP", ENOMEM }, { "CARD_INFO", ENOMEM }, { "REGISTER_FD", ENOMEM },
	{ "ALLOC", 0x51 }, { "CONTROL", 0x51 }, { "DUP_OBJECT", 0x51 }, { "MAP_MEMORY", 0x1a }, { "UNMAP_MEMORY", 0x51 }, { "FREE", 0x51 },
};

/* The answer is ENOMEM, and nothing is left, but for these. */
static const struct exception {
	const char *name;
	int rc;
	unsigned long left;
} exceptions[] = {
	{ "cuMemRetainAllocationHandle", ENOTSUP, 0 },	/* the memory has no handle */
	{ "cuIpcGetMemHandle", ENOTSUP, 1 },	/* the library tries the driver on memory of its own */
	{ "cuPointerGetAttribute", ENOTSUP, 1 },	/* whose handle that was is not known */
	{ "cuMemGetAddressRange_v2", EINVAL, 0 },	/* dmabuf exports all of the range then, and CUDA does not */
	{ "cuMemRelease", 0, 1 },
	{ "OPEN", EIO, 0 },	/* CUDA's own, which CUDA then calls 304 */
};

/* Whoever called must learn of a failure of these, if CUDA is asked, and of requests. */
static const char *const told[] = {
	"cuPointerGetAttributes", "cuDeviceGet", "cuDeviceGetAttribute", "cuDeviceGetPCIBusId", "cuCtxPushCurrent_v2",
	"cuMemGetHandleForAddressRange", "cuMemGetAddressRange_v2", "cuMemExportToShareableHandle",
};

/* One failure. name NULL: none. */
struct attempt {
	const struct kind *kind;
	const char *name;
	int result, nth;
	bool of_rm;
};

static void find_doubles(void)
{
	fail_cuda = need_symbol("cuda_sim_fail");
	fail_rm = need_symbol("rm_sim_fail");
	called = need_symbol("cuda_sim_called");
	calls = need_symbol("cuda_sim_calls");
	live = need_symbol("cuda_sim_live");
	differ = need_symbol("cuda_sim_differ");
}

static cu_ptr memory(const struct kind *kind)
{
	cu_ptr p;

	if (kind->fd_type != ALLOC)
		return make_objects(&cu, (size_t[PIECES]){ PIECE, PIECE, PIECE }, PIECES, kind->fd_type);
	expect_is(cu.mem_alloc(&p, SIZE), 0);
	return p;
}

/* The buffer as another process would have it. */
static int share(gdr_mh_t mh)
{
	uint64_t offset, length;
	unsigned int count;
	gdr_mh_t other;
	int fd, rc, rc2;
	void *va;

	rc = gdr_export_fd(g, mh, 0, &fd);
	if (rc)
		return rc;
	rc = gdr_pin_fd(g, fd, 0, &other);
	close(fd);
	if (rc)
		return rc;
	rc = gdr_get_object(g, other, &offset, &length, &count);
	if (!rc)
		rc = gdr_map(g, other, &va, SIZE);
	rc2 = gdr_unpin_buffer(g, other);
	return rc ? rc : rc2;
}

static int life(cu_ptr p)
{
	unsigned long pinned;
	gdr_mh_t mh;
	void *va;
	int rc, rc2;

	rc = gdr_pin_bytes(g, p, SIZE, 0, &mh);	/* so it sets SYNC_MEMOPS, too */
	if (rc)
		return rc;
	if (backend_is("rm"))
		rc = share(mh);
	pinned = live();
	if (!rc)
		rc = gdr_map(g, mh, &va, SIZE);
	if (rc)
		expect_is(live(), pinned);
	if (!rc) {
		for (long at = 0; at < PIECES; at++)
			((volatile long *)va)[at * PIECE / sizeof(long)] = at;
		rc = gdr_unmap(g, mh, va, SIZE);
	}
	rc2 = gdr_unpin_buffer(g, mh);
	return rc ? rc : rc2;
}

static cu_ptr open_with_memory(const struct kind *kind)
{
	cu_ptr p;

	start_current(&cu);
	find_doubles();
	if (backend_is("rm") && !kind->is_heard)
		fail_rm("VERSION", EINVAL, 0);
	g = open_or_fail();
	if (backend_is("rm"))
		fail_rm("VERSION", 0, 0);
	p = memory(kind);
	if (kind->is_blind)
		fail_cuda("cuMemGetHandleForAddressRange", NOT_SUPPORTED, 0);
	return p;
}

static void attempt(void *arg)
{
	const struct attempt *a = arg;
	cu_ptr p = open_with_memory(a->kind);
	unsigned long held, before;
	long fds;

	fds = count_fds();
	before = live();
	called(outcome->names, sizeof(outcome->names));
	if (a->name)
		(a->of_rm ? fail_rm : fail_cuda)(a->name, a->result, a->nth);
	outcome->rc = life(p);
	outcome->is_over = a->name && !a->of_rm && calls(a->name) < (unsigned long)a->nth;
	called(outcome->names, sizeof(outcome->names));
	if (a->name)
		(a->of_rm ? fail_rm : fail_cuda)(a->name, 0, 0);
	held = live();
	expect_is(life(p), 0);
	expect_is(gdr_close(g), 0);
	/* What has gone with the close was lost before. What the library tried the driver on stays. */
	outcome->left = live() - before;
	if (strcmp(a->name ? a->name : "", "FREE"))
		expect(held <= live());
	expect(count_fds() - fds <= (long)outcome->left);
}

/*
 * Whether the answer is one that it may be, and no more is left than without a failure. If what is heard could
 * not be tried, two memories of the library's own are left: for that try, and for one of the old ways. If
 * IPC handles, the last way, could not be tried, the answer is ENOTSUP.
 */
static bool is_good(const struct attempt *a, unsigned long left)
{
	const struct exception *e = exceptions, *end = e + sizeof(exceptions) / sizeof(*e);

	while (e < end && strcmp(e->name, a->name))
		e++;
	if (a->kind->is_blind && a->kind->fd_type == ALLOC &&
	    (outcome->rc == ENOTSUP || (outcome->rc == EINVAL && !strcmp(a->name, "cuPointerGetAttribute"))))
		return outcome->left <= left + 1;	/* EINVAL: whose handle that is was not answered */
	if (outcome->rc && outcome->rc != ENOMEM && (e == end || outcome->rc != e->rc))
		return false;
	return outcome->left <= left + (a->kind->is_heard ? 2 : 0) + (e == end ? 0 : e->left);
}

/* Makes a call fail each of its times. Returns how often whoever called learned of it. */
static int each_time(struct attempt a, unsigned long left)
{
	int n = 0;

	for (a.nth = 1; a.nth <= a.kind->times; a.nth++) {
		bool ended = in_child(a.name, attempt, &a, 20);

		if (ended && outcome->is_over)
			break;
		if (!ended || !is_good(&a, left)) {
			note("call %d of %s fails: the answer is %s, and %lu more are left", a.nth, a.name,
			     strerror(outcome->rc), outcome->left - left);
			_exit(1);
		}
		n += outcome->rc != 0;
	}
	return n;
}

static bool must_be_told(const char *name)
{
	for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++)
		if (!strcmp(name, told[i]))
			return true;
	return false;
}

static void each_function(const struct kind *kind, char *names, unsigned long left)
{
	char *name, *save = NULL;

	for (name = strtok_r(names, " ", &save); name; name = strtok_r(NULL, " ", &save)) {
		struct attempt a = { kind, name, OUT_OF_MEMORY };

		if (kind->is_blind && !strcmp(name, "cuMemGetHandleForAddressRange"))
			continue;
		if (!each_time(a, left) && !kind->is_heard && must_be_told(name)) {
			note("nobody learns that %s fails", name);
			_exit(1);
		}
	}
}

static void each_request(const struct kind *kind, unsigned long left)
{
	for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		struct attempt a = { kind, requests[i].name, requests[i].result, .of_rm = true };
		bool is_made = strcmp(a.name, "DUP_OBJECT") || !kind->is_blind || kind->fd_type == ALLOC;

		if (!each_time(a, left) && is_made) {
			note("nobody learns that %s fails", a.name);
			_exit(1);
		}
	}
}

static void each_call(void *kind)
{
	struct attempt none = { .kind = kind };
	char names[sizeof(outcome->names)];

	needs_doubles("a real driver cannot be told to refuse a call");
	if (none.kind->is_blind && !backend_is("rm"))
		skip_case("dmabuf needs dma-bufs");
	if (none.kind->is_heard && !backend_is("rm"))
		skip_case("dmabuf asks CUDA");
	outcome = mmap(NULL, sizeof(*outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	expect(outcome != MAP_FAILED);
	expect(in_child("no failure", attempt, &none, 20));
	expect_is(outcome->rc, 0);
	strcpy(names, outcome->names);
	each_function(kind, names, outcome->left);
	if (backend_is("rm"))
		each_request(kind, outcome->left);
}

/* A driver that differs, or that has no memory left to try it on. */
static const struct differing {
	const char *what;
	struct kind kind;
	bool is_full;
	uint32_t ipc_offset;
	int want;
} differing[] = {
	{ "IPC handles", { ALLOC }, false, 4096, 0 },
	{ "IPC handles, and no dma-bufs", { ALLOC, true }, false, 4096, ENOTSUP },
	{ "nothing, and no memory", { ALLOC }, true, 0, 0 },
	{ "nothing, and no memory, of cuMemCreate", { CU_EXPORT_NONE }, true, 0, 0 },
	{ "nothing, no memory, no dma-bufs", { ALLOC, true }, true, 0, ENOTSUP },
	{ "nothing, no memory, no dma-bufs, of cuMemCreate", { CU_EXPORT_FD, true }, true, 0, 0 },
	{ "IPC handles, and no memory", { ALLOC }, true, 4096, 0 },
	{ "IPC handles, no memory, no dma-bufs", { ALLOC, true }, true, 4096, ENOTSUP },
};

static void fill(cu_ptr p, uint64_t seed)
{
	static uint32_t words[SIZE / 4];

	for (size_t i = 0; i < SIZE / 4; i++)
		words[i] = next_random(&seed);
	expect_is(cu.to_gpu(p, words, SIZE), 0);
	expect_is(cu.ctx_sync(), 0);
}

/* Whether all that CUDA wrote is there. */
static void expect_filled(const void *va, uint64_t seed)
{
	for (size_t i = 0; i < SIZE / 4; i++)
		expect_is(((const volatile uint32_t *)va)[i], next_random(&seed));
}

static void differs(void *arg)
{
	const struct differing *d = arg;
	gdr_mh_t mh;
	void *va;
	cu_ptr p;

	catch_log();
	p = open_with_memory(&d->kind);
	fill(p, 1);
	if (d->is_full) {
		fail_cuda("cuMemAlloc", OUT_OF_MEMORY, 0);
		fail_cuda("cuMemCreate", OUT_OF_MEMORY, 0);
	}
	differ(d->ipc_offset, 0, 0);
	for (int i = 0; i < 3; i++) {
		expect_is(gdr_pin_buffer(g, p, SIZE, 0, 0, &mh), d->want);
		if (d->want)
			continue;
		expect_is(gdr_map(g, mh, &va, SIZE), 0);
		expect_filled(va, 1);
		expect_is(gdr_unpin_buffer(g, mh), 0);
	}
	expect(d->ipc_offset || !logged("this NVIDIA driver differs"));
	expect_is(gdr_close(g), 0);
}

static void each_difference(void)
{
	needs_doubles("a real driver does not differ");
	if (!backend_is("rm"))
		skip_case("CUDA's dma-bufs are documented");
	for (size_t i = 0; i < sizeof(differing) / sizeof(differing[0]); i++)
		expect(in_child(differing[i].what, differs, (void *)&differing[i], 20));
}

#define SMALL 512

/* What happens to the first memory of a GPU page of small memory. */
enum event {
	IT_GOES,
	IT_COMES,
	IT_IS_REPLACED,	/* by memory that begins before the page */
	EVENTS
};

static const struct beside {
	bool of_pool, is_blind;
} plain, blind = { .is_blind = true }, of_pool = { .of_pool = true };

static const struct beside *kind_of_page;
static int (*from_pool)(cu_ptr *p, size_t size, cu_stream s), (*to_pool)(cu_ptr p, cu_stream s);
static unsigned long (*between)(void (*fn)(void), unsigned long nth);
static enum event event;
static cu_ptr neighbour, successor;

static cu_ptr small(size_t size)
{
	cu_ptr p;

	expect_is(kind_of_page->of_pool ? from_pool(&p, size, NULL) : cu.mem_alloc(&p, size), 0);
	return p;
}

static void give(cu_ptr p)
{
	expect_is(kind_of_page->of_pool ? to_pool(p, NULL) : cu.mem_free(p), 0);
}

static void happen(void)
{
	cu_ptr was = neighbour;

	if (event == IT_COMES) {
		expect_is(small(SMALL), was);
		return;
	}
	give(neighbour);
	if (event != IT_IS_REPLACED)
		return;
	successor = small(2 * SMALL);
	expect_is(successor, was - SMALL);
}

/* Whether the neighbour is there at the end. */
static bool is_left(bool has_happened)
{
	return has_happened == (event == IT_COMES);
}

/* Pins a page, and something happens before the nth call; 0: nothing. Whether so many calls are made. */
static bool pin_beside(unsigned long nth)
{
	cu_ptr filler = small(GPU_PAGE_SIZE - SMALL), gap = small(SMALL), mine, rest;
	bool has_happened;
	gdr_mh_t mh;
	void *va;

	neighbour = small(SMALL);
	expect_is(neighbour & (GPU_PAGE_SIZE - 1), 0);
	mine = small(SMALL);
	rest = small(GPU_PAGE_SIZE - 2 * SMALL);
	if (event == IT_COMES)
		give(neighbour);
	else
		give(gap);
	expect_is(cu.set8(mine, 0x5a, SMALL), 0);
	expect_is(cu.ctx_sync(), 0);
	between(happen, nth);
	expect_is(gdr_pin_buffer(g, neighbour, GPU_PAGE_SIZE, 0, 0, &mh), 0);
	has_happened = !between(NULL, 0) && nth;
	expect_is(gdr_map(g, mh, &va, GPU_PAGE_SIZE), 0);
	for (int i = 0; i < SMALL; i++)
		expect_is(((volatile unsigned char *)va)[SMALL + i], 0x5a);
	expect_is(gdr_unpin_buffer(g, mh), 0);
	if (is_left(has_happened))
		give(neighbour);
	if (event == IT_COMES)
		give(gap);
	if (event == IT_IS_REPLACED && has_happened)
		give(successor);
	give(mine);
	give(rest);
	give(filler);
	return has_happened;
}

static void find_pools(void)
{
	from_pool = need_symbol("cuMemAllocAsync");
	to_pool = need_symbol("cuMemFreeAsync");
	between = need_symbol("cuda_sim_between");
}

/* The first pin of a process makes other calls than the second one. */
struct moment {
	unsigned long nth;
	bool is_first;
};

static void beside(void *arg)
{
	const struct moment *m = arg;

	open_with_memory(&(struct kind){ ALLOC, kind_of_page->is_blind });
	find_pools();
	if (!m->is_first)
		pin_beside(0);
	outcome->is_over = !pin_beside(m->nth);
	expect_is(gdr_close(g), 0);
}

static void each_moment_of(bool is_first)
{
	struct moment m = { .is_first = is_first };

	do {
		m.nth++;
		if (!in_child("a pin", beside, &m, 20)) {
			note("%s pin, event %d before call %lu", is_first ? "first" : "second", event, m.nth);
			_exit(1);
		}
	} while (!outcome->is_over);
	expect(m.nth > 10 && m.nth < 100);	/* a question for each place where other memory can begin */
}

static void each_moment(void *kind)
{
	needs_doubles("a real driver does not wait for the other thread");
	if (!backend_is("rm"))
		skip_case("CUDA exports no page that begins in free space");
	kind_of_page = kind;
	outcome = mmap(NULL, sizeof(*outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	expect(outcome != MAP_FAILED);
	for (event = IT_GOES; event < EVENTS; event++) {
		each_moment_of(true);
		each_moment_of(false);
	}
}

const struct guest_case cases[] = {
	{ "memory of cuMemAlloc", NULL, 120, 0, each_call, &(struct kind){ ALLOC, false, 5 } },
	{ "memory of cuMemCreate", NULL, 120, 0, each_call, &(struct kind){ CU_EXPORT_NONE, false, 6 } },
	{ "memory of cuMemAlloc, without dma-bufs", NULL, 120, 0, each_call, &(struct kind){ ALLOC, true, 7 } },
	{ "memory of cuMemCreate, without dma-bufs", NULL, 120, 0, each_call, &(struct kind){ CU_EXPORT_FD, true, 9 } },
	{ "memory of cuMemAlloc that is heard", NULL, 120, 0, each_call, &(struct kind){ ALLOC, false, 20, true } },
	{ "memory of cuMemCreate that is heard", NULL, 120, 0, each_call, &(struct kind){ CU_EXPORT_NONE, false, 20, true } },
	{ "a driver that differs", each_difference, 60, 0 },
	{ "memory beside it comes and goes", NULL, 120, 0, each_moment, (void *)&plain },
	{ "memory beside it comes and goes, without dma-bufs", NULL, 120, 0, each_moment, (void *)&blind },
	{ "memory beside it comes and goes, in a pool", NULL, 120, 0, each_moment, (void *)&of_pool },
	{ 0 }
};
