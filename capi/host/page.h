/* SPDX-License-Identifier: MIT */
/*
 * page.h - the state that belongs to one process and that a child of fork() does not
 * have.
 */
#ifndef GDR_PAGE_H
#define GDR_PAGE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../copy/copy.h"
#include "../copy/slot.h"

#pragma GCC visibility push(hidden)

#define GDR_INHERITED_MAX 64u

/* The core's part of a start, in Go: handles get epoch, and *table is their table. */
typedef int gdr_core_init(uint32_t epoch, uintptr_t *table);

/* Of long copies: pool.h, dma.h. */
struct copy_pool;
typedef _Atomic(struct copy_pool *) copy_pool_ref;
struct gdr_dma;
typedef _Atomic(struct gdr_dma *) gdr_dma_ref;

/*
 * One page that a fork empties (MADV_WIPEONFORK). However a child was made, it finds a
 * front that was never opened, with a free lock. The first state is all zero. gdr_open
 * fills the page. Later calls set pool, dma and inherited. The page is never unmapped.
 */
struct gdr_front {
	_Atomic uint32_t up;	/* 1: all below is set, a core runs in this process */
	struct gdr_table *table;
	uint64_t epoch;		/* of the handles made here; 0 until it is up */
	const struct copy_impl *impl;	/* what copies through WC mappings use */
	bool direct;		/* short pieces of many are written by direct stores */
	pthread_mutex_t lock;	/* held while the core or copy threads start; see INSIDE */
	bool runs;		/* under lock: whether Go's runtime runs in this process */
	copy_pool_ref pool;	/* threads that share long copies; NULL: none */
	gdr_dma_ref dma;	/* NULL: no copies by DMA */
	_Atomic uint64_t inherited[GDR_INHERITED_MAX];	/* the parent's gdr_t that were closed here */
};

/* NULL until the first gdr_open of this process or of an ancestor. */
extern _Atomic(struct gdr_front *) gdr_front_page;

#pragma GCC visibility pop

#endif
