// SPDX-License-Identifier: MIT
/*
 * figures.c - what the benchmarks make of their samples: P0, P50 and P99, the batch, the
 * clock's cost, the bandwidth, JSON and CSV. The clock is the test's own.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#define COST 20u	/* ns: reading the clock that times */
#define RATE 2u		/* ticks of the TSC a ns */

static uint64_t now;	/* ns */
static unsigned int slow, readings;	/* each slow'th reading takes a microsecond; 0: none */

static char order[8];	/* of the first instructions that read the clock: lfence, tsc */

static inline void note(const char *what)
{
	strncat(order, what, sizeof(order) - strlen(order) - 1);
}

static inline uint64_t fake_rdtsc(void)
{
	note("t");
	now += COST;
	if (slow && ++readings % slow == 0)
		now += 1000;
	return RATE * now;
}

static int fake_gettime(clockid_t clock, struct timespec *t)
{
	(void)clock;
#if !defined(__x86_64__)
	now += COST;
#endif
	*t = (struct timespec){ (time_t)(now / 1000000000u), (long)(now % 1000000000u) };
	return 0;
}

#if defined(__x86_64__)
#define _mm_lfence() (note("l"), _mm_lfence())
#endif
#define __rdtsc fake_rdtsc
#define progress_part fake_part
#define bench_flush fake_flush
#define clock_gettime fake_gettime
#include "bench/timing.c"
#include "bench/race.c"
#define main copybw_main
#include "copybw.c"
#undef main
#define main apiperf_main
#define tool apiperf_tool
#define print apiperf_print
#undef MIN_SAMPLES
#define check apiperf_check
#include "apiperf.c"
#undef check
#undef main
#undef tool
#undef print
#include "said.h"

static double parts[16];	/* of a race, that are said to be done */
static size_t nparts;

void fake_part(double part)
{
	if (nparts < sizeof(parts) / sizeof(parts[0]))
		parts[nparts++] = part;
}

/* Each copy takes what comes next in here; the last one for ever. */
static const unsigned int *takes;
static unsigned long done;

static void work(struct bench_op *op, size_t count)
{
	(void)op;
	for (; count; count--) {
		now += *takes;
		if (takes[1])
			takes++;
		done++;
	}
}

static struct bench_row race_for(long budget_ms, enum bench_pace pace, long max,
				 const unsigned int *times)
{
	static uint8_t host[64];
	struct bench_cell c = {
		.op = "write", .who = "x", .pace = pace, .run = work, .max = max,
		.arg = { .dev = host, .host = host, .size = 1 }, .gap_ns = 500,
	};
	struct bench_result r = { .tool = "t" };
	struct bench_row row;

	takes = times;
	done = 0;
	bench_race(&c, 1, budget_ms, &r);
	row = r.rows[0];
	bench_result_free(&r);
	return row;
}

static struct bench_row race_one(enum bench_pace pace, long max, const unsigned int *times)
{
	return race_for(1000, pace, max, times);
}

/* %.2f and not a comparison of doubles: what is printed. */
static void is_ns(double got, const char *want, const char *what)
{
	char text[64];

	snprintf(text, sizeof(text), "%.2f", got);
	if (!tap_ok(&tap, !strcmp(text, want), "%s is %s", what, want))
		printf("# got %s\n", text);
}

static void test_samples(void)
{
	struct bench_samples s = { .n = 7 };

	tap_ok(&tap, bench_samples_init(&s, 200) && !s.n, "200 samples");
	for (int i = 0; i < 200; i++)
		bench_samples_add(&s, (i * 7) % 200 + 1);
	bench_samples_add(&s, 0.5);
	tap_is(&tap, (long)s.n, 200, "what does not fit is not kept: the number");
	is_ns(bench_p0(&s), "1.00", "P0 of 1 to 200");
	is_ns(bench_p50(&s), "101.00", "P50 of 1 to 200");
	is_ns(bench_p99(&s), "198.00", "P99 of 1 to 200");
	bench_samples_free(&s);
	tap_ok(&tap, bench_samples_init(&s, 1), "one sample");
	bench_samples_add(&s, -3);
	is_ns(bench_p0(&s), "0.00", "P0 of a time below 0");
	is_ns(bench_p50(&s), "0.00", "and its P50");
	is_ns(bench_p99(&s), "0.00", "and its P99");
	bench_samples_free(&s);
}

