/* SPDX-License-Identifier: MIT */
/*
 * copylat_modes.h - what gdrcopy_copylat measures besides copies one by one:
 * reads whose bytes are used before the next, many copies at once, and copies by many
 * callers.
 */
#ifndef COPYLAT_MODES_H
#define COPYLAT_MODES_H

#include "bench/race.h"

/* base begins at the offset in buf that the options say, and with host memory. */
struct copylat {
	struct bench_gpu *gpu;
	const struct bench_buf *buf;
	const struct bench_map *map;
	struct bench_op base;	/* no size yet */
	struct bench_result *result;
};

/* One way of measuring. */
struct copylat_mode {
	size_t (*steps)(const struct bench_opts *o);	/* calls of progress() by run */
	void (*run)(const struct copylat *c);
	void (*print)(const struct bench_result *r, const struct bench_opts *o);
	size_t room;		/* the least bytes that the buffer has */
	const char *name;	/* as an option */
	const char *unused;	/* codes of the options that it does not look at */
};

#define COPYLAT_CELLS 24	/* the most ways of one size */

/* The row's P0 or P50, or "-" where there is no row. */
const char *copylat_text(char *buf, size_t len, const struct bench_row *row, int percent);

/*
 * A line a size: what the first way takes, and of every other way what it takes and
 * how many times as long that is.
 */
void copylat_ratios(const struct bench_result *r, const char *op, const char *mode,
		    const char *const *whos, const size_t *sizes);

/* How many of the sizes, which end with 0, are not above most. */
size_t copylat_count(const size_t *sizes, size_t most);

extern const struct copylat_mode copylat_used, copylat_many, copylat_callers;

/* Whether a loop can do the operation on that mapping. */
bool copylat_allowed(const struct bench_map *m, const struct bench_loop *l,
		     const struct bench_op *op);

#endif
