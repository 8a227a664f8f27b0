// SPDX-License-Identifier: MIT
/*
 * copy/auto.c - how capi/long/auto.c chooses, by itself: a machine whose ways take
 * what this program says.
 */
#include <stdlib.h>

#include "long/plan.h"
#include "tap.h"

/* The estimates are read, too. */
#include "../../../capi/long/auto.c"

#define ALL ((1u << COPY_WAYS) - 1)

/* The estimate of a copy's time. */
static uint64_t expect(size_t n, bool to, enum copy_way way)
{
	unsigned int c = class_of(n);

	return scaled(estimate(c, to, way), (size_t)1 << c, n);
}

/* What n bytes take by each way. */
struct machine {
	uint64_t fixed[COPY_WAYS];
	double per_byte[COPY_WAYS];
};

static uint64_t takes(const struct machine *m, enum copy_way way, size_t n)
{
	return m->fixed[way] + (uint64_t)(m->per_byte[way] * (double)n);
}

static enum copy_way best(const struct machine *m, size_t n, unsigned int ways)
{
	enum copy_way b = COPY_ALONE;

	for (unsigned int way = 1; way < COPY_WAYS; way++)
		if ((ways & 1u << way) && takes(m, way, n) < takes(m, b, n))
			b = way;
	return b;
}

#define LAST 1024

/* Makes copies, and returns how many of the last ones were not made by the best way. */
static int copy_often(const struct machine *m, size_t n, bool to, unsigned int ways, int copies)
{
	int wrong = 0;

	for (int i = 0; i < copies; i++) {
		enum copy_way way = copy_auto_best_way(n, to, ways);

		if (!(ways & 1u << way))
			return -1;
		if (i >= copies - LAST && takes(m, way, n) * 10 > takes(m, best(m, n, ways), n) * 11)
			wrong++;
		if (copy_auto_learns(n, to, way))
			copy_auto_learn(n, to, way, takes(m, way, n));
	}
	return wrong;
}

/* What was right for another machine is unlearnt; a copy of 256 may try another way. */
static bool finds_the_best(const struct machine *m, bool to)
{
	for (size_t n = 4096; n <= 16u << 20; n *= 2)
		for (unsigned int ways = 1; ways <= ALL; ways += 2) {
			int wrong = copy_often(m, n, to, ways, 32768);

			if (wrong < 0 || wrong > LAST / 256) {
				printf("# %zu bytes, ways %#x: %d of the last %d\n", n, ways, wrong,
				       LAST);
				return false;
			}
		}
	return true;
}

/*
 * Threads that were slow, and are asleep since. Whether they are fast now is known only
 * once they are woken: they must look better than another way, now and then.
 */
static bool wakes_again(const struct machine *slow, const struct machine *fast)
{
	unsigned int awake = 1u << COPY_ALONE | 1u << COPY_SHARED | 1u << COPY_DMA;
	unsigned int asleep = 1u << COPY_ALONE | 1u << COPY_WAKING | 1u << COPY_DMA;
	size_t n = 16384;

	copy_often(slow, n, false, awake, 32768);
	if (expect(n, false, COPY_SHARED) < takes(fast, COPY_DMA, n))
		return false;
	for (int i = 0; i < 256 * COPY_WAYS; i++) {
		copy_often(fast, n, false, asleep, 1);
		if (expect(n, false, COPY_SHARED) < takes(fast, COPY_DMA, n))
			return copy_often(fast, n, false, awake, LAST) <= LAST / 256;
	}
	return false;
}

/* A copy that took three times as long leaves its way ahead of one that takes 1.4 times. */
static bool forgives(void)
{
	const struct machine m = { { 121000, 0, 0, 83000, 0 }, { 0 } };
	unsigned int ways = 1u << COPY_ALONE | 1u << COPY_DMA;
	size_t n = 4u << 20;

	copy_often(&m, n, true, ways, 32768);
	copy_auto_learn(n, true, COPY_DMA, 250000);
	return expect(n, true, COPY_DMA) < expect(n, true, COPY_ALONE);
}

/*
 * The shortest of the first times counts, be it too short to measure; an estimate grows
 * with the bytes of its class.
 */
