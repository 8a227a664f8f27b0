// SPDX-License-Identifier: MIT
/*
 * ext/cache_tsan.c - hits and puts of the registration cache under ThreadSanitizer.
 *
 *	ext_cache_tsan [--long]
 *
 * It is built from capi/cache_hits.c itself. The other half of the protocol of
 * capi/cache_range.h, which is Go in the library, is here in C: a core that pins nothing,
 * with one place for each allocation. The driver is here, too; its memory is freed and
 * allocated anew at any time. A pinning has bytes of its own: who holds it writes there
 * with plain stores, and so does unpinning, so ThreadSanitizer reports each that comes
 * under a hold. And what a get answers must have been pinned in memory at least as new
 * as what was there when the get began.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache_range.h"
#include "core.h"
#include "front_double.h"
#include "gdrapi_ext.h"
#include "tap.h"

#define SHIFT 21
#define ALLOCATIONS 8
#define USERS 5
#define SIZE (1ul << 20)	/* that is pinned, from an allocation's start on */
#define EPOCH 1ull
#define CACHE_SLOT 100u

/* The driver: allocations from address 2 MiB on; ID 0 is no memory. */

static _Atomic uint64_t ids[ALLOCATIONS], newest_id;

static int attribute(void *value, int what, uint64_t addr)
{
	uint64_t id = addr >> SHIFT < ALLOCATIONS ? atomic_load(&ids[addr >> SHIFT]) : 0;

	if (!id || what != 7)
		return 1;
	memcpy(value, &id, sizeof(id));
	return 0;
}

/*
 * The core, with one lock for all. A pinning's handle has its place, and a generation
 * that grows. One that is retired and held is unpinned with its last hold.
 */

static struct pin {
	bool live;
	uint64_t handle;
	_Atomic uint64_t id;	/* of the memory when it was pinned */
	unsigned char bytes[64];	/* users have 8 each, unpinning all */
} pins[ALLOCATIONS];

static struct gdr_slot *slots;
static struct span spans[ALLOCATIONS];
static struct cache cache;
static uint64_t generation;
static pthread_mutex_t core_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic long wrong, pinned, gets, refused;
static _Atomic bool stop;

static uint64_t handle_of(uint64_t index)
{
	return EPOCH << GDR_HANDLE_EPOCH_SHIFT | ++generation << GDR_HANDLE_INDEX_BITS | index;
}

static struct range *range_of(const struct pin *p)
{
	return &slots[p - pins].range;
}

static bool is_retired(const struct pin *p)
{
	return atomic_load(&range_of(p)->state) & RETIRED;
}

/* Shows hits the live pins, which lie in the order of their addresses. */
static void show(void)
{
	uint32_t n = 0;

	for (struct pin *p = pins; p < pins + ALLOCATIONS; p++)
		if (p->live && !is_retired(p)) {
			atomic_store(&spans[n].start, (uint64_t)(p - pins) << SHIFT);
			atomic_store(&spans[n++].handle, p->handle);
		}
	atomic_store(&cache.count, n);
}

/* Unpins what nobody holds. Of what is held no new hold is given. */
static bool end(struct pin *p)
{
	if (p->live && holds_in(atomic_fetch_or(&range_of(p)->state, RETIRED)))
		return false;
	slot_set(&slots[p - pins], 0, NULL, 0, 0);
	memset(p->bytes, 0xee, sizeof(p->bytes));
	p->live = false;
	return true;
}

static uint64_t add(struct pin *p, uint64_t id)
{
	uint64_t h = handle_of((uint64_t)(p - pins));
	struct range *r = range_of(p);

	*p = (struct pin){ .live = true, .handle = h, .id = id };
	atomic_fetch_add(&pinned, 1);
	atomic_fetch_or(&r->state, RETIRED);
	atomic_store(&r->start, (uint64_t)(p - pins) << SHIFT);
	atomic_store(&r->end, atomic_load(&r->start) + SIZE);
	atomic_store(&r->id, id);
	atomic_store(&r->va, h);	/* it tells of the pinning: only the users' own bytes are there */
	atomic_store(&r->owner, atomic_load(&cache.key));
	slot_set(&slots[p - pins], h, p->bytes, sizeof(p->bytes), GDR_MAPPING_TYPE_WC);
	atomic_store(&r->state, state_of(h) | 1);
	return h;
}

int gdr_cache_get_slowly(gdr_cache_t c, unsigned long addr, size_t size, gdr_mh_t *mh, void **va)
{
	struct pin *p = &pins[addr >> SHIFT];
	int rc = EINVAL;
	uint64_t id;

	pthread_mutex_lock(&core_lock);
	id = atomic_load(&ids[p - pins]);
	if (id && c.h == atomic_load(&cache.key) && size <= SIZE - addr % (1ul << SHIFT))
		rc = end(p) ? 0 : ENOMEM;
	if (!rc) {
		mh->h = add(p, id);
		*va = (void *)(uintptr_t)(mh->h + addr % (1ul << SHIFT));
	}
	show();
	pthread_mutex_unlock(&core_lock);
	return rc;
}

