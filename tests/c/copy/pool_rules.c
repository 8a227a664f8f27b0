// SPDX-License-Identifier: MIT
/*
 * copy/pool_rules.c - when threads share a copy, which of them are woken, and when they
 * sleep. capi/long/pool.c is built in here. The clock, the futexes and the threads are
 * the test's: nothing depends on how fast this machine is.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "copy/clock.h"
#include "long/plan.h"
#include "copy/signals.h"
#include "copy/threads.h"
#include "tap.h"

enum { WORKERS = 3, NONE = -1 };

/* What the parts of pool.c that lie outside of it are here. */
static uint64_t now;			/* ns */
static long looks_at_clock, pauses, yields;
static void (*on_pause)(void);
static unsigned int made, placed, refuse_at;
static const struct gdr_run *runs[COPY_THREADS_MAX];
static struct { pthread_t thread; const void *cpus; } places[COPY_THREADS_MAX];
static bool no_memory;
static size_t kept_from_children;
static uint64_t opened;
static unsigned int rung[COPY_THREADS_MAX], wakes;
static void (*act)(void);		/* another thread's turn, at the step of that number */
static long act_at, steps;
static bool overslept;

static void step(void)
{
	void (*now_acts)(void) = act;

	if (!now_acts || steps++ != act_at)
		return;
	act = NULL;
	now_acts();
}

static uint64_t fake_now(void)
{
	looks_at_clock++;
	return now += 100;
}

static void fake_pause(void)
{
	pauses++;
	now += 10;
	if (on_pause)
		on_pause();
}

static int fake_make(pthread_t *id, const struct gdr_run *run)
{
	if (refuse_at && made + 1 == refuse_at)
		return EAGAIN;
	runs[made] = run;
	*id = (pthread_t)(100 + made++);
	return 0;
}

static int fake_place(pthread_t id, size_t bytes, const cpu_set_t *cpus)
{
	if (bytes == sizeof(unsigned long) * 128) {
		places[placed].thread = id;
		places[placed++].cpus = cpus;
	}
	return 0;
}

static void *fake_mmap(size_t len, int prot, int flags)
{
	return no_memory ? MAP_FAILED : mmap(NULL, len, prot, flags, -1, 0);
}

static int fake_madvise(void *mem, size_t len, int advice)
{
	kept_from_children = advice == MADV_DONTFORK ? len : 0;
	return madvise(mem, len, advice);
}

static long fake_futex(_Atomic uint32_t *bell, int op, uint32_t value);

#define copy_now_ns fake_now
#define copy_pause fake_pause
#define gdr_thread_make fake_make
#define gdr_open_signals(mask) ((void)(opened = (mask)))
#define pthread_setaffinity_np fake_place
#define mmap(addr, len, prot, flags, fd, off) fake_mmap(len, prot, flags)
#define madvise fake_madvise
#define sched_yield() ((void)yields++)
#define syscall(nr, bell, op, value, ...) fake_futex(bell, op, value)
#undef atomic_load
#undef atomic_fetch_or
#undef atomic_fetch_and
#define atomic_load(p) (step(), *(p))
#define atomic_fetch_or(p, v) (step(), atomic_fetch_or_explicit(p, v, memory_order_seq_cst))
#define atomic_fetch_and(p, v) (step(), atomic_fetch_and_explicit(p, v, memory_order_seq_cst))

#include "long/pool.c"

#undef mmap
#undef madvise
#undef atomic_load
#define atomic_load(p) (*(p))

static struct tap tap;
static copy_pool_ref ref;
static struct copy_pool *pool;
static uint8_t dev[1 << 16], host[1 << 16];

static void check(bool ok, const char *what)
{
	tap_ok(&tap, ok, "%s", what);
}

/* A wait that nobody ends is a worker that sleeps through its job. */
static long fake_futex(_Atomic uint32_t *bell, int op, uint32_t value)
{
	void (*later)(void) = act;

	if (op == FUTEX_WAKE_PRIVATE) {
		for (unsigned int i = 0; i < WORKERS; i++)
			rung[i] += bell == &pool->workers[i].bell;
		wakes++;
		return 1;
	}
	if (*bell != value)
		return -1;
	act = NULL;
	if (later)
		later();
	overslept |= *bell == value;
	return 0;
}

