// SPDX-License-Identifier: MIT
/*
 * copy/pool.c - the threads that share a copy, by themselves: capi/long/pool.c
 * and the copy routines, on ordinary memory, with more threads than CPUs.
 *
 * Built a second time with ThreadSanitizer. That does not see the accesses of
 * assembly, so there the routine is "portable".
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "copy/fence.h"
#include "long/pool.h"
#include "tap.h"

#define MOST (256u << 10)
#define GUARD 1024u
#define CALLERS 4
#define ROUNDS 300

static copy_pool_ref ref;
static const struct copy_impl *impl;

/* What a copy from 4096 bytes on has of the threads that are wanted. */
static struct copy_help help_for(size_t n, bool to)
{
	const struct copy_plan plan = copy_plan_of(to);

	return copy_pool_help(atomic_load(&ref), &plan, n, to, 0);
}

static void copy_by(const struct copy_impl *by, const void *owner, uint8_t *dev, uint8_t *host, size_t n, bool to)
{
	struct copy_job job = { .impl = by, .dev = dev, .host = host, .n = n, .shares = help_for(n, to).shares, .to = to };

	copy_pool_copy(atomic_load(&ref), owner, &job);
}

struct sides {
	uint8_t *dev, *host, *model;
};

static uint64_t next(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

static void fill(uint8_t *p, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)next(&seed);
}

static struct sides new_sides(void)
{
	size_t room = MOST + 4 * GUARD;
	struct sides s = { aligned_alloc(4096, room), malloc(room), malloc(room) };

	if (!s.dev || !s.host || !s.model) {
		puts("Bail out! out of memory");
		exit(1);
	}
	return s;
}

static void free_sides(struct sides *s)
{
	free(s->dev);
	free(s->host);
	free(s->model);
}

/* One copy of n bytes, at odd places of both sides, against memcpy. */
static bool copy_is_right(struct sides *s, size_t n, size_t at_dev, size_t at_host, bool to,
			  uint64_t seed)
{
	size_t room = MOST + 4 * GUARD;
	uint8_t *dst = to ? s->dev : s->host;

	fill(s->dev, room, seed);
	fill(s->host, room, seed + 1);
	memcpy(s->model, dst, room);
	if (to)
		memcpy(s->model + at_dev, s->host + at_host, n);
	else
		memcpy(s->model + at_host, s->dev + at_dev, n);
	copy_fence_read_begin();
	copy_by(impl, s, s->dev + at_dev, s->host + at_host, n, to);
	copy_fence_store();
	copy_fence_read_end();
	return !memcmp(dst, s->model, room);
}

