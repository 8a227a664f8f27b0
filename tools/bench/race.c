/* SPDX-License-Identifier: MIT */
#include "race.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TURNS 8
#define MIN_SAMPLES 3
#define MAX_SAMPLES 20000
#define MAX_BATCH 1000u
#define BATCH_NS 100000.0
#define DRAIN_NS 2000.0

void bench_gdr_write(struct bench_op *op, size_t count)
{
	for (; count; count--)
		op->rc |= gdr_copy_to_mapping(op->mh, op->dev, op->host, op->size);
}

void bench_gdr_read(struct bench_op *op, size_t count)
{
	for (; count; count--)
		op->rc |= gdr_copy_from_mapping(op->mh, op->host, op->dev, op->size);
}

void bench_cu_write(struct bench_op *op, size_t count)
{
	const struct cuda_dl *cu = op->user;

	for (; count; count--)
		op->rc |= cu->to_gpu(op->addr, op->host, op->size);
}

void bench_cu_read(struct bench_op *op, size_t count)
{
	const struct cuda_dl *cu = op->user;

	for (; count; count--)
		op->rc |= cu->from_gpu(op->host, op->addr, op->size);
}

const char *bench_pace_name(enum bench_pace pace)
{
	static const char *const names[] = {
		[BENCH_BACK_TO_BACK] = "back-to-back",
		[BENCH_ALONE] = "alone",
		[BENCH_EVICTED] = "cold-cache",
		[BENCH_USED] = "used",
	};

	return names[pace];
}

static void check(const struct bench_cell *c)
{
	if (c->arg.rc)
		bench_die("%s of %zu bytes by %s failed: %d (%s)", c->op, c->arg.size, c->who,
			  c->arg.rc, strerror(c->arg.rc));
}

static void invert(uint8_t *p, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		p[i] = (uint8_t)~p[i];
}

void bench_verify(struct bench_gpu *b, struct bench_cell *c)
{
	static uint64_t seed = 1;
	struct bench_op *op = &c->arg;
	uint8_t *want = malloc(op->size), *got = malloc(op->size);
	bool read = !strcmp(c->op, "read");
	size_t i;

	if (!want || !got)
		bench_die("out of memory for %zu bytes to compare", op->size);
	bench_fill(want, op->size, seed++);
	memcpy(got, want, op->size);
	invert(got, op->size);	/* so that bytes that do not move show */
	if (read) {
		bench_gpu_put(b, op->addr, want, op->size);
		memcpy(op->host, got, op->size);
		c->run(op, 1);
		memcpy(got, op->host, op->size);
	} else {
		bench_gpu_put(b, op->addr, got, op->size);
		memcpy(op->host, want, op->size);
		c->run(op, 1);
		bench_gpu_get(b, got, op->addr, op->size);
	}
	check(c);
	for (i = 0; i < op->size; i++)
		if (got[i] != want[i])
			bench_die("%s of %zu bytes by %s: byte %zu is %#x, not %#x", c->op,
				  op->size, c->who, i, got[i], want[i]);
	free(want);
	free(got);
}

/* 0, but not before the byte is there. */
static inline size_t zero_after(const uint8_t *byte)
{
	size_t v = *(const volatile uint8_t *)byte;

#if defined(__x86_64__)
	__asm__ __volatile__("and $0, %0" : "+r"(v));
#elif defined(__aarch64__)
	__asm__ __volatile__("and %0, %0, xzr" : "+r"(v));
#else
	__asm__ __volatile__("" : "+r"(v) : : "memory");
	v *= 0;
#endif
	return v;
}

static void run_used(struct bench_cell *c)
{
	struct bench_op op = c->arg;
	const uint8_t *host = op.host;

	for (unsigned i = 0; i < c->batch; i++) {
		c->run(&op, 1);
		op.dev = (uint8_t *)op.dev + zero_after(host) + zero_after(host + op.size - 1);
	}
	c->arg.rc |= op.rc;
}

static bool in_a_row(const struct bench_cell *c)
{
	return c->pace == BENCH_BACK_TO_BACK || c->pace == BENCH_USED;
}