/* The moves of a copy, which moves nothing. */
static struct { size_t bytes; unsigned int calls; } moves;
static void (*on_move)(void);

static void move_nothing(void *dst, const void *src, size_t n)
{
	void (*then)(void) = on_move;

	(void)dst, (void)src;
	moves.bytes += n;
	moves.calls++;
	on_move = NULL;
	if (then)
		then();
}

static const struct copy_impl plain = { .name = "plain", .to = move_nothing, .from = move_nothing };
static const struct copy_impl fine = { .name = "fine", .to = move_nothing, .from = move_nothing, .chunk = 512 };

/* A pool of three workers, of which these sleep. */
static void new_state(uint64_t asleep)
{
	memset((void *)pool, 0, sizeof(*pool));
	for (unsigned int i = 0; i < WORKERS; i++) {
		pool->workers[i].pool = pool;
		pool->workers[i].index = i;
	}
	atomic_store(&pool->count, WORKERS);
	atomic_store(&pool->asleep, asleep);
	memset(rung, 0, sizeof(rung));
	memset(&moves, 0, sizeof(moves));
	wakes = 0;
	overslept = false;
	on_move = on_pause = act = NULL;
	steps = pauses = yields = 0;
}

static const int owner;

static struct copy_help help_for(size_t n, bool to, size_t least)
{
	const struct copy_plan plan = copy_plan_of(to);

	return copy_pool_help(pool, &plan, n, to, least);
}

/* The job that was published last. */
static struct copy_job job_seen(void)
{
	struct copy_job j;

	read_notice(&pool->notice, 0, &j);
	return j;
}

static void copy_by(const struct copy_impl *impl, size_t n, bool to, uint32_t shares)
{
	copy_pool_copy(pool, &owner, &(struct copy_job){ .impl = impl, .dev = dev + 3, .host = host, .n = n, .shares = shares, .to = to });
}

/* The shares of a copy that wakes threads from a size on: 1 if it was not shared. All bytes are moved. */
static unsigned int shares_from(size_t least, const struct copy_impl *impl, size_t n, bool to)
{
	uint64_t seq = atomic_load(&pool->notice.seq);

	moves.bytes = 0;
	copy_by(impl, n, to, help_for(n, to, least).shares);
	if (moves.bytes != n || atomic_load(&pool->owner))
		return 0;
	return atomic_load(&pool->notice.seq) == seq ? 1 : job_seen().shares;
}

static unsigned int shares_in(const struct copy_impl *impl, size_t n, bool to)
{
	return shares_from(0, impl, n, to);
}

static void test_start(void)
{
	struct copy_cpus cpus[8];
	bool good = true;

	check(!copy_pool_start(&ref, 0, NULL) && !atomic_load(&ref) && !copy_pool_count(NULL), "no threads, no pool");
	no_memory = true;
	check(copy_pool_start(&ref, 2, NULL) == ENOMEM && !atomic_load(&ref) && !made, "no memory: no pool, no thread");
	no_memory = false;
	refuse_at = 2;
	check(copy_pool_start(&ref, WORKERS, cpus) == EAGAIN && copy_pool_count(atomic_load(&ref)) == 1 && placed == 1,
	      "one thread of three can be made: it works, and is placed");
	refuse_at = 0;
	placed = 0;
	pool = atomic_load(&ref);
	check(kept_from_children == sizeof(*pool), "no child inherits the pool");
	check(!copy_pool_start(&ref, WORKERS, cpus) && made == WORKERS && copy_pool_count(pool) == WORKERS &&
	      atomic_load(&ref) == pool, "the others follow");
	for (unsigned int i = 0; i < WORKERS; i++)
		good &= !strcmp(runs[i]->name, "gdrcopy") && runs[i]->fn == work && runs[i]->arg == &pool->workers[i] &&
			pool->workers[i].index == i && pool->workers[i].pool == pool;
	check(good, "each knows its pool and its number");
	for (unsigned int i = 0; i < placed; i++)
		good &= places[i].thread == (pthread_t)(100 + i) && places[i].cpus == &cpus[i];
	check(good && placed == WORKERS, "each is placed on its own CPUs");
	placed = 0;
	check(!copy_pool_start(&ref, WORKERS - 1, cpus) && !copy_pool_start(&ref, WORKERS, cpus) && made == WORKERS && !placed,
	      "there are enough: none is made, none is placed again");
}

