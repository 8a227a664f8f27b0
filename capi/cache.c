// SPDX-License-Identifier: MIT
/*
 * cache.c - the registration caches of gdrapi_ext.h.
 *
 * A hit asks the CUDA driver for the memory's buffer ID and then takes a hold of
 * a range that was pinned under that ID (cache_range.h): no lock, no system call,
 * no Go. All else has the cache's lock, for as long as a pinning takes, with the
 * signals held off that guest.h names; so no handler can leave the lock taken.
 *
 * The ID is asked for before the hold is taken. The driver gives no ID to two
 * allocations, so memory that has a range's ID has been that range's from its
 * pinning on, and stays so while the caller does not free it.
 */
#define _GNU_SOURCE
#include "cache.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../include/gdrapi_ext.h"
#include "_cgo_export.h"
#include "cache_range.h"
#include "data.h"
#include "front.h"
#include "guest.h"
#include "log.h"
#include "long.h"

#define CACHES_MAX 64u
#define GENERATIONS (1u << (GDR_HANDLE_GEN_BITS - 1))
#define CU_POINTER_ATTRIBUTE_BUFFER_ID 7
#define CU_POINTER_ATTRIBUTE_RANGE_START_ADDR 11
#define CU_POINTER_ATTRIBUTE_RANGE_SIZE 12
#define CUDA_ERROR_INVALID_VALUE 1
#define CUDA_ERROR_NOT_INITIALIZED 3
#define CUDA_ERROR_NOT_SUPPORTED 801

/* cuPointerGetAttribute: it needs no current context. */
typedef int (*attribute_fn)(void *value, int attribute, uint64_t addr);

struct cache {
	_Atomic uint64_t key;		/* its handle; 0 while there is none */
	_Atomic uint64_t most;		/* bytes to keep pinned */
	_Atomic uint64_t pinned;	/* bytes that are */
	_Atomic uint32_t count;		/* spans[0..] that hits find */
	/* What follows, and changing what is above, is for who has the lock. */
	_Alignas(64) pthread_mutex_t lock;
	uint32_t retired;		/* spans[RANGES_MAX - retired..]: until the last put */
	uint64_t g;
	uint64_t page;			/* the backend's, once a pinning has told */
	struct span spans[RANGES_MAX];
};

/* Never unmapped: a call with an old handle must find a word to compare it with. */
struct gdr_caches {
	_Atomic(attribute_fn) attribute;
	const struct gdr_slot *slots;
	uint64_t epoch;
	uint32_t generation;		/* of the newest cache; under the front's lock */
	bool taken[CACHES_MAX];		/* under the front's lock */
	_Atomic uint32_t ever;		/* places that a cache has ever had: the first ones */
	struct range ranges[GDR_SLOT_COUNT];
	struct cache caches[CACHES_MAX];
};

static int refuse(const char *call, const char *why, int rc)
{
	gdr_log(GDR_LOG_ERROR, "%s: %s (errno %d)", call, why, rc);
	return rc;
}

static const char no_cache[] = "no open cache has this handle; gdr_close of its gdr_t ended it, or gdr_cache_close";

/*
 * A cache's handle has the highest bit of the generation, which the core's do not
 * come to: they begin below it, and one is a call of gdr_pin_buffer.
 */
static uint64_t cache_handle(const struct gdr_caches *all, uint32_t index)
{
	uint64_t generation = GENERATIONS | all->generation;

	return all->epoch << GDR_HANDLE_EPOCH_SHIFT | generation << GDR_HANDLE_INDEX_BITS | index;
}

static struct gdr_caches *all_caches(void)
{
	struct gdr_front *front = atomic_load_explicit(&gdr_front_page, memory_order_acquire);

	return front ? atomic_load_explicit(&front->caches, memory_order_acquire) : NULL;
}

static inline struct cache *find_cache(struct gdr_caches *all, uint64_t handle)
{
	struct cache *cache;

	if (!all || !handle)
		return NULL;
	cache = &all->caches[handle & (CACHES_MAX - 1)];
	return atomic_load_explicit(&cache->key, memory_order_acquire) == handle ? cache : NULL;
}

static inline struct range *range_of(struct gdr_caches *all, uint64_t handle)
{
	return &all->ranges[handle & (GDR_SLOT_COUNT - 1)];
}