static void test_clock(void)
{
	uint64_t t0;

	slow = 11;	/* odd: each reading of a pair has its turn */
	bench_clock_init();
	slow = 0;
	is_ns(bench_ns(bench_clock_cost()), "20.00", "reading the clock: ns");
	t0 = bench_ticks();
	is_ns(bench_ns(bench_since(t0)), "0.00", "nothing: ns");
	t0 = bench_ticks();
	now += 400;
	is_ns(bench_ns(bench_since(t0)), "400.00", "400 ns without the clock's cost: ns");
	is_ns(bench_ns(bench_since(bench_ticks() + bench_clock_cost() / 2)), "0.00",
	      "less than the clock's cost: ns");
	is_ns(bench_ns(bench_ticks_of(3000)), "3000.00", "3000 ns in ticks and back");
	t0 = now;
	bench_spin(bench_ticks_of(2000));
	tap_ok(&tap, now - t0 >= 2000, "a pause of 2 us lasts so long");
#if defined(__x86_64__)
	is_text(bench_clock_text(), "TSC at 2.000 GHz, 20.0 ns a reading, subtracted", "the clock in words");
	order[0] = '\0';
	bench_ticks();
	is_text(order, "ltl", "the TSC is read between two fences");
#else
	is_text(bench_clock_text(), "CLOCK_MONOTONIC, 20.0 ns a reading, subtracted", "the clock in words");
#endif
}

static void test_race(void)
{
	static const unsigned int same[] = { 1000, 0 };
	static const unsigned int falls[] = { 900, 900, 3000, 2000, 1000, 0 };
	struct bench_row row = race_one(BENCH_ALONE, 1000, same);

	is_ns(row.p0, "1000.00", "alone: P0 without the clock's cost");
	is_ns(row.p50, "1000.00", "alone: P50");
	tap_is(&tap, row.batch, 1, "alone: the batch");
	row = race_one(BENCH_BACK_TO_BACK, 1000000, same);
	is_ns(row.p0, "1000.00", "back to back: P0 is of one copy");
	is_ns(row.p50, "1000.00", "back to back: P50");
	tap_is(&tap, row.batch, 100, "back to back: the batch fills 100 us: it");
	row = race_one(BENCH_USED, 1000000, same);
	is_ns(row.p50, "1000.00", "used: P50 is of one copy");
	row = race_one(BENCH_PAUSED, 100, same);
	is_ns(row.p50, "1000.00", "paused: P50 without the pause");
	is_ns(row.p99, "1000.00", "paused: P99");
	row = race_one(BENCH_ALONE, 1000, falls);
	is_ns(row.p0, "1000.00", "times that fall: P0 without the warm-up");
	is_ns(row.p50, "1000.00", "times that fall: P50");
	row = race_one(BENCH_ALONE, 1, same);
	tap_is(&tap, (long)row.samples, 1, "one copy at most: the samples");
	row = race_one(BENCH_BACK_TO_BACK, 1, same);
	tap_is(&tap, (long)(row.samples * row.batch), 1, "one in a row at most: the copies");
	row = race_one(BENCH_BACK_TO_BACK, 10, same);
	tap_ok(&tap, row.samples && row.samples * row.batch <= 10, "ten in a row at most: %zu of %u", row.samples,
	       row.batch);
	row = race_one(BENCH_ALONE, 2, same);
	tap_is(&tap, (long)row.samples, 2, "two copies at most: the samples");
}