/* The CPU's caches lose the lines of a mapping that the GPU writes. */
static void evict(struct bench_op *op)
{
	const struct cuda_dl *cu = op->user;

	op->rc |= cu->set8(op->addr, 0, op->size);
	op->rc |= cu->ctx_sync();
}

static double sample(struct bench_cell *c)
{
	uint64_t t0;

	if (c->pace == BENCH_EVICTED)
		evict(&c->arg);
	if (!in_a_row(c))
		bench_spin(bench_ticks_of(DRAIN_NS));
	t0 = bench_ticks();
	if (c->pace == BENCH_USED)
		run_used(c);
	else
		c->run(&c->arg, c->batch);
	return bench_ns(bench_since(t0)) / c->batch;
}

/* As many operations as fill BATCH_NS, by what a sample of the batch so far says. */
static unsigned fitting_batch(struct bench_cell *c)
{
	double ns = sample(c), n = BATCH_NS / (ns > 1 ? ns : 1);

	if (n > c->max)
		n = (double)c->max;
	return n < 1 ? 1 : n < MAX_BATCH ? (unsigned)n : MAX_BATCH;
}

/*
 * Warms up and finds how many operations make a sample. One operation alone takes
 * less time than one of many does, so the second guess is the good one.
 */
static void start(struct bench_cell *c)
{
	c->batch = 1;
	sample(c);
	if (in_a_row(c)) {
		c->batch = fitting_batch(c);
		c->batch = fitting_batch(c);
	}
	if (!bench_samples_init(&c->samples, MAX_SAMPLES))
		bench_die("out of memory for samples");
}

/* How many samples max allows. */
static size_t most_samples(const struct bench_cell *c)
{
	size_t n = (size_t)c->max / c->batch;

	return n < MAX_SAMPLES ? n : MAX_SAMPLES;
}

/*
 * Samples up to the turn's share of the budget and of max. The first sample does not
 * count: what the one before has left in the buffers is part of it.
 */
static void turn(struct bench_cell *c, int turns_done, uint64_t budget_ns)
{
	uint64_t end = bench_monotonic_ns() + budget_ns / TURNS;
	size_t share = most_samples(c) * (size_t)(turns_done + 1) / TURNS;

	sample(c);
	while (c->samples.n < share && bench_monotonic_ns() < end)
		bench_samples_add(&c->samples, sample(c));
}

static void finish(struct bench_cell *c, struct bench_result *r)
{
	struct bench_row row = {
		.op = c->op,
		.who = c->who,
		.mode = bench_pace_name(c->pace),
		.size = c->arg.size,
		.threads = c->threads ? c->threads : 1,
		.batch = c->batch,
		.moves = true,
	};

	while (c->samples.n < MIN_SAMPLES && c->samples.n < most_samples(c))
		bench_samples_add(&c->samples, sample(c));
	check(c);
	row.samples = c->samples.n;
	row.p0 = bench_p0(&c->samples);
	row.p50 = bench_p50(&c->samples);
	bench_row(r, &row);
	bench_samples_free(&c->samples);
}

/* Shuffles the cells, so that none always follows the same other one. */
static void shuffle(struct bench_cell **order, size_t n)
{
	static uint64_t seed = 1;

	for (; n > 1; n--) {
		struct bench_cell *last = order[n - 1];
		size_t i;

		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		i = (seed >> 33) % n;
		order[n - 1] = order[i];
		order[i] = last;
	}
}

void bench_race(struct bench_cell *cells, size_t n, long budget_ms,
		struct bench_result *r)
{
	struct bench_cell **order = calloc(n, sizeof(*order));
	size_t i;
	int t;

	if (!order)
		bench_die("out of memory for %zu competitors", n);
	for (i = 0; i < n; i++) {
		start(&cells[i]);
		order[i] = &cells[i];
	}
	for (t = 0; t < TURNS; t++) {
		shuffle(order, n);
		for (i = 0; i < n; i++)
			turn(order[i], t, (uint64_t)budget_ms * 1000000u);
		progress_part((t + 1.0) / TURNS);
	}
	free(order);
	for (i = 0; i < n; i++)
		finish(&cells[i], r);
}
