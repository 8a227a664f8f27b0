// SPDX-License-Identifier: MIT
/*
 * pool.c - threads that share long copies.
 *
 * How a copy is shared:
 *
 * 1. The caller takes the pool. If another thread has the pool, the caller copies alone.
 * 2. The caller cuts the copy into chunks. Each thread has a share of them.
 * 3. The caller publishes the job in one line, which the workers poll. The job has a
 *    turn, which is a number.
 * 4. A thread claims the chunks of its share one by one. A claim is a change of the
 *    share's word, which has the turn. A word of an earlier turn means that no chunk is
 *    claimed yet, so nobody resets the words.
 * 5. A thread whose share is used up takes chunks of the others' shares.
 * 6. The caller does so until every chunk is claimed. A worker that sleeps, or has no
 *    CPU, delays nothing. A worker that comes late finds nothing to claim.
 * 7. The caller waits for the workers that are still at a chunk. Then the turn is over.
 *
 * A line takes 100 ns from one core to another: a quarter of what it costs to share 16
 * KiB. So a worker has a line of its own for claims, which others read only when it is
 * late. It has a second line to say that it is done.
 *
 * A woken worker wakes the others, so the caller wakes at most one. The caller wakes one
 * if no worker is awake, and only for a copy that takes many times as long as a wake-up.
 * Shorter copies are shared among the workers that are awake.
 *
 * How many threads are worth it was measured on an H200 with a Xeon of 16 cores
 * (docs/dataplane.md). A core has 16 lines of a read in flight, so a share is at least
 * that much. Writes of less than 64 KiB gained nothing from a second thread.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../copy/clock.h"
#include "../copy/fence.h"
#include "../copy/signals.h"
#include "../copy/threads.h"

#define WORKERS_MAX (COPY_THREADS_MAX - 1)
#define READ_SHARE 1024u
#define READ_CHUNK 2048u	/* two round trips: the most that a late thread costs */
#define WRITE_SHARE 32768u
#define WRITE_CHUNK 32768u

#define READ_WAKES (256u << 10)	/* the least read that wakes threads: one thread takes 260 us */
#define WRITE_WAKES (4u << 20)	/* the least write that wakes threads: one thread takes 220 us */

#define MANY_CLOSE 3		/* after so many in a row, more copies are expected before threads sleep */

#define FOREVER UINT64_MAX
#define SPIN_STEPS 32		/* looks between two looks at the clock */
#define GRACE_NS 500		/* how long the caller waits before it takes over one-chunk shares */
#define WAIT_STEPS 4096		/* looks before a caller yields its CPU */
#define PASS_ON 3		/* how many others a woken worker wakes */
#define APART (2 * COPY_LINE)	/* CPUs fetch lines in pairs */

/*
 * A share's word: turn (47 bits) | whether its worker has claimed in it | chunks claimed
 * (16).
 */
#define CHUNKS_MAX 0xffffu
#define ENTERED (1ull << 16)
#define TURN_SHIFT 17

/*
 * A published job: one line. seq is odd while the owner of the pool writes the job. Then
 * seq is twice the turn.
 */
#define JOB_WORDS (sizeof(struct copy_job) / sizeof(uint64_t))
struct notice {
	_Atomic uint64_t seq;
	_Atomic uint64_t job[JOB_WORDS];
};

/*
 * A worker is at a turn from its first claim in its own share until it sets done to the
 * turn. By then all bytes that it claimed are moved and fenced, and its share is used up.
 */
struct worker {
	_Alignas(APART) _Atomic uint64_t share;
	_Alignas(APART) _Atomic uint64_t done;
	_Alignas(APART) _Atomic uint32_t bell;	/* futex: rung to wake it */
	struct gdr_run run;
	pthread_t thread;
	struct copy_pool *pool;
	unsigned int index;	/* its share has the number index + 1 */
	uint64_t turn;		/* the last turn that it has seen */
};