/* A batch fills 100 us, and is 1 to 1000 copies. The second guess is the good one. */
static void test_batches(void)
{
	static const struct { unsigned int takes[4], want; long max; } cases[] = {
		{ { 0 }, 1000, 1000000 }, { { 10 }, 1000, 1000000 }, { { 100 }, 1000, 1000000 }, { { 101 }, 990, 1000000 },
		{ { 50100 }, 1, 1000000 }, { { 49900 }, 2, 1000000 }, { { 200000 }, 1, 1000000 }, { { 1000 }, 7, 7 },
		{ { 5000, 5000, 1000 }, 100, 1000000 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct bench_row row = race_one(BENCH_BACK_TO_BACK, cases[i].max, cases[i].takes);

		tap_ok(&tap, row.batch == cases[i].want, "copies of %u ns, %ld at most, in batches of %u: %u", cases[i].takes[0],
		       cases[i].max, cases[i].want, row.batch);
	}
}

/* Of each of the eight turns the first copy does not count, nor does the warm-up. */
static void test_budget(void)
{
	static const unsigned int ms[] = { 1000000, 0 };
	struct bench_row row = race_for(80, BENCH_ALONE, 1000000, ms);

	tap_is(&tap, (long)row.samples, 72, "80 ms for copies of 1 ms: the samples");
	tap_is(&tap, (long)done, 81, "and all copies");
	nparts = 0;
	row = race_for(1, BENCH_ALONE, 1000000, ms);
	tap_is(&tap, (long)row.samples, 3, "1 ms, the least samples");
	tap_is(&tap, (long)done, 12, "and all copies");
	tap_is(&tap, (long)nparts, 8, "a race's parts that are told of");
	is_ns(8 * parts[0], "1.00", "after its first turn, in eighths");
	is_ns(parts[7], "1.00", "after its last one, in all");
	row = race_for(600000, BENCH_BACK_TO_BACK, 1000000, ms);
	tap_is(&tap, (long)row.samples, 20000, "the most samples");
}

/* What lies between two copies, which take 1 us each: 2 us, or the cell's gap of 500 ns. */
static void test_gaps(void)
{
	static const unsigned int same[] = { 1000, 0 };
	static const struct { enum bench_pace pace; unsigned int ns; const char *name; } paces[] = {
		{ BENCH_BACK_TO_BACK, 0, "back to back" }, { BENCH_ALONE, 2000, "alone" },
		{ BENCH_PAUSED, 500, "paused" }, { BENCH_COLD, 2000, "cold" }, { BENCH_USED, 0, "used" },
	};

	for (size_t i = 0; i < sizeof(paces) / sizeof(paces[0]); i++) {
		uint64_t start = now, each;

		race_one(paces[i].pace, 10000, same);
		each = (now - start) / done;
		if (!tap_ok(&tap, each >= 1000 + paces[i].ns && each < 1200 + paces[i].ns,
			    "%s: %u ns lie between", paces[i].name, paces[i].ns))
			printf("# each takes %lu ns\n", (unsigned long)each);
	}
}

static size_t ran[4096], runs;

static void work_as(struct bench_op *op, size_t count)
{
	if (runs < sizeof(ran) / sizeof(ran[0]))
		ran[runs++] = op->size;
	now += 1000 * count;
}

/* Several at once: each has all its samples, and none always comes after the same other one. */
static void test_turns(void)
{
	static uint8_t host[64];
	struct bench_cell cells[4];
	struct bench_result r = { .tool = "t" };
	unsigned int after[5][5] = { { 0 } };
	bool whole = true, mixed = true;

	for (size_t i = 0; i < 4; i++)
		cells[i] = (struct bench_cell){
			.op = "write", .who = "x", .pace = BENCH_ALONE, .run = work_as, .max = 80,
			.arg = { .dev = host, .host = host, .size = i + 1 }, .threads = (int)i, .pieces = i,
		};
	runs = 0;
	bench_race(cells, 4, 1000, &r);
	for (size_t i = 0; i < 4; i++)
		whole &= r.rows[i].size == i + 1 && r.rows[i].samples == 80 &&
			 r.rows[i].threads == (i ? (int)i : 1) && r.rows[i].pieces == i && r.rows[i].p99 <= 0;
	for (size_t i = 1; i < runs; i++)
		after[ran[i - 1]][ran[i]]++;
	for (size_t i = 1; i <= 4; i++) {
		int others = 0;

		for (size_t k = 1; k <= 4; k++)
			others += k != i && after[k][i];
		mixed &= others > 1;
	}
	tap_ok(&tap, whole, "four at once: each has its samples, its size and its threads, and no P99");
	tap_ok(&tap, mixed, "each comes after several others");
	bench_result_free(&r);
}

static char events[8];
static const uint8_t *host_side;	/* three bytes */
static int write_rc, wait_rc;

static void event(const char *what)
{
	strncat(events, what, sizeof(events) - strlen(events) - 1);
}

static int set_bytes(cu_ptr to, unsigned char value, size_t n)
{
	(void)value;
	event(to == 0x7000 && n == 3 ? "s" : "?");
	return write_rc;
}

static int wait_all(void)
{
	event("w");
	return wait_rc;
}

void fake_flush(const void *p, size_t n)
{
	event(p == host_side && n == 3 ? "f" : "?");
}

static void work_noted(struct bench_op *op, size_t count)
{
	(void)op;
	now += 1000 * count;
	event("c");
}

static void time_it(const void *cell)
{
	struct bench_cell c = *(const struct bench_cell *)cell;
	struct bench_result r = { .tool = "t" };

	bench_race(&c, 1, 1000, &r);
	bench_result_free(&r);
}

/* Before each copy its own side is emptied: the GPU has written, and is done; or the host's is flushed. */
static void test_caches(void)
{
	static const struct cuda_dl cu = { .set8 = set_bytes, .ctx_sync = wait_all };
	static const struct { enum bench_pace pace; const char *want; } cases[] = {
		{ BENCH_EVICTED, "swcswcs" }, { BENCH_COLD, "fcfcfcf" }, { BENCH_ALONE, "ccccccc" },
	};
	static uint8_t host[64], dev[64];
	struct bench_cell c = {
		.op = "read", .who = "x", .run = work_noted, .max = 10,
		.arg = { .addr = 0x7000, .dev = dev, .host = host, .size = 3, .user = &cu },
	};

	host_side = host;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		c.pace = cases[i].pace;
		events[0] = '\0';
		time_it(&c);
		is_text(events, cases[i].want, bench_pace_name(c.pace));
	}
	c.pace = BENCH_EVICTED;
	write_rc = 5;
	tap_ok(&tap, ends(time_it, &c, BENCH_FAILED, "read of 3 bytes by x failed: 5 ("), "the GPU cannot write: it ends");
	write_rc = 0;
	wait_rc = 5;
	tap_ok(&tap, ends(time_it, &c, BENCH_FAILED, "read of 3 bytes by x failed: 5 ("), "nobody can wait for it: it ends");
	wait_rc = 0;
}

