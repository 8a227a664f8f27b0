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

/*
 * One page that a fork empties (MADV_WIPEONFORK). However a child was made, it finds a
 * front that was never opened, with a free lock. The first state is all zero. gdr_open
 * fills the page. Later calls set table.mixed and inherited. The page is never unmapped.
 * Copies read table, impl and direct: they lie in one cache line.
 */
struct gdr_front {
	struct gdr_table table;
	const struct copy_impl *impl;	/* what copies through WC mappings use */
	bool direct;		/* short pieces of many are written by direct stores */
	_Atomic uint32_t up;	/* 1: all above is set, a core runs in this process */
	uint64_t epoch;		/* of the handles made here; 0 until Go's runtime runs */
	pthread_mutex_t lock;	/* held while the runtime starts; see INSIDE */
	_Atomic uint64_t inherited[GDR_INHERITED_MAX];	/* the parent's gdr_t that were closed here */
};

/* NULL until the first gdr_open of this process or of an ancestor. */
extern _Atomic(struct gdr_front *) gdr_front_page;

#pragma GCC visibility pop

#endif
