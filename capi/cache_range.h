/* SPDX-License-Identifier: MIT */
/*
 * cache_range.h - the pinned ranges of registration caches, and the holds on them. A hit
 * reads and writes them without a lock. The core writes the rest.
 *
 * Both sides of the library know this layout: here in C, and in capi/cache/shared.go.
 *
 * A range lies in the slot of its handle (slot.h). Its state has the handle's generation, the
 * bit RETIRED and the number of holds.
 *
 * 1. The state changes by compare-and-swap, which compares the generation, too. So a hold
 *    is always taken of the right range. A hold that is given back late, when the place
 *    has a new range, changes nothing.
 * 2. The core retires a range before it writes the other words of its place. After them
 *    it writes a state with a new generation.
 * 3. A reader takes a hold, then reads the words, then reads the state. If the state has
 *    the same generation and is not retired, the words are those of one range.
 *
 * A cache finds its ranges by an array in the order of their addresses.
 *
 * 4. No range of a cache lies in another one. So the ends are in order, too. A range that
 *    has some bytes is the last one that starts at or before them.
 * 5. The array may change during a hit. What a hit finds there is a hint, and the range
 *    itself confirms it. If a hit misses a hint, it enters the core, which has a lock.
 */
#ifndef GDR_CACHE_RANGE_H
#define GDR_CACHE_RANGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "copy/slot.h"

#define RETIRED (1ull << 31)	/* in a state: no new hold is given */
#define HOLDS_MAX (RETIRED - 1)

/* A range in the order of addresses. */
struct span {
	_Atomic uint64_t start;
	_Atomic uint64_t handle;
};

/*
 * A cache: one cache line. It is never unmapped, as a call with an old handle must find a
 * word to compare it with. spans and attribute are set before count is first set to a
 * value other than 0. They never change afterwards.
 */
struct cache {
	_Atomic uint64_t key;		/* its handle; 0 while there is none */
	_Atomic uint32_t count;		/* spans that hits find */
	uint32_t pad0;
	_Atomic int64_t room;		/* bytes that may still be pinned; below 0: too many are */
	uint64_t pad1;
	uint64_t spans;			/* address of struct span[] */
	uint64_t attribute;		/* address of cuPointerGetAttribute */
	uint64_t pad2[2];
};

_Static_assert(sizeof(struct cache) == 64, "one cache line");

static inline uint64_t state_of(uint64_t handle)
{
	return handle >> GDR_HANDLE_INDEX_BITS << 32;
}

static inline bool same_generation(uint64_t a, uint64_t b)
{
	return (a ^ b) >> 32 == 0;
}

static inline uint64_t holds_in(uint64_t state)
{
	return state & HOLDS_MAX;
}

/* Grows all the time, at least on one CPU. It writes no memory that others read. */
static inline uint64_t range_clock(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t t;

	__asm__ __volatile__("mrs %0, cntvct_el0" : "=r"(t));
	return t;
#elif defined(__powerpc64__)
	return __builtin_ppc_get_timebase();
#endif
}

/* Takes a hold of the range of handle, if handle still names that range. */
static inline bool range_hold(struct range *r, uint64_t handle)
{
	uint64_t state = atomic_load_explicit(&r->state, memory_order_relaxed);

	do {
		if (!same_generation(state, state_of(handle)) || state & RETIRED ||
		    holds_in(state) == HOLDS_MAX)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(&r->state, &state, state + 1,
							memory_order_seq_cst,
							memory_order_relaxed));
	return true;
}

/*
 * Gives a hold back. *left is the new state. false: there was no hold. The order is
 * total: the one who drops the last hold checks whether the cache is too big, and the one
 * who makes the cache too big checks for holds.
 */
static inline bool range_let_go(struct range *r, uint64_t handle, uint64_t *left)
{
	uint64_t state = atomic_load_explicit(&r->state, memory_order_relaxed);

	do {
		if (!same_generation(state, state_of(handle)) || !holds_in(state))
			return false;
	} while (!atomic_compare_exchange_weak_explicit(&r->state, &state, state - 1,
							memory_order_seq_cst,
							memory_order_relaxed));
	*left = state - 1;
	return true;
}

/* Whether the range of handle has not been retired or replaced since it was held. */
static inline bool range_is_there(const struct range *r, uint64_t handle)
{
	uint64_t state = atomic_load_explicit(&r->state, memory_order_relaxed);

	return same_generation(state, state_of(handle)) && !(state & RETIRED);
}

/* The place of the last span that starts at or before addr; n if there is none. */
static inline uint32_t span_before(const struct span *spans, uint32_t n, uint64_t addr)
{
	uint32_t lo = 0, hi = n;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (atomic_load_explicit(&spans[mid].start, memory_order_relaxed) <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo ? lo - 1 : n;
}

#endif
