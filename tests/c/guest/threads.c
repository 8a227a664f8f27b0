// SPDX-License-Identifier: MIT
/*
 * guest/threads.c - any call from any thread.
 *
 * 64 threads make random calls. On what belongs to a thread alone it knows the
 * right answer of every call, and every byte. On what all share it knows the
 * set of right answers, and that of two threads that end a thing one succeeds.
 */
#include "cuda.h"

#define THREADS 64
#define OWN 4		/* handles of a thread */
#define SHARED 8	/* handles that all share */
#define UNITS 4		/* GPU memory of a thread, in pages of the backend */
#define SHARED_BYTES (4 * KIB)

/* A handle of one thread, and what the library must think of it. */
enum state { GONE, PINNED, MAPPED };

struct own {
	enum state state;
	gdr_mh_t mh;	/* stays when the state is GONE: a stale handle */
	unsigned char *va;
	size_t offset, size;	/* part of the region */
};

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
	size_t unit;		/* the backend's page: where a pinning may begin */
	size_t region;		/* bytes of GPU memory of a thread */
	bool from_start;	/* pinnings begin where the memory does */
	_Atomic uintptr_t fleeting;	/* a gdr_t that threads close and replace */
	pthread_rwlock_t fleeting_copies;	/* as that of struct shared */
	struct shared shared[SHARED];
	_Atomic long pinned, unpinned;	/* successes on shared handles */
	_Atomic long opened, closed;	/* successes on fleeting */
	double until;
	_Atomic long calls;
} all;

/* One thread. shadow is what its region of GPU memory must hold. */
struct worker {
	int index;
	uint64_t seed;
	long calls;
	gdr_t g;		/* its own, NULL while closed */
	gdr_t stale;		/* the last one that it closed */
	unsigned long dptr;
	struct own own[OWN];
	unsigned char *shadow, *scratch;	/* all.region bytes each */
};

static uint32_t pick(struct worker *w, uint32_t n)
{
	return next_random(&w->seed) % n;
}

/* The one gdr_t that a thread must give for what it pinned. */
static gdr_t right_g(const struct worker *w)
{
	return w->g;
}

static void own_pin(struct worker *w, struct own *o)
{
	uint32_t first = all.from_start ? 0 : pick(w, UNITS - 1);
	int rc;

	if (o->state != GONE || !w->g)
		return;
	o->offset = first * all.unit;
	o->size = (1 + pick(w, UNITS - first)) * all.unit;
	rc = pick(w, 2) ?
		gdr_pin_buffer(w->g, w->dptr + o->offset, o->size, 0, 0, &o->mh) :
		gdr_pin_buffer_v2(w->g, w->dptr + o->offset, o->size, 0, &o->mh);
	expect_is(rc, 0);
	o->state = PINNED;
}

static void own_map(struct worker *w, struct own *o)
{
	void *va = NULL;
	int rc = gdr_map(right_g(w), o->mh, &va, o->size);

	switch (o->state) {
	case GONE:
		expect_is(rc, EINVAL);
		break;
	case MAPPED:
		expect_is(rc, EAGAIN);
		break;
	case PINNED:
		expect_is(rc, 0);
		o->va = va;
		o->state = MAPPED;
		break;
	}
}

static void own_unmap(struct worker *w, struct own *o)
{
	int rc;

	if (o->state == MAPPED && !pick(w, 4)) {
		expect_is(gdr_unmap(w->g, o->mh, o->va + 1, o->size), EINVAL);
		expect_is(gdr_unmap(w->g, o->mh, o->va, o->size + 2 * GPU_PAGE_SIZE), EINVAL);
		expect_is(gdr_unmap(all.g, o->mh, o->va, o->size), EINVAL);
	}
	rc = gdr_unmap(right_g(w), o->mh, o->va, o->size);
	expect_is(rc, o->state == MAPPED ? 0 : EINVAL);
	if (o->state == MAPPED)
		o->state = PINNED;
}

static void own_unpin(struct worker *w, struct own *o)
{
	expect_is(gdr_unpin_buffer(right_g(w), o->mh), o->state == GONE ? EINVAL : 0);
	o->state = GONE;
}

static void own_info(struct worker *w, struct own *o)
{
	gdr_info_v2_t info;
	int rc, flag = -1;

	memset(&info, 0xff, sizeof(info));
	rc = gdr_get_info_v2(right_g(w), o->mh, &info);
	expect_is(rc, o->state == GONE ? EINVAL : 0);
	expect_is(gdr_get_callback_flag(right_g(w), o->mh, &flag), rc);
	if (rc)
		return;
	expect_is(flag, 0);
	expect(info.va == w->dptr + o->offset);
	expect(info.mapped_size >= o->size);
	expect_is(info.mapped, o->state == MAPPED);
	expect_is(info.mapping_type != GDR_MAPPING_TYPE_NONE, o->state == MAPPED);
	expect_is(info.wc_mapping, info.mapping_type == GDR_MAPPING_TYPE_WC);
}

