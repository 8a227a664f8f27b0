/* SPDX-License-Identifier: MIT */
/*
 * cache_range.h - the pinned ranges of a registration cache, and the holds on
 * them: what a hit reads and writes, without a lock.
 *
 * A range lies at the index of its handle, as a slot does (slot.h). Its state has
 * the handle's generation, the bit RETIRED and the number of holds, and changes
 * by compare-and-swap alone. So a hold can only be taken of the range that is
 * meant, and one that is given back late, when the place has a new range, changes
 * nothing. The other words are written before a state of a new generation, and
 * only while the old state is retired: who finds the same state, not retired,
 * after reading them as before it has read them whole.
 *
 * A cache finds its ranges by an array in the order of their addresses. No range
 * of it lies in another one, so the ends are in order, too, and one that covers
 * some bytes can only be the last that starts at or before them. The array changes
 * under a hit's feet: what it finds there is a hint, which the range itself
 * confirms. A hint that is missed leads to the slow path, which has the lock.
 */
#ifndef GDR_CACHE_RANGE_H
#define GDR_CACHE_RANGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "copy/slot.h"

#define RANGES_MAX 16384u	/* of one cache */
#define RETIRED (1ull << 31)	/* in a state: nobody gets a hold any more */
#define HOLDS_MAX (RETIRED - 1)

/* One cache line. start and end are GPU addresses; one allocation has them all. */
struct range {
	_Atomic uint64_t state;	/* generation << 32 | RETIRED | holds */
	_Atomic uint64_t start;
	_Atomic uint64_t end;
	_Atomic uint64_t id;	/* the allocation's, CU_POINTER_ATTRIBUTE_BUFFER_ID */
	_Atomic uint64_t va;	/* the CPU's address of start */
	_Atomic uint64_t owner;	/* the cache's handle */
	_Atomic uint64_t used;	/* range_clock() when it was last asked for */
	uint64_t pad;
};

_Static_assert(sizeof(struct range) == 64, "one cache line");

/* A range in the order of addresses. bytes is for who has the cache's lock. */
struct span {
	_Atomic uint64_t start;
	_Atomic uint64_t handle;
	uint64_t bytes;		/* pinned for it */
};

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

/* Grows all the time, on one CPU at least; writes no memory that others read. */
static inline uint64_t range_clock(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t t;

	__asm__ __volatile__("mrs %0, cntvct_el0" : "=r"(t));
	return t;
#else
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
#endif
}

/* Takes a hold of the range of handle, if it is still there for that. */
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
 * Gives a hold back: *left is the state then. false: there was none. The order is
 * total, for whoever drops the last hold looks whether the cache is too big, and
 * whoever makes it big looks for holds.
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

/*
 * Retires the range of handle, if it has no hold or if holds do not matter. false:
 * it has one. A range that is gone, or that has been replaced, counts as retired.
 */
static inline bool range_retire(struct range *r, uint64_t handle, bool held_too)
{
	uint64_t state = atomic_load(&r->state);

	do {
		if (!same_generation(state, state_of(handle)))
			return true;
		if (holds_in(state) && !held_too)
			return false;
	} while (!atomic_compare_exchange_weak(&r->state, &state, state | RETIRED));
	return true;
}

/* Whether the range of handle was there all the time since it was held. */
static inline bool range_is_there(const struct range *r, uint64_t handle)
{
	uint64_t state = atomic_load_explicit(&r->state, memory_order_relaxed);

	return same_generation(state, state_of(handle)) && !(state & RETIRED);
}

/* How many holds the range of handle has, retired or not. */
static inline uint64_t range_holds(struct range *r, uint64_t handle)
{
	uint64_t state = atomic_load(&r->state);

	return same_generation(state, state_of(handle)) ? holds_in(state) : 0;
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