static jmp_buf out;

static void leave(void)
{
	longjmp(out, 1);
}

static void test_signals(void)
{
	new_state(0);
	on_pause = leave;
	if (!setjmp(out))
		work(&pool->workers[0]);
	check(opened == gdr_faults(), "a worker opens the signals of faults: it touches the host's memory");
}

static void test_shares(void)
{
	static const struct { size_t n; bool to; unsigned int threads, shares, per; } rows[] = {
		{ 4095, false, 4, 1, 0 }, { 4096, false, 4, 4, 1 }, { 4096, false, 2, 2, 1 }, { 4096, false, 1, 1, 0 },
		{ 65536, false, 4, 4, 8 }, { 65536 + 8191, false, 4, 4, 8 }, { 65536 + 8192, false, 4, 4, 9 },
		{ 65535, true, 4, 1, 0 }, { 65536, true, 4, 2, 1 }, { 98303, true, 4, 2, 1 }, { 98304, true, 4, 3, 1 },
		{ 131072, true, 4, 4, 1 }, { 1 << 20, true, 4, 4, 8 }, { 1 << 20, true, 3, 3, 10 }, { 1 << 20, true, 64, 4, 8 },
		{ (size_t)4 * 2048 * 0xffff, false, 4, 4, 0xffff }, { (size_t)4 * 2048 * 0x10000, false, 4, 4, 0xffff },
		{ (size_t)4 * 2048 * 0x20000, false, 4, 4, 0xffff },
	};
	struct copy_plan plan;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		unsigned int shares;
		struct copy_help help;

		new_state(0);
		copy_plan_set_threads(rows[i].threads, rows[i].threads);
		shares = shares_in(&plain, rows[i].n, rows[i].to);
		tap_ok(&tap, shares == rows[i].shares && (shares < 2 || job_seen().per == rows[i].per) && !wakes,
		       "a %s of %zu bytes by %u threads: %u shares of %u", rows[i].to ? "write" : "read", rows[i].n,
		       rows[i].threads, rows[i].shares, rows[i].per);
		help = help_for(rows[i].n, rows[i].to, 0);
		check(help.shares == shares && !help.asleep, "and that is what a caller is told");
	}
	copy_plan_set_threads(4, 4);
	new_state(0);
	check(shares_in(&fine, 65536, false) == 4 && job_seen().per == 32, "a routine has chunks of its own");
	check(shares_in(&fine, 1 << 20, true) == 4 && job_seen().per == 8, "for reads alone");
	atomic_store(&pool->owner, 1);
	memset(&moves, 0, sizeof(moves));
	copy_by(&plain, 4096, false, 4);
	check(moves.bytes == 4096 && moves.calls == 1 && atomic_load(&pool->owner) == 1, "another has the pool: the caller copies alone");
	new_state(0);
	plan = copy_plan_of(false);
	copy_pool_copy(NULL, &owner, &(struct copy_job){ .impl = &plain, .dev = dev, .host = host, .n = 4096, .shares = 1 });
	check(moves.bytes == 4096 && copy_pool_help(NULL, &plan, 1 << 30, false, 1).shares == 1, "no pool: so it does");
}

