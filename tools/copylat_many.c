/* SPDX-License-Identifier: MIT */
/*
 * copylat_many.c - what many copies at once take, each at an address of its own.
 */
#include "copylat_modes.h"

#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Other libgdrapi libraries lack the extensions: there, these are NULL. */
extern __typeof__(gdr_copy_to_mapping_v) gdr_copy_to_mapping_v __attribute__((weak));
extern __typeof__(gdr_copy_from_mapping_v) gdr_copy_from_mapping_v __attribute__((weak));

#define MANY_READS 16
#define MANY_WRITES 64
/* An odd number of lines: else all are in one set of the CPU's caches. */
#define APART (67 * 64u)

static const size_t many_sizes[] = { 4, 8, 16, 32, 64, 128, 256, 512, 1024, 0 };

struct many {
	bench_run *one;
	size_t count;
	struct bench_op ops[MANY_WRITES];
	gdr_piece_t pieces[MANY_WRITES];
};

static void many_one_by_one(struct bench_op *op, size_t count)
{
	struct many *m = (struct many *)op->user;

	for (; count; count--)
		for (size_t i = 0; i < m->count; i++)
			m->one(&m->ops[i], 1);
}

static void many_write(struct bench_op *op, size_t count)
{
	const struct many *m = op->user;

	for (; count; count--)
		op->rc |= gdr_copy_to_mapping_v(m->pieces, m->count);
}

static void many_read(struct bench_op *op, size_t count)
{
	const struct many *m = op->user;

	for (; count; count--)
		op->rc |= gdr_copy_from_mapping_v(m->pieces, m->count);
}

/* What the link takes of such writes: one store each, and one fence for all. */
static void many_plain_8(struct bench_op *op, size_t count)
{
	const struct many *m = op->user;

	for (; count; count--) {
		for (size_t i = 0; i < m->count; i++)
			*(volatile uint64_t *)m->ops[i].dev = *(const uint64_t *)m->ops[i].host;
		bench_store_fence();
	}
}

#if defined(__x86_64__)
static __attribute__((target("movdiri"))) void many_movdiri_8(struct bench_op *op, size_t count)
{
	const struct many *m = op->user;

	for (; count; count--) {
		for (size_t i = 0; i < m->count; i++)
			_directstoreu_u64(m->ops[i].dev, *(const uint64_t *)m->ops[i].host);
		bench_store_fence();
	}
}
#endif

static void lay_out(struct many *m, const struct copylat *c, bench_run *one, size_t count,
		    size_t size)
{
	m->one = one;
	m->count = count;
	for (size_t i = 0; i < count; i++) {
		m->ops[i] = c->base;
		m->ops[i].addr += i * APART;
		m->ops[i].dev = (uint8_t *)c->base.dev + i * APART;
		m->ops[i].host = (uint8_t *)c->base.host + i * APART;
		m->ops[i].size = size;
		m->pieces[i] = (gdr_piece_t){ c->base.mh, m->ops[i].dev, m->ops[i].host, size };
	}
}

/* Each piece by itself must be what the driver says. */
static void verify_many(const struct copylat *c, struct bench_cell *cell, bool read)
{
	static uint8_t want[MANY_WRITES][APART], got[MANY_WRITES][APART];
	static uint64_t seed = 77;
	const struct many *m = cell->arg.user;
	size_t all = m->count * APART;

	bench_fill(want, all, seed++);
	bench_fill(got, all, seed++);
	bench_gpu_put(c->gpu, c->base.addr, read ? want : got, all);
	memcpy(c->base.host, read ? got : want, all);
	cell->run(&cell->arg, 1);
	bench_rc(cell->arg.rc, cell->who);
	if (read)
		memcpy(got, c->base.host, all);
	else
		bench_gpu_get(c->gpu, got, c->base.addr, all);
	for (size_t i = 0; i < m->count; i++)
		if (memcmp(want[i], got[i], m->ops[i].size))
			bench_die("%s, piece %zu of %zu bytes, by %s: wrong bytes", cell->op, i,
				  m->ops[i].size, cell->who);
}

/* The competitors of one race. */
struct race {
	struct bench_cell cells[COPYLAT_CELLS];
	struct many plans[COPYLAT_CELLS];	/* of the cell of the same number */
	size_t n;
};

