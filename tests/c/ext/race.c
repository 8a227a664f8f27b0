// SPDX-License-Identifier: MIT
/*
 * ext/race.c - threads copy through mappings while others unmap, unpin, close and map them.
 * Each buffer has a pattern of its own, so a byte in another one's memory shows.
 */
#include "guest/cuda.h"

#define COPIERS 8
#define MAPPINGS 64
#define BYTES (64 * KIB)
#define MOST (16 * KIB)	/* of one copy */

static struct place {
	uint64_t dptr;
	pthread_mutex_t lock;	/* of those that end and begin the mapping */
	gdr_t g;
	_Atomic unsigned long mh;
	void *_Atomic va;	/* copies go on with both after the mapping has ended */
	_Atomic size_t size;
} places[MAPPINGS];

static gdr_t open_for_all;
static _Atomic bool over;
static _Atomic long done, refused;

static unsigned char pattern_of(int i)
{
	return (unsigned char)(i + 1);
}

static void begin(int i, size_t size)
{
	struct place *p = &places[i];
	gdr_mh_t mh = { atomic_load(&p->mh) };
	void *va;

	if (!mh.h)
		expect_is(gdr_pin_buffer(p->g, p->dptr, BYTES, 0, 0, &mh), 0);
	expect_is(gdr_map(p->g, mh, &va, size), 0);
	atomic_store(&p->va, va);
	atomic_store(&p->size, size);
	atomic_store(&p->mh, mh.h);
}

/* Ends a mapping in one of the ways that there are, and begins another one of that memory. */
static void renew(int i, uint64_t *seed)
{
	struct place *p = &places[i];
	gdr_mh_t mh = { atomic_load(&p->mh) };
	size_t size = next_random(seed) % 2 ? BYTES : 4096;

	switch (next_random(seed) % 4) {
	case 0:
	case 1:		/* the same pin again, perhaps with another size */
		expect_is(gdr_unmap(p->g, mh, atomic_load(&p->va), atomic_load(&p->size)), 0);
		break;
	case 2:
		expect_is(gdr_unpin_buffer(p->g, mh), 0);
		atomic_store(&p->mh, 0);
		break;
	case 3:
		expect_is(p->g == open_for_all ? gdr_unpin_buffer(p->g, mh) : gdr_close(p->g), 0);
		p->g = next_random(seed) % 2 ? open_for_all : gdr_open();
		expect(p->g != NULL);
		atomic_store(&p->mh, 0);
		break;
	}
	begin(i, size);
}

static void *renew_all_the_time(void *arg)
{
	uint64_t seed = (uintptr_t)arg + 100;

	while (!atomic_load(&over)) {
		int i = next_random(&seed) % MAPPINGS;

		pthread_mutex_lock(&places[i].lock);
		renew(i, &seed);
		pthread_mutex_unlock(&places[i].lock);
	}
	return NULL;
}

static int copy_one(int i, unsigned char *host, size_t at, size_t n, uint64_t kind)
{
	struct place *p = &places[i];
	gdr_mh_t mh = { atomic_load(&p->mh) };
	unsigned char *dev = (unsigned char *)atomic_load(&p->va) + at;
	const gdr_piece_t two[] = { { mh, dev, host, n / 2 }, { mh, dev + n / 2, host + n / 2, n - n / 2 } };

	switch (kind) {
	case 0: return gdr_copy_to_mapping(mh, dev, host, n);
	case 1: return gdr_copy_from_mapping(mh, host, dev, n);
	case 2: return gdr_copy_to_mapping_v(two, 2);
	default: return gdr_copy_from_mapping_v(two, 2);
	}
}

static void *copy_all_the_time(void *arg)
{
	uint64_t seed = (uintptr_t)arg;
	unsigned char host[MOST];

	while (!atomic_load(&over)) {
		int i = next_random(&seed) % MAPPINGS, rc;
		size_t n = 1 + next_random(&seed) % (next_random(&seed) % 4 ? 64 : MOST);
		uint64_t kind = next_random(&seed) % 4;

		memset(host, pattern_of(i), n);
		rc = copy_one(i, host, next_random(&seed) % (BYTES - n), n, kind);
		expect(rc == 0 || rc == EINVAL);
		(*(rc ? &refused : &done))++;
		/* What an unmap has overtaken reads 0. */
		for (size_t k = 0; !rc && k < n; k++)
			expect(host[k] == pattern_of(i) || !host[k]);
	}
	return NULL;
}

