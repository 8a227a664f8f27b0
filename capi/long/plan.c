// SPDX-License-Identifier: MIT
#include "plan.h"

#include <errno.h>
#include <string.h>

/* docs/dataplane.md has where each number comes from. */
#define LEAST_SHARED(to) ((to) ? 65536u : 4096u)
#define CHOSEN_THREADS(to) ((to) ? 4u : 8u)	/* where the library chooses, and nobody says */

enum { THREADS = 1, CHOICE = 2 };

/*
 * What is asked, in one word: threads that ask at once lose nothing. The plans follow from
 * it. least_dma is stored before a change that counts it.
 */
struct asked {
	uint8_t threads[2];	/* 0: nobody says */
	uint8_t chooses;
	uint8_t by_call;	/* THREADS, CHOICE: the environment has no say */
	uint32_t changes;
};

static _Atomic(struct asked) asked;
static _Atomic size_t least_dma[2] = { SIZE_MAX, SIZE_MAX };
_Atomic size_t copy_least_long[2] = { SIZE_MAX, SIZE_MAX };

static struct copy_plan plan_by(struct asked a, bool to)
{
	unsigned int threads = a.chooses ? CHOSEN_THREADS(to) : 1;

	if (a.threads[to])
		threads = a.threads[to];
	return (struct copy_plan){
		.threads = threads,
		.shared = threads > 1 ? LEAST_SHARED(to) : SIZE_MAX,
		.dma = atomic_load_explicit(&least_dma[to], memory_order_relaxed),
		.chosen = a.chooses ? LEAST_SHARED(to) : SIZE_MAX,
	};
}

struct copy_plan copy_plan_of(bool to)
{
	return plan_by(atomic_load_explicit(&asked, memory_order_relaxed), to);
}

static size_t least_of(struct copy_plan p)
{
	size_t least = p.dma < p.shared ? p.dma : p.shared;

	return p.chosen < least ? p.chosen : least;
}

/* Of threads that ask at once, the last one to see the word stores what follows from it. */
static void publish(void)
{
	struct asked seen, now = atomic_load(&asked);

	do {
		seen = now;
		atomic_store(&copy_least_long[false], least_of(plan_by(seen, false)));
		atomic_store(&copy_least_long[true], least_of(plan_by(seen, true)));
		now = atomic_load(&asked);
	} while (now.changes != seen.changes);
}

/* Changes what is asked of these. wish.by_call says which of them a call asks for. */
static void change(unsigned int these, struct asked wish)
{
	struct asked was = atomic_load(&asked), now;

	do {
		unsigned int has_say = these & (wish.by_call | ~was.by_call);

		now = was;
		if (has_say & THREADS)
			memcpy(now.threads, wish.threads, sizeof(now.threads));
		if (has_say & CHOICE)
			now.chooses = wish.chooses;
		now.by_call |= wish.by_call;
		now.changes++;
	} while (!atomic_compare_exchange_weak(&asked, &was, now));
	publish();
}

int copy_plan_set_threads(unsigned int reads, unsigned int writes)
{
	if (reads - 1 >= COPY_THREADS_MAX || writes - 1 >= COPY_THREADS_MAX)
		return EINVAL;
	change(THREADS, (struct asked){
		.threads = { (uint8_t)reads, (uint8_t)writes }, .by_call = THREADS });
	return 0;
}

void copy_plan_set_choice(bool chooses)
{
	change(CHOICE, (struct asked){ .chooses = chooses, .by_call = CHOICE });
}

void copy_plan_set_by_env(const struct copy_wishes *w)
{
	atomic_store(&least_dma[false], w->least_dma[false]);
	atomic_store(&least_dma[true], w->least_dma[true]);
	change(THREADS | CHOICE, (struct asked){
		.threads = { (uint8_t)w->threads[0], (uint8_t)w->threads[1] }, .chooses = w->chooses });
}