static const struct bench_op *asked;
static bool elsewhere;

static void work_here(struct bench_op *op, size_t count)
{
	elsewhere |= op->dev != asked->dev || op->host != asked->host || op->size != asked->size || count != 1;
	now += 1000;
}

/* The next read waits for the bytes of the last one; they, and none past them, change no address. */
static void test_used(void)
{
	size_t page = (size_t)getpagesize();
	uint8_t *host = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct bench_cell c = { .op = "read", .who = "x", .pace = BENCH_USED, .run = work_here, .max = 1000 };

	if (host == MAP_FAILED || mprotect(host + page, page, PROT_NONE))
		abort();
	memset(host, 0x5a, page);
	for (size_t size = 1; size <= 64; size *= 64) {
		c.arg = (struct bench_op){ .dev = host, .host = host + page - size, .size = size };
		asked = &c.arg;
		elsewhere = false;
		tap_ok(&tap, ends(time_it, &c, BENCH_OK, ""), "used: %zu bytes, and none past them", size);
		time_it(&c);
		tap_ok(&tap, !elsewhere, "used: each at its address");
	}
	munmap(host, 2 * page);
}

static uint8_t gpu[64];

static int put(cu_ptr to, const void *from, size_t n)
{
	memcpy((void *)(uintptr_t)to, from, n);
	return 0;
}

