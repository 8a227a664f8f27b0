// SPDX-License-Identifier: MIT
/*
 * guest/threads.c - any call from any thread.
 *
 * 64 threads make random calls. Of its own things a thread knows the right answer of every
 * call, and every byte: by the model of tests/fuzz/abi_fuzz.c. On what all share it knows the
 * set of right answers, and that of two threads that end a thing one succeeds.
 */
#include "cuda.h"
#include "../../fuzz/model.h"

#define THREADS 64
#define SHARED 8	/* handles that all share */
#define SHARED_BYTES (4 * KIB)

/*
 * A handle that all share. Threads read and write the fields one by one, so
 * they may see those of two different pinnings: the library must then say
 * EINVAL. Copies hold the lock for reading, and what may end the mapping for writing.
 */
struct shared {
	pthread_rwlock_t copies;
	_Atomic unsigned long h;
	_Atomic uintptr_t va;
	unsigned long dptr;
};

static struct {
	gdr_t g;		/* open all the time */
	_Atomic uintptr_t fleeting;	/* a gdr_t that threads close and replace */
	pthread_rwlock_t fleeting_copies;	/* as that of struct shared */
	struct shared shared[SHARED];
	_Atomic long pinned, unpinned;	/* successes on shared handles */
	_Atomic long opened, closed;	/* successes on fleeting */
	double until;
	_Atomic long calls;
} all;

/* One thread. */
struct worker {
	int index;
	uint64_t seed;
	long calls;
	unsigned long dptr;	/* GPU memory that it alone pins */
};

static uint32_t pick(struct worker *w, uint32_t n)
{
	return next_random(&w->seed) % n;
}

static void expect_one_of(int rc, int a, int b, int c)
{
	if (rc != a && rc != b && rc != c)
		note("a call on a shared handle gives %d", rc);
	expect(rc == a || rc == b || rc == c);
}

static void shared_unpin(struct shared *s, gdr_mh_t mh)
{
	int rc;

	pthread_rwlock_wrlock(&s->copies);
	rc = gdr_unpin_buffer(all.g, mh);
	pthread_rwlock_unlock(&s->copies);
	expect_one_of(rc, 0, EINVAL, 0);
	if (!rc)
		atomic_fetch_add(&all.unpinned, 1);
}

static void shared_unmap(struct shared *s, gdr_mh_t mh, void *va)
{
	int rc;

	pthread_rwlock_wrlock(&s->copies);
	rc = gdr_unmap(all.g, mh, va, SHARED_BYTES);
	pthread_rwlock_unlock(&s->copies);
	expect_one_of(rc, 0, EINVAL, 0);
}

static void shared_pin(struct shared *s)
{
	unsigned long old;
	gdr_mh_t mh;

	expect_is(gdr_pin_buffer(all.g, s->dptr, SHARED_BYTES, 0, 0, &mh), 0);
	atomic_fetch_add(&all.pinned, 1);
	old = atomic_exchange(&s->h, mh.h);
	shared_unpin(s, (gdr_mh_t){ old });
}

static void shared_map(struct shared *s, gdr_mh_t mh)
{
	void *va = NULL;
	int rc = gdr_map(all.g, mh, &va, SHARED_BYTES);

	expect_one_of(rc, 0, EAGAIN, EINVAL);
	if (!rc)
		atomic_store(&s->va, (uintptr_t)va);
}

/* Every byte that is there was written by some thread, or is the first 0. */
static void shared_copies(struct worker *w, gdr_mh_t mh, unsigned char *va)
{
	unsigned char data[SHARED_BYTES];
	size_t n = pick(w, sizeof(data) + 1);
	int rc;

	if (pick(w, 2)) {
		memset(data, w->index + 1, n);
		expect_one_of(gdr_copy_to_mapping(mh, va, data, n), 0, EINVAL, 0);
		return;
	}
	rc = gdr_copy_from_mapping(mh, data, va, n);
	expect_one_of(rc, 0, EINVAL, 0);
	for (size_t i = 0; !rc && i < n; i++)
		expect(data[i] <= THREADS);
}

static void shared_call(struct worker *w)
{
	struct shared *s = &all.shared[pick(w, SHARED)];
	gdr_mh_t mh = { atomic_load(&s->h) };
	unsigned char *va = (unsigned char *)atomic_load(&s->va);
	unsigned char info[40];

	switch (pick(w, 8)) {
	case 0:
		shared_pin(s);
		break;
	case 1:
		if (!pick(w, 4))
			shared_unpin(s, mh);
		break;
	case 2: case 3:
		shared_map(s, mh);
		break;
	case 4:
		shared_unmap(s, mh, va);
		break;
	case 5:
		expect_one_of(gdr_get_info(all.g, mh, info), 0, EINVAL, 0);
		break;
	default:
		pthread_rwlock_rdlock(&s->copies);
		shared_copies(w, mh, va);
		pthread_rwlock_unlock(&s->copies);
	}
}

