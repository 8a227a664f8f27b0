/* SPDX-License-Identifier: MIT */
/*
 * bench/out.h - what a benchmark found, and its JSON and CSV forms.
 *
 * The JSON is one object:
 *	tool, date, and the machine's facts, each a string
 *	results: an array of objects, one a figure: op, who, mode, size (bytes),
 *		threads, batch (operations a sample), samples, p0_ns, p50_ns and, where
 *		bytes move, gb_per_s (1e9 bytes a second, from p50_ns)
 */
#ifndef BENCH_OUT_H
#define BENCH_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "opt.h"
#include "progress.h"

/*
 * One figure. The texts live as long as the program. size 0: no bytes move,
 * or they do not matter.
 */
struct bench_row {
	const char *op;		/* what is done: write, read, pin, ... */
	const char *who;	/* by whom: gdrcopy, cuMemcpy, a plain loop */
	const char *mode;	/* how: alone, back-to-back, cold, ... */
	size_t size;
	int threads;
	unsigned batch;
	size_t samples;
	double p0, p50;		/* ns of one operation */
	bool moves;		/* size bytes are moved: a bandwidth makes sense */
};

struct bench_fact {
	const char *key;
	char value[160];
};

/* Rows and facts are in the order that they were added in. */
struct bench_result {
	const char *tool;
	struct bench_row *rows;
	size_t nrows, cap;
	struct bench_fact facts[20];
	size_t nfacts;
	const struct bench_gpu *gpu;	/* what bench_gpu_facts was given */
	const struct bench_map *map;
};

/* Adds the date and the facts about this machine that need no GPU. */
void bench_result_init(struct bench_result *r, const char *tool);
void bench_result_free(struct bench_result *r);
__attribute__((format(printf, 3, 4)))
void bench_fact(struct bench_result *r, const char *key, const char *fmt, ...);
void bench_row(struct bench_result *r, const struct bench_row *row);

/* The row of these, or NULL. A NULL mode: any. */
const struct bench_row *bench_find(const struct bench_result *r, const char *op,
				   const char *who, const char *mode, size_t size);

void bench_json(const struct bench_result *r, FILE *f);
void bench_csv(const struct bench_result *r, FILE *f);
/* The lines of NVIDIA's program of the same name, on stdout. */
void bench_compat(const struct bench_result *r, const struct bench_opts *o);

/*
 * Prints r on stdout in the form that the options ask for; text prints the
 * tool's own. Ends the program if stdout does not take it.
 */
void bench_print(const struct bench_result *r, const struct bench_opts *o,
		 void (*text)(const struct bench_result *, const struct bench_opts *));

/* The facts as lines that begin with "# ". */
void bench_facts(const struct bench_result *r, FILE *f);

/* 1e9 bytes a second. */
double bench_gbps(double bytes, double ns);

/* 4096 as "4 KiB"; buf is returned. */
const char *bench_size_text(char *buf, size_t len, size_t size);

/* 1234.5 ns as "1.23 us", three digits; buf is returned. */
const char *bench_ns_text(char *buf, size_t len, double ns);

/* Writes s as a JSON string. */
void bench_json_string(FILE *f, const char *s);

#endif