static int get(void *to, cu_ptr from, size_t n)
{
	memcpy(to, (const void *)(uintptr_t)from, n);
	return 0;
}

static int good_copies;	/* before those that fail */

static void refused(struct bench_op *op, size_t count)
{
	now += 1000 * count;
	if (good_copies-- <= 0)
		op->rc = 5;
}

static void moves_nothing(struct bench_op *op, size_t count)
{
	(void)op, (void)count;
}

static void moves_most(struct bench_op *op, size_t count)
{
	(void)count;
	memcpy(op->host, op->dev, op->size - 1);
}

static void verify_it(const void *cell)
{
	struct bench_cell c = *(const struct bench_cell *)cell;
	static struct bench_gpu b = { .tool = &tool, .cu = { .to_gpu = put, .from_gpu = get, .ctx_sync = wait_all } };

	bench_verify(&b, &c);
}

static void fails(void (*what)(const void *cell), const char *op, enum bench_pace pace, bench_run *run,
		  const char *text)
{
	static uint8_t host[64];
	const struct bench_cell c = {
		.op = op, .who = "x", .pace = pace, .run = run, .max = 1000, .gap_ns = 500,
		.arg = { .dev = gpu, .addr = (uintptr_t)gpu, .host = host, .size = sizeof(gpu) },
	};

	good_copies = what == time_it ? 20 : 0;
	tap_ok(&tap, ends(what, &c, BENCH_FAILED, text), "%s, %s: it ends with 1 and says: %s", op,
	       bench_pace_name(pace), text);
}

static void test_failures(void)
{
	static const enum bench_pace paces[] = { BENCH_ALONE, BENCH_BACK_TO_BACK, BENCH_USED, BENCH_PAUSED };
	uint8_t want[64];
	char said[80];

	for (size_t i = 0; i < sizeof(paces) / sizeof(paces[0]); i++)
		fails(time_it, "read", paces[i], refused, "read of 64 bytes by x failed: 5 (Input/output error)");
	fails(verify_it, "read", BENCH_ALONE, refused, "read of 64 bytes by x failed: 5 (Input/output error)");
	fails(verify_it, "write", BENCH_ALONE, refused, "write of 64 bytes by x failed: 5 (Input/output error)");
	bench_fill(want, sizeof(want), 1);
	snprintf(said, sizeof(said), "read of 64 bytes by x: byte 0 is %#x, not %#x", want[0] ^ 0xff, want[0]);
	fails(verify_it, "read", BENCH_ALONE, moves_nothing, said);
	snprintf(said, sizeof(said), "write of 64 bytes by x: byte 0 is %#x, not %#x", want[0] ^ 0xff, want[0]);
	fails(verify_it, "write", BENCH_ALONE, moves_nothing, said);
	snprintf(said, sizeof(said), "read of 64 bytes by x: byte 63 is %#x, not %#x", want[63] ^ 0xff, want[63]);
	fails(verify_it, "read", BENCH_ALONE, moves_most, said);
}

