// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "heard.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "front.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18	/* Linux 4.14 */
#endif

#define ROOM (1u << 17)		/* entries: 256 GiB in objects of 2 MiB */
#define STEP 65536u		/* bytes: whole pages, of any kernel */
#define FLIGHTS 64
#define MADE 256u

/* In the order of addresses. None overlaps another. */
struct list {
	size_t count, bytes;	/* that can be written; the rest is address space alone */
	struct gdr_heard *at;	/* ROOM of them */
};

struct table {
	struct list maps;	/* heard and gone */
	struct list ranges;	/* what GDR_TOLD_FREE may end */
	uint64_t number;	/* of the newest map */
	uint32_t clients;
	uint64_t ends;		/* requests that end something */
	uint64_t told;		/* maps */
	struct flight {
		pid_t thread;	/* that makes it; 0: free. It keeps the place if it leaves by siglongjmp. */
		bool ruined;	/* another request has touched its range or its object */
		struct gdr_told is;
	} flights[FLIGHTS];	/* maps that the kernel is asked for */
	uint32_t makings;
	struct gdr_heard made[MADE];	/* the last objects of memory, with their parents; client 0: freed */
};

/* Pages that a fork empties. A child does not inherit the table's memory. */
static struct {
	_Alignas(GDR_FRONT_ALIGN) _Atomic uint32_t lock;	/* 0: free, 1: taken, 2: somebody waits */
	_Atomic(struct table *) table;	/* set once, under the lock */
	_Atomic bool ended;
} ears;

bool gdr_heard_listens(void)
{
	return atomic_load(&ears.table) && !atomic_load(&ears.ended);
}

bool gdr_heard_stop(void)
{
	return !atomic_exchange(&ears.ended, true);
}

