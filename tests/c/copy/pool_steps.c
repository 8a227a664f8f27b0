// SPDX-License-Identifier: MIT
/*
 * copy/pool_steps.c - the threads that share a copy, held between any two of their
 * steps. capi/long/pool.c is built in here. A step is a load or a store of what threads
 * share; before each one a test may let another thread act. That thread is no real one:
 * its function is called, so that every order of the two can be tried, one by one.
 *
 * The routine that moves bytes knows the job under way, and takes note of what is not of
 * it and of what is moved twice.
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "copy/fence.h"
#include "long/plan.h"
#include "tap.h"

/* The other's turn: at step number at, counted from 0. */
static struct {
	void (*act)(void);
	long at, count;
} other;

static void step(void)
{
	void (*act)(void) = other.act;

	if (!act || other.count++ != other.at)
		return;
	other.act = NULL;
	act();
}

/* What was fenced and moved, in order: b and e around reads, s after writes, v a move. */
static char events[256];
static unsigned int event_count;
static bool ended_early;	/* a worker said that it is through before one of these */

static bool says_done(void);

static void note(char event)
{
	ended_early |= says_done();
	if (event_count < sizeof(events) - 1)
		events[event_count++] = event;
	events[event_count] = '\0';
}

#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_compare_exchange_weak_explicit
#define atomic_load_explicit(p, order) (step(), *(p))
#define atomic_store_explicit(p, v, order) (step(), (void)(*(p) = (v)))
#define atomic_compare_exchange_weak_explicit(p, was, want, good, bad) \
	(step(), atomic_compare_exchange_strong(p, was, want))
#define copy_fence_store() (note('s'), copy_fence_store())
#define copy_fence_read_begin() (note('b'), copy_fence_read_begin())
#define copy_fence_read_end() (note('e'), copy_fence_read_end())

#include "long/pool.c"

enum { WORKERS = 2, LONG = 256 << 10, SHORT = 4096 };

static uint8_t dev[2][LONG], host[2][LONG];
static struct copy_pool pool;
static struct worker *const last = &pool.workers[WORKERS - 1];

static bool says_done(void)
{
	return atomic_load(&last->done) == atomic_load(&pool.notice.seq) / 2;
}

/* The job under way, and what was wrong with it. */
static struct {
	const uint8_t *dev;
	uint8_t *host;
	size_t n, moved;
	bool to, wrong;
} job;

static void moved(const uint8_t *d, const uint8_t *h, size_t n)
{
	note('v');
	if (d < job.dev || d + n > job.dev + job.n || h - job.host != d - job.dev)
		job.wrong = true;
	job.moved += n;
}

static void move_to_dev(void *dst, const void *src, size_t n)
{
	moved(dst, src, n);
	memcpy(dst, src, n);
}

static void move_from_dev(void *dst, const void *src, size_t n)
{
	moved(src, dst, n);
	memcpy(dst, src, n);
}

static const struct copy_impl impl = { .name = "watched", .to = move_to_dev,
				       .from = move_from_dev };

/* Buffer pair i; threads of them share the copy. True if all moved once, and right. */
static bool copy(int i, size_t n, unsigned int threads, bool to)
{
	static uint8_t seed;
	uint8_t *src = to ? host[i] : dev[i], *dst = to ? dev[i] : host[i];

	memset(src, ++seed, n);
	memset(dst, 0, n);
	job.dev = dev[i];
	job.host = host[i];
	job.n = n;
	job.moved = 0;
	job.to = to;
	job.wrong = false;
	copy_pool_copy(&pool, &job, &(struct copy_job){ .impl = &impl, .dev = dev[i], .host = host[i], .n = n, .shares = threads, .to = to });
	return !job.wrong && job.moved == n && !memcmp(src, dst, n);
}

/* Between copies there is no job: whatever is moved is wrong. */
static bool nothing_moves(void)
{
	bool ok = !job.wrong;

	job.n = job.moved = 0;
	return ok;
}

