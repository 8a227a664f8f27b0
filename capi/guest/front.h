/* SPDX-License-Identifier: MIT */
/*
 * front.h - the state that belongs to one process and that a child of fork() does not
 * have: whether the core runs here, and which handles are its own.
 */
#ifndef GDR_FRONT_H
#define GDR_FRONT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../copy/copy.h"
#include "../copy/slot.h"
#include "enter.h"
#include "env.h"
#include "reserve.h"

#pragma GCC visibility push(hidden)

/*
 * One page that a fork empties (MADV_WIPEONFORK). However a child was made, it finds a
 * front that was never opened, with a free lock. The first state is all zero. gdr_open
 * fills the page. Later calls set what of table may change. The page is never unmapped.
 * Copies read what is above up: one cache line.
 */
struct gdr_front {
	struct gdr_table table;
	const struct copy_impl *impl;	/* what copies through WC mappings use */
	bool direct;		/* short pieces of many are written by direct stores */
	_Atomic uint32_t up;	/* 1: all above is set, a core runs in this process */
	uint64_t epoch;		/* of the handles made here; 0 until Go's runtime runs */
	pthread_mutex_t lock;	/* held while the runtime starts; see INSIDE */
};

/* NULL until the first gdr_open of this process or of an ancestor. */
extern _Atomic(struct gdr_front *) gdr_front_page;

/*
 * Starts the Go runtime, if it does not run in this process, and gives the page. The caller
 * has called gdr_guest_enter. Returns 0, or an errno value after it logged a line. It starts
 * nothing where no driver is there, or not the device of the backend that opts name.
 */
int gdr_front_start(const struct gdr_options *opts, struct gdr_front **page);

/* Go has made the core if the page's table has slots. Then the front is up. */
static inline void gdr_front_up(struct gdr_front *page)
{
	if (atomic_load(&page->table.slots))
		atomic_store_explicit(&page->up, 1, memory_order_release);
}

/*
 * Decides whether a call on handles a and b (0: none) may enter the core. Returns 0;
 * EACCES if a handle was inherited through a fork; EINVAL if no core runs here.
 */
int gdr_front_admit(uint64_t a, uint64_t b);

/* Whether a handle was made by an ancestor of this process. */
bool gdr_front_inherited(uint64_t handle);

/* The page, if the core runs in this process; else NULL. */
static inline struct gdr_front *gdr_front_here(void)
{
	struct gdr_front *front = atomic_load_explicit(&gdr_front_page, memory_order_acquire);

	return front && atomic_load_explicit(&front->up, memory_order_acquire) ? front : NULL;
}

/*
 * A call of the core, or of what starts it: the only way in. Whoever takes a lock of ours
 * is inside. So nobody ends, or leaves by siglongjmp, with a lock held. A call that takes
 * something is INSIDE_WITH_ROOM: it is refused by ENOMEM where Go might lack memory.
 */
#define INSIDE(call) INSIDE_IF(true, call)
#define INSIDE_WITH_ROOM(call) INSIDE_IF(false, call)

#define INSIDE_IF(needed, call) ({			\
	struct gdr_guest guest_;			\
	int rc_;					\
							\
	gdr_guest_enter(&guest_);			\
	rc_ = (needed) || !gdr_front_here() ? 0 : gdr_reserve_check();	\
	if (!rc_)					\
		rc_ = (call);				\
	gdr_guest_leave(&guest_);			\
	rc_;						\
})

#pragma GCC visibility pop

#endif
