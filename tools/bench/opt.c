/* SPDX-License-Identifier: MIT */
#include "opt.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "gdrapi.h"
#include "progress.h"
#include "version.h"

struct option_row {
	int code;		/* OPT_* */
	char letter;		/* 0: it has only the long name */
	const char *name;
	const char *arg;	/* NULL: it takes none */
	const char *help;
};

static const struct option_row rows[] = {
	{ OPT_HELP, 'h', "help", NULL, "print this text" },
	{ OPT_VERSION, 'V', "version", NULL, "print the library's release, commit, Go and backends" },
	{ OPT_GPU, 'd', "device", "GPU", "CUDA's number of the GPU (0)" },
	{ OPT_MODE, 'm', "mode", "MODE",
	  "each: copies one by one; used: reads whose bytes are used before the next" },
	{ OPT_SIZE, 's', "size", "SIZE", "bytes of the buffer; K, M and G are powers of 1024" },
	{ OPT_COPY_SIZE, 'c', "copy-size", "SIZE", "bytes of a copy (all of the buffer past -o)" },
	{ OPT_CUMEMCPY, 'c', "cumemcpy", NULL, "time cuMemcpy, too; it always is" },
	{ OPT_EVICTED, 'C', "cold-cache", NULL,
	  "the GPU writes the memory before each copy, so that the CPU's caches lose\n"
	  "                             it; for cached mappings" },
	{ OPT_RANGE, 'l', "range", NULL,
	  "copies of 1 byte, 2, 4 and so on, up to -c, or up to all of the buffer past -o" },
	{ OPT_OFFSET, 'o', "offset", "SIZE", "where in the buffer the copies begin (0)" },
	{ OPT_MAP, 'M', "mapping", "TYPE", "default, wc, cached or device (default)" },
	{ OPT_ALLOC, 'a', "alloc", "KIND",
	  "ext (gdr_mem_alloc), cumemalloc or cumemcreate (ext); -A is the same" },
	{ OPT_WRITES, 'w', "writes", "N", "time at most N writes" },
	{ OPT_READS, 'r', "reads", "N", "time at most N reads" },
	{ OPT_ITERS, 'n', "iterations", "N", "time at most N of each call" },
	{ OPT_WARM_UPS, 'w', "warm-ups", "N", "make N of each call first, and do not count them (10)" },
	{ OPT_ROUNDS, 't', "rounds", "N", "make N round trips" },
	{ OPT_TIMEOUT, 'u', "timeout", "SECONDS", "give up when an answer takes so long; 0: never" },
	{ OPT_WORD, 'G', "word", "WHERE", "the CPU's word lies in hostmem or gpumem (gpumem)" },
	{ OPT_ANSWER, 'C', "answer", "WHERE", "the answer lies in hostmem, gpumem or both (both)" },
	{ OPT_DATA, 's', "data", "SIZE", "bytes of data that go with the word, a multiple of 4 (0)" },
	{ OPT_PRODUCER, 'm', "producer", "N", "who writes the data: 0, the CPU, or 1, the GPU (0)" },
	{ OPT_DATA_AT, 'D', "data-at", "WHERE", "the data lies in hostmem or gpumem (gpumem)" },
	{ OPT_BLOCKS, 'B', "blocks", "N", "blocks of the GPU kernel (8; one without data)" },
	{ OPT_BLOCK_THREADS, 'T', "block-threads", "N", "threads of a block (1024; one without data)" },
	{ OPT_THREADS, 0, "threads", "N", "each copy is split among N threads (1)" },
	{ OPT_BUDGET, 0, "budget", "MS", "spend at most MS milliseconds on one figure" },
	{ OPT_CPU, 0, "cpu", "N", "run the measuring thread on CPU N" },
	{ OPT_JSON, 0, "json", NULL, "print one JSON object" },
	{ OPT_CSV, 0, "csv", NULL, "print comma-separated values with a header" },
	{ OPT_COMPAT, 0, "compat", NULL, "print the lines of NVIDIA's program of this name" },
	{ OPT_BACKEND, 0, "backend", "NAME",
	  "gdrdrv, dmabuf or rm: sets GDRCOPY_BACKEND" },
};

#define NROWS (sizeof(rows) / sizeof(rows[0]))

static bool takes(const struct bench_tool *tool, const struct option_row *row)
{
	return row->code == OPT_HELP || row->code == OPT_VERSION || strchr(tool->codes, row->code);
}