static void new_pool_of_none(void)
{
	memset(&pool, 0, sizeof(pool));
	for (unsigned int i = 0; i < WORKERS; i++) {
		pool.workers[i].pool = &pool;
		pool.workers[i].index = i;
	}
	atomic_init(&pool.count, WORKERS);
	memset(&other, 0, sizeof(other));
}

static struct copy_job seen;
static bool has_job;

static void look_and_take_part(void)
{
	if (look(last, &seen))
		take_part(last, &seen);
}

static void take_part_late(void)
{
	if (has_job)
		take_part(last, &seen);
}

static bool copied;
static int copy_pair;

static void copy_next(void)
{
	copied = copy(copy_pair, LONG, WORKERS, false) && nothing_moves();
}

/* A worker that comes in at any step of a copy, of two threads and then of three. */
static bool comes_in_at_any_step(bool to, long *steps)
{
	bool ok = true;

	for (long at = 0; ok; at++) {
		new_pool_of_none();
		ok = copy(0, 4 * WRITE_SHARE, WORKERS, to);
		other.at = at;
		other.act = look_and_take_part;
		ok = copy(1, LONG, WORKERS + 1, to) && ok;
		*steps = at;
		if (other.act)
			return ok;
	}
	return false;
}

/* One that has seen a job, and takes part at any step of the next copy. */
static bool is_late_by_a_turn(bool to, long *steps)
{
	bool ok = true;

	for (long at = 0; ok; at++) {
		new_pool_of_none();
		ok = copy(0, LONG, WORKERS + 1, to);
		has_job = look(last, &seen);
		other.at = at;
		other.act = take_part_late;
		ok = copy(1, LONG, WORKERS + 1, to) && ok && has_job;
		*steps = at;
		if (other.act)
			return ok;
	}
	return false;
}

/* One that reads a job while the next is written: it has the one, the other or none. */
static bool reads_while_it_is_written(long *steps)
{
	for (long at = 0;; at++) {
		new_pool_of_none();
		if (!copy(0, SHORT, WORKERS + 1, false) || !nothing_moves())
			return false;
		copied = true;
		copy_pair = 1;
		other.at = at;
		other.act = copy_next;
		look_and_take_part();
		if (!copied || !nothing_moves())
			return false;
		*steps = at;
		if (other.act)
			return true;
	}
}

/* A worker does all of a job. Its fences come before it says that it is through. */
static bool is_fenced(bool to)
{
	struct copy_job j = { .impl = &impl, .dev = dev[0], .host = host[0], .n = LONG,
			 .shares = WORKERS + 1, .per = 2, .to = to };
	size_t n;

	new_pool_of_none();
	job.dev = dev[0];
	job.host = host[0];
	job.n = LONG;
	publish(&pool.notice, &j);
	event_count = 0;
	ended_early = false;
	look_and_take_part();
	n = strspn(events + !to, "v");
	return says_done() && !ended_early && n == (size_t)j.shares * j.per &&
	       !strcmp(events + !to + n, to ? "s" : "e") && (to || events[0] == 'b');
}

int main(void)
{
	struct tap t = { 0, 0, 0 };
	long steps = 0;

	for (int to = 0; to < 2; to++) {
		const char *what = to ? "write" : "read";
		bool ok = comes_in_at_any_step(to, &steps);

		tap_ok(&t, ok && steps > 20, "a worker comes in at any step of a %s: %ld", what, steps);
		ok = is_late_by_a_turn(to, &steps);
		tap_ok(&t, ok && steps > 20, "a worker is late by a turn, at any step of a %s: %ld", what,
		       steps);
		tap_ok(&t, is_fenced(to), "a worker's part of a %s is fenced", what);
	}
	tap_ok(&t, reads_while_it_is_written(&steps) && steps > 8,
	       "a job is written while a worker reads it, at any step: %ld", steps);
	return tap_done(&t);
}
