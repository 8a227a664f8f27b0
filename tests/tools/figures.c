// SPDX-License-Identifier: MIT
/*
 * figures.c - what the benchmarks make of their samples: P0, P50 and P99, the batch, the
 * clock's cost, the bandwidth, JSON and CSV. The clock is the test's own.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#define COST 20u	/* ns: reading the clock that times */
#define RATE 2u		/* ticks of the TSC a ns */

static uint64_t now;	/* ns */
static unsigned int slow, readings;	/* each slow'th reading takes a microsecond; 0: none */

static inline uint64_t fake_rdtsc(void)
{
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

#define __rdtsc fake_rdtsc
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
	struct bench_samples s;

	tap_ok(&tap, bench_samples_init(&s, 200), "200 samples");
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

/* Of each of the eight turns the first copy does not count, nor does the warm-up. */
static void test_budget(void)
{
	static const unsigned int ms[] = { 1000000, 0 };
	struct bench_row row = race_for(80, BENCH_ALONE, 1000000, ms);

	tap_is(&tap, (long)row.samples, 72, "80 ms for copies of 1 ms: the samples");
	tap_is(&tap, (long)done, 81, "and all copies");
	row = race_for(1, BENCH_ALONE, 1000000, ms);
	tap_is(&tap, (long)row.samples, 3, "1 ms, the least samples");
	tap_is(&tap, (long)done, 12, "and all copies");
}

/* What lies between two copies, which take 1 us each: 2 us, or the cell's gap of 500 ns. */
static void test_gaps(void)
{
	static const unsigned int same[] = { 1000, 0 };
	static const struct { enum bench_pace pace; unsigned int ns; const char *name; } paces[] = {
		{ BENCH_BACK_TO_BACK, 0, "back to back" }, { BENCH_ALONE, 2000, "alone" },
		{ BENCH_PAUSED, 500, "paused" },
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

static int set_bytes(cu_ptr to, unsigned char value, size_t n)
{
	(void)to, (void)value, (void)n;
	strncat(events, "s", sizeof(events) - strlen(events) - 1);
	return 0;
}

static int wait_all(void)
{
	strncat(events, "w", sizeof(events) - strlen(events) - 1);
	return 0;
}

static void work_noted(struct bench_op *op, size_t count)
{
	(void)op;
	now += 1000 * count;
	strncat(events, "c", sizeof(events) - strlen(events) - 1);
}

/* The GPU has written, and is done, before the copy that finds the cache without its lines. */
static void test_evicted(void)
{
	static const struct cuda_dl cu = { .set8 = set_bytes, .ctx_sync = wait_all };
	static uint8_t host[64];
	struct bench_cell c = {
		.op = "read", .who = "x", .pace = BENCH_EVICTED, .run = work_noted, .max = 1,
		.arg = { .dev = host, .host = host, .size = 1, .user = &cu },
	};
	struct bench_result r = { .tool = "t" };

	events[0] = '\0';
	bench_race(&c, 1, 1000, &r);
	if (!tap_ok(&tap, !strncmp(events, "swcswc", 6), "the GPU writes, is waited for, and then comes the copy"))
		printf("# %s\n", events);
	bench_result_free(&r);
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

static void time_it(const void *cell)
{
	struct bench_cell c = *(const struct bench_cell *)cell;
	struct bench_result r = { .tool = "t" };

	bench_race(&c, 1, 1000, &r);
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

	for (size_t i = 0; i < sizeof(paces) / sizeof(paces[0]); i++)
		fails(time_it, "read", paces[i], refused, "Input/output error");
	fails(verify_it, "read", BENCH_ALONE, refused, "Input/output error");
	fails(verify_it, "write", BENCH_ALONE, refused, "Input/output error");
	fails(verify_it, "read", BENCH_ALONE, moves_nothing, "byte 0 is");
	fails(verify_it, "write", BENCH_ALONE, moves_nothing, "byte 0 is");
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
	is_text(bench_ns_text(text, sizeof(text), 9.996), "10.0 ns", "9.996 ns");
	is_text(bench_ns_text(text, sizeof(text), 0.005), "0.01 ns", "0.005 ns");
	is_text(bench_ns_text(text, sizeof(text), 5e12), "5000 s", "5e12 ns");
}

static void test_forms(void)
{
	struct bench_result r = { .tool = "t" };
	struct bench_row moved = {
		.op = "write, \"64\"", .who = "x", .mode = "m", .size = 100, .threads = 2,
		.batch = 3, .samples = 4, .p0 = 10, .p50 = 20, .p99 = 30, .moves = true, .pieces = 3,
	}, call = { .op = "call", .who = "y", .mode = "m", .threads = 1, .batch = 1,
		    .samples = 5, .p0 = 1.25, .p50 = 2.5 };
	char *text;
	size_t len;
	FILE *f;

	bench_fact(&r, "k", "%s", "a\"b\\c\n");
	bench_row(&r, &moved);
	bench_row(&r, &call);
	f = open_memstream(&text, &len);
	bench_csv(&r, f);
	fclose(f);
	is_text(text,
		"tool,op,who,mode,size,threads,batch,samples,p0_ns,p50_ns,gb_per_s\n"
		"t,\"write, \"\"64\"\"\",x,m,100,2,3,4,10.00,20.00,15.0000\n"
		"t,call,y,m,0,1,1,5,1.25,2.50,\n", "CSV");
	free(text);
	f = open_memstream(&text, &len);
	bench_json(&r, f);
	fclose(f);
	is_text(text,
		"{\"tool\": \"t\",\n \"k\": \"a\\\"b\\\\c\\u000a\",\n \"results\": [\n"
		"  {\"op\": \"write, \\\"64\\\"\", \"who\": \"x\", \"mode\": \"m\", \"size\": 100, \"threads\": 2, "
		"\"batch\": 3, \"samples\": 4, \"p0_ns\": 10.00, \"p50_ns\": 20.00, \"p99_ns\": 30.00, "
		"\"gb_per_s\": 15.0000},\n"
		"  {\"op\": \"call\", \"who\": \"y\", \"mode\": \"m\", \"size\": 0, \"threads\": 1, "
		"\"batch\": 1, \"samples\": 5, \"p0_ns\": 1.25, \"p50_ns\": 2.50}]}\n", "JSON");
	free(text);
	tap_ok(&tap, bench_find(&r, "call", "y", NULL, 0) == &r.rows[1] &&
	       !bench_find(&r, "call", "y", "n", 0) && !bench_find(&r, "call", "y", NULL, 1),
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
	test_budget();
	test_gaps();
	test_turns();
	test_evicted();
	test_failures();
	test_sizes();
	test_apiperf();
	test_units();
	test_forms();
	test_copybw();
	return tap_done(&tap);
}