static void race(void)
{
	pthread_t copiers[COPIERS], others[3];
	unsigned char *back = malloc(BYTES);

	open_for_all = open_with_context();
	for (int i = 0; i < MAPPINGS; i++) {
		struct buffer b;

		alloc_buffer(open_for_all, &b, BYTES);
		places[i] = (struct place){ .dptr = b.dptr, .g = open_for_all, .lock = PTHREAD_MUTEX_INITIALIZER };
		begin(i, BYTES);
		memset(back, pattern_of(i), BYTES);
		expect_is(gdr_copy_to_mapping((gdr_mh_t){ atomic_load(&places[i].mh) }, atomic_load(&places[i].va),
					      back, BYTES), 0);
	}
	for (uintptr_t i = 0; i < COPIERS; i++)
		start_thread(&copiers[i], 0, copy_all_the_time, (void *)(i + 1));
	for (uintptr_t i = 0; i < 3; i++)
		start_thread(&others[i], 0, renew_all_the_time, (void *)(i + 1));
	for (long i = 0; i < scaled(40); i++)
		usleep(100000);
	atomic_store(&over, true);
	join_threads(copiers, COPIERS);
	join_threads(others, 3);
	for (int i = 0; i < MAPPINGS; i++) {
		gdr_mh_t mh = { atomic_load(&places[i].mh) };

		if (atomic_load(&places[i].size) != BYTES) {
			expect_is(gdr_unmap(places[i].g, mh, atomic_load(&places[i].va), 4096), 0);
			begin(i, BYTES);
		}
		expect_is(gdr_copy_from_mapping(mh, back, atomic_load(&places[i].va), BYTES), 0);
		for (size_t k = 0; k < BYTES; k++)
			expect(back[k] == pattern_of(i));
	}
	printf("# %ld copies, and %ld that were refused\n", atomic_load(&done), atomic_load(&refused));
	expect(atomic_load(&done) > 0);
}

/* A copy that stands still at a host page that it may not read, until it may, or its thread ends. */
static unsigned char *page;
static _Atomic bool stands, may_go, thread_ends;
static struct buffer held;

static void stand_still(int sig)
{
	atomic_store(&stands, true);
	if (atomic_load(&thread_ends))
		pthread_exit(NULL);
	while (!atomic_load(&may_go))
		sleep_us(100);
	expect_is(mprotect(page, 4 * KIB, PROT_READ), 0);
}

static void *copy_the_page(void *many)
{
	const gdr_piece_t piece = { held.mh, held.va, page, 4 * KIB };
	int rc = many ? gdr_copy_to_mapping_v(&piece, 1) : gdr_copy_to_mapping(held.mh, held.va, page, 4 * KIB);

	expect(rc == 0 || rc == EINVAL);
	return NULL;
}

/* gdr_unmap, gdr_unpin_buffer and gdr_close return while a copy stands still, and then it ends. */
static void no_wait(void)
{
	struct sigaction act = { .sa_handler = stand_still };
	gdr_t owner = open_with_context(), g = open_or_fail();

	alloc_buffer(owner, &held, 64 * KIB);
	page = mmap(NULL, 4 * KIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	expect(page != MAP_FAILED && !sigaction(SIGSEGV, &act, NULL));
	for (int i = 0; i < 12; i++) {
		unsigned char before[64], after[64];
		pthread_t t;

		map_buffer(g, &held);
		fill_random(before, sizeof(before), i + 1);
		expect_is(gdr_copy_to_mapping(held.mh, held.va, before, sizeof(before)), 0);
		atomic_store(&stands, false);
		atomic_store(&may_go, false);
		atomic_store(&thread_ends, i % 4 == 3);
		start_thread(&t, 0, copy_the_page, (void *)(uintptr_t)(i & 1));
		while (!atomic_load(&stands))
			sleep_us(100);
		if (i % 3 == 0)
			expect_is(gdr_unmap(g, held.mh, held.va, held.size), 0);
		if (i % 3 == 2)
			expect_is(gdr_close(g), 0);
		else
			expect_is(gdr_unpin_buffer(g, held.mh), 0);
		atomic_store(&may_go, true);
		expect_is(pthread_join(t, NULL), 0);
		if (i % 3 == 2)
			g = open_or_fail();
		/* The bytes came too late: they are in nobody's memory. */
		map_buffer(g, &held);
		expect_is(gdr_copy_from_mapping(held.mh, after, held.va, sizeof(after)), 0);
		expect(!memcmp(before, after, sizeof(after)));
		expect_is(gdr_unpin_buffer(g, held.mh), 0);
		expect_is(mprotect(page, 4 * KIB, PROT_NONE), 0);
	}
	expect_is(gdr_close(g), 0);
	expect_is(gdr_close(owner), 0);
}

const struct guest_case cases[] = {
	{ "an unmap waits for no copy", no_wait, 60, 0 },
	{ "copies beside unmaps, unpins and closes", race, 60, 900 },
	{ 0 }
};
