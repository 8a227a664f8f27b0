// SPDX-License-Identifier: MIT
/*
 * copy_pool.c - threads that share long copies.
 *
 * A worker and the callers meet in the worker's state. Who holds the pool opens
 * it (IDLE to OPEN), having written the job; the worker claims the job (OPEN to
 * BUSY) and says when it is done (BUSY to IDLE); who opened it may take it back
 * as long as it is OPEN. The line that holds the state holds the job too, so
 * handing one over takes one line's way to another core.
 *
 * How many threads are worth it was measured on an H200 with a Xeon of 16 cores
 * (docs/dataplane.md): a core has 16 lines of a read in flight, so a part is as
 * much at least; writes of less than 64 KiB gained nothing from a second thread.
 */
#define _GNU_SOURCE
#include "copy_pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "copy_fence.h"

#define WORKERS_MAX (COPY_THREADS_MAX - 1)
#define READ_LEAST 4096u
#define READ_PART 1024u
#define WRITE_LEAST 65536u
#define WRITE_PART 32768u

#define SPIN_NS 50000		/* a worker looks for work so long before it sleeps */
#define SPIN_STEPS 32		/* looks between two looks at the clock */
#define WAIT_STEPS 4096		/* looks before a caller lets others run */
#define STACK_BYTES (256u << 10)
#define APART (2 * COPY_LINE)	/* CPUs fetch lines in pairs */

enum { IDLE, OPEN, BUSY };

struct job {
	const struct copy_impl *impl;
	void *dev;
	void *host;
	size_t n;
	bool to;
};

struct worker {
	_Alignas(APART) _Atomic uint32_t state;
	_Atomic uint32_t bell;	/* futex: rung to wake it */
	struct job job;		/* the opener's while IDLE, the worker's while BUSY */
	_Alignas(APART) struct copy_pool *pool;
	unsigned int index;
};

struct copy_pool {
	_Alignas(APART) _Atomic uintptr_t owner;	/* 0: free */
	_Alignas(APART) _Atomic uint64_t asleep;	/* a bit for each worker */
	_Atomic unsigned int count;		/* workers that run */
	struct worker workers[WORKERS_MAX];
};

_Static_assert(WORKERS_MAX <= 64, "asleep has a bit for each");
_Static_assert(offsetof(struct worker, job) + sizeof(struct job) <= COPY_LINE, "one line");

_Atomic size_t copy_least_shared_to = SIZE_MAX, copy_least_shared_from = SIZE_MAX;

static _Atomic unsigned int threads_to = 1, threads_from = 1;
static _Atomic bool told;	/* by copy_pool_want, which goes before the environment */

static void set_threads(unsigned int reads, unsigned int writes)
{
	atomic_store(&threads_from, reads);
	atomic_store(&threads_to, writes);
	atomic_store(&copy_least_shared_from, reads > 1 ? READ_LEAST : SIZE_MAX);
	atomic_store(&copy_least_shared_to, writes > 1 ? WRITE_LEAST : SIZE_MAX);
}

int copy_pool_want(unsigned int reads, unsigned int writes)
{
	if (reads - 1 >= COPY_THREADS_MAX || writes - 1 >= COPY_THREADS_MAX)
		return EINVAL;
	atomic_store(&told, true);
	set_threads(reads, writes);
	return 0;
}

/* A variable that is not set or empty asks for one thread; 0 is a bad value. */
static unsigned int number(const char *text)
{
	unsigned long n;
	char *end;

	if (!text || !*text)
		return 1;
	if (*text < '0' || *text > '9')
		return 0;
	n = strtoul(text, &end, 10);
	return *end || n > COPY_THREADS_MAX ? 0 : n;
}

int copy_pool_want_env(const char **bad)
{
	unsigned int reads = number(getenv("GDRCOPY_READ_THREADS"));
	unsigned int writes = number(getenv("GDRCOPY_WRITE_THREADS"));

	*bad = !reads ? "GDRCOPY_READ_THREADS" : !writes ? "GDRCOPY_WRITE_THREADS" : NULL;
	if (*bad)
		return EINVAL;
	if (!atomic_load(&told))
		set_threads(reads, writes);
	return 0;
}

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("isb" ::: "memory");
#else
	__asm__ __volatile__("" ::: "memory");
#endif
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void move(const struct job *j)
{
	if (j->to)
		j->impl->to(j->dev, j->host, j->n);
	else
		j->impl->from(j->host, j->dev, j->n);
}

