// SPDX-License-Identifier: MIT
/*
 * ext/cache_tsan.c - hits and puts of the registration cache under ThreadSanitizer.
 *
 *	ext_cache_tsan [--long]
 *
 * It is built from capi/cache_hits.c itself. The other half of the protocol of
 * capi/cache_range.h, which is Go in the library, is
 * here in C: a core that pins nothing. The driver is here, too; its memory is freed
 * and allocated anew at any time. A pinning has bytes of its own: who holds it writes
 * there with plain stores, and so does unpinning, so ThreadSanitizer reports each that
 * comes under a hold. And what a get answers must have been pinned in memory at least
 * as new as what was there when the get began.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cache_range.h"
#include "core.h"
#include "front_double.h"
#include "gdrapi_ext.h"
#include "tap.h"

#define SHIFT 21
#define ALLOCATIONS 8
#define USERS 5
#define PINS 10		/* that there is room for */
#define PAGE 65536ul
#define PAGES 2		/* of each allocation, that ranges begin in */
#define EPOCH 1ull
#define CACHE_SLOT 100u	/* of the first of two caches */

/* What cache_hits.c needs besides. */

static struct gdr_slot *slots;

/* The driver: allocations of 2 MiB from address 2 MiB on; ID 0 is no memory. */

static _Atomic uint64_t ids[ALLOCATIONS];

static uint64_t id_at(uint64_t addr)
{
	return addr >> SHIFT < ALLOCATIONS ? atomic_load(&ids[addr >> SHIFT]) : 0;
}

static int attribute(void *value, int what, uint64_t addr)
{
	uint64_t id = id_at(addr);

	if (!id || what != 7)
		return 1;
	memcpy(value, &id, sizeof(id));
	return 0;
}

/*
 * The core, with one lock for all. A pinning's handle has its index, and a generation
 * that grows. One that is retired and held is unpinned with its last hold.
 */

struct pin {
	bool live, retired;
	uint64_t handle, addr, size;
	_Atomic uint64_t id;	/* of the memory when it was pinned */
	unsigned char bytes[64];	/* users have 8 each, unpinning all */
};

static struct pin pins[PINS];
static uint32_t generations[PINS], cache_generation;
static struct cache caches[2];
static struct span spans[2][PINS];
static bool taken[2];
static pthread_mutex_t core_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic long wrong, pinned, full;
static long live;

static uint64_t handle_of(uint32_t generation, uint32_t index)
{
	return EPOCH << GDR_HANDLE_EPOCH_SHIFT | (uint64_t)generation << GDR_HANDLE_INDEX_BITS | index;
}

static struct pin *pin_of(uint64_t handle)
{
	return &pins[handle & (GDR_SLOT_COUNT - 1)];
}

static struct range *range_at(uint64_t handle)
{
	return &slots[handle & (GDR_SLOT_COUNT - 1)].range;
}

static bool is_held(const struct pin *p)
{
	return holds_in(atomic_load(&range_at(p->handle)->state));
}

static void unpin(struct pin *p)
{
	if (!p->live)
		atomic_fetch_add(&wrong, 1);
	slot_set(&slots[p->handle & (GDR_SLOT_COUNT - 1)], 0, NULL, 0, 0);
	memset(p->bytes, 0xee, sizeof(p->bytes));
	p->live = p->retired = false;
	live--;
}

/* Shows hits the live pins of the cache at place i in the order of their addresses. */
static void show(int i)
{
	uint32_t n = 0;

	for (uint64_t last = 0;; n++) {
		const struct pin *next = NULL;

		for (struct pin *p = pins; p < pins + PINS; p++)
			if (p->live && !p->retired && p->addr > last && (!next || p->addr < next->addr))
				next = p;
		if (!next)
			break;
		last = next->addr;
		atomic_store(&spans[i][n].start, next->addr);
		atomic_store(&spans[i][n].handle, next->handle);
	}
	atomic_store(&caches[i].count, n);
}

/* false: somebody holds it, and holds matter. */
static bool retire(struct pin *p, bool held_too)
{
	struct range *r = range_at(p->handle);
	uint64_t state = atomic_load(&r->state);

	do {
		if (holds_in(state) && !held_too)
			return false;
	} while (!atomic_compare_exchange_weak(&r->state, &state, state | RETIRED));
	p->retired = true;
	return true;
}

static void drop_retired(int i)
{
	show(i);
	for (struct pin *p = pins; p < pins + PINS; p++)
		if (p->live && p->retired && !is_held(p))
			unpin(p);
}

static int place_of(uint64_t c)
{
	for (int i = 0; i < 2; i++)
		if (taken[i] && atomic_load(&caches[i].key) == c)
			return i;
	return -1;
}

int gdr_cache_open(gdr_t g, size_t most, unsigned int flags, gdr_cache_t *c)
{
	int i;

	(void)g;
	(void)flags;
	pthread_mutex_lock(&core_lock);
	i = taken[0];
	taken[i] = true;
	c->h = handle_of(++cache_generation, CACHE_SLOT + i);
	atomic_store(&caches[i].count, 0);
	atomic_store(&caches[i].room, (int64_t)most);
	atomic_store(&caches[i].key, c->h);
	atomic_store(&slots[CACHE_SLOT + i].cache, (uintptr_t)&caches[i]);
	pthread_mutex_unlock(&core_lock);
	return 0;
}