static bool sizes_are_right(unsigned int threads)
{
	static const size_t sizes[] = { 1, 63, 1024, 4095, 4096, 4097, 8192, 16384, 65535,
					65536, 65599, 131072, MOST };
	struct sides s = new_sides();
	bool ok = !copy_plan_set_threads(threads, threads) && !copy_pool_start(&ref, threads - 1, NULL);

	for (size_t i = 0; ok && i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (unsigned int odd = 0; ok && odd < 4; odd++) {
			size_t dev = GUARD + 21 * odd, host = GUARD + 7 * odd;

			ok = copy_is_right(&s, sizes[i], dev, host, true, i) &&
			     copy_is_right(&s, sizes[i], dev, host, false, i);
			if (!ok)
				printf("# %zu bytes, %u threads, offset %zu\n", sizes[i], threads, dev);
		}
	free_sides(&s);
	return ok;
}

static void *call(void *arg)
{
	struct sides s = new_sides();
	uint64_t seed = (uintptr_t)arg;
	bool ok = true;

	for (int i = 0; ok && i < ROUNDS; i++) {
		size_t n = 4096 + next(&seed) % (i % 8 ? 8192 : MOST - 4096);

		ok = copy_is_right(&s, n, next(&seed) % GUARD, next(&seed) % GUARD, i % 2, seed);
		/* Some workers are asleep by the next. */
		if (i % 64 == 63)
			usleep(2000);
	}
	free_sides(&s);
	return (void *)(uintptr_t)ok;
}

static bool callers_are_right(void)
{
	pthread_t t[CALLERS];
	bool ok = true;

	for (uintptr_t i = 0; i < CALLERS; i++)
		if (pthread_create(&t[i], NULL, call, (void *)(i + 1)))
			exit(1);
	for (int i = 0; i < CALLERS; i++) {
		void *right;

		pthread_join(t[i], &right);
		ok &= right != NULL;
	}
	return ok;
}

/* A routine whose calls can be held up, and are counted. */
static _Atomic int begun, ended;
static _Atomic bool held;

static void slow(void *dst, const void *src, size_t n)
{
	atomic_fetch_add(&begun, 1);
	while (atomic_load(&held))
		usleep(100);
	memcpy(dst, src, n);
	atomic_fetch_add(&ended, 1);
}

static const struct copy_impl slow_impl = { .name = "slow", .to = slow, .from = slow };

static void *copy_slowly(void *sides)
{
	const struct sides *s = sides;

	copy_by(&slow_impl, s, s->dev, s->host, MOST, false);
	return NULL;
}

static void wait_for(_Atomic int *v, int want)
{
	for (int i = 0; i < 20000 && atomic_load(v) < want; i++)
		usleep(500);
}

/* A routine that looks where on the device its calls begin. */
static const unsigned char *beginning;
static _Atomic int calls_seen, off_line;

static void look(void *dst, const void *src, size_t n)
{
	atomic_fetch_add(&calls_seen, 1);
	if (src != beginning && (uintptr_t)src % COPY_LINE)
		atomic_fetch_add(&off_line, 1);
	memcpy(dst, src, n);
}

static const struct copy_impl looking_impl = { .name = "looking", .to = look, .from = look };

/* Two threads in one line of the device would both have it fetched. */
static bool lines_are_not_shared(void)
{
	struct sides s = new_sides();

	atomic_store(&calls_seen, 0);
	for (size_t odd = 0; odd < COPY_LINE; odd += 7)
		for (size_t n = MOST; n < MOST + 2 * GUARD; n += GUARD / 3) {
			beginning = s.dev + odd;
			copy_by(&looking_impl, &s, s.dev + odd, s.host, n, false);
		}
	free_sides(&s);
	return atomic_load(&calls_seen) > 100 && !atomic_load(&off_line);
}

static void *settle(void *arg)
{
	copy_pool_settle(atomic_load(&ref), arg);
	atomic_store(&ended, 1000);
	return NULL;
}

/* What a handler leaves: the owner's own part does not go on, the workers' do. */
static bool left_copy_is_settled(void)
{
	static struct sides left;
	pthread_t t, u;
	int early;
	bool ok;

	left = new_sides();
	atomic_store(&held, true);
	pthread_create(&t, NULL, copy_slowly, &left);
	wait_for(&begun, 3);
	pthread_create(&u, NULL, settle, &left);
	usleep(20000);
	early = atomic_load(&ended);
	atomic_store(&held, false);
	pthread_join(u, NULL);
	pthread_join(t, NULL);
	ok = early == 0 && copy_is_right(&left, 65536, 0, 0, false, 2);
	free_sides(&left);
	return ok;
}

/*
 * Whether a thread of this process that is not this one may run on that CPU alone.
 * ThreadSanitizer has a thread of its own, from the first that a program makes.
 */
static bool another_is_on(unsigned int cpu)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *e;
	cpu_set_t own;
	bool is = false;

	while (tasks && (e = readdir(tasks)))
		is |= atoi(e->d_name) > 0 && atoi(e->d_name) != getpid() &&
		      !sched_getaffinity(atoi(e->d_name), sizeof(own), &own) &&
		      CPU_COUNT(&own) == 1 && CPU_ISSET(cpu, &own);
	if (tasks)
		closedir(tasks);
	return is;
}

/* The first worker of all is put on the last CPU that this thread may run on. */
static bool worker_is_placed(void)
{
	struct copy_cpus of_worker = { { 0 } };
	unsigned int last = 0;
	cpu_set_t may;

	if (sched_getaffinity(0, sizeof(may), &may))
		return false;
	for (unsigned int i = 0; i < CPU_SETSIZE; i++)
		last = CPU_ISSET(i, &may) ? i : last;
	of_worker.bits[last / 64] = 1ul << last % 64;
	return !copy_pool_start(&ref, 1, &of_worker) && another_is_on(last);
}

int main(void)
{
	static const unsigned int counts[] = { 2, 3, 8, 64 };
	const char *name = getenv("GDRCOPY_COPY_IMPL");
	struct tap t = { 0, 0, 0 };

	impl = copy_select(name);
	if (!impl) {
		puts("Bail out! GDRCOPY_COPY_IMPL names no routine of this CPU");
		return 1;
	}
	tap_ok(&t, worker_is_placed() && copy_pool_count(atomic_load(&ref)) == 1, "a thread runs on the CPUs that it is given");
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		tap_ok(&t, sizes_are_right(counts[i]), "copies by %u threads are right", counts[i]);
	tap_ok(&t, callers_are_right(), "%d callers at once", CALLERS);
	tap_ok(&t, lines_are_not_shared(), "no two threads read one line");
	tap_ok(&t, left_copy_is_settled(), "a left copy ends with its workers");
	tap_ok(&t, callers_are_right(), "the pool goes on after that");
	return tap_done(&t);
}