struct copy_pool {
	_Alignas(APART) struct notice notice;
	_Alignas(APART) _Atomic uintptr_t owner;	/* 0: free */
	_Atomic uint64_t last;		/* ns: when the last copy began */
	_Atomic uint32_t close;		/* copies in a row that came soon after another */
	_Atomic uint64_t share;		/* the caller's, which is share 0 */
	_Alignas(APART) _Atomic uint64_t asleep;	/* a bit for each worker */
	_Atomic unsigned int count;		/* workers that run */
	struct worker workers[WORKERS_MAX];
};

_Static_assert(WORKERS_MAX <= 64, "asleep has a bit for each");
_Static_assert(sizeof(struct copy_job) % sizeof(uint64_t) == 0, "whole words");
_Static_assert(sizeof(struct notice) <= COPY_LINE, "one line");

static _Atomic uint64_t spin_ns = COPY_SPIN_US * 1000u;	/* or FOREVER */

void copy_pool_spin(uint64_t us)
{
	atomic_store(&spin_ns, us == COPY_SPIN_FOREVER ? FOREVER : us * 1000u);
}

/* Where part i of parts begins. No two parts touch the same line of the device. */
static size_t cut(const struct copy_job *j, size_t i, size_t parts)
{
	size_t at = j->n / parts * i;

	if (i == 0)
		return 0;
	return i == parts ? j->n : at - ((uintptr_t)j->dev + at) % COPY_LINE;
}

static void move(const struct copy_job *j, uint32_t share, uint32_t chunk)
{
	size_t parts = (size_t)j->shares * j->per, i = (size_t)share * j->per + chunk;
	size_t from = cut(j, i, parts), n = cut(j, i + 1, parts) - from;

	if (j->to)
		j->impl->to(j->dev + from, j->host + from, n);
	else
		j->impl->from(j->host + from, j->dev + from, n);
}

static _Atomic uint64_t *word_of(struct copy_pool *pool, uint32_t share)
{
	return share ? &pool->workers[share - 1].share : &pool->share;
}

/*
 * Claims the next chunk of a share in turn. Returns its number, or j->per if no chunk is
 * left. A thread that sees a used-up share also sees whether the share's worker claimed
 * in it.
 */
static uint32_t claim(_Atomic uint64_t *word, const struct copy_job *j, uint64_t turn, uint64_t mark)
{
	uint64_t was = atomic_load_explicit(word, memory_order_acquire), now;

	do {
		now = was >> TURN_SHIFT < turn ? turn << TURN_SHIFT : was;
		if (now >> TURN_SHIFT != turn || (now & CHUNKS_MAX) >= j->per)
			return j->per;
	} while (!atomic_compare_exchange_weak_explicit(word, &was, (now + 1) | mark,
							memory_order_acq_rel,
							memory_order_acquire));
	return (uint32_t)(now & CHUNKS_MAX);
}

static void use_up(struct copy_pool *pool, const struct copy_job *j, uint32_t share, uint64_t turn)
{
	uint32_t chunk;

	while ((chunk = claim(word_of(pool, share), j, turn, 0)) < j->per)
		move(j, share, chunk);
}