static void unlock(uint64_t held)
{
	if (atomic_exchange(&ears.lock, 0) == 2)
		syscall(SYS_futex, &ears.lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	gdr_release_signals(held);
}

/* Who has left with the lock, by siglongjmp from a handler of SIGSEGV, has it for ever. */
static bool lock(uint64_t *held)
{
	const struct timespec second = { .tv_sec = 1 };
	uint32_t free = 0;

	gdr_hold_signals(gdr_open_inside(), held);
	if (atomic_compare_exchange_strong(&ears.lock, &free, 1))
		return true;
	while (atomic_exchange(&ears.lock, 2))
		if (syscall(SYS_futex, &ears.lock, FUTEX_WAIT_PRIVATE, 2, &second, NULL, 0) && errno == ETIMEDOUT) {
			gdr_heard_stop();
			gdr_release_signals(*held);
			return false;
		}
	return true;
}

/* The table, locked, or NULL. */
static struct table *lock_table(uint64_t *held)
{
	if (!gdr_heard_listens() || !lock(held))
		return NULL;
	if (gdr_heard_listens())
		return atomic_load(&ears.table);
	unlock(*held);
	return NULL;
}

void gdr_heard_start(void)
{
	size_t list = ROOM * sizeof(struct gdr_heard), all = STEP + 2 * list;
	struct table *fresh;
	uint64_t held;

	if (atomic_load(&ears.table) || madvise(&ears, sizeof(ears), MADV_WIPEONFORK))
		return;
	fresh = gdr_map_memory(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
	if (fresh == MAP_FAILED)
		return;
	if (!syscall(SYS_mprotect, fresh, STEP, PROT_READ | PROT_WRITE) && lock(&held)) {
		if (!atomic_load(&ears.table)) {
			fresh->maps.at = (void *)((char *)fresh + STEP);
			fresh->ranges.at = (void *)((char *)fresh + STEP + list);
			atomic_store(&ears.table, fresh);
			fresh = NULL;
		}
		unlock(held);
	}
	if (fresh)
		syscall(SYS_munmap, fresh, all);
}

/* Whether there is room for one more. */
static bool has_room(struct list *l)
{
	if (l->count == ROOM)
		return false;
	if ((l->count + 1) * sizeof(l->at[0]) <= l->bytes)
		return true;
	if (syscall(SYS_mprotect, (char *)l->at + l->bytes, STEP, PROT_READ | PROT_WRITE))
		return false;
	l->bytes += STEP;
	return true;
}

/* The first entry that ends after addr. */
static size_t after(const struct list *l, uint64_t addr)
{
	size_t low = 0, high = l->count;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (l->at[mid].end <= addr)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* Nothing overlaps e. An empty one is none. */
static void insert(struct list *l, struct gdr_heard e)
{
	size_t i = after(l, e.base);

	if (e.base >= e.end)
		return;
	if (!has_room(l)) {
		gdr_heard_stop();
		return;
	}
	memmove(&l->at[i + 1], &l->at[i], (l->count++ - i) * sizeof(e));
	l->at[i] = e;
}

static void remove_at(struct list *l, size_t i, size_t n)
{
	if (!n)
		return;
	l->count -= n;
	memmove(&l->at[i], &l->at[i + n], (l->count - i) * sizeof(l->at[0]));
}

/* Drops what has bytes of the range. Of what is gone other bytes stay. */
static void clear(struct list *l, uint64_t base, uint64_t end)
{
	size_t i = after(l, base), n = 0;
	uint64_t low = base, high = end;

	for (; i + n < l->count && l->at[i + n].base < end; n++) {
		const struct gdr_heard *e = &l->at[i + n];

		low = !e->number && e->base < low ? e->base : low;
		high = !e->number && e->end > high ? e->end : high;
	}
	if (!n)
		return;
	remove_at(l, i, n);
	insert(l, (struct gdr_heard){ .base = low, .end = base });
	insert(l, (struct gdr_heard){ .base = end, .end = high });
}

/* The range is gone, in one entry with what is gone beside it. */
static void set_gone(struct list *l, uint64_t base, uint64_t end)
{
	size_t i;

	clear(l, base, end);
	i = after(l, base);
	if (i && !l->at[i - 1].number && l->at[i - 1].end == base) {
		base = l->at[--i].base;
		remove_at(l, i, 1);
	}
	if (i < l->count && !l->at[i].number && l->at[i].base == end) {
		end = l->at[i].end;
		remove_at(l, i, 1);
	}
	insert(l, (struct gdr_heard){ .base = base, .end = end });
}

/* Whether a request ends the map e, which has bytes of its range. */
static bool ends(const struct gdr_told *w, const struct gdr_heard *e)
{
	if (w->what == GDR_TOLD_UNMAP)	/* another GPU's map may be what the entry says */
		return !memcmp(e->uuid, w->is.uuid, sizeof(e->uuid));
	if (w->what == GDR_TOLD_OBJECT)
		return e->client == w->is.client && (!w->is.object || e->object == w->is.object);
	return true;
}

/* Drops the maps that a request ends. What is gone stays. */
static void drop(struct list *l, const struct gdr_told *w)
{
	bool all = w->what == GDR_TOLD_OBJECT;
	size_t i = all ? 0 : after(l, w->is.base), kept = i;

	for (; i < l->count && (all || l->at[i].base < w->is.end); i++)
		if (!l->at[i].number || !ends(w, &l->at[i]))
			l->at[kept++] = l->at[i];
	remove_at(l, kept, i - kept);
}

/* The parent of an object that was made lately, or 0. */
static uint32_t parent_of(const struct table *t, const struct gdr_heard *is)
{
	for (uint32_t n = 1; n <= MADE; n++) {
		const struct gdr_heard *m = &t->made[(t->makings - n) % MADE];

		if (m->client == is->client && m->object == is->object)
			return m->parent;
	}
	return 0;
}

/*
 * Whether a map changes nothing: the table has just that one, made for another GPU. Or it is of
 * another GPU, and of an object that is no memory that we know, as a pool's for its peers is: the
 * kernel has a tree of maps for each GPU.
 */
static bool is_known(const struct table *t, const struct gdr_heard *is)
{
	bool memory = parent_of(t, is), others = false;

	for (size_t i = after(&t->maps, is->base); i < t->maps.count && t->maps.at[i].base < is->end; i++) {
		const struct gdr_heard *e = &t->maps.at[i];

		if (e->number && e->base == is->base && e->end == is->end && e->offset == is->offset &&
		    e->client == is->client && e->object == is->object)
			return true;
		if (memory || !e->number || !e->parent || !memcmp(e->uuid, is->uuid, sizeof(e->uuid)))
			return false;
		others = true;
	}
	return others;
}

/*
 * Where the range that begins at base ends. If that was not heard, nothing ends here, and what may
 * lie in the range is dropped: all before the next one.
 */
static uint64_t end_of_range(struct table *t, uint64_t base)
{
	size_t i = after(&t->ranges, base);
	uint64_t end;

	if (i < t->ranges.count && t->ranges.at[i].base == base) {
		end = t->ranges.at[i].end;
		remove_at(&t->ranges, i, 1);
		return end;
	}
	clear(&t->maps, base, i < t->ranges.count ? t->ranges.at[i].base : UINT64_MAX);
	return base;
}

/* Objects are freed. */
static void forget(struct table *t, const struct gdr_told *w)
{
	for (struct gdr_heard *m = t->made; m < &t->made[MADE]; m++)
		if (ends(w, m))
			m->client = 0;
	t->clients += !w->is.object;
}

/* Whether a request touches the range or the object of a map. */
static bool touches(const struct gdr_told *w, const struct gdr_told *map)
{
	if (w->what == GDR_TOLD_OBJECT)
		return ends(w, &map->is);
	return w->is.base < map->is.end && map->is.base < w->is.end;
}

/* A request begins: it ruins maps under way, or is one. */
static void begin(struct table *t, struct gdr_told *w)
{
	struct flight *mine = NULL;
	pid_t self = syscall(SYS_gettid);

	for (struct flight *f = t->flights; f < &t->flights[FLIGHTS]; f++) {
		f->ruined = f->ruined || touches(w, &f->is);
		if (!mine || f->thread == self)
			mine = f->thread && f->thread != self ? mine : f;
	}
	if (w->what != GDR_TOLD_MAP || !mine)
		return;
	w->since = ++t->told;
	*mine = (struct flight){ .thread = self, .is = *w };
}

/* Whether a map was done and nothing has ruined it. */
static bool land(struct table *t, const struct gdr_told *w)
{
	for (struct flight *f = t->flights; w->since && f < &t->flights[FLIGHTS]; f++)
		if (f->thread && f->is.since == w->since) {
			f->thread = 0;
			return !f->ruined;
		}
	return false;
}

void gdr_heard_before(struct gdr_told *w)
{
	uint64_t held;
	struct table *t = lock_table(&held);

	if (!t)
		return;
	switch (w->what) {
	case GDR_TOLD_MAP:	/* what is gone stays so until the map is there */
		w->known = is_known(t, &w->is);
		if (w->known)
			break;
		/* fall through */
	case GDR_TOLD_UNMAP:
	case GDR_TOLD_OBJECT:
		drop(&t->maps, w);
		if (w->what == GDR_TOLD_OBJECT)
			forget(t, w);
		break;
	case GDR_TOLD_FREE:
		if (!w->is.end)
			w->is.end = end_of_range(t, w->is.base);
		set_gone(&t->maps, w->is.base, w->is.end);
		break;
	case GDR_TOLD_LOSS:
		clear(&t->maps, w->is.base, w->is.end);
		break;
	case GDR_TOLD_CLIENT:
		t->clients++;
		break;
	case GDR_TOLD_RANGE:
	case GDR_TOLD_MEMORY:
		break;
	}
	begin(t, w);
	t->ends += w->what >= GDR_TOLD_FREE;
	unlock(held);
}

void gdr_heard_after(struct gdr_told *w, bool done)
{
	uint64_t held;
	struct table *t = lock_table(&held);

	if (!t)
		return;
	if (w->what == GDR_TOLD_MAP) {
		done = land(t, w) && done;
		if (!w->known || !done)
			clear(&t->maps, w->is.base, w->is.end);
		w->is.number = ++t->number;
		w->is.parent = parent_of(t, &w->is);
		if (!w->known && done)
			insert(&t->maps, w->is);
	} else if (w->what == GDR_TOLD_FREE && !done) {
		clear(&t->maps, w->is.base, w->is.end);
	} else if (w->what == GDR_TOLD_MEMORY && done) {
		t->made[t->makings++ % MADE] = w->is;
	} else if (w->what == GDR_TOLD_RANGE && done) {
		clear(&t->ranges, w->is.base, w->is.end);
		w->is.number = 1;
		insert(&t->ranges, w->is);
	}
	unlock(held);
}

void gdr_heard_reset(void)
{
	uint64_t held;
	struct table *t = lock_table(&held);

	if (!t)
		return;
	t->maps.count = t->ranges.count = 0;
	t->clients++;
	unlock(held);
}

struct gdr_hearing gdr_heard_at(uint64_t base, uint64_t end, struct gdr_heard *list, size_t room)
{
	struct gdr_hearing h = { .answer = GDR_UNHEARD };
	bool gone = false;
	uint64_t held;
	struct table *t = lock_table(&held);

	if (!t)
		return h;
	h.clients = t->clients;
	h.ends = t->ends;
	for (size_t i = after(&t->maps, base); i < t->maps.count && t->maps.at[i].base < end; i++) {
		const struct gdr_heard *e = &t->maps.at[i];

		gone = gone || !e->number;
		if (e->base <= base)
			base = e->end;
		if (h.entries < room)
			list[h.entries] = *e;
		h.entries++;
	}
	unlock(held);
	h.answer = gone ? GDR_GONE : base >= end ? GDR_HEARD : GDR_UNHEARD;
	return h;
}

void gdr_heard_keep(const struct gdr_heard *is)
{
	uint64_t held;
	struct table *t = lock_table(&held);
	size_t i;

	if (!t)
		return;
	i = after(&t->maps, is->base);
	if (i < t->maps.count && t->maps.at[i].number == is->number) {
		t->maps.at[i].parent = is->parent;
		if (!is->parent)
			remove_at(&t->maps, i, 1);
	}
	unlock(held);
}

void gdr_heard_learn(const struct gdr_heard *is, uint64_t ends)
{
	struct gdr_heard e = *is;
	uint64_t held;
	struct table *t = lock_table(&held);
	size_t i;

	if (!t)
		return;
	i = after(&t->maps, e.base);
	e.number = ++t->number;
	if (t->ends == ends && (i == t->maps.count || t->maps.at[i].base >= e.end))
		insert(&t->maps, e);
	unlock(held);
}
