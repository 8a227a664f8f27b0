/* SPDX-License-Identifier: MIT */
/*
 * apiperf_calls.h - the calls that gdrcopy_apiperf times.
 */
#ifndef APIPERF_CALLS_H
#define APIPERF_CALLS_H

#include "bench/gpu.h"
#include "bench/timing.h"

#define STEPS 32

/* One call. Steps live in the order in which they were first timed. */
struct step {
	const char *op;
	struct bench_samples samples;
};

struct life {
	struct bench_gpu gpu;
	struct bench_buf buf;
	gdr_cache_t cache;
	struct step steps[STEPS];
	size_t nsteps;
	bool warm;		/* times count */
};

/* The first gdr_open and gdr_close of the process, and more of them. */
void apiperf_open(struct life *l, struct bench_result *r);

/* The first pin of the process, of l->buf: what a backend puts off until then is in it. */
void apiperf_first_pin(struct life *l, struct bench_result *r);

/* A new buffer of that size, and what can be done with it, again and again. */
void apiperf_buffer(struct life *l, struct bench_result *r, size_t size);

#endif
