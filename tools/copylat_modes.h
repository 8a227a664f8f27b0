/* SPDX-License-Identifier: MIT */
/*
 * copylat_modes.h - what gdrcopy_copylat measures besides copies one by one:
 * reads whose bytes are used before the next, many copies at once, copies after a
 * pause, and copies by many callers.
 */
#ifndef COPYLAT_MODES_H
#define COPYLAT_MODES_H

#include "bench/race.h"

/* At the start of a buffer and of host memory; what there is is the caller's. */
struct copylat {
	struct bench_gpu *gpu;
	const struct bench_map *map;
	struct bench_op base;	/* no size yet */
	struct bench_result *result;
};

/* One way of measuring. room says how many bytes the buffer must have at least. */
struct copylat_mode {
	void (*run)(const struct copylat *c);
	void (*print)(const struct bench_result *r, const struct bench_opts *o);
	size_t room;
};

extern const struct copylat_mode copylat_used, copylat_many, copylat_pause, copylat_callers;

/* Whether a loop can do the operation on that mapping. */
bool copylat_allowed(const struct bench_map *m, const struct bench_loop *l,
		     const struct bench_op *op);

#endif
