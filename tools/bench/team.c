/* SPDX-License-Identifier: MIT */
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "opt.h"

#define LINE 64u

/* One thread's part. done follows the team's turn; rc is read after that. */
struct member {
	_Alignas(2 * LINE) struct bench_team *team;
	pthread_t thread;
	int index;
	_Alignas(2 * LINE) atomic_ulong done;
	int rc;
};

/* What is written before turn goes up belongs to the members until done. */
struct bench_team {
	_Alignas(2 * LINE) atomic_ulong turn;
	const struct bench_op *op;
	bool read;
	bool quit;
	int n;
	struct member member[];
};

static void wait_for(atomic_ulong *v, unsigned long want)
{
	unsigned int spins;

	for (spins = 0; atomic_load_explicit(v, memory_order_acquire) != want; spins++)
		if (spins % 1024 == 1023)
			sched_yield();
}

/* Where part i of n begins: on a line. */
static size_t cut(size_t size, int i, int n)
{
	return i == n ? size : size / LINE * (size_t)i / (size_t)n * LINE;
}

static int do_part(const struct bench_team *team, int i)
{
	const struct bench_op *op = team->op;
	size_t from = cut(op->size, i, team->n), size = cut(op->size, i + 1, team->n) - from;
	uint8_t *dev = (uint8_t *)op->dev + from, *host = (uint8_t *)op->host + from;

	if (team->read)
		return gdr_copy_from_mapping(op->mh, host, dev, size);
	return gdr_copy_to_mapping(op->mh, dev, host, size);
}

static void *work(void *arg)
{
	struct member *m = arg;
	unsigned long turn;

	for (turn = 1; ; turn++) {
		wait_for(&m->team->turn, turn);
		if (m->team->quit)
			return NULL;
		m->rc = do_part(m->team, m->index);
		atomic_store_explicit(&m->done, turn, memory_order_release);
	}
}

struct bench_team *bench_team_start(int n)
{
	size_t size = sizeof(struct bench_team) + (size_t)n * sizeof(struct member);
	struct bench_team *team;
	int i, rc;

	team = aligned_alloc(_Alignof(struct bench_team), size);
	if (!team)
		bench_die("out of memory for %d threads", n);
	memset(team, 0, size);
	team->n = n;
	for (i = 1; i < n; i++) {
		team->member[i].team = team;
		team->member[i].index = i;
		rc = pthread_create(&team->member[i].thread, NULL, work, &team->member[i]);
		if (rc)
			bench_die("thread %d of %d: %s", i, n, strerror(rc));
	}
	return team;
}

void bench_team_stop(struct bench_team *team)
{
	int i;

	team->quit = true;
	atomic_fetch_add_explicit(&team->turn, 1, memory_order_release);
	for (i = 1; i < team->n; i++)
		pthread_join(team->member[i].thread, NULL);
	free(team);
}

static void run(struct bench_op *op, size_t count, bool read)
{
	struct bench_team *team = (struct bench_team *)(uintptr_t)op->user;
	unsigned long turn;
	int i;

	team->op = op;
	team->read = read;
	for (; count; count--) {
		turn = atomic_fetch_add_explicit(&team->turn, 1, memory_order_release) + 1;
		op->rc |= do_part(team, 0);
		for (i = 1; i < team->n; i++) {
			wait_for(&team->member[i].done, turn);
			op->rc |= team->member[i].rc;
		}
	}
}

void bench_team_write(struct bench_op *op, size_t count)
{
	run(op, count, false);
}

void bench_team_read(struct bench_op *op, size_t count)
{
	run(op, count, true);
}