static bool first_times(void)
{
	size_t n = 8u << 20;

	copy_auto_learn(64, false, COPY_SHARED, 0);
	if (expect(64, false, COPY_SHARED) > 1)
		return false;

	copy_auto_learn(n, true, COPY_DMA_LOCKED, 9000000);
	copy_auto_learn(n + n / 2, true, COPY_DMA_LOCKED, 6000000);
	copy_auto_learn(n + n / 2, true, COPY_DMA_LOCKED, 7500000);
	return expect(n, true, COPY_DMA_LOCKED) == 4000000 &&
	       expect(n + n / 2, true, COPY_DMA_LOCKED) == 6000000;
}

static bool is_plan(bool to, unsigned int threads, size_t shared, size_t dma, size_t chosen)
{
	struct copy_plan p = copy_plan_of(to);
	size_t least = shared < dma ? shared : dma;

	return p.threads == threads && p.shared == shared && p.dma == dma && p.chosen == chosen &&
	       copy_least_long[to] == (chosen < least ? chosen : least);
}

#define NEVER SIZE_MAX

/* What calls and the environment ask for. */
static void test_plan(struct tap *t)
{
	struct copy_wishes env = { { 0, 2 }, { 8192, NEVER }, false };

	tap_ok(t, is_plan(false, 1, NEVER, NEVER, NEVER) && is_plan(true, 1, NEVER, NEVER, NEVER),
	       "the caller copies alone at first");
	copy_plan_set_by_env(&env);
	tap_ok(t, is_plan(false, 1, NEVER, 8192, NEVER) && is_plan(true, 2, 65536, NEVER, NEVER),
	       "the environment asks for threads and DMA");
	env = (struct copy_wishes){ { 0, 1 }, { NEVER, NEVER }, true };
	copy_plan_set_by_env(&env);
	tap_ok(t, is_plan(false, 8, 4096, NEVER, 4096) && is_plan(true, 1, NEVER, NEVER, 65536),
	       "the library chooses, but not how many threads write");
	tap_ok(t, !copy_plan_set_threads(3, 64) && copy_plan_set_threads(0, 1) && copy_plan_set_threads(1, 65) &&
	       is_plan(false, 3, 4096, NEVER, 4096) && is_plan(true, 64, 65536, NEVER, 65536),
	       "a call says how many threads");
	copy_plan_set_choice(false);
	copy_plan_set_by_env(&env);
	tap_ok(t, is_plan(false, 3, 4096, NEVER, NEVER) && is_plan(true, 64, 65536, NEVER, NEVER),
	       "calls go before the environment");
}

int main(void)
{
	/* As an H200; with slow threads; with a slow copy engine; then all changes again. */
	static const struct machine machines[] = {
		{ { 0, 700, 100000, 6600, 6600 }, { 1, 0.13, 0.13, 0.05, 0.02 } },
		{ { 0, 4000, 200000, 6600, 6600 }, { 1, 0.9, 0.9, 0.05, 0.02 } },
		{ { 0, 700, 60000, 90000, 80000 }, { 1, 0.13, 0.13, 0.5, 0.4 } },
		{ { 0, 90000, 90000, 90000, 90000 }, { 0.01, 0.01, 0.01, 0.01, 0.01 } },
		{ { 0, 700, 100000, 6600, 6600 }, { 1, 0.13, 0.13, 0.05, 0.02 } },
	};
	struct tap t = { 0, 0, 0 };

	test_plan(&t);
	tap_ok(&t, copy_auto_best_way(SIZE_MAX, true, 1) == COPY_ALONE &&
	       copy_auto_best_way(1, false, 1) == COPY_ALONE, "any size has a way");
	tap_ok(&t, first_times(), "the shortest of the first times, by the bytes");
	for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
		tap_ok(&t, finds_the_best(&machines[i], false), "machine %zu: reads", i);
		tap_ok(&t, finds_the_best(&machines[i], true), "machine %zu: writes", i);
	}
	/* One copy that took long changes nothing. */
	copy_auto_learn(1 << 20, false, best(&machines[0], 1 << 20, ALL), 1000000000);
	tap_ok(&t, copy_often(&machines[0], 1 << 20, false, ALL, LAST) <= LAST / 256, "one long copy");
	tap_ok(&t, forgives(), "one copy that took three times as long");
	tap_ok(&t, wakes_again(&machines[1], &machines[0]), "threads that sleep are woken again");
	return tap_done(&t);
}
