/* SPDX-License-Identifier: MIT */
/*
 * bench/timing.h - short times, and what many of them amount to.
 */
#ifndef BENCH_TIMING_H
#define BENCH_TIMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

static inline uint64_t bench_monotonic_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/*
 * Ticks of the clock. On x86-64 it is the TSC between two LFENCEs: nothing that
 * was issued before is still running when it is read, and nothing after has
 * begun. Stores may still be on their way: only their fences wait for those.
 * Elsewhere it is CLOCK_MONOTONIC in nanoseconds.
 */
static inline uint64_t bench_ticks(void)
{
#if defined(__x86_64__)
	uint64_t t;

	_mm_lfence();
	t = __rdtsc();
	_mm_lfence();
	return t;
#else
	return bench_monotonic_ns();
#endif
}

/* Measures the clock's rate and what reading it costs; call it once, first. */
void bench_clock_init(void);

/* Ticks as nanoseconds. */
double bench_ns(uint64_t ticks);

/* Nanoseconds as ticks. */
uint64_t bench_ticks_of(double ns);

/* Ticks between two readings with nothing but an empty call between them. */
uint64_t bench_clock_cost(void);

/* Ticks since the reading t0, less that cost; never below 0. */
static inline uint64_t bench_since(uint64_t t0)
{
	uint64_t t = bench_ticks() - t0, cost = bench_clock_cost();

	return t > cost ? t - cost : 0;
}

/* For people: which clock, its rate, its cost. */
const char *bench_clock_text(void);

/* Does nothing for at least so long, without leaving the CPU. */
void bench_spin(uint64_t ticks);

/*
 * Samples of one figure, in ns. n <= cap. When cap is reached, later samples
 * are not kept.
 */
struct bench_samples {
	double *ns;
	size_t n, cap;
};

bool bench_samples_init(struct bench_samples *s, size_t cap);
void bench_samples_free(struct bench_samples *s);
void bench_samples_add(struct bench_samples *s, double ns);

/* The smallest, and the median; n must not be 0. */
double bench_p0(struct bench_samples *s);
double bench_p50(struct bench_samples *s);

#endif