/* The sizes of -l: powers of two up to -c, or -c alone. */
static void test_sizes(void)
{
	static const struct {
		bool range;
		size_t most, first, last;
		int count;
	} cases[] = {
		{ false, 100, 100, 100, 1 }, { true, 1, 1, 1, 1 }, { true, 2, 1, 2, 2 }, { true, 3, 1, 2, 2 },
		{ true, 8, 1, 8, 4 }, { true, 100, 1, 64, 7 }, { true, 1ul << 40, 1, 1ul << 40, 41 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct bench_opts o = { .range = cases[i].range, .copy_size = cases[i].most };
		size_t last = 0;
		int n = 0;

		for (size_t size = first_size(&o); size && n < 99; size = next_size(&o, size), n++)
			last = size;
		tap_ok(&tap, first_size(&o) == cases[i].first && last == cases[i].last && n == cases[i].count,
		       "sizes%s up to %zu", o.range ? ", several," : "", o.copy_size);
	}
}

static void test_apiperf(void)
{
	struct bench_opts o = { .iters = 10 };
	struct life l = { .warm = true, .gpu = { .opts = &o } };
	uint64_t t0;

	step_add(&l, "a", "gdrcopy", bench_ticks_of(700));
	step_add(&l, "a", "gdrcopy", bench_ticks_of(500));
	step_add(&l, "a", "gdrcopy", bench_ticks_of(600));
	add_row(&l, "b", "gdrcopy", bench_ticks_of(1234000));
	tap_is(&tap, (long)l.nsteps, 2, "apiperf: the kinds of calls");
	is_ns(bench_p0(&l.steps[0].samples), "500.00", "apiperf: P0 of a call");
	is_ns(bench_p50(&l.steps[0].samples), "600.00", "apiperf: P50 of a call");
	is_ns(bench_p50(&l.steps[1].samples), "1234.00", "apiperf: in a row: one of 1000");
	t0 = bench_ticks();
	now += 400;
	step_add(&l, "c", "gdrcopy", bench_since(t0));
	is_ns(bench_p0(&l.steps[2].samples), "400.00", "apiperf: without the clock's cost");
	l.warm = false;
	step_add(&l, "d", "gdrcopy", 1);
	tap_is(&tap, (long)l.nsteps, 3, "apiperf: what warms up does not count: the kinds");
}

static void step_kinds(const void *kinds)
{
	static char names[64][12];
	struct bench_opts o = { .iters = 1 };
	struct life l = { .warm = true, .gpu = { .opts = &o } };

	for (int i = 0; i < *(const int *)kinds; i++) {
		snprintf(names[i], sizeof(names[i]), "%d", i);
		step_add(&l, names[i], "gdrcopy", 1);
	}
}

static void note_facts(const void *facts)
{
	struct bench_result r = { .tool = "t" };

	for (int i = 1; i <= *(const int *)facts; i++)
		bench_fact(&r, i == 21 ? "last" : "k", "%d", i);
}

/* There is room for so many, and what does not fit is a failure. */
static void test_room(void)
{
	const int kinds = 32, facts = 20, more_kinds = 33, more_facts = 21;

	tap_ok(&tap, ends(step_kinds, &kinds, BENCH_OK, ""), "32 kinds of calls");
	tap_ok(&tap, ends(step_kinds, &more_kinds, BENCH_FAILED, "gdrcopy_apiperf: too many kinds of calls\n"), "one more");
	tap_ok(&tap, ends(note_facts, &facts, BENCH_OK, ""), "20 facts");
	tap_ok(&tap, ends(note_facts, &more_facts, BENCH_FAILED, "too many facts; no room for last\n"), "one more");
}

/* What gdrcopy_apiperf prints: a table for each size. */
static void test_apiperf_text(void)
{
	static const struct bench_row rows[] = {
		{ .op = "gdr_open", .who = "gdrcopy", .mode = "first", .p0 = 10, .p50 = 11, .samples = 1 },
		{ .op = "gdr_open", .who = "gdrcopy", .mode = "again", .p0 = 12, .p50 = 13, .samples = 5 },
		{ .op = "gdr_map_v2", .who = "gdrcopy", .mode = "alone", .size = 65536, .p0 = 14, .p50 = 15, .samples = 6 },
		{ .op = "mmap", .who = "system", .mode = "alone", .size = 65536, .p0 = 16, .p50 = 17, .samples = 7 },
		{ .op = "mmap", .who = "system", .mode = "alone", .size = 1 << 20, .p0 = 18, .p50 = 19, .samples = 8 },
	};

	is_printed(apiperf_print, rows, sizeof(rows) / sizeof(rows[0]),
		"# k: v\n"
		"\n           call                                 of                 P0          P50  samples\n"
		"first      gdr_open                             gdrcopy       10.0 ns      11.0 ns        1\n"
		"again      gdr_open                             gdrcopy       12.0 ns      13.0 ns        5\n"
		"\n64 KiB     call                                 of                 P0          P50  samples\n"
		"           gdr_map_v2                           gdrcopy       14.0 ns      15.0 ns        6\n"
		"           mmap                                 system        16.0 ns      17.0 ns        7\n"
		"\n1 MiB      call                                 of                 P0          P50  samples\n"
		"           mmap                                 system        18.0 ns      19.0 ns        8\n", "gdrcopy_apiperf's text");
}

static void test_units(void)
{
	struct bench_row row = { .size = 1 << 20, .p50 = 1e6 };
	char text[32];

	is_ns(mbps(&row), "1000.00", "1 MiB in 1 ms in MB/s, of 2^20 bytes as the reference has them");
	is_ns(bench_gbps(2e9, 1e9), "2.00", "2e9 bytes in 1 s in GB/s");
	is_ns(bench_gbps(1, 0), "0.00", "a bandwidth in no time");
	is_text(bench_ns_text(text, sizeof(text), 999.4), "999 ns", "999.4 ns");
	is_text(bench_ns_text(text, sizeof(text), 999.6), "1.00 us", "999.6 ns");
	is_text(bench_ns_text(text, sizeof(text), 12345), "12.3 us", "12345 ns");
	is_text(bench_ns_text(text, sizeof(text), 2.5e6), "2.50 ms", "2.5e6 ns");
	is_text(bench_ns_text(text, sizeof(text), 3e9), "3.00 s", "3e9 ns");
	is_text(bench_size_text(text, sizeof(text), 4096), "4 KiB", "4096 bytes");
	is_text(bench_size_text(text, sizeof(text), 1024), "1 KiB", "1024 bytes");
	is_text(bench_size_text(text, sizeof(text), 1 << 20), "1 MiB", "1 MiB");
	is_text(bench_size_text(text, sizeof(text), 3 << 20), "3 MiB", "3 MiB");
	is_text(bench_size_text(text, sizeof(text), 1000), "1000 B", "1000 bytes");
	is_text(bench_size_text(text, sizeof(text), (1 << 20) + 1024), "1025 KiB", "1025 KiB");
	is_text(bench_size_text(text, sizeof(text), (1 << 20) + 1), "1048577 B", "1048577 bytes");
	is_text(bench_ns_text(text, sizeof(text), 9.994), "9.99 ns", "9.994 ns");
	is_text(bench_ns_text(text, sizeof(text), 9.996), "10.0 ns", "9.996 ns");
	is_text(bench_ns_text(text, sizeof(text), 99.94), "99.9 ns", "99.94 ns");
	is_text(bench_ns_text(text, sizeof(text), 99.96), "100 ns", "99.96 ns");
	is_text(bench_ns_text(text, sizeof(text), 999.5), "1.00 us", "999.5 ns");
	is_text(bench_ns_text(text, sizeof(text), 0.005), "0.01 ns", "0.005 ns");
	is_text(bench_ns_text(text, sizeof(text), 5e12), "5000 s", "5e12 ns");
}

static void test_forms(void)
{
	struct bench_result r = { .tool = "t" };
	struct bench_row moved = {
		.op = "write, \"64\"", .who = "x", .mode = "m", .size = 100, .threads = 2,
		.batch = 3, .samples = 4, .p0 = 10, .p50 = 20, .p99 = 30, .moves = true, .pieces = 3,
	}, call = { .op = "call", .who = "a\nb", .mode = "m", .threads = 1, .batch = 1,
		    .samples = 5, .p0 = 1.25, .p50 = 2.5 };
	char *text;
	size_t len;
	FILE *f;

	bench_fact(&r, "k", "%s", "a\"b\\c\n\x1f");
	bench_row(&r, &moved);
	bench_row(&r, &call);
	f = open_memstream(&text, &len);
	bench_csv(&r, f);
	fclose(f);
	is_text(text,
		"tool,op,who,mode,size,threads,batch,samples,p0_ns,p50_ns,gb_per_s\n"
		"t,\"write, \"\"64\"\"\",x,m,100,2,3,4,10.00,20.00,15.0000\n"
		"t,call,\"a\nb\",m,0,1,1,5,1.25,2.50,\n", "CSV");
	free(text);
	f = open_memstream(&text, &len);
	bench_json(&r, f);
	fclose(f);
	is_text(text,
		"{\"tool\": \"t\",\n \"k\": \"a\\\"b\\\\c\\u000a\\u001f\",\n \"results\": [\n"
		"  {\"op\": \"write, \\\"64\\\"\", \"who\": \"x\", \"mode\": \"m\", \"size\": 100, \"threads\": 2, "
		"\"batch\": 3, \"samples\": 4, \"p0_ns\": 10.00, \"p50_ns\": 20.00, \"p99_ns\": 30.00, "
		"\"gb_per_s\": 15.0000},\n"
		"  {\"op\": \"call\", \"who\": \"a\\u000ab\", \"mode\": \"m\", \"size\": 0, \"threads\": 1, "
		"\"batch\": 1, \"samples\": 5, \"p0_ns\": 1.25, \"p50_ns\": 2.50}]}\n", "JSON");
	free(text);
	tap_ok(&tap, bench_find(&r, "call", "a\nb", NULL, 0) == &r.rows[1] &&
	       !bench_find(&r, "call", "a\nb", "n", 0) && !bench_find(&r, "call", "a\nb", NULL, 1),
	       "a row is found by all that was asked for");
	bench_result_free(&r);
}

/* What gdrcopy_copybw prints: each line its own figure. */
static void test_copybw(void)
{
	static const char *const ops[] = { "write", "read" }, *const who[] = { "gdrcopy", "cuMemcpy" };
	struct bench_opts o = { .copy_size = 1 << 20, .offset = 64, .threads = 3 };
	struct bench_result r = { .tool = "t" };

	bench_fact(&r, "k", "v");
	for (int i = 0; i < 4; i++) {
		struct bench_row row = { .op = ops[i / 2], .who = who[i % 2], .mode = "m", .size = 1 << 20,
					 .samples = 10 + (size_t)i, .batch = 2 + (unsigned int)i, .p50 = 1e6 * (i + 1) };

		bench_row(&r, &row);
	}
	is_text(printed(print, &r, &o),
		"# k: v\n"
		"writing test, size=1048576 offset=64 num_iters=20 threads=3\n"
		"write BW: 1000.00MB/s\ncuMemcpyHtoD BW: 500.00MB/s\n"
		"reading test, size=1048576 offset=64 num_iters=48 threads=3\n"
		"read BW: 333.33MB/s\ncuMemcpyDtoH BW: 250.00MB/s\n", "gdrcopy_copybw's text");
	bench_result_free(&r);
}

int main(void)
{
	test_samples();
	test_clock();
	test_race();
	test_batches();
	test_budget();
	test_gaps();
	test_turns();
	test_caches();
	test_used();
	test_failures();
	test_sizes();
	test_apiperf();
	test_apiperf_text();
	test_room();
	test_units();
	test_forms();
	test_copybw();
	return tap_done(&tap);
}