/* Stands in for a driver that the process has not loaded. */
static int no_driver(void *value, int attribute, uint64_t addr)
{
	(void)value;
	(void)attribute;
	(void)addr;
	return CUDA_ERROR_NOT_INITIALIZED;
}

static inline int buffer_id(struct gdr_caches *all, uint64_t addr, uint64_t *id)
{
	attribute_fn attribute = atomic_load_explicit(&all->attribute, memory_order_acquire);

	*id = 0;
	return attribute(id, CU_POINTER_ATTRIBUTE_BUFFER_ID, addr);
}

/* Whether the range that is held is one of the cache's, of that allocation, has the
 * bytes, and is mapped. Its words are those of one range when it has said so.
 */
static inline bool confirms(struct gdr_caches *all, const struct range *r, uint64_t handle,
			    uint64_t cache, uint64_t addr, uint64_t size, uint64_t id, uint64_t *va)
{
	uint64_t start = atomic_load_explicit(&r->start, memory_order_acquire);
	uint64_t end = atomic_load_explicit(&r->end, memory_order_acquire);
	bool good = addr >= start && addr < end && size <= end - addr;

	good &= atomic_load_explicit(&r->id, memory_order_acquire) == id;
	good &= atomic_load_explicit(&r->owner, memory_order_acquire) == cache;
	*va = atomic_load_explicit(&r->va, memory_order_acquire) + (addr - start);
	good &= atomic_load_explicit(&all->slots[handle & (GDR_SLOT_COUNT - 1)].key,
				     memory_order_acquire) == handle;
	return good && range_is_there(r, handle);
}

/*
 * The handle of a range that has the bytes, and a hold of it; 0: there is none.
 * A miss may have held a range that was to go, for a moment: the caller makes room.
 */
static inline uint64_t find_and_hold(struct gdr_caches *all, struct cache *cache, uint64_t addr,
				     uint64_t size, uint64_t id, uint64_t *va)
{
	uint64_t key = atomic_load_explicit(&cache->key, memory_order_relaxed);
	uint32_t n = atomic_load_explicit(&cache->count, memory_order_acquire);
	uint32_t i = span_before(cache->spans, n, addr);
	uint64_t handle, left;
	struct range *r;

	if (i == n)
		return 0;
	handle = atomic_load_explicit(&cache->spans[i].handle, memory_order_acquire);
	r = range_of(all, handle);
	if (!range_hold(r, handle))
		return 0;
	if (confirms(all, r, handle, key, addr, size, id, va)) {
		atomic_store_explicit(&r->used, range_clock(), memory_order_relaxed);
		return handle;
	}
	range_let_go(r, handle, &left);
	return 0;
}

/* From here to the calls that are exported: for who has the cache's lock. */

/* A cache is told from the one that was in its place before. NULL: it is gone. */
static struct cache *lock_cache(struct gdr_caches *all, uint64_t handle)
{
	struct cache *cache = find_cache(all, handle);

	if (!cache)
		return NULL;
	pthread_mutex_lock(&cache->lock);
	if (atomic_load(&cache->key) == handle)
		return cache;
	pthread_mutex_unlock(&cache->lock);
	return NULL;
}

/* Where the driver fails, the core has let go of the handle all the same. */
static void unpin(struct cache *cache, const struct span *s)
{
	gdrcore_unpin(cache->g, atomic_load(&s->handle));
	atomic_fetch_sub(&cache->pinned, s->bytes);
}

static void move_span(struct span *to, const struct span *from)
{
	atomic_store_explicit(&to->start, atomic_load(&from->start), memory_order_relaxed);
	atomic_store_explicit(&to->handle, atomic_load(&from->handle), memory_order_release);
	to->bytes = from->bytes;
}

static void remove_span(struct cache *cache, uint32_t at)
{
	uint32_t n = atomic_load(&cache->count) - 1;

	for (uint32_t i = at; i < n; i++)
		move_span(&cache->spans[i], &cache->spans[i + 1]);
	atomic_store_explicit(&cache->count, n, memory_order_release);
}

/*
 * Takes a range out of what hits find. It is unpinned now, or with its last hold.
 * There is room for it among the retired: it leaves a place free.
 */
static void retire(struct gdr_caches *all, struct cache *cache, uint32_t at)
{
	struct span s;
	struct range *r;
	uint64_t handle;

	move_span(&s, &cache->spans[at]);
	handle = atomic_load(&s.handle);
	r = range_of(all, handle);
	range_retire(r, handle, true);
	remove_span(cache, at);
	if (range_holds(r, handle))
		move_span(&cache->spans[RANGES_MAX - ++cache->retired], &s);
	else
		unpin(cache, &s);
}