static bool claim(struct worker *w, uint32_t as)
{
	uint32_t open = OPEN;

	return atomic_load_explicit(&w->state, memory_order_relaxed) == OPEN &&
	       atomic_compare_exchange_strong_explicit(&w->state, &open, as,
						       memory_order_acquire,
						       memory_order_relaxed);
}

/* Has worker i wake up if it sleeps. One ring is enough: it clears the bit. */
static void rouse(struct copy_pool *pool, unsigned int i)
{
	uint64_t bit = 1ull << i;
	struct worker *w = &pool->workers[i];

	if (!(atomic_load(&pool->asleep) & bit) ||
	    !(atomic_fetch_and(&pool->asleep, ~bit) & bit))
		return;
	atomic_fetch_add(&w->bell, 1);
	syscall(SYS_futex, &w->bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/*
 * The bell is read before the bit is set: who clears the bit rings, and a bell
 * that has rung since is not waited for. Who wakes passes it on, so that a
 * caller pays for one wake-up and no more.
 */
static void sleep_until_roused(struct worker *w)
{
	struct copy_pool *pool = w->pool;
	uint32_t bell = atomic_load(&w->bell);

	atomic_fetch_or(&pool->asleep, 1ull << w->index);
	if (atomic_load(&w->state) != OPEN)
		syscall(SYS_futex, &w->bell, FUTEX_WAIT_PRIVATE, bell, NULL, NULL, 0);
	atomic_fetch_and(&pool->asleep, ~(1ull << w->index));
	for (unsigned int i = 2 * w->index + 1; i <= 2 * w->index + 2; i++)
		if (i < WORKERS_MAX && atomic_load(&pool->workers[i].state) == OPEN)
			rouse(pool, i);
}

/* Looks for a job for a while. */
static bool find_job(struct worker *w)
{
	uint64_t end = now_ns() + SPIN_NS;

	do {
		for (int i = 0; i < SPIN_STEPS; i++) {
			if (claim(w, BUSY))
				return true;
			pause_cpu();
		}
	} while (now_ns() < end);
	return false;
}

static void *work(void *arg)
{
	struct worker *w = arg;

	prctl(PR_SET_NAME, "gdrcopy");
	for (;;) {
		while (!find_job(w))
			sleep_until_roused(w);
		if (!w->job.to)
			copy_fence_read_begin();
		move(&w->job);
		if (w->job.to)
			copy_fence_store();
		else
			copy_fence_read_end();
		atomic_store_explicit(&w->state, IDLE, memory_order_release);
	}
	return NULL;
}

unsigned int copy_pool_cpus(void)
{
	unsigned long mask[128] = { 0 };	/* 8192 CPUs, as the kernel has at most */
	unsigned int n = 0;
	long len = syscall(SYS_sched_getaffinity, 0, sizeof(mask), mask);

	for (size_t i = 0; len > 0 && i < (size_t)len / sizeof(mask[0]); i++)
		n += (unsigned int)__builtin_popcountl(mask[i]);
	return n ? n : 1;
}

static int start_worker(struct copy_pool *pool, unsigned int index)
{
	struct worker *w = &pool->workers[index];
	pthread_attr_t attr;
	pthread_t thread;
	int rc;

	w->pool = pool;
	w->index = index;
	rc = pthread_attr_init(&attr);
	if (rc)
		return rc;
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	rc = pthread_create(&thread, &attr, work, w);
	if (rc == EINVAL) {
		/* The host's thread-local storage leaves no room on so small a stack. */
		pthread_attr_destroy(&attr);
		pthread_attr_init(&attr);
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		rc = pthread_create(&thread, &attr, work, w);
	}
	pthread_attr_destroy(&attr);
	return rc;
}

static struct copy_pool *new_pool(void)
{
	size_t len = sizeof(struct copy_pool);
	void *mem = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (mem == MAP_FAILED)
		return NULL;
	madvise(mem, len, MADV_DONTFORK);
	return mem;
}

/*
 * The signals that a thread brings upon itself: blocked, they would kill the
 * process without the host's handler having a say.
 */
static void block_all_but_faults(sigset_t *old)
{
	static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS };
	sigset_t set;

	sigfillset(&set);
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		sigdelset(&set, faults[i]);
	pthread_sigmask(SIG_SETMASK, &set, old);
}

static unsigned int workers_wanted(void)
{
	unsigned int reads = atomic_load(&threads_from), writes = atomic_load(&threads_to);

	return (reads > writes ? reads : writes) - 1;
}

static unsigned int count_of(struct copy_pool *pool)
{
	return pool ? atomic_load(&pool->count) : 0;
}

bool copy_pool_short(struct copy_pool *pool)
{
	return count_of(pool) < workers_wanted();
}

int copy_pool_start(copy_pool_ref *ref, unsigned int most)
{
	struct copy_pool *pool = atomic_load(ref);
	unsigned int workers = workers_wanted(), count = count_of(pool);
	sigset_t old;
	int rc = 0;

	if (workers > most - 1) {
		workers = most - 1;
		rc = ERANGE;
	}
	if (workers <= count)
		return rc;
	if (!pool)
		pool = new_pool();
	if (!pool)
		return ENOMEM;
	block_all_but_faults(&old);
	for (; count < workers; count++) {
		int failed = start_worker(pool, count);

		if (failed) {
			rc = failed;
			break;
		}
		atomic_store(&pool->count, count + 1);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	atomic_store_explicit(ref, pool, memory_order_release);
	return rc;
}

/* How many threads do a copy of n bytes. */
static unsigned int parts_of(struct copy_pool *pool, size_t n, bool to)
{
	size_t parts = n / (to ? WRITE_PART : READ_PART);
	unsigned int most = atomic_load_explicit(&pool->count, memory_order_relaxed) + 1;
	unsigned int wanted = atomic_load_explicit(to ? &threads_to : &threads_from,
						   memory_order_relaxed);

	if (most > wanted)
		most = wanted;
	return parts < most ? parts : most;
}

/* Where part i of parts begins: no two threads touch one line of the device. */
static size_t cut(const void *dev, size_t n, size_t i, size_t parts)
{
	size_t at = n / parts * i;

	if (i == 0)
		return 0;
	return i == parts ? n : at - ((uintptr_t)dev + at) % COPY_LINE;
}

static void part_of(struct job *part, const struct job *all, unsigned int i, unsigned int parts)
{
	size_t from = cut(all->dev, all->n, i, parts);

	*part = *all;
	part->dev = (uint8_t *)all->dev + from;
	part->host = (uint8_t *)all->host + from;
	part->n = cut(all->dev, all->n, i + 1, parts) - from;
}

static void open_parts(struct copy_pool *pool, const struct job *all, unsigned int parts)
{
	uint64_t mask = ((1ull << (parts - 1)) - 1), asleep;

	for (unsigned int i = 1; i < parts; i++) {
		struct worker *w = &pool->workers[i - 1];

		part_of(&w->job, all, i, parts);
		atomic_store_explicit(&w->state, OPEN, memory_order_release);
	}
	asleep = atomic_load_explicit(&pool->asleep, memory_order_relaxed) & mask;
	if (asleep)
		rouse(pool, (unsigned int)__builtin_ctzll(asleep));
}

/* Does the part that a worker has not begun, or waits for it. */
static void close_part(struct worker *w, bool undone)
{
	unsigned int steps = 0;

	if (claim(w, IDLE)) {
		if (!undone)
			move(&w->job);
		return;
	}
	while (atomic_load_explicit(&w->state, memory_order_acquire) != IDLE) {
		pause_cpu();
		if (++steps % WAIT_STEPS == 0)
			sched_yield();
	}
}

static bool take(struct copy_pool *pool, const void *owner)
{
	uintptr_t none = 0;

	return atomic_load_explicit(&pool->owner, memory_order_relaxed) == 0 &&
	       atomic_compare_exchange_strong_explicit(&pool->owner, &none, (uintptr_t)owner,
						       memory_order_acquire,
						       memory_order_relaxed);
}

static void drop(struct copy_pool *pool)
{
	atomic_store_explicit(&pool->owner, 0, memory_order_release);
}

void copy_pool_copy(struct copy_pool *pool, const void *owner, const struct copy_impl *impl,
		    void *dev, void *host, size_t n, bool to)
{
	struct job all = { .impl = impl, .dev = dev, .host = host, .n = n, .to = to }, own;
	size_t least = atomic_load_explicit(to ? &copy_least_shared_to : &copy_least_shared_from,
					    memory_order_relaxed);
	unsigned int parts;

	if (!pool || !take(pool, owner)) {
		move(&all);
		return;
	}
	parts = n < least ? 1 : parts_of(pool, n, to);
	if (parts > 1) {
		open_parts(pool, &all, parts);
		part_of(&own, &all, 0, parts);
		move(&own);
		while (--parts)
			close_part(&pool->workers[parts - 1], false);
	} else {
		move(&all);
	}
	drop(pool);
}

void copy_pool_settle(struct copy_pool *pool, const void *owner)
{
	if (!pool || atomic_load_explicit(&pool->owner, memory_order_relaxed) != (uintptr_t)owner)
		return;
	for (unsigned int i = 0; i < atomic_load(&pool->count); i++)
		close_part(&pool->workers[i], true);
	drop(pool);
}
