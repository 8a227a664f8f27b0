// SPDX-License-Identifier: MIT
/*
 * ext/ways.c - who makes a long copy (capi/long/long.c), and what is known of handles for DMA
 * (capi/long/dma.c), over an engine and threads that note what they are asked for.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "copy/clock.h"
#include "copy/fence.h"
#include "tap.h"

static struct tap tap;

/* What happened, a letter each: f a store fence, e the engine, p the threads, c the caller. */
static char events[32];

static uint64_t now;	/* ns: the threads and the engine are faster than the caller */
static uint64_t engine_ns = 20000;

static uint64_t fake_now(void)
{
	return now;
}

static void note(char event)
{
	size_t n = strlen(events);

	now += event == 'c' ? 100000 : event == 'p' ? 30000 : event == 'e' ? engine_ns : 0;

	if (n < sizeof(events) - 1)
		events[n] = event;
}

static void noted_fence(void)
{
	note('f');
	copy_fence_store();
}

static int kept_from_children;

static int noted_madvise(void *p, size_t n, int advice)
{
	kept_from_children += advice == MADV_DONTFORK;
	return madvise(p, n, advice);
}

static long blocks, mappings;	/* of memory that are there */
static bool no_block, no_mapping;
static void (*meanwhile)(void);	/* another thread's turn, before a mapping is there */

static void *noted_malloc(size_t n)
{
	blocks += !no_block;
	return no_block ? NULL : malloc(n);
}

static void noted_free(void *p)
{
	blocks -= p != NULL;
	free(p);
}

static void *noted_mmap(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
	void (*turn)(void) = meanwhile;

	meanwhile = NULL;
	if (turn)
		turn();
	mappings += !no_mapping;
	return no_mapping ? MAP_FAILED : mmap(at, n, prot, flags, fd, off);
}

static int noted_munmap(void *p, size_t n)
{
	mappings--;
	return munmap(p, n);
}

#define malloc noted_malloc
#define free noted_free
#define mmap noted_mmap
#define munmap noted_munmap
#define copy_now_ns fake_now
#define copy_fence_store noted_fence
#define madvise noted_madvise
#include "../../../capi/long/long.c"
#include "../../../capi/long/dma.c"
#undef malloc
#undef free
#undef mmap
#undef munmap
#undef madvise
#undef copy_fence_store
#undef copy_now_ns

static bool is_other;	/* memory, by now */

bool gdr_extents_are_same(const struct gdr_cuda_calls *c, struct gdr_extents *x, uint64_t addr, uint64_t n)
{
	if (c)
		abort();
	return !is_other && addr >= x->at[0].start && addr + n <= x->at[0].end;
}

/* The engines. */

struct gdr_engine {
	int begun;
};

static struct gdr_engine engines[2];
static int copy_rc, forgotten, asked_locked;
static bool host_locked;
static struct gdr_engine_copy made_copy;

void gdr_engine_begin(struct gdr_engine *e, const struct gdr_engine_parts *parts)
{
	if (!parts)
		abort();
	e->begun++;
}

bool gdr_engine_is_locked(struct gdr_engine *e, void *host)
{
	(void)e, (void)host;
	asked_locked++;
	return host_locked;
}

int gdr_engine_copy(struct gdr_engine *e, const struct gdr_engine_copy *copy)
{
	(void)e;
	note('e');
	made_copy = *copy;
	return copy_rc;
}

void gdr_engine_forget(struct gdr_engine *e, const void *owner)
{
	(void)owner;
	forgotten += e != NULL;
}

/* The threads. */

static struct copy_help help = { 2, false };
static size_t asked_wakes;
static size_t notes;
static bool noted_to;		/* the direction of the last note */
static size_t job_chunk;	/* that the last copy of the CPU's asked for */

void copy_pool_copy(struct copy_pool *pool, const void *owner, struct copy_job *job)
{
	(void)pool, (void)owner;
	note(job->shares > 1 ? 'p' : 'c');
	job_chunk = job->impl->chunk;
}

struct copy_help copy_pool_help(struct copy_pool *pool, const struct copy_plan *plan, size_t n, bool to, size_t wakes)
{
	(void)pool, (void)plan, (void)n, (void)to;
	asked_wakes = wakes;
	return help;
}

void copy_pool_note(struct copy_pool *pool, size_t n, bool to)
{
	(void)n;
	notes += pool != NULL;
	noted_to = to;
}

