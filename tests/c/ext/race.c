// SPDX-License-Identifier: MIT
/*
 * ext/race.c - threads copy through mappings while others unmap, unpin, close and map other
 * ones. Each buffer has a pattern of its own, so a byte in another one's memory shows.
 */
#include "guest/cuda.h"

#define COPIERS 8
#define MAPPINGS 64
#define BYTES (64 * KIB)
#define MOST (16 * KIB)	/* of one copy */

static struct place {
	uint64_t dptr;
	pthread_rwlock_t lock;	/* copies hold it for reading, and who ends the mapping for writing */
	gdr_t g;
	unsigned long mh;	/* 0: not pinned */
	void *va;
	size_t size;
	_Atomic unsigned long stale;	/* the last handle that was ended */
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
	gdr_mh_t mh = { p->mh };
	void *va;

	if (!mh.h)
		expect_is(gdr_pin_buffer(p->g, p->dptr, BYTES, 0, 0, &mh), 0);
	expect_is(gdr_map(p->g, mh, &va, size), 0);
	p->va = va;
	p->size = size;
	p->mh = mh.h;
}

/* Ends a mapping in one of the ways that there are, and begins another one of that memory. */
static void renew(int i, uint64_t *seed)
{
	struct place *p = &places[i];
	gdr_mh_t mh = { p->mh };
	size_t size = next_random(seed) % 2 ? BYTES : 4096;

	switch (next_random(seed) % 4) {
	case 0:
	case 1:		/* the same pin again, perhaps with another size */
		expect_is(gdr_unmap(p->g, mh, p->va, p->size), 0);
		break;
	case 2:
		expect_is(gdr_unpin_buffer(p->g, mh), 0);
		p->mh = 0;
		break;
	case 3:
		expect_is(p->g == open_for_all ? gdr_unpin_buffer(p->g, mh) : gdr_close(p->g), 0);
		p->g = next_random(seed) % 2 ? open_for_all : gdr_open();
		expect(p->g != NULL);
		p->mh = 0;
		break;
	}
	if (!p->mh)
		atomic_store(&p->stale, mh.h);
	begin(i, size);
}

static void *renew_all_the_time(void *arg)
{
	uint64_t seed = (uintptr_t)arg + 100;

	while (!atomic_load(&over)) {
		int i = next_random(&seed) % MAPPINGS;

		pthread_rwlock_wrlock(&places[i].lock);
		renew(i, &seed);
		pthread_rwlock_unlock(&places[i].lock);
	}
	return NULL;
}

static int copy_one(gdr_mh_t mh, unsigned char *dev, unsigned char *host, size_t n, uint64_t kind)
{
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
		int i = next_random(&seed) % MAPPINGS;
		struct place *p = &places[i];
		size_t n = 1 + next_random(&seed) % (next_random(&seed) % 4 ? 64 : MOST);
		size_t at = next_random(&seed) % (BYTES - n);
		uint64_t kind = next_random(&seed) % 4;
		int rc;

		memset(host, pattern_of(i), n);
		pthread_rwlock_rdlock(&p->lock);
		rc = copy_one((gdr_mh_t){ p->mh }, (unsigned char *)p->va + at, host, n, kind);
		expect_is(rc, at + n <= p->size ? 0 : EINVAL);
		pthread_rwlock_unlock(&p->lock);
		(*(rc ? &refused : &done))++;
		for (size_t k = 0; !rc && k < n; k++)
			expect(host[k] == pattern_of(i));
		/* A stale handle needs no lock. */
		expect_is(copy_one((gdr_mh_t){ atomic_load(&p->stale) }, host, host, n, kind), EINVAL);
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
		places[i] = (struct place){ .dptr = b.dptr, .g = open_for_all, .lock = PTHREAD_RWLOCK_INITIALIZER };
		begin(i, BYTES);
		memset(back, pattern_of(i), BYTES);
		expect_is(gdr_copy_to_mapping((gdr_mh_t){ places[i].mh }, places[i].va,
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
		gdr_mh_t mh = { places[i].mh };

		if (places[i].size != BYTES) {
			expect_is(gdr_unmap(places[i].g, mh, places[i].va, 4096), 0);
			begin(i, BYTES);
		}
		expect_is(gdr_copy_from_mapping(mh, back, places[i].va, BYTES), 0);
		for (size_t k = 0; k < BYTES; k++)
			expect(back[k] == pattern_of(i));
	}
	printf("# %ld copies, and %ld that were refused\n", atomic_load(&done), atomic_load(&refused));
	expect(atomic_load(&done) > 0);
}

const struct guest_case cases[] = {
	{ "copies beside unmaps, unpins and closes of other mappings", race, 60, 900 },
	{ 0 }
};
