// SPDX-License-Identifier: MIT
/*
 * ext_cache_tsan.c - the registration cache under ThreadSanitizer.
 *
 * It is built from capi/cache.c itself, with a core in C that pins nothing and a
 * driver (cache_cuda.c) whose memory is freed and allocated anew at any time. A
 * pinning has bytes of its own: who holds it writes there with plain stores, and
 * so does unpinning, so ThreadSanitizer reports each that comes under a hold. And
 * what a get answers must have been pinned in memory at least as new as what was
 * there when the get began.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "front.h"
#include "gdrapi_ext.h"
#include "sanity_tap.h"

#define SHIFT 21
#define ALLOCATIONS 8
#define USERS 5
#define PINS 10		/* that the core has room for */
#define PAGE 65536ul
#define PAGES 2		/* of each allocation, that ranges begin in */
#define EPOCH 1ull

extern _Atomic uint64_t cache_cuda_ids[ALLOCATIONS];

/* What cache.c needs of the rest of the front. */

_Atomic(struct gdr_front *) gdr_front_page;
static struct gdr_front front;
static struct gdr_table table;
static struct gdr_slot *slots;

int gdr_front_admit(uint64_t a, uint64_t b, const struct gdr_core **core)
{
	(void)a;
	(void)b;
	*core = atomic_load(&front.core);
	return 0;
}

void gdr_front_mapped(struct gdr_front *f, const struct gdr_core *core, uint64_t g, uint64_t h)
{
	(void)f;
	(void)core;
	(void)g;
	(void)h;
}

void gdr_data_forget(uint64_t key)
{
	(void)key;
}

void gdr_log(int level, const char *fmt, ...)
{
	(void)level;
	(void)fmt;
}

/* The core. A pinning's handle has its index, and a generation that grows. */

struct pin {
	bool live;
	uint64_t handle, addr;
	_Atomic uint64_t id;	/* of the memory when it was pinned */
	unsigned char bytes[64];	/* users have 8 each, unpinning all */
};

static struct pin pins[PINS];
static uint32_t generations[PINS];
static pthread_mutex_t core_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic long wrong, pinned, full;
static long live;

static struct pin *pin_of(uint64_t handle)
{
	return &pins[handle & (GDR_SLOT_COUNT - 1)];
}

static int find_place(void)
{
	for (int i = 0; i < PINS; i++)
		if (!pins[i].live)
			return i;
	return -1;
}

static int core_pin(uint64_t g, uint64_t addr, uint64_t size, uint64_t token, uint32_t va_space,
		    uint32_t flags, uint64_t *h)
{
	uint64_t id = addr >> SHIFT < ALLOCATIONS ? atomic_load(&cache_cuda_ids[addr >> SHIFT]) : 0;
	int i, rc = 0;

	if (!g || !id || !size || token || va_space || flags)
		return EINVAL;
	pthread_mutex_lock(&core_lock);
	i = find_place();
	if (i < 0) {
		atomic_fetch_add(&full, 1);
		rc = ENOMEM;
	} else {
		*h = EPOCH << GDR_HANDLE_EPOCH_SHIFT |
		     (uint64_t)++generations[i] << GDR_HANDLE_INDEX_BITS | (uint64_t)i;
		pins[i].live = true;
		pins[i].handle = *h;
		pins[i].addr = addr;
		atomic_store(&pins[i].id, id);
		live++;
		atomic_fetch_add(&pinned, 1);
	}
	pthread_mutex_unlock(&core_lock);
	return rc;
}

static int core_unpin(uint64_t g, uint64_t h)
{
	struct pin *p = pin_of(h);

	(void)g;
	pthread_mutex_lock(&core_lock);
	if (!p->live || p->handle != h)
		atomic_fetch_add(&wrong, 1);
	atomic_store(&slots[h & (GDR_SLOT_COUNT - 1)].key, 0);
	memset(p->bytes, 0xee, sizeof(p->bytes));
	p->live = false;
	live--;
	pthread_mutex_unlock(&core_lock);
	return 0;
}

static int core_map(uint64_t g, uint64_t h, uint64_t size, int flags, uint64_t *va)
{
	(void)g;
	(void)size;
	(void)flags;
	/* One address serves each page: only the users' own bytes are there. */
	*va = h;
	atomic_store(&slots[h & (GDR_SLOT_COUNT - 1)].key, h);
	return 0;
}

static int core_info(uint64_t g, uint64_t h, struct gdr_core_info *info)
{
	(void)g;
	*info = (struct gdr_core_info){ .va = pin_of(h)->addr, .page_size = PAGE };
	return 0;
}

static int core_version(uint64_t g, int *major, int *minor)
{
	*major = *minor = 1;
	return g ? 0 : EINVAL;
}

static const struct gdr_core core = {
	.pin = core_pin,
	.unpin = core_unpin,
	.map = core_map,
	.info = core_info,
	.driver_version = core_version,
};

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
	uint64_t before = atomic_load(&cache_cuda_ids[i]);
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
			atomic_store(&cache_cuda_ids[i], 0);
			sched_yield();
		}
		atomic_store(&cache_cuda_ids[i], atomic_fetch_add(&newest_id, 1) + 1);
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
	alarm(seconds + 60);
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

int main(int argc, char **argv)
{
	int seconds = argc > 1 && !strcmp(argv[1], "--long") ? 60 : 3;
	struct tap t = { 0, 0, 0 };

	slots = calloc(GDR_SLOT_COUNT, sizeof(*slots));
	if (!slots)
		return 2;
	table.slots = (uintptr_t)slots;
	front.table = &table;
	front.epoch = EPOCH;
	atomic_store(&front.core, &core);
	atomic_store(&gdr_front_page, &front);
	for (int i = 1; i < ALLOCATIONS; i++)
		atomic_store(&cache_cuda_ids[i], atomic_fetch_add(&newest_id, 1) + 1);
	run(&t, "memory that comes and goes", false, seconds);
	run(&t, "caches that do, too", true, seconds);
	/* ThreadSanitizer itself ends the program with 66 if it saw a race. */
	return tap_done(&t);
}