/* Unpins the retired ranges that have no hold any more. */
static void drop_retired(struct gdr_caches *all, struct cache *cache)
{
	struct span *first = &cache->spans[RANGES_MAX - cache->retired];

	for (struct span *s = first; s < &cache->spans[RANGES_MAX]; s++) {
		uint64_t handle = atomic_load(&s->handle);

		if (range_holds(range_of(all, handle), handle))
			continue;
		unpin(cache, s);
		if (s != first)
			move_span(s, first);
		first++;
		cache->retired--;
	}
}

/* The place of the range without a hold that was used the longest ago. */
static uint32_t find_oldest(struct gdr_caches *all, const struct cache *cache)
{
	uint32_t n = atomic_load(&cache->count), oldest = n;
	uint64_t when = UINT64_MAX;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t handle = atomic_load(&cache->spans[i].handle);
		struct range *r = range_of(all, handle);
		uint64_t used = atomic_load(&r->used);

		if (range_holds(r, handle) || (oldest < n && used >= when))
			continue;
		oldest = i;
		when = used;
	}
	return oldest;
}

/* Unpins the range that has not been used for the longest time. false: none can be. */
static bool evict(struct gdr_caches *all, struct cache *cache)
{
	for (;;) {
		uint32_t i = find_oldest(all, cache);
		uint64_t handle;

		if (i == atomic_load(&cache->count))
			return false;
		handle = atomic_load(&cache->spans[i].handle);
		/* A hit may have been faster. */
		if (!range_retire(range_of(all, handle), handle, false))
			continue;
		retire(all, cache, i);
		return true;
	}
}

/* Makes the cache as small as it should be with more bytes, as far as that goes. */
static void make_room(struct gdr_caches *all, struct cache *cache, uint64_t more)
{
	uint64_t most = atomic_load(&cache->most);
	uint64_t goal = most > more ? most - more : 0;

	drop_retired(all, cache);
	while (atomic_load(&cache->pinned) > goal && evict(all, cache))
		;
}

/* How the library says what the driver answers. */
static int errno_of(int result)
{
	switch (result) {
	case 0:
		return 0;
	case CUDA_ERROR_INVALID_VALUE:
	case CUDA_ERROR_NOT_INITIALIZED:
		return EINVAL;
	case CUDA_ERROR_NOT_SUPPORTED:
		return ENOTSUP;
	}
	return EIO;
}

static bool has_id(struct gdr_caches *all, uint64_t addr, uint64_t want)
{
	uint64_t id;

	return !buffer_id(all, addr, &id) && id == want;
}

/* What a miss is about to pin. The bytes lie in the allocation of id. */
struct plan {
	uint64_t id, start, end;
};

static uint64_t round_down(uint64_t n, uint64_t page)
{
	return n & ~(page - 1);
}

static uint64_t round_up(uint64_t n, uint64_t page)
{
	return round_down(n + page - 1, page);
}

/*
 * Widens the range to GPU pages, but not past its allocation, as far as the driver
 * tells where that ends; the ID at both ends has the last word.
 */
static void widen(struct gdr_caches *all, struct plan *p)
{
	attribute_fn attribute = atomic_load(&all->attribute);
	uint64_t base = 0, size = 0, start, end;

	if (attribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p->start) ||
	    attribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p->start))
		return;
	if (base > p->start || size < p->end - base)
		return;
	start = round_down(p->start, GPU_PAGE_SIZE);
	end = round_up(p->end, GPU_PAGE_SIZE);
	if (start < base)
		start = base;
	if (end - base > size)
		end = base + size;
	if (!has_id(all, start, p->id) || !has_id(all, end - 1, p->id))
		return;
	p->start = start;
	p->end = end;
}

static int make_plan(struct gdr_caches *all, uint64_t addr, uint64_t size, uint64_t id,
		     struct plan *p)
{
	uint64_t last;
	int rc;

	if (!id)
		return refuse("gdr_cache_get", "the CUDA driver has no buffer ID for this memory, so it cannot be cached; use gdr_pin_buffer",
			      ENOTSUP);
	rc = buffer_id(all, addr + size - 1, &last);
	if (rc)
		return refuse("gdr_cache_get", "the range ends past its allocation", errno_of(rc));
	if (last != id)
		return refuse("gdr_cache_get", "the range lies in several allocations, and one at a time can be cached; ask for each, or use gdr_pin_buffer",
			      ENOTSUP);
	*p = (struct plan){ .id = id, .start = addr, .end = addr + size };
	widen(all, p);
	return 0;
}