/* Both at random places; the second reads what any handle wrote. */
static void own_copy_to(struct worker *w, struct own *o)
{
	unsigned char *data = w->scratch;
	size_t at = pick(w, o->size + 8), n = pick(w, o->size + 1);
	bool fits = at <= o->size && n <= o->size - at;
	int rc;

	fill_random(data, n, w->seed);
	rc = gdr_copy_to_mapping(o->mh, o->va + at, data, n);
	if (o->state != MAPPED) {
		expect_is(rc, EINVAL);
		return;
	}
	expect_is(rc, fits || !n ? 0 : EINVAL);
	if (!rc)
		memcpy(w->shadow + o->offset + at, data, n);
}

static void own_copy_from(struct worker *w, struct own *o)
{
	unsigned char *data = w->scratch;
	size_t at = pick(w, o->size + 1), n = pick(w, o->size - at + 1);
	int rc = gdr_copy_from_mapping(o->mh, data, o->va + at, n);

	if (o->state != MAPPED) {
		expect_is(rc, EINVAL);
		return;
	}
	expect_is(rc, 0);
	expect(!memcmp(data, w->shadow + o->offset + at, n));
}

/* Opens or closes the thread's own gdr_t; a close takes all handles. */
static void own_open_close(struct worker *w)
{
	if (w->stale && !pick(w, 2))
		expect_is(gdr_close(w->stale), EINVAL);
	if (pick(w, 8))
		return;
	if (!w->g) {
		w->g = open_or_fail();
		return;
	}
	expect_is(gdr_close(w->g), 0);
	w->stale = w->g;
	w->g = NULL;
	for (int i = 0; i < OWN; i++)
		w->own[i].state = GONE;
}

static void own_call(struct worker *w)
{
	struct own *o = &w->own[pick(w, OWN)];

	switch (pick(w, 10)) {
	case 0: case 1:
		own_pin(w, o);
		break;
	case 2: case 3:
		own_map(w, o);
		break;
	case 4:
		own_unmap(w, o);
		break;
	case 5:
		own_unpin(w, o);
		break;
	case 6:
		own_info(w, o);
		break;
	case 7:
		own_open_close(w);
		break;
	case 8:
		own_copy_to(w, o);
		break;
	default:
		own_copy_from(w, o);
	}
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
	uintptr_t old = atomic_load(&all.fleeting);
	gdr_t g = (gdr_t)old;
	void *va = NULL;
	gdr_mh_t mh;
	int v, rc;

	if (pick(w, 16)) {
		rc = gdr_pin_buffer(g, w->dptr, all.region, 0, 0, &mh);
		expect_one_of(rc, 0, EINVAL, 0);
		if (rc)
			return;
		rc = gdr_map(g, mh, &va, all.region);
		expect_one_of(rc, 0, EINVAL, 0);
		pthread_rwlock_rdlock(&all.fleeting_copies);
		expect_one_of(gdr_copy_to_mapping(mh, va, w->shadow, rc ? 0 : all.region),
			      0, EINVAL, 0);
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

	while (seconds_now() < all.until) {
		for (int i = 0; i < 16; i++, w->calls++) {
			uint32_t kind = pick(w, 16);

			if (kind < 9)
				own_call(w);
			else if (kind < 15)
				shared_call(w);
			else
				fleeting_call(w);
		}
	}
	atomic_fetch_add(&all.calls, w->calls);
	if (w->g)
		expect_is(gdr_close(w->g), 0);
	w->g = NULL;
	for (int i = 0; i < OWN; i++)
		w->own[i].state = GONE;
	return NULL;
}

/*
 * Finds the backend's page. The simulated dma-bufs cannot overlap unless they
 * begin at the same address; real ones can.
 */
static void find_unit(void)
{
	gdr_info_v2_t info;
	struct buffer b;
	int dmabuf;

	make_buffer(all.g, &b, 64 * KIB);
	expect_is(gdr_get_info_v2(all.g, b.mh, &info), 0);
	drop_buffer(all.g, &b);
	expect_is(gdr_get_attribute(all.g, GDR_ATTR_USING_DMA_BUF_MMAP, &dmabuf), 0);
	all.unit = info.page_size;
	all.region = UNITS * all.unit;
	all.from_start = dmabuf && on_doubles();
}

/* GPU memory that holds zeros; gdr_close frees it. */
static unsigned long zeroed_memory(void)
{
	unsigned char zero[4096] = { 0 };
	struct buffer b;

	make_buffer(all.g, &b, all.region);
	for (size_t at = 0; at < all.region; at += sizeof(zero))
		expect_is(gdr_copy_to_mapping(b.mh, b.va + at, zero, sizeof(zero)), 0);
	expect_is(gdr_unpin_buffer(all.g, b.mh), 0);
	return b.dptr;
}

static void lay_out(struct worker *workers)
{
	find_unit();
	for (int i = 0; i < THREADS; i++) {
		struct worker *w = &workers[i];

		w->index = i;
		w->seed = i * 7919 + 1;
		w->dptr = zeroed_memory();
		w->shadow = calloc(1, all.region);
		w->scratch = calloc(1, all.region);
		expect(w->shadow && w->scratch);
	}
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
	note("%ld calls, %ld shared pinnings, %ld opens of the shared gdr_t",
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
