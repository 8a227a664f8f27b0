/* SPDX-License-Identifier: MIT */
/*
 * slot.h - the table of handles, which Go writes and C's copies read without a lock.
 *
 * Both sides of the library know this layout: here in C, and in capi/handle/layout.go.
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
#include <stddef.h>
#include <stdint.h>

#define GDR_HANDLE_INDEX_BITS 20
#define GDR_HANDLE_GEN_BITS 32
#define GDR_HANDLE_EPOCH_SHIFT (GDR_HANDLE_INDEX_BITS + GDR_HANDLE_GEN_BITS)

#define GDR_SLOT_COUNT (1u << GDR_HANDLE_INDEX_BITS)

/*
 * A range that a registration cache keeps pinned (cache_range.h); one cache line. start and end
 * are GPU addresses. The whole range lies in one allocation.
 */
struct range {
	_Atomic uint64_t state;	/* generation << 32 | RETIRED | holds */
	_Atomic uint64_t start;
	_Atomic uint64_t end;
	_Atomic uint64_t id;	/* the allocation's, CU_POINTER_ATTRIBUTE_BUFFER_ID */
	_Atomic uint64_t va;	/* the CPU's address of start */
	_Atomic uint64_t owner;	/* the cache's handle */
	_Atomic uint64_t used;	/* range_clock() of its last use */
	uint64_t pad;
};

/*
 * One pinned buffer as the copies see it, in one cache line, and as a cache does, in the next
 * one. key is the handle while the buffer is mapped. At all other times key and len are 0, and the type is None.
 *
 * state is a count of changes, the bit GDR_SLOT_CHANGES, and in the lowest two bits the
 * enum gdr_mapping_type. Go sets the bit before it changes the other fields. After them it
 * stores the next count, with the type. A reader loads state, then the fields, then state
 * again: two equal values say that the fields are of one mapping. The count is needed
 * because an unmap and a map of the same pin publish the same handle again, with another
 * address or length.
 */
#define GDR_SLOT_TYPE 3u
#define GDR_SLOT_CHANGES 4u
#define GDR_SLOT_COUNTS 8u	/* one change */
struct gdr_slot {
	_Atomic uint64_t state;
	_Atomic uint64_t key;
	_Atomic uint64_t va;	/* address of the mapping's first byte */
	_Atomic uint64_t len;	/* bytes mapped */
	_Atomic uint64_t cache;	/* a cache's handle, which finds its line (cache_range.h); else 0 */
	uint64_t pad[3];
	struct range range;
};

/* What Go tells the copies. It lies in the page that a fork empties (guest/front.h). */
struct gdr_table {
	/* Address of struct gdr_slot[GDR_SLOT_COUNT]; 0: the library is not open here. */
	_Atomic uint64_t slots;
	_Atomic uint32_t mixed;	/* 1: mappings of more than one type are live */
	/*
	 * Slots 0 to last can be read; last + 1 is a power of two, which grows. A handle of a
	 * slot behind them is looked for in one of these, and is not its key. Set before slots.
	 */
	_Atomic uint32_t last;
};

_Static_assert(sizeof(struct gdr_slot) == 128 && offsetof(struct gdr_slot, range) == 64, "two cache lines");
_Static_assert(sizeof(struct gdr_table) == 16, "capi/handle/layout.go");

/* The slot that a handle has; NULL: the library is not open in this process. */
static inline const struct gdr_slot *gdr_slot_of(const struct gdr_table *table, uint64_t handle)
{
	const struct gdr_slot *slots =
		(const struct gdr_slot *)(uintptr_t)atomic_load_explicit(&table->slots,
									 memory_order_acquire);

	if (!slots)
		return NULL;
	return slots + (handle & atomic_load_explicit(&table->last, memory_order_relaxed));
}

/* Whether the slot of a handle is its own. */
static inline bool gdr_slot_is_made(const struct gdr_table *table, uint64_t handle)
{
	return (handle & (GDR_SLOT_COUNT - 1)) <= atomic_load_explicit(&table->last, memory_order_relaxed);
}

/* A mapping, as one reading of its slot shows it. */
struct gdr_view {
	uint64_t va, len;
	uint32_t type;	/* 0: the handle is not mapped */
};

/* Whether size bytes at dev, which are not 0, lie in the mapping. */
static inline bool gdr_view_has(struct gdr_view v, const void *dev, uint64_t size)
{
	return size - 1 < v.len && (uintptr_t)dev - v.va <= v.len - size;
}

/* The loads acquire, so that the second one of state comes after those of the fields. */
static inline struct gdr_view gdr_slot_read(const struct gdr_slot *slot, uint64_t handle)
{
	uint64_t state = atomic_load_explicit(&slot->state, memory_order_acquire);
	uint64_t key = atomic_load_explicit(&slot->key, memory_order_acquire);
	struct gdr_view v = {
		.va = atomic_load_explicit(&slot->va, memory_order_acquire),
		.len = atomic_load_explicit(&slot->len, memory_order_acquire),
		.type = state & GDR_SLOT_TYPE,
	};

	if (key != handle || state & GDR_SLOT_CHANGES ||
	    atomic_load_explicit(&slot->state, memory_order_relaxed) != state)
		v.type = 0;
	return v;
}

/*
 * Whether the handle has a mapping of that type with size bytes at dev: the same reading, as
 * branches that are never taken, with few registers.
 */
static inline __attribute__((always_inline)) bool
gdr_slot_has(const struct gdr_slot *slot, uint64_t handle, uint32_t type, const void *dev, uint64_t size)
{
	uint64_t state = atomic_load_explicit(&slot->state, memory_order_acquire), off, len;

	if ((state & (GDR_SLOT_CHANGES | GDR_SLOT_TYPE)) != type)
		return false;
	if (atomic_load_explicit(&slot->key, memory_order_acquire) != handle)
		return false;
	off = (uintptr_t)dev - atomic_load_explicit(&slot->va, memory_order_acquire);
	len = atomic_load_explicit(&slot->len, memory_order_acquire);
	if (atomic_load_explicit(&slot->state, memory_order_relaxed) != state)
		return false;
	return size - 1 < len && off <= len - size;
}

#endif