struct pinned {
	uint64_t handle, va, gpu, bytes;
};

/* Pins and maps. It fails when it finds the backend's page to be another one. */
static int pin_once(struct cache *cache, const struct plan *p, struct pinned *out)
{
	uint64_t start = round_down(p->start, cache->page);
	struct gdr_core_info info = { 0 };
	uint64_t handle = 0, va = 0, gpu = 0;
	int rc;

	rc = gdrcore_pin(cache->g, start, p->end - start, 0, 0, 0, &handle);
	if (rc)
		return rc;
	rc = gdrcore_info(cache->g, handle, &info);
	if (!rc && info.page_size > cache->page) {
		cache->page = info.page_size;
		rc = start % cache->page ? EINVAL : 0;
	}
	if (!rc)
		rc = gdrcore_map(cache->g, handle, p->end - start, GDR_MAP_FLAG_DEFAULT, &va, &gpu);
	if (rc) {
		gdrcore_unpin(cache->g, handle);
		return rc;
	}
	*out = (struct pinned){
		.handle = handle,
		.va = va + (p->start - info.va),
		.gpu = gpu,
		.bytes = round_up(p->end - start, cache->page),
	};
	return 0;
}

/* Pins and maps, and unpins others if the room for it or the descriptors are short. */
static int pin(struct gdr_caches *all, struct cache *cache, const struct plan *p,
	       struct pinned *out)
{
	uint64_t page;
	int rc;

	make_room(all, cache, round_up(p->end - round_down(p->start, cache->page), cache->page));
	if (atomic_load(&cache->count) + cache->retired == RANGES_MAX && !evict(all, cache))
		return refuse("gdr_cache_get", "16384 ranges of this cache are held; put some", ENOMEM);
	do {
		page = cache->page;
		rc = pin_once(cache, p, out);
	} while (rc && (cache->page != page ||
			((rc == ENOMEM || rc == EMFILE) && evict(all, cache))));
	return rc;
}

/* Pinned for an allocation that has since lost some of these bytes, or not pinned. */
static bool is_stale(struct gdr_caches *all, const struct span *s, const struct plan *p)
{
	uint64_t handle = atomic_load(&s->handle);
	const struct range *r = range_of(all, handle);

	/* The caller has unpinned it: its place has another range. */
	if (!same_generation(atomic_load(&r->state), state_of(handle)))
		return true;
	return atomic_load(&r->start) < p->end && atomic_load(&r->end) > p->start &&
	       atomic_load(&r->id) != p->id;
}

/* Whether one of the two lies in the other: then a search could miss one. */
static bool is_nested(struct gdr_caches *all, const struct span *s, const struct plan *p)
{
	const struct range *r = range_of(all, atomic_load(&s->handle));
	uint64_t start = atomic_load(&r->start), end = atomic_load(&r->end);

	return (start >= p->start && end <= p->end) || (start <= p->start && end >= p->end);
}

static void retire_useless(struct gdr_caches *all, struct cache *cache, const struct plan *p,
			   bool nested_too)
{
	for (uint32_t i = 0; i < atomic_load(&cache->count); ) {
		const struct span *s = &cache->spans[i];

		if (is_stale(all, s, p) || (nested_too && is_nested(all, s, p)))
			retire(all, cache, i);
		else
			i++;
	}
}

/* Adds a range with one hold. The state comes last: it lets hits in. */
static void insert(struct gdr_caches *all, struct cache *cache, const struct plan *p,
		   const struct pinned *new)
{
	struct span s = { .start = p->start, .handle = new->handle, .bytes = new->bytes };
	struct range *r = range_of(all, new->handle);
	uint32_t n, at;

	retire_useless(all, cache, p, true);
	/* It is, but for a range of this place that the caller has unpinned. */
	atomic_fetch_or(&r->state, RETIRED);
	atomic_store_explicit(&r->start, p->start, memory_order_release);
	atomic_store_explicit(&r->end, p->end, memory_order_release);
	atomic_store_explicit(&r->id, p->id, memory_order_release);
	atomic_store_explicit(&r->va, new->va, memory_order_release);
	atomic_store_explicit(&r->owner, atomic_load(&cache->key), memory_order_release);
	atomic_store_explicit(&r->used, range_clock(), memory_order_release);
	atomic_store(&r->state, state_of(new->handle) | 1);
	n = atomic_load(&cache->count);
	at = span_before(cache->spans, n, p->start);
	at = at == n ? 0 : at + 1;
	for (uint32_t i = n; i > at; i--)
		move_span(&cache->spans[i], &cache->spans[i - 1]);
	move_span(&cache->spans[at], &s);
	atomic_fetch_add(&cache->pinned, new->bytes);
	atomic_store_explicit(&cache->count, n + 1, memory_order_release);
}

