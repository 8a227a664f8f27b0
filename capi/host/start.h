/* SPDX-License-Identifier: MIT */
/*
 * start.h - the first gdr_open of a process.
 */
#ifndef GDR_START_H
#define GDR_START_H

#include <stdint.h>

#include "env.h"
#include "page.h"

#pragma GCC visibility push(hidden)

/*
 * What comes before a start, without any lock: loads the driver that the backends of opts
 * need. Returns 0, or an errno value after it logged a line.
 */
int gdr_start_prepare(const struct gdr_options *opts);

/*
 * Starts the runtime, then the core by init. Fills in front, but for front's epoch. The
 * caller holds front's lock, and has called gdr_guest_enter. Returns 0, or an errno value
 * after it logged a line; then it may be called again.
 */
int gdr_start(struct gdr_front *front, gdr_core_init *init, uint32_t epoch);

/*
 * Registers the process for membarrier(2), by which the core makes running threads pass a
 * barrier. A process with one thread is at once: gdr_start does it. With more it takes 30 ms
 * on some machines: a goroutine of the core's does it, and nobody waits. Returns 0 or an
 * errno value.
 */
int gdr_register_barrier(void);

#pragma GCC visibility pop

#endif
