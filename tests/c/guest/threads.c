// SPDX-License-Identifier: MIT
/*
 * guest/threads.c - any call from any thread.
 *
 * 64 threads make random calls of their own things: of each a thread knows the right answer, and
 * every byte, by the model of tests/fuzz/abi_fuzz.c. On what all share it knows the set of right
 * answers, and that of two threads that end a thing one succeeds.
 */
#include "cuda.h"
#include "../../fuzz/model.h"

#define THREADS 64
#define SHARED 8		/* handles that all share */
#define SHARED_BYTES (4 * KIB)

static struct {
	double until;
	_Atomic long scripts;
	gdr_t g;		/* open all the time */
	unsigned long dptr;	/* what all pin */
	/*
	 * A thread may read the handle of one pinning and the mapping of another: the library must then
	 * say EINVAL.
	 */
	struct {
		_Atomic unsigned long h;
		_Atomic uintptr_t va;
	} shared[SHARED];
	_Atomic uintptr_t fleeting;	/* a gdr_t that threads close and replace */
	_Atomic long pinned, unpinned, opened, closed;	/* successes on these */
} all;

static void shared_unpin(unsigned long h)
{
	all.unpinned += succeeds(gdr_unpin_buffer(all.g, (gdr_mh_t){ h }), EINVAL);
}

static void shared_call(uint64_t *seed)
{
	int i = next_random(seed) % SHARED;
	gdr_mh_t mh = { all.shared[i].h };
	gdr_info_t info;
	void *va;

	switch (next_random(seed) % 8) {
	case 0:
		expect_is(gdr_pin_buffer(all.g, all.dptr, SHARED_BYTES, 0, 0, &mh), 0);
		all.pinned++;
		shared_unpin(atomic_exchange(&all.shared[i].h, mh.h));
		break;
	case 1:
		shared_unpin(mh.h);
		break;
	case 2: case 3:
		if (succeeds(gdr_map(all.g, mh, &va, SHARED_BYTES), EAGAIN))
			all.shared[i].va = (uintptr_t)va;
		break;
	case 4:
		succeeds(gdr_unmap(all.g, mh, (void *)all.shared[i].va, SHARED_BYTES), EINVAL);
		break;
	default:
		succeeds(gdr_get_info(all.g, mh, &info), EINVAL);
	}
}

static void close_fleeting(uintptr_t g)
{
	all.closed += succeeds(gdr_close((gdr_t)g), EINVAL);
}

/* Calls on a gdr_t that another thread may just close. */
static void fleeting_call(uint64_t *seed)
{
	gdr_t g = (gdr_t)all.fleeting;
	void *va;
	gdr_mh_t mh;
	int v;

	if (next_random(seed) % 16 == 0) {
		g = open_or_fail();
		all.opened++;
		close_fleeting(atomic_exchange(&all.fleeting, (uintptr_t)g));
		return;
	}
	if (!succeeds(gdr_pin_buffer(g, all.dptr, SHARED_BYTES, 0, 0, &mh), EINVAL))
		return;
	succeeds(gdr_map(g, mh, &va, SHARED_BYTES), EINVAL);
	succeeds(gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &v), EINVAL);
	if (next_random(seed) % 2)
		succeeds(gdr_unpin_buffer(g, mh), EINVAL);
}

static void *work(void *seed)
{
	uint64_t s = (uintptr_t)seed;
	unsigned char script[512];

	for (; seconds_now() < all.until; all.scripts++) {
		fill_random(script, sizeof(script), next_random(&s));
		model_run(script, sizeof(script));
		for (int i = 0; i < 64; i++)
			(next_random(&s) % 7 ? shared_call : fleeting_call)(&s);
	}
	return NULL;
}

static void run_round(double seconds)
{
	pthread_t t[THREADS];

	all.until = seconds_now() + seconds;
	all.fleeting = (uintptr_t)open_or_fail();
	all.opened++;
	for (uintptr_t i = 0; i < THREADS; i++)
		start_thread(&t[i], 0, work, (void *)(i * 7919 + 1));
	join_threads(t, THREADS);
	close_fleeting(all.fleeting);
	for (int i = 0; i < SHARED; i++)
		shared_unpin(all.shared[i].h);
	/* Each that was made was ended once: by one thread of those that tried. */
	expect_is(all.unpinned, all.pinned);
	expect_is(all.closed, all.opened);
}