/* Pins the range that has the bytes, and adds it. */
static int add(struct gdr_caches *all, struct cache *cache, uint64_t addr, uint64_t size,
	       uint64_t id, uint64_t *handle, uint64_t *va)
{
	struct pinned new;
	struct plan p;
	int rc;

	rc = make_plan(all, addr, size, id, &p);
	if (!rc)
		rc = pin(all, cache, &p, &new);
	if (rc)
		return rc;
	if (!has_id(all, p.start, id) || !has_id(all, p.end - 1, id)) {
		gdrcore_unpin(cache->g, new.handle);
		return refuse("gdr_cache_get", "the memory was freed while it was being pinned", EINVAL);
	}
	insert(all, cache, &p, &new);
	/* What was held before the pinning may be held no more. */
	make_room(all, cache, 0);
	gdr_long_mapped(atomic_load(&gdr_front_page), new.handle, new.gpu);
	*handle = new.handle;
	*va = new.va + (addr - p.start);
	return 0;
}

static bool find_driver(struct gdr_caches *all)
{
	attribute_fn f = NULL;
	void *lib;

	if (atomic_load(&all->attribute) != no_driver)
		return true;
	lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (lib)
		*(void **)&f = dlsym(lib, "cuPointerGetAttribute");
	if (f)
		atomic_store(&all->attribute, f);
	return f != NULL;
}

static int get_locked(struct gdr_caches *all, struct cache *cache, uint64_t addr, uint64_t size,
		      uint64_t *handle, uint64_t *va)
{
	struct plan here = { .start = addr, .end = addr + 1 };
	int rc;

	if (!find_driver(all))
		return refuse("gdr_cache_get", "this process has not loaded libcuda.so.1, which knows what memory is",
			      ENOTSUP);
	make_room(all, cache, 0);
	rc = buffer_id(all, addr, &here.id);
	if (!rc) {
		/* Another thread may have pinned it by now. */
		*handle = find_and_hold(all, cache, addr, size, here.id, va);
		if (*handle)
			return 0;
	}
	retire_useless(all, cache, &here, false);
	if (!rc)
		return add(all, cache, addr, size, here.id, handle, va);
	gdr_log(GDR_LOG_ERROR, "gdr_cache_get: the CUDA driver answers %d for the memory at %#lx: give the address of GPU memory (errno %d)",
		rc, addr, errno_of(rc));
	return errno_of(rc);
}

static void flush(struct gdr_caches *all, struct cache *cache)
{
	drop_retired(all, cache);
	for (uint32_t i = atomic_load(&cache->count); i--; ) {
		uint64_t handle = atomic_load(&cache->spans[i].handle);

		if (range_retire(range_of(all, handle), handle, false))
			retire(all, cache, i);
	}
}

/* Unpins all that is left, held or not. */
static void empty(struct gdr_caches *all, struct cache *cache)
{
	while (atomic_load(&cache->count))
		retire(all, cache, atomic_load(&cache->count) - 1);
	for (; cache->retired; cache->retired--)
		unpin(cache, &cache->spans[RANGES_MAX - cache->retired]);
}

/* The cache is gone when this is done: its place may be another's. */
static void give_place_back(struct gdr_caches *all, struct cache *cache)
{
	struct gdr_front *front = atomic_load(&gdr_front_page);

	atomic_store(&cache->key, 0);
	pthread_mutex_lock(&front->lock);
	all->taken[cache - all->caches] = false;
	pthread_mutex_unlock(&front->lock);
}

/* The calls, without what they have in common. */
enum call { GET, SETTLE, FLUSH, CLOSE };

struct request {
	enum call call;
	uint64_t addr, size;	/* of GET */
	uint64_t handle, va;	/* its answer */
};