/* Calls on a gdr_t that another thread may just close. */
static void fleeting_call(struct worker *w)
{
	static const unsigned char zeros[SHARED_BYTES];
	uintptr_t old = atomic_load(&all.fleeting);
	gdr_t g = (gdr_t)old;
	void *va = NULL;
	gdr_mh_t mh;
	int v, rc;

	if (pick(w, 16)) {
		rc = gdr_pin_buffer(g, w->dptr, SHARED_BYTES, 0, 0, &mh);
		expect_one_of(rc, 0, EINVAL, 0);
		if (rc)
			return;
		rc = gdr_map(g, mh, &va, SHARED_BYTES);
		expect_one_of(rc, 0, EINVAL, 0);
		pthread_rwlock_rdlock(&all.fleeting_copies);
		expect_one_of(gdr_copy_to_mapping(mh, va, zeros, rc ? 0 : sizeof(zeros)), 0, EINVAL, 0);
		pthread_rwlock_unlock(&all.fleeting_copies);
		expect_one_of(gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &v),
			      0, EINVAL, 0);
		if (pick(w, 2))
			expect_one_of(gdr_unpin_buffer(g, mh), 0, EINVAL, 0);
		return;
	}
	g = open_or_fail();
	atomic_fetch_add(&all.opened, 1);
	old = atomic_exchange(&all.fleeting, (uintptr_t)g);
	pthread_rwlock_wrlock(&all.fleeting_copies);
	rc = gdr_close((gdr_t)old);
	pthread_rwlock_unlock(&all.fleeting_copies);
	expect_one_of(rc, 0, EINVAL, 0);
	atomic_fetch_add(&all.closed, rc == 0);
}

static void *work(void *worker)
{
	struct worker *w = worker;
	unsigned char script[512];

	while (seconds_now() < all.until) {
		fill_random(script, sizeof(script), w->seed);
		model_run(script, sizeof(script));
		for (int i = 0; i < 64; i++, w->calls++) {
			if (pick(w, 7))
				shared_call(w);
			else
				fleeting_call(w);
		}
	}
	atomic_fetch_add(&all.calls, w->calls);
	return NULL;
}

/* GPU memory that holds zeros; gdr_close frees it. */
static unsigned long zeroed_memory(void)
{
	unsigned char zero[SHARED_BYTES] = { 0 };
	gdr_info_v2_t info;
	char backend[16];
	struct buffer b;

	make_buffer(all.g, &b, 64 * KIB);
	expect_is(gdr_copy_to_mapping(b.mh, b.va, zero, sizeof(zero)), 0);
	expect_is(gdr_get_info_v2(all.g, b.mh, &info), 0);
	expect_is(gdr_get_backend(all.g, backend, sizeof(backend)), 0);
	model_is_of(backend, info.page_size);
	expect_is(gdr_unpin_buffer(all.g, b.mh), 0);
	return b.dptr;
}

static void lay_out(struct worker *workers)
{
	for (int i = 0; i < THREADS; i++)
		workers[i] = (struct worker){ .index = i, .seed = i * 7919 + 1, .dptr = zeroed_memory() };
	for (int i = 0; i < SHARED; i++) {
		pthread_rwlock_init(&all.shared[i].copies, NULL);
		all.shared[i].dptr = zeroed_memory();
	}
	pthread_rwlock_init(&all.fleeting_copies, NULL);
}

static void run_round(struct worker *workers, double seconds)
{
	pthread_t t[THREADS];

	all.until = seconds_now() + seconds;
	all.fleeting = (uintptr_t)open_or_fail();
	all.opened = 1;
	all.closed = all.pinned = all.unpinned = all.calls = 0;
	for (int i = 0; i < THREADS; i++)
		start_thread(&t[i], 0, work, &workers[i]);
	join_threads(t, THREADS);
	if (gdr_close((gdr_t)all.fleeting) == 0)
		all.closed++;
	for (int i = 0; i < SHARED; i++) {
		if (gdr_unpin_buffer(all.g, (gdr_mh_t){ all.shared[i].h }) == 0)
			all.unpinned++;
	}
	/* Each that was made was ended once: by one thread of those that tried. */
	expect_is(all.unpinned, all.pinned);
	expect_is(all.closed, all.opened);
}

struct counts {
	long fds, files, maps, threads;
};

static struct counts take_counts(long threads)
{
	struct counts c = {
		.threads = count_threads_settled(threads),
		.fds = count_fds(),
		.files = count_maps(true),
		.maps = count_maps(false),
	};

	return c;
}

static void stress(void)
{
	static struct worker workers[THREADS];
	struct counts before, after;

	all.g = open_with_context();
	lay_out(workers);
	/* The first round makes what is made once: threads, arenas, caches. */
	run_round(workers, 1);
	before = take_counts(0);
	run_round(workers, scaled(guest_long ? 60 : 5));
	note("%ld calls beside the model's, %ld shared pinnings, %ld opens of the shared gdr_t",
	     atomic_load(&all.calls), atomic_load(&all.pinned), atomic_load(&all.opened));
	after = take_counts(before.threads);
	note("before: %ld fds, %ld file mappings, %ld mappings, %ld threads",
	     before.fds, before.files, before.maps, before.threads);
	note("after: %ld fds, %ld file mappings, %ld mappings, %ld threads",
	     after.fds, after.files, after.maps, after.threads);
	expect_is(after.fds, before.fds);
	expect_is(after.files, before.files);
	/* The C library keeps stacks and arenas; the core, a thread or two. */
	expect(after.maps <= before.maps + 64);
	expect(after.threads <= before.threads + 4);
	expect_is(gdr_close(all.g), 0);
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
	maps = count_maps(false);
	rss = rss_kib();
	for (int i = 0; i < scaled(guest_long ? 80000 : 3000); i++)
		run_thread(0, one_call, &s);
	expect(count_maps(false) <= maps + 8);
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