static void stress(void)
{
	gdr_info_v2_t info;
	char backend[16];
	struct buffer b;
	gdr_t g = open_with_context();
	long fds;

	make_buffer(g, &b, 64 * KIB);
	expect_is(gdr_get_info_v2(g, b.mh, &info), 0);
	expect_is(gdr_get_backend(g, backend, sizeof(backend)), 0);
	model_is_of(backend, info.page_size);
	all.g = g;
	all.dptr = b.dptr;
	run_round(1);
	fds = count_fds();
	run_round(scaled(guest_long ? 60 : 5));
	note("%ld scripts of calls, %ld shared pinnings, %ld opens of the shared gdr_t",
	     all.scripts, all.pinned, all.opened);
	expect_is(count_fds(), fds);
	expect_is(gdr_close(g), 0);
}

struct crowd {
	gdr_t g;
	struct buffer b;
};

static void *one_call(void *arg)
{
	struct crowd *s = arg;
	gdr_info_t info;

	expect_is(gdr_get_info(s->g, s->b.mh, &info), 0);
	return NULL;
}

/* Of a thread that calls all that it has inside Go comes back. The core's heap may grow by 4 MiB. */
static void come_and_go(void)
{
	struct crowd s = { .g = open_or_fail() };
	long maps, rss;

	make_buffer(s.g, &s.b, 64 * KIB);
	for (int i = 0; i < 200; i++)
		run_thread(0, one_call, &s);
	maps = count_maps();
	rss = rss_kib();
	for (int i = 0; i < scaled(guest_long ? 80000 : 3000); i++)
		run_thread(0, one_call, &s);
	expect(count_maps() <= maps + 8);
	expect(rss_kib() <= rss + 4096);
	drop_buffer(s.g, &s.b);
	expect_is(gdr_close(s.g), 0);
}

/* 64 threads at the first gdr_open of the process, and each open is one. */
static void *open_one(void *start)
{
	gdr_t g;

	pthread_barrier_wait(start);
	g = open_or_fail();
	whole_life(g, (uintptr_t)g);
	return g;
}

static void first_opens(void)
{
	pthread_barrier_t start;
	pthread_t t[THREADS];
	void *g[THREADS];

	expect_is(pthread_barrier_init(&start, NULL, THREADS), 0);
	start_threads(t, THREADS, open_one, &start);
	for (int i = 0; i < THREADS; i++)
		expect_is(pthread_join(t[i], &g[i]), 0);
	for (int i = 0; i < THREADS; i++) {
		for (int k = 0; k < i; k++)
			expect(g[i] != g[k]);
		expect_is(gdr_close(g[i]), 0);
	}
}

/* The table of handles grows by 1,024: beside that a copy is right, by a handle of nothing EINVAL. */
#define MORE 1200

static struct {
	struct buffer b[MORE];
	_Atomic int made;
} grown;

static void *copy_meanwhile(void *seed)
{
	uint64_t s = (uintptr_t)seed;
	long got = -1;

	for (int n; (n = atomic_load(&grown.made)) < MORE; ) {
		const struct buffer *b = &grown.b[n ? n - 1 : 0];
		uint32_t ahead = next_random(&s) % 4096;

		if (!n)
			continue;
		expect_is(gdr_copy_from_mapping(b->mh, &got, b->va, sizeof(got)), 0);
		expect_is(got, 42);
		expect_is(gdr_copy_from_mapping((gdr_mh_t){ b->mh.h + ahead + (1ul << 32) }, &got, b->va, sizeof(got)), EINVAL);
	}
	return NULL;
}

static void grows(void)
{
	struct rlimit files;
	long v = 42;
	pthread_t t[2];
	struct buffer b;
	gdr_t g;

	expect_is(getrlimit(RLIMIT_NOFILE, &files), 0);
	files.rlim_cur = files.rlim_max;
	expect_is(setrlimit(RLIMIT_NOFILE, &files), 0);
	g = open_or_fail();
	alloc_buffer(g, &b, 64 * KIB);
	for (int i = 0; i < 2; i++)
		start_thread(&t[i], 0, copy_meanwhile, (void *)(uintptr_t)i);
	for (int i = 0; i < MORE; i++) {
		grown.b[i] = b;
		map_buffer(g, &grown.b[i]);
		expect_is(gdr_copy_to_mapping(grown.b[i].mh, grown.b[i].va, &v, sizeof(v)), 0);
		atomic_store(&grown.made, i + 1);
	}
	join_threads(t, 2);
	expect_is(gdr_close(g), 0);
}

const struct guest_case cases[] = {
	{ "64 threads open first at once", first_opens, 60, 0 },
	{ "64 threads, random calls, against a model", stress, 120, 300 },
	{ "threads that come, call, and go", come_and_go, 60, 300 },
	{ "copies while the table of handles grows", grows, 60, 0 },
	{ 0 }
};