static int do_locked(struct gdr_caches *all, struct cache *cache, struct request *r)
{
	switch (r->call) {
	case GET:
		return get_locked(all, cache, r->addr, r->size, &r->handle, &r->va);
	case SETTLE:
		make_room(all, cache, 0);
		return 0;
	case FLUSH:
		flush(all, cache);
		return 0;
	case CLOSE:
		empty(all, cache);
		give_place_back(all, cache);
		return 0;
	}
	return EINVAL;
}

/* The slow way of every call: prepared for Go, and with the lock. */
static int do_slowly(const char *name, gdr_cache_t c, struct request *r)
{
	struct gdr_caches *all = all_caches();
	struct gdr_guest guest;
	struct cache *cache;
	int rc = gdr_front_admit(c.h, 0);

	if (rc)
		return rc;
	gdr_guest_enter(&guest);
	/* Who has the lock may wait for a copy that this thread has left. */
	gdr_data_forget(0);
	cache = lock_cache(all, c.h);
	if (cache) {
		rc = do_locked(all, cache, r);
		pthread_mutex_unlock(&cache->lock);
	}
	gdr_guest_leave(&guest);
	return cache ? rc : refuse(name, no_cache, EINVAL);
}

/* Finds a place in the process's caches, which it makes if there are none. */
static struct cache *take_place(struct gdr_front *front, uint64_t *handle)
{
	struct gdr_caches *all = atomic_load(&front->caches);