static void help(const struct bench_tool *tool)
{
	size_t i;

	printf("Usage: %s [options]\n\n%s\n\nOptions:\n", tool->name, tool->what);
	for (i = 0; i < NROWS; i++) {
		const struct option_row *r = &rows[i];
		char left[64], letter[8] = "   ";

		if (!takes(tool, r))
			continue;
		if (r->letter)
			snprintf(letter, sizeof(letter), "-%c,", r->letter);
		snprintf(left, sizeof(left), "%s --%s%s%s", letter, r->name,
			 r->arg ? " " : "", r->arg ? r->arg : "");
		printf("  %-26s %s\n", left, r->help);
	}
	if (tool->method)
		printf("\nMethod:\n%s\n", tool->method);
	printf("\nExit status: 0 when all went well and all data was right, 1 on a failure,\n"
	       "2 for a bad argument, 77 when this machine cannot run it.\n");
	bench_flush_stdout(tool->name);
	exit(BENCH_OK);
}

static long number(const struct bench_tool *tool, const struct option_row *row,
		   const char *text, long min, long max)
{
	char *end;
	long v;

	errno = 0;
	v = strtol(text, &end, 0);
	if (errno || end == text || *end || v < min || v > max)
		bench_usage(tool, "--%s takes a number from %ld to %ld, not '%s'",
			    row->name, min, max, text);
	return v;
}

/* 4096, 64K, 64KiB, 1M, 2G. */
static size_t size(const struct bench_tool *tool, const struct option_row *row,
		   const char *text, size_t min)
{
	static const char units[] = "KMG";
	unsigned long long v;
	const char *unit;
	int shift = 0;
	char *end;

	errno = 0;
	v = strtoull(text, &end, 0);
	if (errno || end == text || strchr(text, '-'))
		goto bad;
	unit = *end ? strchr(units, *end == 'k' ? 'K' : *end) : NULL;
	if (unit) {
		shift = 10 * (int)(unit - units + 1);
		end++;
		if (!strcasecmp(end, "b") || !strcasecmp(end, "ib"))
			end += strlen(end);
	}
	if (*end || v > ((size_t)1 << 40) >> shift || (v << shift) < min)
		goto bad;
	return (size_t)v << shift;
bad:
	bench_usage(tool, "--%s takes a size of %zu bytes to 1024G, as 4096 or 64K, not '%s'",
		    row->name, min, text);
}

struct word {
	const char *text;
	int value;
};

/* words ends with a NULL text. */
static int word(const struct bench_tool *tool, const struct option_row *row,
		const char *text, const struct word *words)
{
	for (; words->text; words++)
		if (!strcasecmp(text, words->text))
			return words->value;
	bench_usage(tool, "--%s does not know '%s': %s", row->name, text, row->help);
}

static const struct word mappings[] = {
	{ "default", GDR_MAP_FLAG_DEFAULT },
	{ "wc", GDR_MAP_FLAG_REQ_WC_MAPPING },
	{ "cached", GDR_MAP_FLAG_REQ_CACHE_MAPPING },
	{ "cache", GDR_MAP_FLAG_REQ_CACHE_MAPPING },
	{ "caching", GDR_MAP_FLAG_REQ_CACHE_MAPPING },
	{ "device", GDR_MAP_FLAG_REQ_DEVICE_MAPPING },
	{ NULL, 0 }
};

static const struct word allocs[] = {
	{ "ext", BENCH_MEM_EXT },
	{ "cumemalloc", BENCH_MEM_PLAIN },
	{ "cumemcreate", BENCH_MEM_VMM },
	{ NULL, 0 }
};

static const struct word modes[] = {
	{ "each", BENCH_MODE_EACH },
	{ "used", BENCH_MODE_USED },
	{ NULL, 0 }
};

static const struct word answers[] = {
	{ "both", BENCH_IN_BOTH },
	{ "hostmem", BENCH_IN_HOST },
	{ "gpumem", BENCH_IN_GPU },
	{ NULL, 0 }
};

static const struct word backends[] = {
	{ "gdrdrv", 0 }, { "dmabuf", 0 }, { "rm", 0 }, { NULL, 0 }
};

const char *bench_mem_name(enum bench_mem mem)
{
	return allocs[mem].text;
}