static struct pin *find_place(void)
{
	for (int again = 0; again < 2; again++) {
		for (struct pin *p = pins; p < pins + PINS; p++)
			if (!p->live)
				return p;
		for (struct pin *p = pins; p < pins + PINS && !again; p++)
			if (!p->retired && retire(p, false)) {
				unpin(p);
				break;
			}
	}
	return NULL;
}

/* Pins whole pages, as far as the allocation goes, and adds them with one hold. */
static int add(int i, uint64_t addr, uint64_t size, uint64_t id, uint64_t *h)
{
	uint64_t start = addr & -PAGE, end = (addr + size + PAGE - 1) & -PAGE;
	struct range *r;
	struct pin *p;

	for (p = pins; p < pins + PINS; p++)
		if (p->live && !p->retired && p->addr < end && start < p->addr + p->size)
			retire(p, true);
	drop_retired(i);
	p = find_place();
	show(i);
	if (!p) {
		atomic_fetch_add(&full, 1);
		return ENOMEM;
	}
	*h = handle_of(++generations[p - pins], (uint32_t)(p - pins));
	*p = (struct pin){ .live = true, .handle = *h, .addr = start, .size = end - start, .id = id };
	live++;
	atomic_fetch_add(&pinned, 1);
	r = range_at(*h);
	atomic_fetch_or(&r->state, RETIRED);
	atomic_store(&r->start, start);
	atomic_store(&r->end, end);
	atomic_store(&r->id, id);
	atomic_store(&r->va, *h);
	atomic_store(&r->owner, atomic_load(&caches[i].key));
	slot_set(&slots[p - pins], *h, p->bytes, sizeof(p->bytes), GDR_MAPPING_TYPE_WC);
	atomic_store(&r->state, state_of(*h) | 1);
	show(i);
	return 0;
}

int gdr_cache_get_slowly(gdr_cache_t c, unsigned long addr, size_t size, gdr_mh_t *mh, void **va)
{
	int i, rc = EINVAL;
	uint64_t h = 0, id;

	pthread_mutex_lock(&core_lock);
	i = place_of(c.h);
	id = id_at(addr);
	if (i >= 0 && id)
		rc = id_at(addr + size - 1) == id ? add(i, addr, size, id, &h) : ENOTSUP;
	/* The address tells of the pinning: only the users' own bytes are there. */
	if (!rc) {
		mh->h = h;
		*va = (void *)(uintptr_t)(h + (addr - pin_of(h)->addr));
	}
	pthread_mutex_unlock(&core_lock);
	return rc;
}

static int settle(uint64_t c, bool flush, bool close)
{
	int i;

	pthread_mutex_lock(&core_lock);
	i = place_of(c);
	for (struct pin *p = pins; i >= 0 && p < pins + PINS; p++)
		if (p->live && (flush || close) && atomic_load(&range_at(p->handle)->owner) == c)
			retire(p, close);
	if (i >= 0)
		drop_retired(i);
	for (struct pin *p = pins; i >= 0 && close && p < pins + PINS; p++)
		if (p->live && atomic_load(&range_at(p->handle)->owner) == c)
			unpin(p);
	if (i >= 0 && close) {
		atomic_store(&slots[CACHE_SLOT + i].cache, 0);
		atomic_store(&caches[i].key, 0);
		taken[i] = false;
	}
	pthread_mutex_unlock(&core_lock);
	return i >= 0 ? 0 : EINVAL;
}

void gdr_cache_settle(gdr_cache_t c)
{
	(void)settle(c.h, false, false);
}

int gdr_cache_flush(gdr_cache_t c)
{
	return settle(c.h, true, false);
}

int gdr_cache_close(gdr_cache_t c)
{
	return settle(c.h, false, true);
}

/* The threads. */

static gdr_t some_g = (gdr_t)(uintptr_t)1;
static _Atomic uint64_t cache;
static _Atomic bool stop, may_write;
static _Atomic uint64_t newest_id;
static _Atomic long gets, refused;