bool copy_pool_is_busy(struct copy_pool *pool)
{
	return !pool;
}

void copy_pool_settle(struct copy_pool *pool, const void *owner)
{
	(void)pool, (void)owner;
}

static unsigned int running, started;
static int start_rc;

unsigned int copy_pool_count(struct copy_pool *p)
{
	(void)p;
	return running;
}

int copy_pool_start(copy_pool_ref *ref, unsigned int workers, const struct copy_cpus *cpus)
{
	(void)ref;
	started = cpus && pthread_mutex_trylock(&gdr_front_page->lock) == EBUSY ? workers : 0;
	return start_rc;
}

static int lines;

__attribute__((format(printf, 2, 3)))
void gdr_log(int level, const char *fmt, ...)
{
	char line[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	lines += level == GDR_LOG_WARN && strstr(line, "answered 700;");
}

static const struct copy_impl impl;
static struct gdr_front front;
_Atomic(struct gdr_front *) gdr_front_page;
static char pool;

/* What happens at a copy through the mapping of key. */
static const char *copied(uint64_t key, uint64_t off, size_t n, bool to)
{
	static char dev, host;
	const struct gdr_long copy = {
		.front = &front, .owner = &front, .impl = &impl, .key = key, .off = off,
		.dev = &dev, .host = &host, .size = n, .to = to,
	};

	memset(events, 0, sizeof(events));
	gdr_long_copy(&copy);
	return events;
}

static void is(const char *want, const char *got, const char *what)
{
	if (!tap_ok(&tap, !strcmp(want, got), "%s", what))
		printf("# got '%s', not '%s'\n", got, want);
}

static void want(unsigned int reads, unsigned int writes, size_t dma_read, size_t dma_write, bool chooses)
{
	copy_plan_set_by_env(&(struct copy_wishes){
		.threads = { reads, writes }, .least_dma = { dma_read, dma_write }, .chooses = chooses });
}

static unsigned int gpu;

static void note_pin(uint64_t key, uint64_t addr)
{
	const struct gdr_extent x = { addr, addr + (1 << 20), 1 };

	tap_ok(&tap, gdr_dma_pinned(key, gpu, &x, 1), "a pin is noted");
}

/* Pins and maps 1 MiB for handle key; the mapping begins 4096 bytes after the pin. */
static void pin(uint64_t key)
{
	note_pin(key, key << 32);
	gdr_dma_mapped(key, (key << 32) + 4096);
}

#define BIG (512u << 10)

static void by_engine(void)
{
	static const struct gdr_engine_parts parts;

	want(0, 0, SIZE_MAX, SIZE_MAX, false);
	tap_ok(&tap, !gdr_dma_is_wanted(), "nobody asks for DMA");
	want(0, 0, SIZE_MAX, 65536, false);
	tap_ok(&tap, gdr_dma_is_wanted(), "DMA is asked for, for writes alone");
	want(2, 2, SIZE_MAX, SIZE_MAX, false);
	tap_ok(&tap, !gdr_dma_is_wanted(), "threads alone are asked for");
	gdr_dma_mapped(5, 0);
	tap_ok(&tap, !front.dma, "a mapping by itself takes no memory");
	want(0, 0, 8192, 65536, false);
	tap_ok(&tap, gdr_dma_is_wanted(), "DMA is asked for");
	pin(5);
	tap_ok(&tap, front.dma && kept_from_children == 1, "no child inherits what is noted");
	is("p", copied(5, 0, BIG, true), "a GPU without an engine");
	gdr_dma_set_engine(0, &engines[0], &parts);
	gdr_dma_set_engine(GDR_GPUS_MAX - 1, &engines[1], &parts);
	tap_ok(&tap, engines[0].begun == 1 && engines[1].begun == 1, "an engine is begun once");
	is("fe", copied(5, 100, BIG, true), "a write: the caller's stores land first, and the engine writes");
	tap_ok(&tap, made_copy.at == (5ull << 32) + 4096 + 100 && made_copy.n == BIG && made_copy.to &&
	       !made_copy.locked && made_copy.owner == &front, "it is that copy");
	is("fe", copied(5, 0, 8192, false), "a read of the least size");
	is("p", copied(5, 0, 8191, false), "a read of less");
	is("p", copied(5, 0, 65535, true), "a write of less");
	is("fe", copied(5, 0, 65536, true), "a write of the least size");
	host_locked = true;
	copied(5, 0, BIG, true);
	tap_ok(&tap, made_copy.locked, "page-locked memory is known");
	host_locked = false;
	is("p", copied(6, 0, BIG, true), "a handle that is not known");
	is("p", copied(5 + GDR_SLOT_COUNT, 0, BIG, true), "nor another handle of the slot");
	is("p", copied(5, (1 << 20) - 8192, 16384, false), "bytes past the memory");
	is_other = true;
	is("p", copied(5, 0, BIG, true), "memory that is another one");
	is_other = false;
}

/* How many copies the engine is not asked for; then it is. */
static int rest(void)
{
	int n = 0;

	while (n < 5000 && !strcmp(copied(5, 0, BIG, true), "p"))
		n++;
	return n;
}

/* A failure has the engine rest: 1 copy, 3, 7 and so on, at most 1023. A success halves that. */
static void rests_after_failures(void)
{
	int rested[12], said = lines;

	copy_rc = 700;
	is("fep", copied(5, 0, BIG, true), "the engine fails, and the CPU makes the copy");
	for (int i = 0; i < 12; i++)
		rested[i] = rest();
	tap_ok(&tap, rested[0] == 1 && rested[1] == 3 && rested[2] == 7, "it rests for 1 copy, then for 3, then for 7");
	tap_is(&tap, rested[11], 1023, "the longest rest");
	tap_is(&tap, lines - said, 1, "lines of all these failures");
	copy_rc = GDR_ENGINE_BUSY;
	while (strcmp(copied(5, 0, BIG, true), "fep"))
		;
	is("fep", copied(5, 0, BIG, true), "a busy engine: the CPU makes the copy, and it does not rest");
	copy_rc = 0;
	is("fe", copied(5, 0, BIG, true), "the engine works again");
	copy_rc = 700;
	copied(5, 0, BIG, true);
	copy_rc = 0;
	tap_is(&tap, rest(), 1023, "after one success the longest rest is near:");
	for (int i = 0; i < 9; i++)
		copied(5, 0, BIG, true);
	copy_rc = 700;
	copied(5, 0, BIG, true);
	copy_rc = 0;
	tap_is(&tap, rest(), 1, "after ten it is far:");
}

static struct gdr_dma *theirs;

static void make_theirs(void)
{
	theirs = dma_here();
}

/* A pin that cannot be noted leaves nothing; each handle of a slot takes the place of the one before. */
static void memory(void)
{
	const struct gdr_extent x = { 4096, 8192, 1 };
	long before = blocks, had;

	atomic_store(&front.dma, NULL);
	no_mapping = true;
	tap_ok(&tap, !gdr_dma_pinned(5, 0, &x, 1) && !front.dma && blocks == before, "no memory for any handle: nothing is left");
	no_mapping = false;
	no_block = true;
	tap_ok(&tap, !gdr_dma_pinned(5, 0, &x, 1) && blocks == before, "no memory for one");
	no_block = false;
	atomic_store(&front.dma, NULL);
	had = mappings;
	meanwhile = make_theirs;
	tap_ok(&tap, gdr_dma_pinned(5, 0, &x, 1) && front.dma == theirs && mappings == had + 1, "of two threads that make it one does");
	for (uint64_t i = 1; i <= 3; i++)
		tap_ok(&tap, gdr_dma_pinned(5 + i * GDR_SLOT_COUNT, 0, &x, 1) && blocks == before + 1, "what was noted of the one before is free");
}

static void pins(void)
{
	pin(5 + GDR_SLOT_COUNT);
	is("fe", copied(5 + GDR_SLOT_COUNT, 0, BIG, true), "another handle has the slot");
	is("p", copied(5, 0, BIG, true), "and the one before has not");
	note_pin(5 + 2 * GDR_SLOT_COUNT, (5ull + GDR_SLOT_COUNT) << 32);
	is("p", copied(5 + 2 * GDR_SLOT_COUNT, 0, BIG, true), "pinned, and not mapped");
	is("p", copied(5 + GDR_SLOT_COUNT, 0, BIG, true), "nor the one before");
	gdr_dma_mapped(5 + GDR_SLOT_COUNT, (5ull + GDR_SLOT_COUNT) << 32);
	is("p", copied(5 + GDR_SLOT_COUNT, 0, BIG, true), "a mapping of a handle that has not the slot");
	gpu = GDR_GPUS_MAX - 1;
	pin(30);
	is("fe", copied(30, 0, BIG, true), "the last GPU");
	forgotten = 0;
	gdr_long_forget(&front, &front);
	tap_is(&tap, forgotten, 2, "a copy that was left is ended on all GPUs that have an engine:");
}

/* Where the library chooses: each way is tried, and is timed when its bytes have landed. */
static void chosen(void)
{
	int threads = 0, engine = 0, caller = 0, mostly = 0;

	want(0, 0, SIZE_MAX, SIZE_MAX, true);
	atomic_store(&front.pool, (struct copy_pool *)&pool);
	notes = 0;
	for (int i = 0; i < 40; i++) {
		const char *e = copied(30, 0, BIG, true);

		threads += !strcmp(e, "pf");
		caller += !strcmp(e, "cf");
		engine += !strcmp(e, "fef");
		mostly += !strcmp(e, "fe");
	}
	tap_ok(&tap, threads > 1 && caller > 1 && engine > 1 && mostly > 1 && threads + caller + engine + mostly == 40,
	       "writes: %d by threads, %d by the caller, %d and %d by the engine; what is timed has landed",
	       threads, caller, engine, mostly);
	tap_is(&tap, (long)notes, 40, "copies that the threads are told of");
	for (int to = 0; to < 2; to++) {
		copied(5, 0, BIG, to);
		tap_ok(&tap, noted_to == to, "and which way they go");
	}
	engine_ns = 10000000;
	for (int i = 0; i < 1000; i++) {
		host_locked = i % 2;
		copied(30, 0, 65536, true);
	}
	host_locked = false;
	asked_locked = 0;
	for (int i = 0; i < 100; i++)
		copied(30, 0, 65536, true);
	tap_ok(&tap, asked_locked < 10, "where the engine is known to be slow the driver is not asked about the host memory");
	engine_ns = 20000;
	tap_ok(&tap, gdr_dma_is_wanted(), "the engine is prepared, as the library may choose it");
}

/* What moves between chunks and the host's memory wakes threads for long copies alone. */
static void staging(void)
{
	struct gdr_long copy = { .front = &front, .size = (1 << 20) - 1 };
	const struct facts f = { .copy = &copy };
	static char host, chunk;

	want(0, 0, 4096, 4096, false);
	copied(30, 0, BIG, true);
	tap_ok(&tap, made_copy.stage == stage, "the engine is given what stages");
	stage(&f, &host, &chunk, 1);
	tap_ok(&tap, asked_wakes == SIZE_MAX, "less than 1 MiB wakes no threads");
	tap_is(&tap, (long)job_chunk, 8192, "bytes that a thread takes at once of a staging chunk:");
	copy.size++;
	stage(&f, &host, &chunk, 1);
	tap_ok(&tap, asked_wakes == 1, "of 1 MiB on it wakes threads");
}

static void threads(void)
{
	static struct copy_cpus cpus[2];
	struct gdr_long_threads t;

	want(3, 2, SIZE_MAX, SIZE_MAX, false);
	running = 1;
	t = gdr_long_threads();
	tap_ok(&tap, t.wanted == 2 && t.running == 1, "threads beside the caller: as many as reads or writes want");
	want(1, 6, SIZE_MAX, SIZE_MAX, false);
	tap_ok(&tap, gdr_long_threads().wanted == 5, "the more of the two");
	want(0, 0, SIZE_MAX, SIZE_MAX, true);
	tap_ok(&tap, gdr_long_threads().wanted == 7, "eight threads share a read where the library chooses");
	want(0, 0, SIZE_MAX, SIZE_MAX, false);
	tap_ok(&tap, !gdr_long_threads().wanted, "none is wanted where nobody asks");
	tap_ok(&tap, !gdr_long_start_threads(2, cpus) && started == 2, "threads that are missing are started");
	start_rc = EAGAIN;
	tap_ok(&tap, gdr_long_start_threads(2, cpus) == EAGAIN && !pthread_mutex_trylock(&front.lock),
	       "no thread can be made: the errno, and the lock is free");
}

int main(void)
{
	pthread_mutex_init(&front.lock, NULL);
	front.up = 1;
	atomic_store(&gdr_front_page, &front);
	gdr_dma_forget(NULL, NULL);
	by_engine();
	rests_after_failures();
	pins();
	chosen();
	staging();
	threads();
	memory();
	return tap_done(&tap);
}
