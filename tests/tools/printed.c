// SPDX-License-Identifier: MIT
/*
 * printed.c - what a person reads and types: the tables of gdrcopy_copylat, the line of
 * progress, the options. The figures, the loops, the clock and the terminal are the test's own.
 */
#define _GNU_SOURCE 1
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double fake_now;	/* s */
static int fake_clock(clockid_t clock, struct timespec *t)
{
	(void)clock;
	*t = (struct timespec){ (time_t)fake_now, (long)((fake_now - (double)(time_t)fake_now) * 1e9 + 0.5) };
	return 0;
}

static int fake_terminal(int fd)
{
	return fd == STDERR_FILENO;
}

static FILE *screen;

#define clock_gettime fake_clock
#define isatty fake_terminal
#undef stderr
#define stderr screen
#include "progress.c"
#undef stderr
#undef clock_gettime
#undef isatty
#undef BAR

#include "bench/cuda.h"
#include "bench/loops.h"
#include "bench/race.h"
#include "copylat_modes.h"
static const struct bench_loop fake_loops[];
#define bench_loops fake_loops
#define main copylat_main
#define tool copylat_tool
#include "copylat.c"
#undef main
#undef tool
#include "said.h"

static bool yes(void)
{
	return true;
}

static bool no(void)
{
	return false;
}

static const struct bench_loop fake_loops[] = {
	{ .name = "wr", .usable = yes }, { .name = "none", .usable = no },
	{ .name = "rd", .read = true, .usable = yes }, { .name = "loose", .read = true, .loose = true, .usable = yes },
	{ 0 }
};

/* No two rows have a figure in common. */
static void add_rows(struct bench_result *r, const char *mode, const char *const *ops)
{
	static const char *const who[] = { "gdrcopy", "cuMemcpy", "wr", "rd" };

	for (; *ops; ops++)
		for (size_t w = 0; w < 4; w++)
			for (size_t size = 1; size < 3; size++) {
				double p0 = 10 * (double)(r->nrows + 1);
				struct bench_row row = { .op = *ops, .who = who[w], .mode = mode, .size = size,
							 .p0 = p0, .p50 = p0 + 1 };

				bench_row(r, &row);
			}
}

static void test_copylat(void)
{
	static const char *const both[] = { "write", "read", NULL }, *const writes[] = { "write", NULL };
	struct bench_opts o = { .size = 2 };
	struct bench_result r = { .tool = "t" };

	bench_fact(&r, "k", "v");
	add_rows(&r, "alone", writes);
	add_rows(&r, "back-to-back", both);
	is_text(printed(print, &r, &o),
		"# k: v\n\n"
		"    bytes       write P0      write P50      b-to-b P0     b-to-b P50  cuMemcpy HtoD        read P0       read P50  cuMemcpy DtoH\n"
		"        1        10.0 ns        11.0 ns        90.0 ns        91.0 ns        31.0 ns         170 ns         171 ns         191 ns\n"
		"        2        20.0 ns        21.0 ns         100 ns         101 ns        41.0 ns         180 ns         181 ns         201 ns\n"
		"\nWrites alone, P50\n\n"
		"    bytes        gdrcopy             wr\n"
		"        1        11.0 ns        51.0 ns\n"
		"        2        21.0 ns        61.0 ns\n"
		"\nWrites alone: how many times as long as gdrcopy the loops take\n"
		"    bytes         wr\n"
		"        1      4.636\n"
		"        2      2.905\n"
		"\nWrites back to back, P50\n\n"
		"    bytes        gdrcopy             wr\n"
		"        1        91.0 ns         131 ns\n"
		"        2         101 ns         141 ns\n"
		"\nWrites back to back: how many times as long as gdrcopy the loops take\n"
		"    bytes         wr\n"
		"        1      1.440\n"
		"        2      1.396\n"
		"\nReads, P50\n\n"
		"    bytes        gdrcopy             rd\n"
		"        1         171 ns         231 ns\n"
		"        2         181 ns         241 ns\n"
		"\nReads: how many times as long as gdrcopy the loops take\n"
		"    bytes         rd\n"
		"        1      1.351\n"
		"        2      1.331\n", "the tables of copies one by one");
	bench_result_free(&r);
}

