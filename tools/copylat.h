/* SPDX-License-Identifier: MIT */
/*
 * copylat.h - what the two modes of gdrcopy_copylat share.
 */
#ifndef COPYLAT_H
#define COPYLAT_H

#include "bench/race.h"

/* base begins at the offset that the options say, and with host memory. */
struct copylat {
	struct bench_gpu *gpu;
	const struct bench_map *map;
	struct bench_op base;	/* no size yet */
	struct bench_result *result;
};

#define COPYLAT_CELLS 24	/* the most ways of one size */

/* Whether a loop can do the operation on that mapping. */
bool copylat_allowed(const struct bench_map *m, const struct bench_loop *l,
		     const struct bench_op *op);

/* One race: each cell moves the right bytes before it and after it. */
void copylat_race(const struct copylat *c, struct bench_cell *cells, size_t n);

/* The row's P0 or P50, or "-" where there is no row. */
const char *copylat_text(char *buf, size_t len, const struct bench_row *row, int percent);

/* Reads whose bytes are used before the next one. steps are the calls of progress(). */
void copylat_run_used(const struct copylat *c);
void copylat_print_used(const struct bench_result *r, const struct bench_opts *o);
size_t copylat_steps_used(const struct bench_opts *o);

#endif
