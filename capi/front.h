/* SPDX-License-Identifier: MIT */
/*
 * front.h - the state of the C front: which core this process uses.
 */
#ifndef GDR_FRONT_H
#define GDR_FRONT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cache.h"
#include "copy/copy.h"
#include "copy/auto.h"
#include "copy/pool.h"
#include "core.h"
#include "dma.h"
#include "copy/slot.h"

#pragma GCC visibility push(hidden)

/*
 * One page that a fork empties (MADV_WIPEONFORK), so that a child, however it
 * was made, finds a front that was never opened, with a free lock. All zero is
 * its first state. Only gdr_open fills it; it is never taken down.
 */
struct gdr_front {
	/* Set last, when all below is; NULL: no core runs in this process. */
	_Atomic(const struct gdr_core *) core;
	struct gdr_table *table;
	uint64_t epoch;		/* of the handles made here; 0 while core is NULL */
	pthread_mutex_t lock;	/* held while a core is started */
	pthread_mutex_t loading;	/* held while a driver's library is, and by a fork */
	bool runs;		/* under lock: the Go runtime does, in this process */
	bool stuck;		/* under lock: the loader is, since the fork */
	const struct copy_impl *impl;	/* what copies through WC mappings use */
	bool direct;		/* short pieces of many are written by direct stores */
	copy_pool_ref pool;	/* threads that share long copies; NULL: none */
	gdr_dma_ref dma;	/* NULL: no copies by DMA */
	gdr_caches_ref caches;	/* NULL: no registration cache yet */
};

/* NULL until the first gdr_open of this process or of an ancestor. */
extern _Atomic(struct gdr_front *) gdr_front_page;

/*
 * Returns the front with a running core, starting one if need be, or NULL with
 * errno set, and a line in the log. None is started where no backend that opts
 * allow can open.
 */
struct gdr_front *gdr_front_start(const struct gdr_options *opts);

/*
 * Decides whether a call on handles a and b (0: none) may enter the core:
 * 0 with *core set, EACCES when a handle was inherited through a fork, or
 * EINVAL when no core runs here.
 */
int gdr_front_admit(uint64_t a, uint64_t b, const struct gdr_core **core);

/* Whether a handle was made by an ancestor of this process. */
bool gdr_front_inherited(uint64_t handle);

/* Log levels; the values are those of GDRCOPY_LOG_LEVEL. */
enum { GDR_LOG_DEBUG = 1, GDR_LOG_INFO, GDR_LOG_WARN, GDR_LOG_ERROR, GDR_LOG_OFF };

/*
 * Reads the lowest level that the environment asks to see. Lines are written by what
 * the last call of it found; no line reads the environment, but for those before the
 * first call.
 */
int gdr_log_read_level(void);

/*
 * Writes one line to standard error if the environment asks for that level. A copy
 * may log in a signal handler: integers and strings alone are formatted there, for
 * which the C library takes no lock and no memory.
 */
void gdr_log(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/*
 * Starts the threads that long copies are asked to be shared by, if any are
 * missing. What goes wrong is logged; copies go on with those that there are.
 */
int gdr_front_start_threads(struct gdr_front *front);

/* A mapping has been made: gets ready what long copies through it may need. */
void gdr_front_mapped(struct gdr_front *front, const struct gdr_core *core, uint64_t g, uint64_t h);

/* How many threads share a long copy where the library chooses; no more than the CPUs. */
#define GDR_AUTO_READ_THREADS 8
#define GDR_AUTO_WRITE_THREADS 2

/*
 * Called when the least sizes of copies by threads or by DMA have changed: the
 * usual copy compares with one number.
 */
void gdr_data_set_limits(void);

/*
 * Ends what this thread's record says of copies through key, or of all copies
 * for key 0. Called before a mapping goes: the thread that takes it down is in
 * no copy, but a siglongjmp out of one may have left its record set, and the
 * unmap would wait for it for ever.
 */
void gdr_data_forget(uint64_t key);

#pragma GCC visibility pop

#endif
