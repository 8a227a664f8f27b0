// SPDX-License-Identifier: MIT
/*
 * auto.c - which way a long copy is made.
 *
 * There is an estimate for each direction, each power of two of bytes, and each way.
 *
 * 1. An estimate begins with what was measured on an H200 (docs/dataplane.md). Then it
 *    follows the times of copies on this machine.
 * 2. A way that was tried a few times only is tried again if it may be the best one. Its
 *    shortest time counts, as the first copies may have found cold caches.
 * 3. Each way is tried again from time to time, as a machine changes. Threads that no
 *    copy uses are asleep, so nothing measures the shared copy. Its estimate is forgotten
 *    from time to time, and the next copy wakes the threads.
 *
 * Threads write the estimates as they copy, without a lock. A lost write does no harm.
 * Once all ways are known, most copies write one word, and do not read the clock.
 */
#include "auto.h"

#include <stdatomic.h>

#define CLASSES 40u		/* powers of two of bytes */
#define TRIES 6u		/* of a way, before it is known */
#define MAY_BE_BEST 2u		/* a way with at most this many times the best time is tried */
#define AGAIN 256u		/* retry a way that is not the best once in this many copies */
#define EVEN_BAD 4u		/* retry a much worse way at one retry in this many */
#define STEADY 8u		/* a known way learns from one copy in this many */

struct estimate {
	_Atomic uint32_t tries;
	_Atomic uint64_t ns;	/* time for the least size of the class */
};

struct class {
	struct estimate ways[COPY_WAYS];
	_Atomic uint32_t copies;
};

static struct class classes[2][CLASSES];	/* reads, writes */

static unsigned int class_of(size_t n)
{
	unsigned int c = 63 - (unsigned int)__builtin_clzll(n);

	return c < CLASSES ? c : CLASSES - 1;
}

/* Nanoseconds: a fixed part, and what each MiB takes. */
static const struct {
	uint32_t fixed, mib;
} before_any[2][COPY_WAYS] = {
	{ { 0, 1050000 }, { 1000, 160000 }, { 100000, 160000 }, { 7000, 41000 }, { 6500, 20000 } },
	{ { 0, 48000 }, { 300, 31000 }, { 100000, 31000 }, { 6500, 76000 }, { 7500, 20000 } },
};

static uint64_t scaled(uint64_t ns, size_t from, size_t to)
{
	return (uint64_t)((double)ns * (double)to / (double)from);
}

/* The estimate before the first copy. */
static uint64_t guess(unsigned int c, bool to, enum copy_way way)
{
	return before_any[to][way].fixed + (((uint64_t)before_any[to][way].mib << c) >> 20);
}

/* The estimate for the least size of class c. */
static uint64_t estimate(unsigned int c, bool to, enum copy_way way)
{
	const struct estimate *e = &classes[to][c].ways[way];
	uint64_t ns = atomic_load_explicit(&e->ns, memory_order_relaxed);

	return ns ? ns : guess(c, to, way);
}

static bool is_known(unsigned int c, bool to, unsigned int way)
{
	return atomic_load_explicit(&classes[to][c].ways[way].tries, memory_order_relaxed) >= TRIES;
}

static enum copy_way best_of(unsigned int c, bool to, unsigned int ways)
{
	enum copy_way best = COPY_ALONE;

	for (unsigned int way = 1; way < COPY_WAYS; way++)
		if ((ways & 1u << way) && estimate(c, to, way) < estimate(c, to, best))
			best = way;
	return best;
}

static bool are_asleep(unsigned int ways)
{
	return (ways & 1u << COPY_WAKING) && !(ways & 1u << COPY_SHARED);
}

static void forget(unsigned int c, bool to, enum copy_way way)
{
	struct estimate *e = &classes[to][c].ways[way];

	atomic_store_explicit(&e->ns, 0, memory_order_relaxed);
	atomic_store_explicit(&e->tries, 0, memory_order_relaxed);
}

bool copy_auto_is_faster(size_t n, bool to, enum copy_way one, enum copy_way other)
{
	unsigned int c = class_of(n);

	return estimate(c, to, one) < estimate(c, to, other);
}

enum copy_way copy_auto_best_way(size_t n, bool to, unsigned int ways)
{
	unsigned int c = class_of(n), count, turn;
	enum copy_way best = best_of(c, to, ways);
	uint64_t most = MAY_BE_BEST * estimate(c, to, best);
	struct class *class = &classes[to][c];

	for (unsigned int way = 0; way < COPY_WAYS; way++)
		if ((ways & 1u << way) && !is_known(c, to, way) && guess(c, to, way) < most)
			return way;
	count = atomic_load_explicit(&class->copies, memory_order_relaxed) + 1;
	atomic_store_explicit(&class->copies, count, memory_order_relaxed);
	if (count % AGAIN)
		return best;
	turn = count / AGAIN;
	if (turn % COPY_WAYS == COPY_SHARED && are_asleep(ways))
		forget(c, to, COPY_SHARED);
	if ((ways & 1u << turn % COPY_WAYS) &&
	    (turn / COPY_WAYS % EVEN_BAD == 0 || estimate(c, to, turn % COPY_WAYS) < 2 * most))
		return turn % COPY_WAYS;
	return best;
}

bool copy_auto_learns(size_t n, bool to, enum copy_way way)
{
	unsigned int c = class_of(n);

	return !is_known(c, to, way) ||
	       atomic_load_explicit(&classes[to][c].copies, memory_order_relaxed) % STEADY == 0;
}

void copy_auto_learn(size_t n, bool to, enum copy_way way, uint64_t ns)
{
	unsigned int c = class_of(n);
	struct estimate *e = &classes[to][c].ways[way];
	uint64_t was = atomic_load_explicit(&e->ns, memory_order_relaxed);
	uint32_t tries = atomic_load_explicit(&e->tries, memory_order_relaxed);

	ns = scaled(ns, n, (size_t)1 << c);
	/* One long time counts little: the thread may have lost its CPU. */
	if (tries >= TRIES) {
		if (ns > 2 * was)
			ns = 2 * was;
		ns = ns < was ? (was + 3 * ns) / 4 : (7 * was + ns) / 8;
	} else if (tries && was < ns) {
		ns = was;
	}
	atomic_store_explicit(&e->ns, ns ? ns : 1, memory_order_relaxed);
	atomic_store_explicit(&e->tries, tries + 1, memory_order_relaxed);
}
