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
#include <string.h>
#include <sys/types.h>

#include "../copy/copy.h"
#include "../copy/slot.h"
#include "enter.h"
#include "env.h"
#include "reserve.h"

#pragma GCC visibility push(hidden)

/* Whole pages, of any kernel. */
#if defined(__x86_64__)
#define GDR_FRONT_ALIGN 4096
#else
#define GDR_FRONT_ALIGN 65536
#endif

/*
 * Pages that a fork empties (MADV_WIPEONFORK). However a child was made, it finds a
 * front that was never opened, with a free lock. The first state is all zero. gdr_open
 * fills it. Later calls set what of table may change.
 */
struct gdr_front {
	_Alignas(GDR_FRONT_ALIGN) struct gdr_table table;
	const struct copy_impl *impl;	/* what copies through WC mappings use */
	bool direct;		/* short pieces of many are written by direct stores */
	_Atomic uint32_t up;	/* 1: a core runs in this process, and the rest is set */
	copy_write *write[COPY_LINE + 1];	/* impl's: one load less on the way of a short write */
	uint64_t epoch;		/* of the handles made here; 0 until Go's runtime runs */
	pthread_mutex_t lock;	/* held while the runtime starts; see INSIDE */
	_Atomic pid_t starter;	/* the thread that holds it */
	_Atomic bool settled;	/* no thread has a goroutine of an ancestor's */
};

extern struct gdr_front gdr_front;

/*
 * Starts the Go runtime, if it does not run in this process. The caller has called
 * gdr_enter. Returns 0, or an errno value after it logged a line. It starts
 * nothing where no driver is there, or not the device of the backend that opts name.
 */
int gdr_front_start(const struct gdr_options *opts);

/* A thread that forked inside of Go has its parent's goroutine in the child. The first call forgets it. */
void gdr_front_settle(void);

/* Go has made the core if the table has slots. Then the front is up. */
static inline void gdr_front_up(void)
{
	if (atomic_load(&gdr_front.table.slots))
		atomic_store_explicit(&gdr_front.up, 1, memory_order_release);
}

/*
 * Decides whether a call on handles a and b (0: none) may enter the core. Returns 0;
 * EACCES if a handle was inherited through a fork; EINVAL if no core runs here.
 */
int gdr_front_admit(uint64_t a, uint64_t b);

/* Whether a handle was made by an ancestor of this process. */
bool gdr_front_inherited(uint64_t handle);

/* Whether the core runs in this process. */
static inline bool gdr_front_is_up(void)
{
	return atomic_load_explicit(&gdr_front.up, memory_order_acquire);
}

/* Under the lock: which routine copies use. */
static inline void gdr_front_use(const struct copy_impl *impl)
{
	gdr_front.impl = impl;
	memcpy(gdr_front.write, impl->write, sizeof(impl->write));
}

/*
 * A call of the core, or of what starts it: the only way in. Whoever takes a lock of ours
 * is inside. So nobody ends, or leaves by siglongjmp, with a lock held. No lock but that of the
 * start is held while a function of the host's runs: it may call this library. A call that takes
 * something is INSIDE_WITH_ROOM: it is refused by ENOMEM where Go might lack memory.
 */
#define INSIDE(call) INSIDE_AFTER(0, call)
#define INSIDE_WITH_ROOM(call) INSIDE_AFTER(gdr_front_is_up() ? gdr_reserve_check() : 0, call)

/* check: an errno, found out inside; the call is made where it is 0. */
#define INSIDE_AFTER(check, call) ({			\
	struct gdr_host_thread thread_;			\
	int rc_;					\
							\
	gdr_enter(&thread_);				\
	if (!atomic_load(&gdr_front.settled))		\
		gdr_front_settle();			\
	rc_ = (check);					\
	if (!rc_)					\
		rc_ = (call);				\
	gdr_leave(&thread_);				\
	rc_;						\
})

#pragma GCC visibility pop

#endif