static uint32_t next(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

static void open_new(size_t most)
{
	gdr_cache_t c;

	if (gdr_cache_open(some_g, most, 0, &c))
		exit(2);
	atomic_store(&cache, c.h);
}

/* Its own 8 bytes of the pinning that it holds are this thread's. */
static void write_there(const struct pin *p, int me, uint64_t value)
{
	uint64_t back;

	memcpy((unsigned char *)p->bytes + 8 * me, &value, 8);
	sched_yield();
	memcpy(&back, p->bytes + 8 * me, 8);
	if (back != value)
		atomic_fetch_add(&wrong, 1);
}

static void use_once(int me, uint64_t *seed)
{
	uint64_t i = 1 + next(seed) % (ALLOCATIONS - 1), page = next(seed) % PAGES;
	uint64_t addr = (i << SHIFT) + page * PAGE + next(seed) % PAGE;
	size_t size = 1 + next(seed) % (next(seed) % 4 ? 64 : 2 * PAGE);
	uint64_t before = atomic_load(&ids[i]);
	gdr_cache_t c = { atomic_load(&cache) };
	struct pin *p;
	gdr_mh_t mh;
	void *va;
	int rc;

	rc = gdr_cache_get(c, addr, size, &mh, &va);
	if (rc) {
		/* Freed at the time, another at the range's end, or all pinnings are held. */
		if (rc != EINVAL && rc != ENOTSUP && rc != ENOMEM)
			atomic_fetch_add(&wrong, 1);
		atomic_fetch_add(&refused, 1);
		return;
	}
	p = pin_of(mh.h);
	if (atomic_load(&may_write)) {
		if (atomic_load(&p->id) < before || p->handle != mh.h ||
		    (uintptr_t)va - mh.h != addr - p->addr)
			atomic_fetch_add(&wrong, 1);
		write_there(p, me, addr + me);
	}
	rc = gdr_cache_put(c, mh);
	if (rc && (rc != EINVAL || atomic_load(&may_write)))
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

/* Frees memory at times, and allocates it anew. */
static void *renew(void *arg)
{
	uint64_t seed = 99;

	(void)arg;
	while (!atomic_load(&stop)) {
		uint64_t i = 1 + next(&seed) % (ALLOCATIONS - 1);

		if (next(&seed) % 4 == 0) {
			atomic_store(&ids[i], 0);
			sched_yield();
		}
		atomic_store(&ids[i], atomic_fetch_add(&newest_id, 1) + 1);
		usleep(200);
	}
	return NULL;
}

static void *flush(void *arg)
{
	bool replace = arg != NULL;

	while (!atomic_load(&stop)) {
		gdr_cache_t old = { atomic_load(&cache) };

		usleep(1500);
		if (!replace) {
			gdr_cache_flush(old);
			continue;
		}
		open_new(8 * PAGE);
		if (gdr_cache_close(old))
			atomic_fetch_add(&wrong, 1);
	}
	return NULL;
}

static void run(struct tap *t, const char *what, bool replace, int seconds)
{
	pthread_t users[USERS], others[2];

	gets = refused = wrong = pinned = full = 0;
	atomic_store(&stop, false);
	atomic_store(&may_write, !replace);
	open_new(8 * PAGE);
	alarm(seconds + 240);
	for (uintptr_t i = 0; i < USERS; i++)
		pthread_create(&users[i], NULL, use, (void *)i);
	pthread_create(&others[0], NULL, renew, NULL);
	pthread_create(&others[1], NULL, flush, replace ? &stop : NULL);
	sleep(seconds);
	atomic_store(&stop, true);
	for (int i = 0; i < USERS; i++)
		pthread_join(users[i], NULL);
	for (int i = 0; i < 2; i++)
		pthread_join(others[i], NULL);
	printf("# %s: %ld gets, %ld refused, %ld pinned, %ld times no room\n", what,
	       atomic_load(&gets), atomic_load(&refused), atomic_load(&pinned), atomic_load(&full));
	tap_ok(t, gets > 0 && pinned > 0, "%s: there were gets", what);
	tap_is(t, gdr_cache_close((gdr_cache_t){ atomic_load(&cache) }), 0, "the close");
	tap_is(t, wrong, 0, "wrong answers");
	tap_is(t, live, 0, "pinnings left");
}

/* Its place may have got a new cache since a hit found it: a range of that one is no hit. */
static void other_owner(struct tap *t)
{
	gdr_cache_t c;
	gdr_mh_t mh;
	void *va;

	pinned = 0;
	open_new(8 * PAGE);
	c.h = atomic_load(&cache);
	for (int i = 0; i < 3; i++) {
		if (i == 2)
			atomic_store(&range_at(mh.h)->owner, c.h + 1);
		tap_ok(t, !gdr_cache_get(c, 1ul << SHIFT, 8, &mh, &va) && !gdr_cache_put(c, mh), "a get");
		tap_is(t, pinned, 1 + i / 2, "pins, of which the last is for a range of another cache,");
	}
	tap_is(t, gdr_cache_close(c), 0, "the close");
}

int main(int argc, char **argv)
{
	int seconds = argc > 1 && !strcmp(argv[1], "--long") ? 60 : 3;
	struct tap t = { 0, 0, 0 };

	slots = calloc(GDR_SLOT_COUNT, sizeof(*slots));
	if (!slots)
		return 2;
	for (int i = 0; i < 2; i++) {
		caches[i].spans = (uintptr_t)spans[i];
		caches[i].attribute = (uintptr_t)attribute;
	}
	front_is_up(EPOCH, slots);
	for (int i = 1; i < ALLOCATIONS; i++)
		atomic_store(&ids[i], atomic_fetch_add(&newest_id, 1) + 1);
	other_owner(&t);
	run(&t, "memory that comes and goes", false, seconds);
	run(&t, "caches that do, too", true, seconds);
	/* ThreadSanitizer itself ends the program with 66 if it saw a race. */
	return tap_done(&t);
}