/* Who sleeps, the size, and then: the shares, the bell that the caller rings, and whether it was told that most sleep. */
static void test_wakes(void)
{
	static const struct {
		uint64_t asleep;
		size_t n;
		bool to;
		unsigned int shares;
		int rung;
		bool most_sleep;
	} rows[] = {
		{ 7, READ_WAKES - 1, false, 1, NONE, false }, { 7, READ_WAKES, false, 4, 0, true },
		{ 7, WRITE_WAKES - 1, true, 1, NONE, false }, { 7, WRITE_WAKES, true, 4, 0, true },
		{ 6, 65536, false, 2, NONE, false }, { 6, READ_WAKES, false, 4, NONE, true },
		{ 4, 65536, false, 3, NONE, false }, { 4, READ_WAKES, false, 4, NONE, false },
		{ 5, 65536, false, 1, NONE, false }, { 5, READ_WAKES, false, 4, 0, true },
		{ 6, 65536, true, 2, NONE, false }, { 4, 98304, true, 3, NONE, false },
		{ 6, 98304, true, 2, NONE, false }, { 7, 65536, true, 1, NONE, false },
	};

	copy_plan_set_threads(4, 4);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct copy_help help;
		unsigned int shares;
		bool good;

		new_state(rows[i].asleep);
		help = help_for(rows[i].n, rows[i].to, 0);
		good = help.shares == rows[i].shares && help.asleep == rows[i].most_sleep && !wakes;
		atomic_store(&pool->close, MANY_CLOSE - 1);
		shares = shares_in(&plain, rows[i].n, rows[i].to);
		good &= shares == rows[i].shares && wakes == (rows[i].rung != NONE) &&
			(rows[i].rung == NONE || (rung[rows[i].rung] == 1 && atomic_load(&pool->workers[0].bell) == 1 &&
			 !(atomic_load(&pool->asleep) & 1)));
		tap_ok(&tap, good, "a %s of %zu bytes, %#lx sleep: %u shares, %u woken", rows[i].to ? "write" : "read", rows[i].n,
		       (unsigned long)rows[i].asleep, shares, wakes);
	}
	new_state(7);
	check(shares_from(8192, &plain, 8191, false) == 1 && !wakes && shares_from(8192, &plain, 8192, false) == 4 && wakes == 1,
	      "a copy may be worth waking for earlier");
	new_state(7);
	check(shares_from(SIZE_MAX, &plain, 1 << 30, false) == 1 && !wakes, "or never");
	new_state(7);
	atomic_store(&pool->close, MANY_CLOSE);
	check(copy_pool_is_busy(pool) && help_for(4096, false, 0).asleep &&
	      shares_in(&plain, 4096, false) == 4 && wakes == 1 && !atomic_load(&pool->close),
	      "close copies wake threads, and then count anew");
	new_state(0);
	atomic_store(&pool->close, MANY_CLOSE - 1);
	check(!copy_pool_is_busy(pool) && shares_in(&plain, 4096, false) == 4 && atomic_load(&pool->close) == MANY_CLOSE - 1,
	      "where all are awake nothing is counted");
	copy_plan_set_threads(3, 3);
	new_state(2);
	check(!help_for(READ_WAKES, false, 0).asleep, "one of two workers is not most of them");
	new_state(3);
	check(help_for(READ_WAKES, false, 0).asleep, "both are");
	copy_plan_set_threads(4, 4);
}

/* Notes a copy that begins so many ns after the last one was noted. */
static bool is_busy_after(uint64_t ns, size_t n, bool to)
{
	now = atomic_load(&pool->last) + ns - 100;
	copy_pool_note(pool, n, to);
	return copy_pool_is_busy(pool) && atomic_load(&pool->last) == now;
}

static void test_close_copies(void)
{
	static const struct { size_t n; bool to; uint64_t far; } rows[] = {
		{ 8192, false, 50000 + 8192 }, { 1 << 20, false, 50000 + (1 << 20) }, { 1 << 20, true, 50000 + (1 << 16) },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		size_t n = rows[i].n;
		bool to = rows[i].to, good;

		new_state(1);
		atomic_store(&pool->last, 1000000);
		good = !is_busy_after(rows[i].far - 1, n, to) && !is_busy_after(rows[i].far - 1, n, to) &&
		       is_busy_after(rows[i].far - 1, n, to) && is_busy_after(100, n, to) && is_busy_after(100, n, to);
		tap_ok(&tap, good, "three copies of %zu bytes less than %lu ns apart are close", n, (unsigned long)rows[i].far);
		check(!is_busy_after(rows[i].far, n, to) && !is_busy_after(100, n, to) && !is_busy_after(100, n, to) &&
		      is_busy_after(100, n, to), "after one that is not it takes three more");
	}
	new_state(0);
	looks_at_clock = 0;
	for (int i = 0; i < 5; i++)
		copy_pool_note(pool, 8192, false);
	check(!looks_at_clock && !copy_pool_is_busy(pool), "while all are awake nobody looks at the clock");
	new_state(4);
	copy_pool_spin(COPY_SPIN_FOREVER);
	atomic_store(&pool->last, 1);
	check(!is_busy_after(1ull << 60, 1, false) && !is_busy_after(1ull << 60, 1, false) && is_busy_after(1ull << 60, 1, false),
	      "threads that look for ever make all copies close");
	copy_pool_spin(COPY_SPIN_US);
}

