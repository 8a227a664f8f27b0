/* SPDX-License-Identifier: MIT */
/*
 * long.h - long copies: from how many bytes on others than the caller may help, and
 * what they need before that. A copy may run in a signal handler, so nothing is made
 * in one.
 */
#ifndef GDR_LONG_H
#define GDR_LONG_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "page.h"

#pragma GCC visibility push(hidden)

/* How many bytes a copy has at least that others than the caller may make. */
extern _Atomic size_t gdr_long_to, gdr_long_from;

/*
 * Called when the least sizes of copies by threads or by DMA have changed: the
 * usual copy compares with one number.
 */
void gdr_long_set_limits(void);

/* Called when it has changed whether the library chooses the way; sets the limits. */
void gdr_long_choose(void);

/*
 * Starts the threads that long copies are asked to be shared by, if any are
 * missing. What goes wrong is logged; copies go on with those that there are.
 */
int gdr_long_start_threads(struct gdr_front *front);

/*
 * Handle h of the core has a mapping now, whose first byte has the GPU's address
 * gpu: gets ready what long copies through it may need.
 */
void gdr_long_mapped(struct gdr_front *front, uint64_t h, uint64_t gpu);

#pragma GCC visibility pop

#endif