static void test_copylat_cold(void)
{
	static const char *const both[] = { "write", "read", NULL };

	for (int evicted = 0; evicted < 2; evicted++) {
		struct bench_opts o = { .size = 1, .cold = !evicted, .evicted = evicted };
		struct bench_result r = { .tool = "t" };
		char want[2048];

		add_rows(&r, evicted ? bench_pace_name(BENCH_EVICTED) : bench_pace_name(BENCH_COLD), both);
		snprintf(want, sizeof(want),
			 "\n    bytes       write P0      write P50  cuMemcpy HtoD        read P0       read P50  cuMemcpy DtoH\n"
			 "        1        10.0 ns        11.0 ns        31.0 ns        90.0 ns        91.0 ns         111 ns\n"
			 "\n%s, P50\n\n    bytes        gdrcopy             wr\n        1        11.0 ns        51.0 ns\n"
			 "\n%s: how many times as long as gdrcopy the loops take\n    bytes         wr\n        1      4.636\n"
			 "\n%s, P50\n\n    bytes        gdrcopy             rd\n        1        91.0 ns         151 ns\n"
			 "\n%s: how many times as long as gdrcopy the loops take\n    bytes         rd\n        1      1.659\n",
			 evicted ? "Writes, after the GPU's" : "Writes, host side cold",
			 evicted ? "Writes, after the GPU's" : "Writes, host side cold",
			 evicted ? "Reads, after the GPU's writes" : "Reads, host side cold",
			 evicted ? "Reads, after the GPU's writes" : "Reads, host side cold");
		is_text(printed(print, &r, &o), want, evicted ? "after the GPU's writes" : "with a cold host side");
		bench_result_free(&r);
	}
}

/* A figure that was not measured. */
static void test_copylat_empty(void)
{
	struct bench_opts o = { .size = 1 };
	struct bench_result r = { .tool = "t" };
	const char *text = printed(print, &r, &o);

	tap_ok(&tap, !!strstr(text, "        1              -              -"), "what was not measured is a dash");
	tap_ok(&tap, !!strstr(text, "        1          -\n"), "as is what cannot be compared");
}

static void shows(const char *want, const char *what)
{
	static char *text;
	static size_t len;

	if (screen) {
		fclose(screen);
		is_text(text, want, what);
		free(text);
	}
	screen = open_memstream(&text, &len);
}

static void test_progress(void)
{
	shows("", "");
	setenv("TERM", "xterm", 1);
	fake_now = 50;
	progress("%080d", 8);
	fake_now = 51;
	progress_part(0.5);
	shows("\r\033[K000000000000000000000000000000000000000000000000000000000000000"
	      "\r\033[K000000000000000000000000000000000000000000000000000000000000000", "without a total, what is done; no more than fits");
	progress_wipe();
	shows("\r\033[K", "and the line is gone");
	memset(&line, 0, sizeof(line));
	progress_total(4);
	progress_part(0.5);
	shows("", "nothing has begun");
	fake_now = 100;
	progress("size %d", 1);
	shows("\r\033[K[                        ] 1 of 4  size 1", "the first step: no time is known yet");
	fake_now = 100.05;
	progress_part(0.01);
	shows("", "too soon to be read");
	fake_now = 100.125;
	progress_part(0.5);
	shows("\r\033[K[###                     ] 1 of 4, 0:01 left  size 1", "a tenth of a second is enough");
	fake_now = 105;
	progress_part(0.5);
	shows("\r\033[K[###                     ] 1 of 4, 0:35 left  size 1", "half of a step");
	fake_now = 130;
	progress("size %d", 2);
	shows("\r\033[K[######                  ] 2 of 4, 1:30 left  size 2", "a quarter of all took 30 s");
	fake_now = 220;
	progress("size %d", 3);
	progress_wipe();
	shows("\r\033[K[############            ] 3 of 4, 2:00 left  size 3\r\033[K", "the line is gone");
	progress_wipe();
	shows("", "once");
	progress_part(0);
	progress_wipe();
	shows("\r\033[K[############            ] 3 of 4, 2:00 left  size 3\r\033[K", "what was wiped is drawn again at once");
	fake_now = 230;
	progress("size %d", 4);
	fake_now = 240;
	progress("size %d", 5);
	shows("\r\033[K[##################      ] 4 of 4, 0:43 left  size 4"
	      "\r\033[K[##################      ] 4 of 4, 0:47 left  size 5", "no more steps than there are");
	setenv("TERM", "dumb", 1);
	fake_now = 300;
	progress("size %d", 6);
	progress_part(0.5);
	shows("", "a terminal that cannot go back");
	unsetenv("TERM");
	progress("size %d", 7);
	shows("", "no terminal");
	progress_wipe();
	fclose(screen);
	screen = NULL;
}