/* How long a worker looks for work, in ns. */
static uint64_t looks_for(void)
{
	uint64_t began;
	struct copy_job j;

	new_state(0);
	began = now;
	return find_job(&pool->workers[0], &j) ? 0 : now - began;
}

static struct copy_job published;
static uint64_t turn;

static void publish_job(void)
{
	turn = publish(&pool->notice, &published);
}

static void publish_after_many(void)
{
	if (pauses == 100000)
		publish_job();
}

static void make_job(uint32_t shares, uint32_t per, bool to)
{
	published = (struct copy_job){ .impl = &plain, .dev = dev, .host = host, .n = sizeof(dev), .shares = shares, .per = per, .to = to };
}

static void test_spin(void)
{
	enum { ROUND = 32 * 10 + 200 };	/* ns that a round and its looks at the clock take here */
	struct copy_job j;
	uint64_t us;

	us = looks_for() / 1000;
	tap_ok(&tap, us >= COPY_SPIN_US && us <= COPY_SPIN_US + 1, "a worker looks for work for %lu us", (unsigned long)us);
	copy_pool_spin(200);
	us = looks_for() / 1000;
	tap_ok(&tap, us >= 200 && us <= 201, "or as long as it is told: %lu us", (unsigned long)us);
	copy_pool_spin(0);
	check(looks_for() <= ROUND, "or one round");
	copy_pool_spin(COPY_SPIN_FOREVER);
	new_state(0);
	make_job(4, 1, false);
	on_pause = publish_after_many;
	check(find_job(&pool->workers[2], &j) && pauses == 100000 && j.shares == 4, "or for ever");
	check(!look(&pool->workers[2], &j), "it sees a job once");
	copy_pool_spin(COPY_SPIN_US);
}

/* The caller publishes a job and rings for the worker, if that sleeps. */
static void publish_and_ring(void)
{
	publish_job();
	rouse(pool, 2);
}

static void test_sleep(void)
{
	struct worker *w = &pool->workers[2];
	bool good = true, acted = false;
	struct copy_job j;
	long at;

	for (at = 0; good && !acted; at++) {
		new_state(0);
		make_job(4, 1, false);
		act = publish_and_ring;
		act_at = at;
		good = sleep_until_roused(w, &j) && !overslept && !act && !(atomic_load(&pool->asleep) & 4);
		acted = steps <= at;	/* in the wait itself */
	}
	tap_ok(&tap, good && at > 2, "a worker is woken, whenever the job comes: %ld steps", at);
	new_state(7);
	make_job(3, 1, false);
	publish_job();
	check(!look(&pool->workers[2], &j) && look(&pool->workers[1], &j) && look(&pool->workers[0], &j),
	      "a job is for the workers that have a share of it");
	new_state(3);
	make_job(4, 1, false);
	publish_job();
	check(sleep_until_roused(w, &j) && rung[0] == 1 && rung[1] == 1 && !rung[2] && !atomic_load(&pool->asleep),
	      "a woken worker wakes the others");
	new_state(3);
	make_job(2, 1, false);
	publish_job();
	w->turn = turn;
	act = publish_and_ring;
	act_at = 1000;
	published.shares = 4;
	check(sleep_until_roused(w, &j) && wakes == 3, "and each of them rings once");
	for (uint32_t shares = 2; shares <= 4; shares++) {
		new_state(7);
		rouse_some(pool, shares, 9);
		good &= wakes == shares - 1 && atomic_load(&pool->asleep) == (7u & ~((1u << (shares - 1)) - 1));
		new_state(7);
		rouse_some(pool, 4, shares - 1);
		good &= wakes == shares - 1;
	}
	check(good, "those are woken that have a share, up to a number");
	new_state(0);
	rouse_some(pool, 4, 3);
	check(!wakes && !rouse(pool, 1) && !wakes && !atomic_load(&pool->workers[1].bell), "no bell is rung for who is awake");
}