/* Wakes worker i if it sleeps. Clearing the bit makes sure that only one thread rings. */
static bool rouse(struct copy_pool *pool, unsigned int i)
{
	uint64_t bit = 1ull << i;
	struct worker *w = &pool->workers[i];

	if (!(atomic_fetch_and(&pool->asleep, ~bit) & bit))
		return false;
	atomic_fetch_add(&w->bell, 1);
	syscall(SYS_futex, &w->bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	return true;
}

/* Wakes sleeping workers that have a share, up to the number most. */
static void rouse_some(struct copy_pool *pool, uint32_t shares, unsigned int most)
{
	uint64_t mask = (1ull << (shares - 1)) - 1;

	while (most) {
		uint64_t asleep = atomic_load_explicit(&pool->asleep, memory_order_relaxed) & mask;

		if (!asleep)
			return;
		most -= rouse(pool, (unsigned int)__builtin_ctzll(asleep));
	}
}

/* Reads the job of the turn. false: the notice has changed since. */
static bool read_notice(const struct notice *notice, uint64_t turn, struct copy_job *j)
{
	uint64_t words[JOB_WORDS];

	for (size_t i = 0; i < JOB_WORDS; i++)
		words[i] = atomic_load_explicit(&notice->job[i], memory_order_relaxed);
	memcpy(j, words, sizeof(*j));
	atomic_thread_fence(memory_order_acquire);
	return atomic_load_explicit(&notice->seq, memory_order_relaxed) == 2 * turn;
}

/* Returns the new turn. */
static uint64_t publish(struct notice *notice, const struct copy_job *j)
{
	uint64_t odd = atomic_load_explicit(&notice->seq, memory_order_relaxed) | 1, words[JOB_WORDS];

	atomic_store_explicit(&notice->seq, odd, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	memcpy(words, j, sizeof(*j));
	for (size_t i = 0; i < JOB_WORDS; i++)
		atomic_store_explicit(&notice->job[i], words[i], memory_order_relaxed);
	atomic_store_explicit(&notice->seq, odd + 1, memory_order_release);
	return (odd + 1) / 2;
}

/* Finds a job for w that w has not seen. */
static bool look(struct worker *w, struct copy_job *j)
{
	const struct notice *notice = &w->pool->notice;
	uint64_t seq = atomic_load_explicit(&notice->seq, memory_order_acquire);

	if (seq % 2 || seq / 2 == w->turn || !read_notice(notice, seq / 2, j))
		return false;
	w->turn = seq / 2;
	return w->index + 1 < j->shares;
}

/* Looks for a job for a while. */
static bool find_job(struct worker *w, struct copy_job *j)
{
	uint64_t begin = copy_now_ns(), spin;

	do {
		for (int i = 0; i < SPIN_STEPS; i++) {
			if (look(w, j))
				return true;
			copy_pause();
		}
		spin = atomic_load_explicit(&spin_ns, memory_order_relaxed);
	} while (spin == FOREVER || copy_now_ns() - begin < spin);
	return false;
}

/*
 * How a worker sleeps:
 *
 * 1. It reads the bell.
 * 2. It sets its bit in asleep.
 * 3. It looks for a job once more.
 * 4. It waits while the bell has the value of step 1. A thread that clears the bit also
 *    rings, so a bell that has rung since ends the wait at once.
 *
 * A woken worker wakes others, so that a caller pays for one wake-up at most.
 */
static bool sleep_until_roused(struct worker *w, struct copy_job *j)
{
	struct copy_pool *pool = w->pool;
	uint32_t bell = atomic_load(&w->bell);
	bool found;

	atomic_fetch_or(&pool->asleep, 1ull << w->index);
	found = look(w, j);
	if (!found)
		syscall(SYS_futex, &w->bell, FUTEX_WAIT_PRIVATE, bell, NULL, NULL, 0);
	atomic_fetch_and(&pool->asleep, ~(1ull << w->index));
	found = found || look(w, j);
	if (found)
		rouse_some(pool, j->shares, PASS_ON);
	return found;
}

/* How many workers in a row, from the first one on, are awake. */
static unsigned int awake(struct copy_pool *pool, unsigned int workers)
{
	uint64_t asleep = atomic_load_explicit(&pool->asleep, memory_order_relaxed);
	unsigned int first = asleep ? (unsigned int)__builtin_ctzll(asleep) : WORKERS_MAX;

	return first < workers ? first : workers;
}

/*
 * Takes the worker's own share first. A share of one chunk is left to its worker and the
 * caller.
 */
static void take_part(struct worker *w, const struct copy_job *j)
{
	uint32_t own = w->index + 1, chunk;
	uint64_t turn = w->turn;

	if (w->index == 0)
		rouse_some(w->pool, j->shares, PASS_ON);
	chunk = claim(&w->share, j, turn, ENTERED);
	if (chunk == j->per)
		return;
	if (!j->to)
		copy_fence_read_begin();
	move(j, own, chunk);
	use_up(w->pool, j, own, turn);
	for (uint32_t i = 1; j->per > 1 && i < j->shares; i++)
		use_up(w->pool, j, (own + i) % j->shares, turn);
	if (j->to)
		copy_fence_store();
	else
		copy_fence_read_end();
	atomic_store_explicit(&w->done, turn, memory_order_release);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct copy_job j;

	gdr_open_signals(gdr_faults());
	for (;;) {
		while (!find_job(w, &j) && !sleep_until_roused(w, &j))
			;
		take_part(w, &j);
	}
	return NULL;
}

static int start_worker(struct copy_pool *pool, unsigned int index)
{
	struct worker *w = &pool->workers[index];

	w->pool = pool;
	w->index = index;
	w->run = (struct gdr_run){ "gdrcopy", work, w };
	return gdr_thread_make(&w->thread, &w->run);
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

unsigned int copy_pool_count(struct copy_pool *pool)
{
	return pool ? atomic_load(&pool->count) : 0;
}

int copy_pool_start(copy_pool_ref *ref, unsigned int workers, const struct copy_cpus *cpus)
{
	struct copy_pool *pool = atomic_load(ref);
	unsigned int count = copy_pool_count(pool);
	int rc = 0;

	if (workers <= count)
		return 0;
	if (!pool)
		pool = new_pool();
	if (!pool)
		return ENOMEM;
	while (count < workers && !rc) {
		rc = start_worker(pool, count);
		count += !rc;
	}
	atomic_store(&pool->count, count);
	/*
	 * Two workers on one CPU do the work of one. The kernel would move them too late. If
	 * it refuses these, it chooses.
	 */
	for (unsigned int i = 0; cpus && i < count; i++)
		pthread_setaffinity_np(pool->workers[i].thread, sizeof(*cpus), (const cpu_set_t *)&cpus[i]);
	atomic_store_explicit(ref, pool, memory_order_release);
	return rc;
}

bool copy_pool_is_busy(struct copy_pool *pool)
{
	return atomic_load_explicit(&pool->close, memory_order_relaxed) >= MANY_CLOSE;
}

/*
 * Notes whether copies come close to each other. Two are close if the workers of the last
 * one still look for work at the next one. The last copy is taken to be as long as this
 * one: n bytes at 1 GB/s, or 16 GB/s for writes.
 */
void copy_pool_note(struct copy_pool *pool, size_t n, bool to)
{
	uint64_t now, last = atomic_load_explicit(&pool->last, memory_order_relaxed);
	uint64_t spin = atomic_load_explicit(&spin_ns, memory_order_relaxed);
	uint32_t close = atomic_load_explicit(&pool->close, memory_order_relaxed);
	bool is_close;

	/*
	 * While all workers are awake, nobody asks for this, and the clock takes some 30
	 * ns.
	 */
	if (!atomic_load_explicit(&pool->asleep, memory_order_relaxed))
		return;
	now = copy_now_ns();
	is_close = spin == FOREVER || now - last < spin + (to ? n / 16 : n);
	atomic_store_explicit(&pool->last, now, memory_order_relaxed);
	if (!is_close)
		close = 0;
	else if (close < MANY_CLOSE)
		close++;
	atomic_store_explicit(&pool->close, close, memory_order_relaxed);
}

/* How many threads have a share of a copy, if all are awake. */
static unsigned int shares_of(struct copy_pool *pool, const struct copy_plan *plan, size_t n, bool to)
{
	size_t shares = n / (to ? WRITE_SHARE : READ_SHARE);
	unsigned int most = copy_pool_count(pool) + 1;

	if (n < plan->shared)
		return 1;
	if (most > plan->threads)
		most = plan->threads;
	return shares < most ? (unsigned int)shares : most;
}

struct copy_help copy_pool_help(struct copy_pool *pool, const struct copy_plan *plan, size_t n, bool to,
				size_t wakes)
{
	unsigned int shares = shares_of(pool, plan, n, to), up;

	if (shares < 2)
		return (struct copy_help){ 1, false };
	up = awake(pool, shares - 1);
	if (!wakes)
		wakes = to ? WRITE_WAKES : READ_WAKES;
	if (n >= wakes || copy_pool_is_busy(pool))
		return (struct copy_help){ shares, 2 * up < shares - 1 };
	return (struct copy_help){ 1 + up, false };
}

static uint32_t chunks_of(const struct copy_job *j)
{
	size_t read = j->impl->chunk ? j->impl->chunk : READ_CHUNK;
	size_t per = j->n / j->shares / (j->to ? WRITE_CHUNK : read);

	if (per > CHUNKS_MAX)
		return CHUNKS_MAX;
	return per ? (uint32_t)per : 1;
}

static bool is_done(const struct worker *w, uint64_t turn)
{
	return atomic_load_explicit(&w->done, memory_order_acquire) == turn;
}

/* Whether w is at turn. w's share is used up, and is looked at only if w does not say that it is done. */
static bool is_at(const struct worker *w, uint64_t turn)
{
	uint64_t word;

	if (is_done(w, turn))
		return false;
	word = atomic_load_explicit(&w->share, memory_order_acquire);
	return word >> TURN_SHIFT == turn && (word & ENTERED);
}

/* Waits until no worker is at turn. The caller has seen every share used up. */
static void wait_for(struct copy_pool *pool, unsigned int workers, uint64_t turn)
{
	unsigned int steps = 0;

	for (unsigned int i = 0; i < workers; i++)
		while (is_at(&pool->workers[i], turn)) {
			copy_pause();
			if (++steps % WAIT_STEPS == 0)
				sched_yield();
		}
}

/*
 * Workers see a turn later than the caller begins it. So they are given some time to end
 * it.
 */
static void give_time(struct copy_pool *pool, unsigned int workers, uint64_t turn)
{
	uint64_t end = copy_now_ns() + GRACE_NS;

	for (unsigned int i = 0; i < workers; i++)
		while (!is_done(&pool->workers[i], turn))
			if (copy_now_ns() >= end)
				return;
}

static void share_out(struct copy_pool *pool, const struct copy_job *j)
{
	uint64_t turn = publish(&pool->notice, j);
	unsigned int workers = j->shares - 1, up = awake(pool, workers);

	if (up < workers)
		atomic_store_explicit(&pool->close, 0, memory_order_relaxed);
	if (!up)
		rouse_some(pool, j->shares, 1);
	use_up(pool, j, 0, turn);
	if (j->per == 1)
		give_time(pool, workers, turn);
	for (unsigned int i = 0; i < workers; i++)
		if (!is_done(&pool->workers[i], turn))
			use_up(pool, j, i + 1, turn);
	wait_for(pool, workers, turn);
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

void copy_pool_copy(struct copy_pool *pool, const void *owner, struct copy_job *j)
{
	if (j->shares < 2 || !take(pool, owner)) {
		j->shares = j->per = 1;
		move(j, 0, 0);
		return;
	}
	j->per = chunks_of(j);
	share_out(pool, j);
	drop(pool);
}

void copy_pool_settle(struct copy_pool *pool, const void *owner)
{
	struct copy_job j;
	uint64_t turn;

	if (!pool || atomic_load_explicit(&pool->owner, memory_order_relaxed) != (uintptr_t)owner)
		return;
	turn = atomic_load_explicit(&pool->notice.seq, memory_order_relaxed) / 2;
	/*
	 * If this fails, the caller was left while it wrote the notice, and no worker is
	 * at it.
	 */
	if (read_notice(&pool->notice, turn, &j)) {
		for (uint32_t share = 0; share < j.shares; share++)
			while (claim(word_of(pool, share), &j, turn, 0) < j.per)
				;
		wait_for(pool, j.shares ? j.shares - 1 : 0, turn);
	}
	drop(pool);
}