/* cell is what all have alike; one makes a single copy, for many_one_by_one. */
static void enter(struct race *r, const struct copylat *c, const struct bench_cell *cell,
		  const char *who, bench_run *run, bench_run *one)
{
	struct many *plan = &r->plans[r->n];
	struct bench_cell *own = &r->cells[r->n++];

	*own = *cell;
	own->who = who;
	own->run = run;
	own->arg.user = plan;
	lay_out(plan, c, one, cell->pieces, cell->arg.size);
}

static void race_many(const struct copylat *c, bool read, size_t size)
{
	static struct race r;
	const struct bench_opts *o = c->gpu->opts;
	struct bench_cell cell = {
		.op = read ? "16 reads" : "64 writes", .pace = BENCH_BACK_TO_BACK,
		.arg = c->base, .max = read ? o->reads : o->writes,
		.pieces = read ? MANY_READS : MANY_WRITES,
	};

	progress("%s of %zu bytes", cell.op, size);
	cell.arg.size = size;
	r.n = 0;
	if (gdr_copy_to_mapping_v && gdr_copy_from_mapping_v)
		enter(&r, c, &cell, "gdrcopy_v", read ? many_read : many_write, NULL);
	enter(&r, c, &cell, "gdrcopy", many_one_by_one, read ? bench_gdr_read : bench_gdr_write);
	for (const struct bench_loop *l = bench_loops; l->name; l++)
		if (l->read == read && copylat_allowed(c->map, l, &cell.arg) &&
		    strcmp(l->name, "memcpy"))
			enter(&r, c, &cell, l->name, many_one_by_one, bench_loop_of(l, size));
	if (!read && size == 8) {
		enter(&r, c, &cell, "plain, 1 fence", many_plain_8, NULL);
#if defined(__x86_64__)
		if (bench_has_movdiri())
			enter(&r, c, &cell, "movdiri, 1 f", many_movdiri_8, NULL);
#endif
	}
	for (size_t i = 0; i < r.n; i++)
		verify_many(c, &r.cells[i], read);
	bench_race(r.cells, r.n, o->budget_ms, c->result);
	for (size_t i = 0; i < r.n; i++)
		r.cells[i].pace = BENCH_ALONE;
	if (!read)
		bench_race(r.cells, r.n, o->budget_ms, c->result);
	for (size_t i = 0; i < r.n; i++)
		verify_many(c, &r.cells[i], read);
}

static size_t steps_many(const struct bench_opts *o)
{
	(void)o;
	return 2 * copylat_count(many_sizes, SIZE_MAX);
}

static void run_many(const struct copylat *c)
{
	for (const size_t *size = many_sizes; *size; size++) {
		race_many(c, false, *size);
		race_many(c, true, *size);
	}
}

static void print_many(const struct bench_result *r, const struct bench_opts *o)
{
	static const char *const reads[] = {
		"gdrcopy_v", "gdrcopy", "plain", "sse4.1", "avx2", "avx512", "plain loose",
		"sse4.1 loose", "avx2 loose", NULL
	};
	static const char *const writes[] = {
		"gdrcopy_v", "gdrcopy", "plain", "sse2", "avx2", "avx512", "movdir64b", "plain, 1 fence",
		"movdiri, 1 f", NULL
	};

	(void)o;
	bench_facts(r, stdout);
	puts("\n16 reads at 16 addresses, all of them, P50; x: times as long as gdrcopy_v");
	copylat_ratios(r, "16 reads", "back-to-back", reads, many_sizes);
	puts("\n64 writes at 64 addresses, all of them, back to back, P50");
	copylat_ratios(r, "64 writes", "back-to-back", writes, many_sizes);
	puts("\n64 writes at 64 addresses, all of them, alone, P50");
	copylat_ratios(r, "64 writes", "alone", writes, many_sizes);
}

const struct copylat_mode copylat_many = {
	.run = run_many, .print = print_many, .room = MANY_WRITES * APART, .steps = steps_many,
	.name = "--mode many", .unused = (const char[]){ OPT_SIZE, OPT_EVICTED, 0 },
};