static struct worker *mover;
static bool shows_itself;

static void look_at_mover(void)
{
	shows_itself = is_at(mover, turn);
}

static void test_part(void)
{
	struct copy_job j;

	for (unsigned int i = 0; i < WORKERS; i++) {
		new_state(7 & ~(1ull << i));
		make_job(4, 1, false);
		publish_job();
		mover = &pool->workers[i];
		shows_itself = false;
		on_move = look_at_mover;
		look(mover, &j);
		check(!is_at(mover, turn), "a worker is not at a turn before its first chunk");
		take_part(mover, &j);
		check(shows_itself && !is_at(mover, turn), "it is while it moves, and not afterwards");
		tap_ok(&tap, moves.calls == 1 && wakes == (i ? 0 : 2) && is_done(&pool->workers[i], turn),
		       "worker %u moves the chunk of its own share, and the first one wakes the others", i);
		new_state(0);
		make_job(4, 3, true);
		publish_job();
		look(&pool->workers[i], &j);
		take_part(&pool->workers[i], &j);
		check(moves.bytes == sizeof(dev) && moves.calls == 12 && is_done(&pool->workers[i], turn),
		      "of more chunks it takes all that is left");
		take_part(&pool->workers[i], &j);
		check(moves.calls == 12, "and nothing is left");
	}
}

/* Worker 1 has claimed a chunk, and is at it until the caller has looked so often. */
static long until;

static void come_in(void)
{
	claim(&pool->workers[1].share, &published, turn ? turn : atomic_load(&pool->notice.seq) / 2, ENTERED);
}

static void go_out(void)
{
	if (pauses == until)
		atomic_store(&pool->workers[1].done, atomic_load(&pool->notice.seq) / 2);
}

static bool is_out(void)
{
	return is_done(&pool->workers[1], atomic_load(&pool->notice.seq) / 2);
}

static void test_waits(void)
{
	new_state(0);
	copy_plan_set_threads(4, 4);
	make_job(4, 7, false);
	turn = 0;
	on_move = come_in;
	on_pause = go_out;
	until = 3 * WAIT_STEPS;
	copy_by(&plain, sizeof(dev) - 3, false, 4);
	check(is_out() && pauses == until && yields == 3 && !atomic_load(&pool->owner),
	      "a copy waits for the worker that is at it, and yields its CPU");
	new_state(0);
	copy_by(&plain, sizeof(dev) - 3, false, 4);
	check(!pauses, "and for no other");
}

static bool is_used_up(void)
{
	bool all = true;

	for (uint32_t share = 0; share < published.shares; share++)
		all &= claim(word_of(pool, share), &published, turn, 0) == published.per;
	return all;
}

static void test_settle(void)
{
	static const int another;

	copy_pool_settle(NULL, &owner);
	new_state(0);
	make_job(4, 8, true);
	publish_job();
	come_in();
	atomic_store(&pool->owner, (uintptr_t)&owner);
	on_pause = go_out;
	until = 10;
	copy_pool_settle(pool, &another);
	check(atomic_load(&pool->owner) == (uintptr_t)&owner && !is_out(), "another's copy is left alone");
	copy_pool_settle(pool, &owner);
	check(is_out() && pauses == 10 && !atomic_load(&pool->owner) && is_used_up(),
	      "a copy that was left ends: its worker is awaited, and no chunk is left to claim");
	atomic_store(&pool->owner, (uintptr_t)&owner);
	atomic_fetch_or(&pool->notice.seq, 1);
	pauses = 0;
	copy_pool_settle(pool, &owner);
	check(!atomic_load(&pool->owner) && !pauses, "one that was left before it was published frees the pool");
	new_state(0);
	atomic_store(&pool->owner, (uintptr_t)&owner);
	copy_pool_settle(pool, &owner);
	check(!atomic_load(&pool->owner), "also the first of all");
}

int main(void)
{
	test_start();
	test_signals();
	test_shares();
	test_wakes();
	test_close_copies();
	test_spin();
	test_sleep();
	test_part();
	test_waits();
	test_settle();
	return tap_done(&tap);
}
