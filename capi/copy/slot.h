/* SPDX-License-Identifier: MIT */
/*
 * slot.h - the memory that Go writes and the copy routines read.
 *
 * Both sides of the library know this layout: here in C, and in capi/handle/layout.go.
 * TestLayout there compares the two. docs/design.md has the protocol of a copy and an
 * unmap.
 *
 * A handle is 64 bits: epoch (12) | generation (32) | index (20), from the highest bit
 * down.
 *
 * - The epoch counts the Go cores that this process and its ancestors have started. So a
 *   handle from before a fork differs from one made here.
 * - The generation changes each time a slot is used again.
 * - 0 is never a handle.
 */
#ifndef GDR_SLOT_H
#define GDR_SLOT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define GDR_HANDLE_INDEX_BITS 20
#define GDR_HANDLE_GEN_BITS 32
#define GDR_HANDLE_EPOCH_BITS 12
#define GDR_HANDLE_EPOCH_SHIFT (GDR_HANDLE_INDEX_BITS + GDR_HANDLE_GEN_BITS)
#define GDR_HANDLE_EPOCH_MAX ((1u << GDR_HANDLE_EPOCH_BITS) - 1)

#define GDR_SLOT_COUNT (1u << GDR_HANDLE_INDEX_BITS)

/*
 * One pinned buffer as the data plane sees it; one cache line. key is the handle while
 * the buffer is mapped, and 0 at all other times. It is stored last (release) when a
 * mapping is made, and cleared first when a mapping goes. The other fields do not change
 * while any hazard (below) names the key.
 */
struct gdr_slot {
	_Atomic uint64_t key;
	uint64_t va;	/* address of the mapping's first byte */
	uint64_t len;	/* bytes mapped */
	uint32_t type;	/* enum gdr_mapping_type */
	uint32_t pad0;
	_Atomic uint64_t cache;	/* a cache's handle, which finds its line (cache_range.h); else 0 */
	uint64_t pad1[3];
};

/*
 * What one thread copies through right now; one cache line of its own.
 *
 * - owner is the ID of the thread that took the record, and 0 in a free record. A thread
 *   that ends leaves its ID there. self tells it from a later thread of that ID (see
 *   data.c).
 * - busy[i] is the handle of the copy at nesting level i, and 0 without a copy. A signal
 *   handler may copy inside a copy, hence the levels.
 * - A copy of many pieces may have many handles. Its busy[i] is a number: what counts the
 *   thread's copies of many pieces, then two bits. A handle has an epoch, a number has
 *   none. The two bits are 0 at first, and the copy may have any handle. When all pieces
 *   were looked at, and they have up to three handles, the bits say how many: names has
 *   them. Only a copy at level 0 says so.
 *
 * Records are taken from the end of the array. So the first records taken end a page, and
 * the header ends a page too. A CPU compares addresses of loads with those of pending
 * stores by their last 12 bits. With a record at a page's start, a copy from the start of
 * a host page waited for the store of busy.
 */
#define GDR_HAZARD_LEVELS 3
#define GDR_HAZARD_NAMES 3u
struct gdr_hazard {
	_Atomic uint32_t owner;
	uint32_t pad0;
	_Atomic uint64_t busy[GDR_HAZARD_LEVELS];
	_Atomic uint64_t names[GDR_HAZARD_NAMES];
	_Atomic uint64_t self;	/* where the owner's own data lie; 0: not said */
};
#define GDR_HAZARD_COUNT (1u << 16)

/* The number of a copy of many pieces, and how many names it has. */
#define GDR_MANY_SHIFT 2
#define GDR_MANY_NAMES ((1u << GDR_MANY_SHIFT) - 1)

static inline bool gdr_is_many(uint64_t busy)
{
	return busy && !(busy >> GDR_HANDLE_EPOCH_SHIFT);
}

/* Whether a copy that a record of this word shows has the key, or may have it. */
static inline bool gdr_copy_has(const struct gdr_hazard *record, uint64_t busy, uint64_t key)
{
	unsigned int names = busy & GDR_MANY_NAMES;

	if (!gdr_is_many(busy))
		return busy == key;
	for (unsigned int i = 0; i < names; i++)
		if (atomic_load_explicit(&record->names[i], memory_order_acquire) == key)
			return true;
	return !names;
}

/*
 * The last line of the table's first page.
 */
struct gdr_table {
	uint32_t epoch;
	_Atomic uint32_t fenced;	/* 1: no membarrier here, copies must fence */
	_Atomic uint32_t hazards_used;	/* records ever taken: the last ones of the array */
	_Atomic uint32_t mixed;	/* 1: mappings of more than one type are live */
	uint64_t slots;		/* address of struct gdr_slot[GDR_SLOT_COUNT] */
	uint64_t hazards;	/* address of struct gdr_hazard[GDR_HAZARD_COUNT] */
};

_Static_assert(sizeof(struct gdr_slot) == 64, "one cache line a slot");
_Static_assert(sizeof(struct gdr_hazard) == 64, "one cache line a thread");
_Static_assert(sizeof(struct gdr_table) == 32, "capi/handle/layout.go");

#endif
