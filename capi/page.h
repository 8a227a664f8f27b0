/* SPDX-License-Identifier: MIT */
/*
 * page.h - what a process has of its own, and a child of fork() has not.
 */
#ifndef GDR_PAGE_H
#define GDR_PAGE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "copy/copy.h"
#include "copy/pool.h"
#include "copy/slot.h"
#include "dma.h"
#include "driver.h"

#pragma GCC visibility push(hidden)

/*
 * One page that a fork empties (MADV_WIPEONFORK), so that a child, however it
 * was made, finds a front that was never opened, with a free lock. All zero is
 * its first state. Only gdr_open fills it; it is never taken down.
 */
struct gdr_front {
	_Atomic uint32_t up;	/* 1, set last, when all below is: a core runs in this process */
	struct gdr_table *table;
	uint64_t epoch;		/* of the handles made here; 0 until it is up */
	const struct copy_impl *impl;	/* what copies through WC mappings use */
	bool direct;		/* short pieces of many are written by direct stores */
	pthread_mutex_t lock;	/* held while a core is started */
	bool runs;		/* under lock: the Go runtime does, in this process */
	struct gdr_driver driver;	/* under lock, but for its own */
	copy_pool_ref pool;	/* threads that share long copies; NULL: none */
	gdr_dma_ref dma;	/* NULL: no copies by DMA */
};

/* NULL until the first gdr_open of this process or of an ancestor. */
extern _Atomic(struct gdr_front *) gdr_front_page;

#pragma GCC visibility pop

#endif