void gdr_cache_settle(gdr_cache_t c)
{
	(void)c;
	pthread_mutex_lock(&core_lock);
	for (struct pin *p = pins; p < pins + ALLOCATIONS; p++)
		if (p->live && is_retired(p))
			end(p);
	pthread_mutex_unlock(&core_lock);
}

/* Returns how many somebody holds. */
static int flush(void)
{
	int held = 0;

	pthread_mutex_lock(&core_lock);
	for (struct pin *p = pins; p < pins + ALLOCATIONS; p++)
		held += !end(p);
	show();
	pthread_mutex_unlock(&core_lock);
	return held;
}

/* The threads. */

static uint32_t next(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

/* Its own 8 bytes of the pinning that it holds are this thread's. */
static void write_there(struct pin *p, int me, uint64_t value)
{
	uint64_t back;

	memcpy(p->bytes + 8 * me, &value, 8);
	sched_yield();
	memcpy(&back, p->bytes + 8 * me, 8);
	if (back != value)
		atomic_fetch_add(&wrong, 1);
}

static void use_once(int me, uint64_t *seed)
{
	uint64_t i = 1 + next(seed) % (ALLOCATIONS - 1), off = next(seed) % SIZE, before = atomic_load(&ids[i]);
	gdr_cache_t c = { atomic_load(&cache.key) };
	struct pin *p = &pins[i];
	gdr_mh_t mh;
	void *va;
	int rc = gdr_cache_get(c, (i << SHIFT) + off, 1 + next(seed) % (SIZE - off), &mh, &va);

	if (rc) {
		/* Freed at the time, or somebody holds what is to go. */
		if (rc != EINVAL && rc != ENOMEM)
			atomic_fetch_add(&wrong, 1);
		atomic_fetch_add(&refused, 1);
		return;
	}
	if (atomic_load(&p->id) < before || p->handle != mh.h || (uintptr_t)va - mh.h != off)
		atomic_fetch_add(&wrong, 1);
	write_there(p, me, i + me);
	if (gdr_cache_put(c, mh))
		atomic_fetch_add(&wrong, 1);
	atomic_fetch_add(&gets, 1);
}

static void *use(void *arg)
{
	int me = (int)(uintptr_t)arg;
	uint64_t seed = me + 1;

	while (!atomic_load(&stop))
		use_once(me, &seed);
	return NULL;
}

/* Frees memory at times, allocates it anew, and flushes now and then. */
static void *renew(void *arg)
{
	uint64_t seed = 99;

	while (!atomic_load(&stop)) {
		uint64_t i = 1 + next(&seed) % (ALLOCATIONS - 1);

		if (next(&seed) % 4 == 0) {
			atomic_store(&ids[i], 0);
			sched_yield();
		}
		atomic_store(&ids[i], atomic_fetch_add(&newest_id, 1) + 1);
		if (next(&seed) % 8 == 0)
			flush();
		usleep(200);
	}
	return arg;
}

static void run(struct tap *t, int seconds)
{
	pthread_t users[USERS], other;

	alarm(seconds + 240);
	for (uintptr_t i = 0; i < USERS; i++)
		pthread_create(&users[i], NULL, use, (void *)i);
	pthread_create(&other, NULL, renew, NULL);
	sleep(seconds);
	atomic_store(&stop, true);
	for (int i = 0; i < USERS; i++)
		pthread_join(users[i], NULL);
	pthread_join(other, NULL);
	printf("# %ld gets, %ld refused, %ld pinned\n", atomic_load(&gets), atomic_load(&refused), atomic_load(&pinned));
	tap_ok(t, gets > 0 && pinned > 0, "there were gets");
	tap_is(t, wrong, 0, "wrong answers");
	tap_is(t, flush(), 0, "holds left");
}

/* Its place may have got a new cache since a hit found it: a range of that one is no hit. */
static void other_owner(struct tap *t)
{
	gdr_cache_t c = { atomic_load(&cache.key) };
	gdr_mh_t mh;
	void *va;

	for (int i = 0; i < 3; i++) {
		if (i == 2)
			atomic_store(&range_of(&pins[1])->owner, c.h + 1);
		tap_ok(t, !gdr_cache_get(c, 1ul << SHIFT, 8, &mh, &va) && !gdr_cache_put(c, mh), "a get");
		tap_is(t, pinned, 1 + i / 2, "pins, of which the last is for a range of another cache,");
	}
}

int main(int argc, char **argv)
{
	struct tap t = { 0, 0, 0 };

	slots = calloc(GDR_SLOT_COUNT, sizeof(*slots));
	if (!slots)
		return 2;
	cache.spans = (uintptr_t)spans;
	cache.attribute = (uintptr_t)attribute;
	atomic_store(&cache.key, handle_of(CACHE_SLOT));
	atomic_store(&slots[CACHE_SLOT].cache, (uintptr_t)&cache);
	front_is_up(EPOCH, slots);
	for (int i = 1; i < ALLOCATIONS; i++)
		atomic_store(&ids[i], atomic_fetch_add(&newest_id, 1) + 1);
	other_owner(&t);
	run(&t, argc > 1 && !strcmp(argv[1], "--long") ? 60 : 3);
	/* ThreadSanitizer itself ends the program with 66 if it saw a race. */
	return tap_done(&t);
}