static void set(struct bench_opts *o, const struct bench_tool *tool,
		const struct option_row *r, const char *arg)
{
	o->given[r->code] = true;
	switch (r->code) {
	case OPT_HELP:
		help(tool);
		break;
	case OPT_VERSION:
		print_version(tool->name);
		bench_flush_stdout(tool->name);
		exit(BENCH_OK);
	case OPT_GPU:
		o->gpu = (int)number(tool, r, arg, 0, 1023);
		break;
	case OPT_SIZE:
		o->size = size(tool, r, arg, 1);
		break;
	case OPT_COPY_SIZE:
		o->copy_size = size(tool, r, arg, 1);
		break;
	case OPT_WARM_UPS:
		o->warm_ups = number(tool, r, arg, 0, 1000000);
		break;
	case OPT_OFFSET:
		o->offset = size(tool, r, arg, 0);
		break;
	case OPT_MAP:
		o->map_flags = word(tool, r, arg, mappings);
		break;
	case OPT_ALLOC:
		o->mem = (enum bench_mem)word(tool, r, arg, allocs);
		break;
	case OPT_MODE:
		o->mode = (enum bench_mode)word(tool, r, arg, modes);
		break;
	case OPT_WRITES:
		o->writes = number(tool, r, arg, 1, 100000000);
		break;
	case OPT_READS:
		o->reads = number(tool, r, arg, 1, 100000000);
		break;
	case OPT_ITERS:
		o->iters = number(tool, r, arg, 1, 100000000);
		break;
	case OPT_ROUNDS:
		o->rounds = number(tool, r, arg, 1, 1000000000);
		break;
	case OPT_TIMEOUT:
		o->timeout_s = number(tool, r, arg, 0, 86400);
		break;
	case OPT_ANSWER:
		o->answer = (enum bench_where)word(tool, r, arg, answers);
		break;
	case OPT_WORD:
		o->word = (enum bench_where)word(tool, r, arg, answers + 1);
		break;
	case OPT_DATA:
		o->data = size(tool, r, arg, 0);
		if (o->data % sizeof(uint32_t) || o->data > BENCH_MAX_DATA)
			bench_usage(tool, "--data takes a multiple of 4 up to 1G, not '%s'", arg);
		break;
	case OPT_PRODUCER:
		o->gpu_produces = number(tool, r, arg, 0, 1);
		break;
	case OPT_DATA_AT:
		o->data_at = (enum bench_where)word(tool, r, arg, answers + 1);
		break;
	case OPT_BLOCKS:
		o->blocks = (unsigned int)number(tool, r, arg, 1, BENCH_MAX_BLOCKS);
		break;
	case OPT_BLOCK_THREADS:
		o->block_threads = (unsigned int)number(tool, r, arg, 1, 1024);
		break;
	case OPT_THREADS:
		o->threads = (int)number(tool, r, arg, 1, 256);
		break;
	case OPT_BUDGET:
		o->budget_ms = number(tool, r, arg, 1, 600000);
		break;
	case OPT_CPU:
		o->cpu = (int)number(tool, r, arg, 0, 1023);
		break;
	case OPT_BACKEND:
		word(tool, r, arg, backends);
		o->backend = arg;
		break;
	}
}

static const struct option_row *row_of(int code)
{
	size_t i;

	for (i = 0; rows[i].code != code; i++)
		;
	return &rows[i];
}

void bench_no_effect(const struct bench_opts *o, const struct bench_tool *tool,
		     const char *codes, const char *with)
{
	for (; *codes; codes++)
		if (o->given[(int)*codes])
			bench_usage(tool, "--%s has no effect with %s: leave one of them out",
				    row_of(*codes)->name, with);
}

/*
 * getopt gives the letter of a short option and this code of a long one, so
 * that the two never meet.
 */
#define LONG_BASE 0x1000

void bench_parse(struct bench_opts *o, const struct bench_tool *tool, int argc,
		 char **argv)
{
	struct option longs[NROWS + 1] = { 0 };
	char shorts[2 * NROWS + 4] = ":";
	int code_of_letter[CHAR_MAX + 1] = { 0 };
	size_t i, nl = 0, ns = 1;
	int c;

	for (i = 0; i < NROWS; i++) {
		const struct option_row *r = &rows[i];

		if (!takes(tool, r))
			continue;
		longs[nl++] = (struct option){ r->name, r->arg ? required_argument : no_argument,
					       NULL, LONG_BASE + r->code };
		if (!r->letter)
			continue;
		code_of_letter[(int)r->letter] = r->code;
		shorts[ns++] = r->letter;
		if (r->arg)
			shorts[ns++] = ':';
		if (r->code == OPT_ALLOC) {
			code_of_letter['A'] = r->code;
			shorts[ns++] = 'A';
			shorts[ns++] = ':';
		}
	}
	opterr = 0;
	while ((c = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
		if (c == ':')
			bench_usage(tool, "%s needs a value", argv[optind - 1]);
		if (c == '?' && optopt && optopt < LONG_BASE)
			bench_usage(tool, "unknown option -%c", optopt);
		if (c == '?')
			bench_usage(tool, "unknown option, or one that takes no value: %s",
				    argv[optind - 1]);
		set(o, tool, row_of(c >= LONG_BASE ? c - LONG_BASE : code_of_letter[c]), optarg);
	}
	if (optind < argc)
		bench_usage(tool, "'%s' is no option", argv[optind]);
	if (o->given[OPT_JSON] + o->given[OPT_CSV] + o->given[OPT_COMPAT] > 1)
		bench_usage(tool, "--json, --csv and --compat are forms of one output: choose one");
}