	if (!all) {
		all = gdr_map_memory(NULL, sizeof(*all), PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
		if (all == MAP_FAILED)
			return NULL;
		/* Huge pages would make the first range cost 2 MiB. */
		madvise(all, sizeof(*all), MADV_NOHUGEPAGE);
		all->slots = (const struct gdr_slot *)(uintptr_t)front->table->slots;
		all->epoch = front->epoch;
		atomic_store(&all->attribute, no_driver);
		atomic_store_explicit(&front->caches, all, memory_order_release);
	}
	for (uint32_t i = 0; i < CACHES_MAX && all->generation < GENERATIONS - 1; i++)
		if (!all->taken[i]) {
			all->taken[i] = true;
			all->generation++;
			if (i >= atomic_load(&all->ever))
				atomic_store(&all->ever, i + 1);
			*handle = cache_handle(all, i);
			return &all->caches[i];
		}
	return NULL;
}

static int open_cache(uint64_t g, size_t most, gdr_cache_t *c)
{
	struct gdr_front *front = atomic_load(&gdr_front_page);
	struct cache *cache;
	uint64_t handle = 0;

	pthread_mutex_lock(&front->lock);
	cache = take_place(front, &handle);
	pthread_mutex_unlock(&front->lock);
	if (!cache)
		return refuse("gdr_cache_open", "no memory, or 64 caches are open; close one", ENOMEM);
	pthread_mutex_lock(&cache->lock);
	cache->g = g;
	cache->page = sysconf(_SC_PAGESIZE);
	atomic_store(&cache->most, most);
	atomic_store(&cache->key, handle);
	pthread_mutex_unlock(&cache->lock);
	c->h = handle;
	return 0;
}

static int close_orphan(uint64_t handle)
{
	struct gdr_caches *all = all_caches();
	struct cache *cache = lock_cache(all, handle);

	if (cache) {
		give_place_back(all, cache);
		pthread_mutex_unlock(&cache->lock);
	}
	return EINVAL;
}

int gdr_cache_open(gdr_t g, size_t max_bytes, unsigned flags, gdr_cache_t *c)
{
	uint64_t id = (uintptr_t)g;
	struct gdr_guest guest;
	int rc = gdr_front_admit(id, 0), v[2];

	if (rc)
		return rc;
	if (!c)
		return refuse("gdr_cache_open", "no place for the cache: c is NULL", EINVAL);
	if (!max_bytes)
		return refuse("gdr_cache_open", "a cache of 0 bytes keeps nothing: ask for more", EINVAL);
	if (flags)
		return refuse("gdr_cache_open", "no flags are defined: pass 0", EINVAL);
	gdr_guest_enter(&guest);
	rc = gdrcore_driver_version(id, &v[0], &v[1]);
	if (!rc)
		rc = open_cache(id, max_bytes, c);
	/* A gdr_close meanwhile has not seen the cache if it was done before. */
	if (!rc && gdrcore_driver_version(id, &v[0], &v[1]))
		rc = close_orphan(c->h);
	gdr_guest_leave(&guest);
	return rc;
}

/* What a hit cannot do, or must not. */
static __attribute__((noinline, cold)) int
get_slowly(gdr_cache_t c, unsigned long addr, size_t size, gdr_mh_t *mh, void **va)
{
	struct request r = { .call = GET, .addr = addr, .size = size };
	int rc = gdr_front_admit(c.h, 0);

	if (rc)
		return rc;
	if (!mh || !va)
		return refuse("gdr_cache_get", "no place for the answer: mh or va is NULL", EINVAL);
	if (!addr || !size || addr + size < addr)
		return refuse("gdr_cache_get", "the range is empty, or wraps", EINVAL);
	rc = do_slowly("gdr_cache_get", c, &r);
	if (!rc) {
		mh->h = r.handle;
		*va = (void *)(uintptr_t)r.va;
	}
	return rc;
}

int gdr_cache_get(gdr_cache_t c, unsigned long addr, size_t size, gdr_mh_t *mh, void **va)
{
	struct gdr_caches *all = all_caches();
	struct cache *cache = find_cache(all, c.h);
	uint64_t id, handle, at;

	if (!cache || !mh || !va || !size || buffer_id(all, addr, &id))
		return get_slowly(c, addr, size, mh, va);
	handle = find_and_hold(all, cache, addr, size, id, &at);
	if (!handle)
		return get_slowly(c, addr, size, mh, va);
	mh->h = handle;
	*va = (void *)(uintptr_t)at;
	return 0;
}

static __attribute__((noinline, cold)) int put_nothing(gdr_cache_t c, gdr_mh_t mh)
{
	int rc = gdr_front_admit(c.h, mh.h);

	if (rc)
		return rc;
	if (!find_cache(all_caches(), c.h))
		return refuse("gdr_cache_put", no_cache, EINVAL);
	gdr_log(GDR_LOG_ERROR, "gdr_cache_put: nobody holds %#lx, or it is not of this cache (errno %d)",
		mh.h, EINVAL);
	return EINVAL;
}

int gdr_cache_put(gdr_cache_t c, gdr_mh_t mh)
{
	struct gdr_caches *all = all_caches();
	struct cache *cache = find_cache(all, c.h);
	uint64_t left;
	struct range *r;

	if (!cache || (c.h ^ mh.h) >> GDR_HANDLE_EPOCH_SHIFT)
		return put_nothing(c, mh);
	r = range_of(all, mh.h);
	if (atomic_load_explicit(&r->owner, memory_order_acquire) != c.h ||
	    !range_let_go(r, mh.h, &left))
		return put_nothing(c, mh);
	/* The last one to go sees to what nobody wants. */
	if (!holds_in(left) &&
	    (left & RETIRED || atomic_load(&cache->pinned) > atomic_load(&cache->most)))
		do_slowly("gdr_cache_put", c, &(struct request){ .call = SETTLE });
	return 0;
}

int gdr_cache_flush(gdr_cache_t c)
{
	return do_slowly("gdr_cache_flush", c, &(struct request){ .call = FLUSH });
}

int gdr_cache_close(gdr_cache_t c)
{
	return do_slowly("gdr_cache_close", c, &(struct request){ .call = CLOSE });
}

/* The core unpins them: their ranges are forgotten, and none is held from now on. */
static void forget_ranges(struct gdr_caches *all, struct cache *cache)
{
	uint32_t n = atomic_load(&cache->count);

	for (uint32_t i = 0; i < n; i++) {
		uint64_t handle = atomic_load(&cache->spans[i].handle);

		range_retire(range_of(all, handle), handle, true);
	}
	atomic_store(&cache->count, 0);
	atomic_store(&cache->pinned, 0);
	cache->retired = 0;
}

void gdr_cache_forget(uint64_t g)
{
	struct gdr_caches *all = all_caches();
	struct gdr_guest guest;

	if (!all)
		return;
	gdr_guest_enter(&guest);
	for (uint32_t i = 0; i < atomic_load(&all->ever); i++) {
		struct cache *cache = &all->caches[i];

		if (!atomic_load(&cache->key))
			continue;
		pthread_mutex_lock(&cache->lock);
		if (atomic_load(&cache->key) && cache->g == g) {
			forget_ranges(all, cache);
			give_place_back(all, cache);
		}
		pthread_mutex_unlock(&cache->lock);
	}
	gdr_guest_leave(&guest);
}
