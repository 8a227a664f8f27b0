/* SPDX-License-Identifier: MIT */
/*
 * bench/opt.h - the command line of the benchmarks.
 */
#ifndef BENCH_OPT_H
#define BENCH_OPT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* How a benchmark ends. */
enum {
	BENCH_OK = 0,
	BENCH_FAILED = 1,
	BENCH_USAGE = 2,	/* a bad option */
	BENCH_SKIPPED = 77	/* this machine cannot run it; stderr says why */
};

enum bench_mem {
	BENCH_MEM_EXT,		/* gdr_mem_alloc */
	BENCH_MEM_PLAIN,	/* cuMemAlloc */
	BENCH_MEM_VMM		/* cuMemCreate, exportable by file descriptor */
};

/* What gdrcopy_copylat measures. */
enum bench_mode { BENCH_MODE_EACH, BENCH_MODE_USED };

/* Where a word lies. */
enum bench_where { BENCH_IN_BOTH, BENCH_IN_HOST, BENCH_IN_GPU };

#define BENCH_MAX_DATA ((size_t)1 << 30)
#define BENCH_MAX_BLOCKS 8192

/*
 * One code an option. A tool names those that it takes in a string; two tools
 * may so give one letter two meanings.
 */
enum {
	OPT_HELP = 'h',
	OPT_VERSION = 'v',
	OPT_GPU = 'd',
	OPT_MODE = 'm',
	OPT_SIZE = 's',
	OPT_COPY_SIZE = 'c',
	OPT_CUMEMCPY = 'C',
	OPT_EVICTED = 'e',
	OPT_RANGE = 'l',
	OPT_WARM_UPS = 'W',
	OPT_OFFSET = 'o',
	OPT_MAP = 'M',
	OPT_ALLOC = 'a',
	OPT_WRITES = 'w',
	OPT_READS = 'r',
	OPT_ITERS = 'n',
	OPT_ROUNDS = 't',
	OPT_TIMEOUT = 'u',
	OPT_ANSWER = 'A',
	OPT_WORD = 'G',
	OPT_DATA = 'z',
	OPT_PRODUCER = 'P',
	OPT_BLOCKS = 'Q',
	OPT_BLOCK_THREADS = 'X',
	OPT_DATA_AT = 'D',
	OPT_THREADS = 'T',
	OPT_BUDGET = 'b',
	OPT_CPU = 'p',
	OPT_JSON = 'J',
	OPT_CSV = 'V',
	OPT_COMPAT = 'N',
	OPT_BACKEND = 'B'
};

/* Sizes are bytes. A tool sets its defaults, bench_parse changes what is given. */
struct bench_opts {
	int gpu;
	size_t size;
	size_t copy_size;	/* 0: not given */
	size_t offset;
	int map_flags;		/* gdr_map_flags_t */
	enum bench_mem mem;
	enum bench_where answer, word, data_at;
	size_t data;		/* that go with the word */
	bool gpu_produces;	/* the data; else the CPU does */
	unsigned int blocks, block_threads;	/* of the GPU kernel, where there is data */
	enum bench_mode mode;
	long warm_ups;
	long writes, reads;	/* the most that are timed */
	long iters;
	long rounds;
	long timeout_s;
	long budget_ms;		/* the most time for one figure */
	int threads;
	int cpu;		/* -1: any */
	const char *backend;	/* NULL: gdr_open chooses */
	bool given[CHAR_MAX + 1];	/* by OPT_ code */
};

struct bench_tool {
	const char *name;
	const char *codes;	/* the options that it takes, by OPT_ code */
	const char *what;	/* what it does, for --help */
	const char *method;	/* how it measures, for --help; may be NULL */
};

/* Reads the command line. On --help prints it and exits 0; on a bad option
 * says what is wrong on stderr and exits BENCH_USAGE.
 */
void bench_parse(struct bench_opts *o, const struct bench_tool *tool, int argc,
		 char **argv);

/*
 * Ends like bench_usage if one of the options of codes, a string, was given: it has no
 * effect with what else was asked for, which with says.
 */
void bench_no_effect(const struct bench_opts *o, const struct bench_tool *tool,
		     const char *codes, const char *with);

/* Says what is wrong with the options, on stderr, and exits BENCH_USAGE. */
__attribute__((format(printf, 2, 3), noreturn))
void bench_usage(const struct bench_tool *tool, const char *fmt, ...);

/* Says what failed, on stderr, and exits BENCH_FAILED. */
__attribute__((format(printf, 1, 2), noreturn))
void bench_die(const char *fmt, ...);

/* Ends the program like bench_die if stdout did not take all. */
void bench_flush_stdout(const char *tool);

/* Says why this machine cannot run it, on stderr, and exits BENCH_SKIPPED. */
__attribute__((format(printf, 1, 2), noreturn))
void bench_skip(const char *fmt, ...);

/* The option's word for a kind of memory. */
const char *bench_mem_name(enum bench_mem mem);

#endif
