/* SPDX-License-Identifier: MIT */
#include "timing.h"

#include <stdio.h>
#include <stdlib.h>

static double ticks_per_ns = 1.0;
static uint64_t cost;
static char text[128];

static void nothing(void)
{
}

static int by_ticks(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Through a pointer, as the benchmarks call what they time. */
static uint64_t measure_cost(void)
{
	void (*volatile call)(void) = nothing;
	uint64_t t[1001];
	size_t i;

	for (i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		void (*f)(void) = call;
		uint64_t t0 = bench_ticks();

		f();
		t[i] = bench_ticks() - t0;
	}
	qsort(t, i, sizeof(t[0]), by_ticks);
	return t[i / 2];
}

void bench_clock_init(void)
{
#if defined(__x86_64__)
	uint64_t ns0 = bench_monotonic_ns(), t0 = bench_ticks(), ns1, t1;

	do {
		ns1 = bench_monotonic_ns();
		t1 = bench_ticks();
	} while (ns1 - ns0 < 50000000);
	ticks_per_ns = (double)(t1 - t0) / (double)(ns1 - ns0);
#endif
	cost = measure_cost();
#if defined(__x86_64__)
	snprintf(text, sizeof(text), "TSC at %.3f GHz, %.1f ns a reading, subtracted",
		 ticks_per_ns, bench_ns(cost));
#else
	snprintf(text, sizeof(text), "CLOCK_MONOTONIC, %.1f ns a reading, subtracted",
		 bench_ns(cost));
#endif
}

double bench_ns(uint64_t ticks)
{
	return (double)ticks / ticks_per_ns;
}

uint64_t bench_ticks_of(double ns)
{
	return (uint64_t)(ns * ticks_per_ns);
}

uint64_t bench_clock_cost(void)
{
	return cost;
}

const char *bench_clock_text(void)
{
	return text;
}

void bench_spin(uint64_t ticks)
{
	uint64_t t0 = bench_ticks();

	while (bench_ticks() - t0 < ticks) {
#if defined(__x86_64__)
		_mm_pause();
#endif
	}
}

bool bench_samples_init(struct bench_samples *s, size_t cap)
{
	s->n = 0;
	s->cap = cap;
	s->ns = calloc(cap, sizeof(s->ns[0]));
	return s->ns != NULL;
}

void bench_samples_free(struct bench_samples *s)
{
	free(s->ns);
	*s = (struct bench_samples){ 0 };
}

void bench_samples_add(struct bench_samples *s, double ns)
{
	if (s->n < s->cap)
		s->ns[s->n++] = ns > 0 ? ns : 0;
}

static int by_ns(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double bench_p0(struct bench_samples *s)
{
	qsort(s->ns, s->n, sizeof(s->ns[0]), by_ns);
	return s->ns[0];
}

double bench_p50(struct bench_samples *s)
{
	qsort(s->ns, s->n, sizeof(s->ns[0]), by_ns);
	return s->ns[s->n / 2];
}
