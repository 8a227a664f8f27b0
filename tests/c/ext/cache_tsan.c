// SPDX-License-Identifier: MIT
/*
 * ext/cache_tsan.c - the registration cache, step by step and under ThreadSanitizer.
 *
 *	ext_cache_tsan [--steps | --long]
 *
 * It is built from capi/cache.c itself, with a core in C that pins nothing and a
 * driver (ext/cache_cuda.c) whose memory is freed and allocated anew at any time. A
 * pinning has bytes of its own: who holds it writes there with plain stores, and
 * so does unpinning, so ThreadSanitizer reports each that comes under a hold. And
 * what a get answers must have been pinned in memory at least as new as what was
 * there when the get began.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "_cgo_export.h"
#include "cache_range.h"
#include "data.h"
#include "front_double.h"
#include "gdrapi_ext.h"
#include "long.h"
#include "tap.h"

#define SHIFT 21
#define ALLOCATIONS 8
#define USERS 5
#define PINS 10		/* that the core has room for */
#define PAGE 65536ul
#define PAGES 2		/* of each allocation, that ranges begin in */
#define EPOCH 1ull

extern _Atomic uint64_t cache_cuda_ids[ALLOCATIONS];
extern _Atomic uint64_t cache_cuda_split;

/* What a step does in the middle of a call; NULL: nothing. */
static void (*in_pin)(void), (*in_unpin)(void), (*in_forget)(void);

static void step_in(void (*f)(void))
{
	if (f)
		f();
}

/* What cache.c needs besides. */

static struct gdr_table table;
static struct gdr_slot *slots;

int gdr_front_admit(uint64_t a, uint64_t b)
{
	(void)a;
	(void)b;
	return 0;
}

void gdr_long_mapped(struct gdr_front *f, uint64_t h, uint64_t gpu)
{
	(void)f;
	(void)h;
	(void)gpu;
}

