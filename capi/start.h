/* SPDX-License-Identifier: MIT */
/*
 * start.h - the first gdr_open of a process.
 */
#ifndef GDR_START_H
#define GDR_START_H

#include <stdint.h>

#include "core.h"
#include "page.h"

#pragma GCC visibility push(hidden)

/*
 * Starts the core, whose handles get epoch. Fills in front, but for front's epoch. The
 * caller holds front's lock. Returns 0, or an errno value after it logged a line; then it
 * may be called again.
 */
int gdr_start(struct gdr_front *front, const struct gdr_options *opts, uint32_t epoch);

#pragma GCC visibility pop

#endif