enum { DIES, SKIPS, REFUSES };

/* With a line of progress on the terminal. */
static void says(const void *how)
{
	static const struct bench_tool t = { .name = "t" };

	screen = stderr;
	setenv("TERM", "xterm", 1);
	progress_total(0);
	progress("busy");
	switch (*(const int *)how) {
	case DIES: bench_die("%s %d", "dead", 1);
	case SKIPS: bench_skip("%s %d", "none", 2);
	case REFUSES: bench_usage(&t, "%s %d", "bad", 3);
	}
}

/* Output that went to a full disk, which then has room again. */
static void loses_output(const void *arg)
{
	(void)arg;
	if (!freopen("/dev/full", "w", stdout))
		abort();
	puts("a line");
	fflush(stdout);
	if (dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO) < 0)
		abort();
	bench_flush_stdout("t");
}

static void test_ends(void)
{
	static const struct { int how, status; const char *text; } cases[] = {
		{ DIES, BENCH_FAILED, "dead 1" }, { SKIPS, BENCH_SKIPPED, "none 2" },
		{ REFUSES, BENCH_USAGE, "t: bad 3; see 't --help'" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char text[64];

		snprintf(text, sizeof(text), "busy\r\033[K%s\n", cases[i].text);
		tap_ok(&tap, ends(says, &cases[i].how, cases[i].status, text), "the line is gone, then: %s", cases[i].text);
	}
	tap_ok(&tap, ends(loses_output, NULL, BENCH_FAILED, "t: cannot write the output"), "output that was lost is a failure");
}

/* The sizes of copies one by one, up to the largest that -s takes. */
static void test_steps(void)
{
	static const struct { size_t size, want; } cases[] = {
		{ 1, 1 }, { 3, 3 }, { 6, 4 }, { 7, 5 }, { 255, 13 }, { 256, 14 }, { 511, 14 }, { 512, 15 }, { (size_t)1 << 40, 46 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		tap_ok(&tap, steps(&(struct bench_opts){ .size = cases[i].size }) == cases[i].want, "%zu steps up to %zu bytes",
		       cases[i].want, cases[i].size);
	tap_is(&tap, (long)next_size(MAX_SIZE), 0, "after the last size");
}

static const struct bench_tool every = {
	.name = "every", .what = "",
	.codes = (const char[]){ OPT_GPU, OPT_COPY_SIZE, OPT_SIZE, OPT_OFFSET, OPT_MAP, OPT_ALLOC, OPT_WRITES, OPT_READS,
				 OPT_WORD, OPT_ANSWER, OPT_BUDGET, OPT_CPU, OPT_THREADS, OPT_BACKEND, OPT_TIMEOUT, 0 },
}, pings = {
	.name = "pings", .what = "",
	.codes = (const char[]){ OPT_DATA, OPT_DATA_AT, OPT_PRODUCER, OPT_BLOCKS, OPT_BLOCK_THREADS, OPT_ROUNDS, 0 },
}, forms = {
	.name = "forms", .what = "What it does.", .method = "How.",
	.codes = (const char[]){ OPT_GPU, OPT_JSON, OPT_CSV, 0 },
};

static struct bench_opts parsed(const struct bench_tool *t, const char *a, const char *b)
{
	struct bench_opts o = { 0 };
	char *args[] = { (char *)"x", (char *)a, (char *)b, NULL };

	optind = 0;
	bench_parse(&o, t, b ? 3 : 2, args);
	return o;
}

struct words {
	const struct bench_tool *tool;
	const char *a, *b;
};

static void parse(const void *words)
{
	const struct words *w = words;

	parsed(w->tool, w->a, w->b);
}

static bool refused(const struct bench_tool *t, const char *a, const char *b)
{
	return ends(parse, &(struct words){ t, a, b }, BENCH_USAGE, "");
}

static void test_numbers(void)
{
	static const struct { const char *text; size_t want; } sizes[] = {
		{ "1", 1 }, { "4096", 4096 }, { "0x10", 16 }, { "010", 8 }, { "2k", 2048 }, { "2K", 2048 }, { "2KB", 2048 },
		{ "2kib", 2048 }, { "3M", 3 << 20 }, { "3MiB", 3 << 20 }, { "1G", 1 << 30 }, { "1024G", (size_t)1 << 40 },
	};
	static const char *const bad[] = { "", "K", "-1", "0", "1T", "1KBB", "1 K", "1025G", "2000000000000", "18446744073709551617", "-18446744073709551615",
					 "4x" };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		tap_ok(&tap, parsed(&every, "-s", sizes[i].text).size == sizes[i].want, "a size of %s", sizes[i].text);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		tap_ok(&tap, refused(&every, "-s", bad[i]), "no size: '%s'", bad[i]);
	tap_is(&tap, (long)parsed(&every, "-o", "0").offset, 0, "an offset may be 0");
	tap_ok(&tap, parsed(&every, "-d", "1023").gpu == 1023 && refused(&every, "-d", "1024") && refused(&every, "-d", "-1") &&
	       refused(&every, "-d", "1z") && refused(&every, "-d", ""), "a GPU is a number from 0 to 1023");
	tap_ok(&tap, parsed(&every, "--threads", "256").threads == 256 && refused(&every, "--threads", "257") &&
	       refused(&every, "--threads", "0"), "threads are 1 to 256");
	tap_ok(&tap, parsed(&every, "--budget", "600000").budget_ms == 600000 && refused(&every, "--budget", "600001") &&
	       refused(&every, "--budget", "0"), "a budget is 1 to 600000");
	tap_ok(&tap, parsed(&every, "-u", "0").timeout_s == 0 && parsed(&every, "-u", "86400").timeout_s == 86400 &&
	       refused(&every, "-u", "86401"), "a timeout is 0 to 86400");
	tap_ok(&tap, parsed(&every, "-w", "7").writes == 7 && parsed(&every, "-r", "8").reads == 8 && refused(&every, "-w", "0") &&
	       refused(&every, "-r", "0"), "-w and -r are at least 1");
	tap_ok(&tap, parsed(&pings, "-s", "1G").data == 1 << 30 && parsed(&pings, "-s", "0").data == 0 && refused(&pings, "-s", "6") &&
	       refused(&pings, "-s", "1025M"), "data is words, up to 1 GiB");
	tap_ok(&tap, parsed(&pings, "-m", "1").gpu_produces && !parsed(&pings, "-m", "0").gpu_produces && refused(&pings, "-m", "2"),
	       "the GPU produces with -m 1");
	tap_ok(&tap, parsed(&pings, "-B", "8192").blocks == 8192 && refused(&pings, "-B", "8193") && refused(&pings, "-B", "0") &&
	       parsed(&pings, "-T", "1024").block_threads == 1024 && refused(&pings, "-T", "1025") && refused(&pings, "-T", "0"),
	       "blocks and threads have their limits");
}

static void test_words(void)
{
	static const struct { const char *text; int flag; } maps[] = {
		{ "default", GDR_MAP_FLAG_DEFAULT }, { "wc", GDR_MAP_FLAG_REQ_WC_MAPPING }, { "cache", GDR_MAP_FLAG_REQ_CACHE_MAPPING },
		{ "cached", GDR_MAP_FLAG_REQ_CACHE_MAPPING }, { "caching", GDR_MAP_FLAG_REQ_CACHE_MAPPING },
		{ "device", GDR_MAP_FLAG_REQ_DEVICE_MAPPING }, { "WC", GDR_MAP_FLAG_REQ_WC_MAPPING },
	};
	static const struct { const char *text; enum bench_mem mem; } kinds[] = {
		{ "ext", BENCH_MEM_EXT }, { "cuMemAlloc", BENCH_MEM_PLAIN }, { "cuMemCreate", BENCH_MEM_VMM },
	};

	for (size_t i = 0; i < sizeof(maps) / sizeof(maps[0]); i++)
		tap_ok(&tap, parsed(&every, "-M", maps[i].text).map_flags == maps[i].flag, "the mapping %s", maps[i].text);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		tap_ok(&tap, parsed(&every, "-a", kinds[i].text).mem == kinds[i].mem && parsed(&every, "-A", kinds[i].text).mem == kinds[i].mem,
		       "memory of %s", kinds[i].text);
	tap_ok(&tap, parsed(&every, "-G", "hostmem").word == BENCH_IN_HOST && parsed(&every, "-G", "gpumem").word == BENCH_IN_GPU &&
	       refused(&every, "-G", "both"), "a word is in one place");
	tap_ok(&tap, parsed(&pings, "-D", "hostmem").data_at == BENCH_IN_HOST && parsed(&pings, "-D", "gpumem").data_at == BENCH_IN_GPU &&
	       refused(&pings, "-D", "both"), "data is in one place");
	tap_ok(&tap, refused(&every, "-M", "none") && refused(&every, "-a", "malloc") && refused(&every, "--backend", "none"),
	       "other words are refused");
}

/* What is wrong is said in full: the option, what it takes, and what was given. */
static void test_messages(void)
{
	static const struct { const struct bench_tool *tool; const char *a, *b, *said; } cases[] = {
		{ &every, "-d", "1024", "every: --device takes a number from 0 to 1023, not '1024'; see 'every --help'" },
		{ &every, "--budget", "x", "every: --budget takes a number from 1 to 600000, not 'x';" },
		{ &every, "-s", "0", "every: --size takes a size of 1 bytes to 1024G, as 4096 or 64K, not '0';" },
		{ &every, "-o", "1Z", "every: --offset takes a size of 0 bytes to 1024G, as 4096 or 64K, not '1Z';" },
		{ &every, "-M", "wcx", "every: --mapping does not know 'wcx': default, wc, cached or device (default);" },
		{ &every, "-d", NULL, "every: -d needs a value;" },
		{ &every, "--device", NULL, "every: --device needs a value;" },
		{ &every, "-Z", NULL, "every: unknown option -Z;" },
		{ &every, "-t", "1", "every: unknown option -t;" },
		{ &every, "--none", NULL, "every: unknown option, or one that takes no value: --none;" },
		{ &every, "--help=1", NULL, "every: unknown option, or one that takes no value: --help=1;" },
		{ &every, "more", NULL, "every: 'more' is no option;" },
		{ &pings, "-s", "6", "pings: --data takes a multiple of 4 up to 1G, not '6';" },
		{ &forms, "--json", "--csv", "forms: --json and --csv are two forms of one output: choose one;" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		tap_ok(&tap, ends(parse, &(struct words){ cases[i].tool, cases[i].a, cases[i].b }, BENCH_USAGE, cases[i].said),
		       "%s %s: it says: %s", cases[i].a, cases[i].b ? cases[i].b : "", cases[i].said);
}

static void help_of(const void *tool)
{
	dup2(STDERR_FILENO, STDOUT_FILENO);
	parsed(tool, "-h", NULL);
}

static void test_help(void)
{
	tap_ok(&tap, ends(help_of, &forms, BENCH_OK,
			  "Usage: forms [options]\n\nWhat it does.\n\nOptions:\n"
			  "  -h, --help                 print this text\n"
			  "  -V, --version              print the library's release, commit, Go and backends\n"
			  "  -d, --device GPU           CUDA's number of the GPU (0)\n"
			  "      --json                 print one JSON object\n"
			  "      --csv                  print comma-separated values with a header\n"
			  "\nMethod:\nHow.\n\nExit status: 0 when all went well and all data was right, 1 on a failure,\n"
			  "2 for a bad argument, 77 when this machine cannot run it.\n"), "the help has a tool's own options, and no other");
	tap_ok(&tap, !ends(help_of, &pings, BENCH_OK, "Method:"), "and a method where there is one");
}

static int unaligned_alloc(cu_ptr *p, size_t size)
{
	*p = 0x7f0000010200;
	return size < 2 * GPU_PAGE_SIZE - 1 ? CU_INVALID_VALUE : CU_OK;
}

/* cuMemAlloc need not give a page's begin. */
static void test_page(void)
{
	struct bench_opts o = { .mem = BENCH_MEM_PLAIN };
	struct bench_gpu b = { .tool = &every, .opts = &o, .cu = { .mem_alloc = unaligned_alloc } };
	struct bench_buf buf;

	bench_buf_alloc(&b, &buf, 1);
	tap_ok(&tap, buf.addr == 0x7f0000020000 && buf.size == GPU_PAGE_SIZE, "memory begins on a page: %#lx", buf.addr);
}

int main(void)
{
	test_copylat();
	test_copylat_cold();
	test_copylat_empty();
	test_progress();
	test_ends();
	test_steps();
	test_numbers();
	test_words();
	test_messages();
	test_help();
	test_page();
	return tap_done(&tap);
}
