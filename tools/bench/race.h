/* SPDX-License-Identifier: MIT */
/*
 * bench/race.h - times competitors in turns, so that what changes with time
 * (the CPU's clock, neighbours) hits them all alike.
 */
#ifndef BENCH_RACE_H
#define BENCH_RACE_H

#include "gpu.h"
#include "loops.h"
#include "timing.h"

enum bench_pace {
	BENCH_BACK_TO_BACK,	/* one right after the other; short ones in batches */
	BENCH_ALONE,		/* each starts 2 us after the end of the one before */
	BENCH_EVICTED,		/* as alone, after the GPU wrote the memory: user is a cuda_dl */
	BENCH_USED		/* back to back, each at an address that the bytes before tell */
};

/* One figure in the making. The texts live as long as the program. */
struct bench_cell {
	const char *op;		/* "write" or "read" */
	const char *who;
	enum bench_pace pace;
	bench_run *run;
	struct bench_op arg;
	long max;		/* operations to time, at most */
	int threads;		/* that share the operation; 0 means 1 */
	unsigned batch;		/* operations a sample; set by the race */
	struct bench_samples samples;
};

/* What --help says of the above. */
#define BENCH_METHOD \
	"  The clock is the TSC between two LFENCEs; elsewhere CLOCK_MONOTONIC. What\n" \
	"  reading it costs is measured first, with an empty call between, and subtracted.\n" \
	"  'alone' times single operations. Each begins 2 us after the end of the one\n" \
	"  before: what that one left in the buffers of the CPU and the link is gone then.\n" \
	"  A write is over when its fence is issued, not when the GPU has the bytes.\n" \
	"  'back-to-back' times many operations in a row, and divides. They fill 100 us,\n" \
	"  and are 1000 at most. In less time those would count as done that still wait\n" \
	"  in the CPU's store buffer; a bare loop has more of them there.\n" \
	"  'cold-cache' is 'alone' after a cuMemsetD8 of the GPU's side, which is not timed.\n" \
	"  All competitors take eight turns each, in an order that changes, at the same\n" \
	"  addresses. P0 is the smallest sample. P50 is the median. Each competitor first\n" \
	"  moves fresh data of the size once, and once more at the end; each time the\n" \
	"  driver's copy of it is compared."

const char *bench_pace_name(enum bench_pace pace);

/* Ends the program unless the cell moves the right bytes. */
void bench_verify(struct bench_gpu *b, struct bench_cell *c);

/*
 * Times the cells, budget_ms milliseconds each at most (but at least three samples,
 * where a cell's max allows them), and adds a row for each to r.
 */
void bench_race(struct bench_cell *cells, size_t n, long budget_ms,
		struct bench_result *r);

/* What cells run: the library's copies, and the driver's with user a cuda_dl. */
bench_run bench_gdr_write, bench_gdr_read, bench_cu_write, bench_cu_read;

#endif