void gdr_data_forget(uint64_t key)
{
	(void)key;
	step_in(in_forget);
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
static int no_place = ENOMEM;	/* the answer where no place is left */
static int places = PINS;
static uint64_t last_size;	/* of the newest pinning, in bytes */

static struct pin *pin_of(uint64_t handle)
{
	return &pins[handle & (GDR_SLOT_COUNT - 1)];
}

static int find_place(void)
{
	for (int i = 0; i < places; i++)
		if (!pins[i].live)
			return i;
	return -1;
}

int gdrcore_pin(uint64_t g, uint64_t addr, uint64_t size, uint64_t token, uint32_t va_space,
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
		rc = no_place;
	} else {
		last_size = size;
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
	step_in(in_pin);
	return rc;
}

int gdrcore_unpin(uint64_t g, uint64_t h)
{
	struct pin *p = pin_of(h);

	(void)g;
	step_in(in_unpin);
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

int gdrcore_map(uint64_t g, uint64_t h, uint64_t size, int flags, uint64_t *va, uint64_t *gpu)
{
	(void)g;
	(void)size;
	(void)flags;
	/* One address serves each page: only the users' own bytes are there. */
	*va = h;
	*gpu = 0;
	atomic_store(&slots[h & (GDR_SLOT_COUNT - 1)].key, h);
	return 0;
}

int gdrcore_info(uint64_t g, uint64_t h, struct gdr_core_info *info)
{
	(void)g;
	*info = (struct gdr_core_info){ .va = pin_of(h)->addr, .page_size = PAGE };
	return 0;
}

int gdrcore_driver_version(uint64_t g, int *major, int *minor)
{
	*major = *minor = 1;
	return g ? 0 : EINVAL;
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
	no_place = ENOMEM;	/* the steps may have left another */
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

/* The steps, of one thread. */

static void free_first(void)
{
	atomic_store(&cache_cuda_ids[1], 0);
}

static void renew_first(void)
{
	atomic_store(&cache_cuda_ids[1], atomic_fetch_add(&newest_id, 1) + 1);
}

static int get(gdr_cache_t c, uint64_t addr, size_t size, gdr_mh_t *mh)
{
	void *va;

	return gdr_cache_get(c, addr, size, mh, &va);
}

/* A pinning that may be of memory that is gone is not handed out. */
static void freed_in_the_pin(struct tap *t, gdr_cache_t c)
{
	gdr_mh_t mh;

	in_pin = free_first;
	tap_is(t, get(c, 1 << SHIFT, 64, &mh), EINVAL, "a get whose memory is freed meanwhile");
	tap_is(t, live, 0, "what it leaves pinned");
	renew_first();
	in_pin = renew_first;
	tap_is(t, get(c, 1 << SHIFT, 64, &mh), EINVAL, "a get whose memory is another meanwhile");
	tap_is(t, live, 0, "what it leaves pinned");
	in_pin = NULL;
	tap_is(t, get(c, 1 << SHIFT, 64, &mh), 0, "the get after it");
	tap_is(t, gdr_cache_put(c, mh), 0, "its put");
}

/* Where pinnings or descriptors are short, one that nobody holds goes. */
static void others_make_room(struct tap *t, gdr_cache_t c, int answer)
{
	gdr_mh_t mh[3];

	gdr_cache_flush(c);
	no_place = answer;
	places = 2;
	for (int i = 0; i < 2; i++)
		tap_is(t, get(c, (uint64_t)(i + 1) << SHIFT, 64, &mh[i]), 0, "a get that fills a place");
	tap_is(t, get(c, 3 << SHIFT, 64, &mh[2]), answer, "a get while all are held");
	tap_is(t, gdr_cache_put(c, mh[0]), 0, "a put");
	tap_is(t, get(c, 3 << SHIFT, 64, &mh[2]), 0, "a get after it");
	tap_is(t, live, 2, "pinnings");
	tap_is(t, gdr_cache_put(c, mh[0]), EINVAL, "a put of what had to go");
	tap_is(t, gdr_cache_put(c, mh[1]), 0, "a put of what was held");
	tap_is(t, gdr_cache_put(c, mh[2]), 0, "a put of the new one");
	places = PINS;
	gdr_cache_flush(c);
	tap_is(t, live, 0, "pinnings after a flush");
}

/* What goes is what was used the longest ago. */
static void oldest_goes(struct tap *t, gdr_cache_t c)
{
	uint64_t order[] = { 1, 2, 3, 1 };
	gdr_mh_t mh[ALLOCATIONS], again;

	places = 3;
	for (int i = 0; i < 4; i++) {
		tap_is(t, get(c, order[i] << SHIFT, 64, &mh[order[i]]), 0, "a get");
		gdr_cache_put(c, mh[order[i]]);
	}
	tap_is(t, get(c, 4 << SHIFT, 64, &mh[4]), 0, "a get without a place left");
	gdr_cache_put(c, mh[4]);
	tap_is(t, get(c, 1 << SHIFT, 64, &again), 0, "a get of what was used last");
	tap_ok(t, again.h == mh[1].h, "it has stayed");
	gdr_cache_put(c, again);
	places = PINS;
	gdr_cache_flush(c);
}

/* What was pinned for memory that is gone serves nobody. */
static void another_memory_there(struct tap *t, gdr_cache_t c)
{
	gdr_mh_t old, new;

	tap_is(t, get(c, 1 << SHIFT, 64, &old), 0, "a get");
	gdr_cache_put(c, old);
	renew_first();
	tap_is(t, get(c, 1 << SHIFT, 64, &new), 0, "a get of other memory at the address");
	tap_ok(t, new.h != old.h, "it is pinned anew");
	tap_is(t, live, 1, "pinnings");
	gdr_cache_put(c, new);
	gdr_cache_flush(c);
}

/* A range is widened to GPU pages as far as its allocation goes. */
static void allocations_in_a_page(struct tap *t, gdr_cache_t c)
{
	uint64_t split = (1 << SHIFT) + PAGE + PAGE / 2;
	gdr_mh_t mh;

	tap_is(t, get(c, split - 100, 50, &mh), 0, "a get in the middle of a page");
	tap_is(t, last_size, PAGE, "bytes pinned");
	gdr_cache_put(c, mh);
	gdr_cache_flush(c);
	atomic_store(&cache_cuda_split, split);
	tap_is(t, get(c, split - 100, 50, &mh), 0, "a get in a page of two allocations");
	tap_is(t, last_size, PAGE / 2 - 50, "bytes pinned");
	gdr_cache_put(c, mh);
	tap_is(t, get(c, split - 100, 200, &mh), ENOTSUP, "a get of both allocations");
	gdr_cache_flush(c);
	atomic_store(&cache_cuda_split, 0);
	tap_is(t, live, 0, "pinnings");
}

static gdr_cache_t closing;
static pthread_t second_close;
static int second_result;
static sem_t second_is_in;

static void say_in(void)
{
	sem_post(&second_is_in);
}

static void *close_second(void *arg)
{
	second_result = gdr_cache_close(closing);
	return arg;
}

/* In the first close, which has the lock: the second has come in, and waits for it. */
static void start_second(void)
{
	in_unpin = NULL;
	in_forget = say_in;
	if (pthread_create(&second_close, NULL, close_second, NULL))
		exit(2);
	sem_wait(&second_is_in);
	usleep(20000);
	in_forget = NULL;
}

/* Who waited for the lock of a cache that is gone then has no cache. */
static void closed_twice(struct tap *t, gdr_cache_t c)
{
	gdr_mh_t mh;

	sem_init(&second_is_in, 0, 0);
	closing = c;
	tap_is(t, get(c, 1 << SHIFT, 64, &mh), 0, "a get");
	gdr_cache_put(c, mh);
	in_unpin = start_second;
	tap_is(t, gdr_cache_close(c), 0, "the close");
	pthread_join(second_close, NULL);
	tap_is(t, second_result, EINVAL, "a close that came while it ran");
	tap_is(t, live, 0, "pinnings");
	tap_is(t, wrong, 0, "wrong answers");
}

/* What is unpinned no longer counts towards what a cache may keep. */
static void two_pages_stay(struct tap *t)
{
	gdr_mh_t first, mh;
	gdr_cache_t c;

	open_new(2 * PAGE);
	c.h = atomic_load(&cache);
	for (int i = 0; i < 5; i++) {
		tap_is(t, get(c, 1 << SHIFT, 64, &first), 0, "a get");
		gdr_cache_put(c, first);
		if (i < 4)
			gdr_cache_flush(c);
	}
	tap_is(t, get(c, 2 << SHIFT, 64, &mh), 0, "a get of a second page");
	gdr_cache_put(c, mh);
	tap_is(t, live, 2, "pinnings");
	tap_is(t, get(c, 1 << SHIFT, 64, &mh), 0, "a get of the first");
	tap_ok(t, mh.h == first.h, "it has stayed");
	gdr_cache_put(c, mh);
	tap_is(t, get(c, 3 << SHIFT, 64, &mh), 0, "a get of a third page");
	gdr_cache_put(c, mh);
	tap_is(t, live, 2, "pinnings");
	tap_is(t, gdr_cache_close(c), 0, "the close");
	tap_is(t, live, 0, "pinnings");
}

static void states_of_a_range(struct tap *t)
{
	uint64_t h = EPOCH << GDR_HANDLE_EPOCH_SHIFT | 5ull << GDR_HANDLE_INDEX_BITS | 3, left = 9;
	uint64_t later = h + (1ull << GDR_HANDLE_INDEX_BITS);
	struct range r = { .state = state_of(h) };

	tap_ok(t, !range_let_go(&r, h, &left) && left == 9, "state: no hold can be given back");
	tap_ok(t, range_hold(&r, h) && range_holds(&r, h) == 1, "state: a hold");
	tap_ok(t, !range_hold(&r, later), "state: a later handle has none");
	tap_ok(t, !range_retire(&r, h, false) && range_is_there(&r, h), "state: held, it is not retired");
	tap_ok(t, range_retire(&r, h, true) && !range_is_there(&r, h), "state: it is, if holds do not matter");
	tap_ok(t, !range_hold(&r, h) && range_holds(&r, h) == 1, "state: retired, it gives no hold");
	tap_ok(t, range_let_go(&r, h, &left) && left == (state_of(h) | RETIRED), "state: the last hold is given back");
	tap_ok(t, range_retire(&r, later, false), "state: another handle counts as retired");
	r.state = state_of(h) | HOLDS_MAX;
	tap_ok(t, !range_hold(&r, h), "state: no more holds than fit");
}

static void steps(struct tap *t)
{
	gdr_cache_t c;

	open_new(1 << 30);
	c.h = atomic_load(&cache);
	freed_in_the_pin(t, c);
	others_make_room(t, c, ENOMEM);
	others_make_room(t, c, EMFILE);
	oldest_goes(t, c);
	another_memory_there(t, c);
	allocations_in_a_page(t, c);
	closed_twice(t, c);
	two_pages_stay(t);
	states_of_a_range(t);
}

int main(int argc, char **argv)
{
	int seconds = argc > 1 && !strcmp(argv[1], "--long") ? 60 : 3;
	struct tap t = { 0, 0, 0 };

	slots = calloc(GDR_SLOT_COUNT, sizeof(*slots));
	if (!slots)
		return 2;
	front_is_up(&table, EPOCH, slots, NULL);
	for (int i = 1; i < ALLOCATIONS; i++)
		atomic_store(&cache_cuda_ids[i], atomic_fetch_add(&newest_id, 1) + 1);
	steps(&t);
	if (argc > 1 && !strcmp(argv[1], "--steps"))
		return tap_done(&t);
	run(&t, "memory that comes and goes", false, seconds);
	run(&t, "caches that do, too", true, seconds);
	/* ThreadSanitizer itself ends the program with 66 if it saw a race. */
	return tap_done(&t);
}
