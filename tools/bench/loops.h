/* SPDX-License-Identifier: MIT */
/*
 * bench/loops.h - the benchmark's own plain copy loops, to hold the library
 * against: each is the shortest loop around one kind of instruction, and
 * checks nothing.
 *
 * A write ends with a store fence. A read is over when its loads are; the
 * loops that use streaming loads begin with the full fence without which they
 * might be served stale data. Loose reads have no fence but a store fence at
 * their end: their loads may pass those of the reads next to them.
 */
#ifndef BENCH_LOOPS_H
#define BENCH_LOOPS_H

#include <stdbool.h>
#include <stddef.h>

#include "gdrapi.h"

/*
 * One operation to time. Loops ask for a dev and a host on a 64-byte boundary.
 * rc is 0 or the last error of a call that can fail.
 */
struct bench_op {
	gdr_mh_t mh;
	unsigned long addr;	/* GPU address of dev */
	void *dev;		/* in the mapping */
	void *host;
	size_t size;
	const void *user;	/* what the function needs besides */
	int rc;
};

/* Does the operation count times. */
typedef void bench_run(struct bench_op *op, size_t count);

struct bench_loop {
	const char *name;	/* the instruction that it uses */
	bool read;
	bool loose;
	bool (*usable)(void);	/* by this CPU */
	bench_run *const *plain;	/* by size, up to 8; NULL: run, for all multiples of unit */
	size_t unit;
	bench_run *run;
};

/* The loops of this architecture; a NULL name ends the table. */
extern const struct bench_loop bench_loops[];

/* The loop's function for that size, or NULL. */
bench_run *bench_loop_of(const struct bench_loop *l, size_t size);

/* The store fence that ends a write. */
void bench_store_fence(void);

#endif
