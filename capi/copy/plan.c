// SPDX-License-Identifier: MIT
#include "plan.h"

#include <errno.h>
#include <string.h>

/* docs/dataplane.md has where each number comes from. */
#define LEAST_SHARED(to) ((to) ? 65536u : 4096u)
#define CHOSEN_THREADS(to) ((to) ? 4u : 8u)	/* where the library chooses, and nobody says */

enum { THREADS = 1, CHOICE = 2 };

/*
 * What is asked, in one word: threads that ask at once lose nothing. least_dma is stored
 * before a change that counts it.
 */
struct asked {
	uint8_t threads[2];	/* 0: nobody says */
	uint8_t chooses;
	uint8_t by_call;	/* THREADS, CHOICE: the environment has no say */
	uint32_t changes;
};

static _Atomic(struct asked) asked;
static _Atomic size_t least_dma[2] = { SIZE_MAX, SIZE_MAX };
struct copy_limits copy_limits = {
	.plans = { { 1, SIZE_MAX, SIZE_MAX, SIZE_MAX }, { 1, SIZE_MAX, SIZE_MAX, SIZE_MAX } },
	.least_long = { SIZE_MAX, SIZE_MAX },
};

static unsigned int threads_of(struct asked a, bool to)
{
	if (a.threads[to])
		return a.threads[to];
	return a.chooses ? CHOSEN_THREADS(to) : 1;
}

static struct copy_plan plan_of(struct asked a, bool to)
{
	unsigned int threads = threads_of(a, to);

	return (struct copy_plan){
		.threads = threads,
		.shared = threads > 1 ? LEAST_SHARED(to) : SIZE_MAX,
		.dma = atomic_load_explicit(&least_dma[to], memory_order_relaxed),
		.chosen = a.chooses ? LEAST_SHARED(to) : SIZE_MAX,
	};
}

static size_t least_of(const struct copy_plan *p)
{
	size_t least = p->dma < p->shared ? p->dma : p->shared;

	return p->chosen < least ? p->chosen : least;
}

static void set_plan(const struct copy_plan *p, bool to)
{
	atomic_store(&copy_limits.plans[to].threads, p->threads);
	atomic_store(&copy_limits.plans[to].shared, p->shared);
	atomic_store(&copy_limits.plans[to].dma, p->dma);
	atomic_store(&copy_limits.plans[to].chosen, p->chosen);
	atomic_store(&copy_limits.least_long[to], least_of(p));
}

static void set_limits(const struct copy_plan *from, const struct copy_plan *to)
{
	set_plan(from, false);
	set_plan(to, true);
	atomic_store(&copy_limits.workers, (from->threads > to->threads ? from->threads : to->threads) - 1);
	atomic_store(&copy_limits.dma, from->dma != SIZE_MAX || to->dma != SIZE_MAX || from->chosen != SIZE_MAX);
}

/* Of threads that ask at once, the last one to see the word stores what follows from it. */
static void publish(void)
{
	struct asked seen, now = atomic_load(&asked);
	struct copy_plan from, to;

	do {
		seen = now;
		from = plan_of(seen, false);
		to = plan_of(seen, true);
		set_limits(&from, &to);
		now = atomic_load(&asked);
	} while (memcmp(&seen, &now, sizeof(now)));
}

static struct asked changed(struct asked a, unsigned int what, struct asked wish, bool by_call)
{
	a.changes++;
	if (!by_call && (a.by_call & what))
		return a;
	if (what == THREADS)
		memcpy(a.threads, wish.threads, sizeof(a.threads));
	else
		a.chooses = wish.chooses;
	a.by_call |= by_call ? what : 0;
	return a;
}

static void change(unsigned int what, struct asked wish, bool by_call)
{
	struct asked was = atomic_load(&asked);

	while (!atomic_compare_exchange_weak(&asked, &was, changed(was, what, wish, by_call)))
		;
}

int copy_plan_set_threads(unsigned int reads, unsigned int writes)
{
	const struct asked wish = { .threads = { (uint8_t)reads, (uint8_t)writes } };

	if (reads - 1 >= COPY_THREADS_MAX || writes - 1 >= COPY_THREADS_MAX)
		return EINVAL;
	change(THREADS, wish, true);
	publish();
	return 0;
}

void copy_plan_set_choice(bool chooses)
{
	change(CHOICE, (struct asked){ .chooses = chooses }, true);
	publish();
}

void copy_plan_set_by_env(const struct copy_wishes *w)
{
	const struct asked wish = {
		.threads = { (uint8_t)w->threads[0], (uint8_t)w->threads[1] }, .chooses = w->chooses,
	};

	atomic_store(&least_dma[false], w->least_dma[false]);
	atomic_store(&least_dma[true], w->least_dma[true]);
	change(THREADS, wish, false);
	change(CHOICE, wish, false);
	publish();
}
