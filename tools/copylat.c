/* SPDX-License-Identifier: MIT */
/*
 * gdrcopy_copylat - how long copies to and from GPU memory take, by size,
 * beside the driver's copies and plain loops on the same mapping.
 */
#include <stdio.h>
#include <string.h>

#include "bench/race.h"

#define MAX_SIZE ((size_t)1 << 40)
#define ALONE_MAX 65536u	/* above, what came before no longer matters */
#define SLOW_READ_MAX 65536u	/* libc may read such memory byte by byte */
#define CELLS 24	/* the most ways of one size */

static const struct bench_tool tool = {
	.name = "gdrcopy_copylat",
	.codes = (const char[]){ OPT_GPU, OPT_MODE, OPT_SIZE, OPT_OFFSET, OPT_MAP, OPT_ALLOC, OPT_CUMEMCPY, OPT_EVICTED,
				 OPT_WRITES, OPT_READS, OPT_BUDGET, OPT_CPU, OPT_JSON, OPT_CSV, OPT_COMPAT,
				 OPT_BACKEND, 0 },
	.what = "Times writes to and reads from GPU memory through a mapping, for sizes from\n"
		"1 byte to -s (16 MiB), beside cuMemcpy and plain copy loops in the same run.",
	.method = BENCH_METHOD "\n"
		"  The plain loops: 'plain' is one to three stores or loads of up to 8 bytes.\n"
		"  'memcpy' is libc's. 'sse2', 'avx2' and 'avx512' are non-temporal stores.\n"
		"  'movdir64b' is direct stores of 64 bytes. 'sse4.1', 'avx2' and 'avx512' are\n"
		"  streaming loads. Writes end with a store fence.\n"
		"  Writes of more than 64 KiB are timed back-to-back only. Reads always are.\n"
		"  libc's memcpy reads 64 KiB at most. cuMemcpy uses pageable memory of the host.",
};

/* base begins at the offset that the options say, and with host memory. */
struct copylat {
	struct bench_gpu *gpu;
	const struct bench_map *map;
	struct bench_op base;	/* no size yet */
	struct bench_result *result;
};

/* The cells of one size. */
struct heat {
	struct bench_cell cells[CELLS];
	size_t n;
};

static void add(struct heat *h, const struct bench_op *op, const char *name,
		const char *who, enum bench_pace pace, bench_run *run, long max)
{
	struct bench_cell *c = &h->cells[h->n++];

	*c = (struct bench_cell){
		.op = name, .who = who, .pace = pace, .run = run, .arg = *op, .max = max,
	};
}

/* The one pace that was asked for, or back to back. */
static enum bench_pace pace_of(const struct bench_opts *o)
{
	return o->given[OPT_EVICTED] ? BENCH_EVICTED : BENCH_BACK_TO_BACK;
}

static void add_write(struct heat *h, const struct bench_op *op, const char *who,
		      bench_run *run, const struct bench_opts *o)
{
	if (pace_of(o) == BENCH_BACK_TO_BACK && op->size <= ALONE_MAX)
		add(h, op, "write", who, BENCH_ALONE, run, o->writes);
	add(h, op, "write", who, pace_of(o), run, o->writes);
}

static void add_read(struct heat *h, const struct bench_op *op, const char *who,
		     bench_run *run, const struct bench_opts *o)
{
	add(h, op, "read", who, pace_of(o), run, o->reads);
}

/* Device mappings of Arm allow neither unaligned nor wide accesses. */
static bool can_do(const struct bench_map *m, const struct bench_loop *l,
		   const struct bench_op *op)
{
	if (m->info.mapping_type == GDR_MAPPING_TYPE_DEVICE && strncmp(l->name, "plain", 5))
		return false;
	return (uintptr_t)op->dev % 64 == 0 && l->usable() && bench_loop_of(l, op->size);
}

static bool allowed(const struct bench_map *m, const struct bench_loop *l,
		    const struct bench_op *op)
{
	if (l->loose || (l->read && !strcmp(l->name, "memcpy") && op->size > SLOW_READ_MAX))
		return false;
	return can_do(m, l, op);
}

static void enter(struct heat *h, struct bench_gpu *b, const struct bench_map *m,
		  const struct bench_op *op)
{
	const struct bench_opts *o = b->opts;
	const struct bench_loop *l;

	h->n = 0;
	add_write(h, op, "gdrcopy", bench_gdr_write, o);
	for (l = bench_loops; l->name; l++)
		if (!l->read && allowed(m, l, op))
			add_write(h, op, l->name, bench_loop_of(l, op->size), o);
	add(h, op, "write", "cuMemcpy", pace_of(o), bench_cu_write, o->writes);
	add_read(h, op, "gdrcopy", bench_gdr_read, o);
	for (l = bench_loops; l->name; l++)
		if (l->read && allowed(m, l, op))
			add_read(h, op, l->name, bench_loop_of(l, op->size), o);
	add_read(h, op, "cuMemcpy", bench_cu_read, o);
}

/* Each cell moves the right bytes before the race and after it. */
static void race(const struct copylat *c, struct bench_cell *cells, size_t n)
{
	for (size_t i = 0; i < n; i++)
		bench_verify(c->gpu, &cells[i]);
	bench_race(cells, n, c->gpu->opts->budget_ms, c->result);
	for (size_t i = 0; i < n; i++)
		bench_verify(c->gpu, &cells[i]);
}

static size_t next_size(size_t n)
{
	static const size_t small[] = { 1, 2, 3, 4, 7, 8, 16, 32, 48, 64, 96, 128, 192, 256 };
	size_t i;

	for (i = 0; i + 1 < sizeof(small) / sizeof(small[0]); i++)
		if (small[i] == n)
			return small[i + 1];
	return n < MAX_SIZE ? 2 * n : 0;
}

/* The row's P0 or P50, or "-" where there is no row. */
static const char *text_of(char *buf, size_t len, const struct bench_row *row, int percent)
{
	if (!row)
		return "-";
	return bench_ns_text(buf, len, percent ? row->p50 : row->p0);
}

struct column {
	const char *title, *op, *who, *mode;
	bool p0;
};

/* One line a size; a column with no title ends them. */
static void table(const struct bench_result *r, const struct column *cols, size_t max)
{
	const struct column *c;
	char text[32];
	size_t n;

	printf("\n%9s", "bytes");
	for (c = cols; c->title; c++)
		printf(" %14s", c->title);
	putchar('\n');
	for (n = 1; n && n <= max; n = next_size(n)) {
		printf("%9zu", n);
		for (c = cols; c->title; c++) {
			const struct bench_row *row = bench_find(r, c->op, c->who, c->mode, n);

			printf(" %14s", text_of(text, sizeof(text), row, c->p0 ? 0 : 50));
		}
		putchar('\n');
	}
}

/* The first column's row over the others'. */
static void ratios(const struct bench_result *r, const struct column *cols, size_t max)
{
	const struct column *c;
	size_t n;

	printf("%9s", "bytes");
	for (c = cols + 1; c->title; c++)
		printf(" %10s", c->title);
	putchar('\n');
	for (n = 1; n && n <= max; n = next_size(n)) {
		const struct bench_row *ours = bench_find(r, cols->op, cols->who, cols->mode, n);

		printf("%9zu", n);
		for (c = cols + 1; c->title; c++) {
			const struct bench_row *row = bench_find(r, c->op, c->who, c->mode, n);

			if (ours && row && ours->p50 > 0)
				printf(" %10.3f", row->p50 / ours->p50);
			else
				printf(" %10s", "-");
		}
		putchar('\n');
	}
}

static void loops_table(const struct bench_result *r, const char *what, bool read,
			const char *mode, size_t max)
{
	struct column cols[CELLS] = { 0 };
	const struct bench_loop *l;
	size_t n = 0;

	cols[n++] = (struct column){ "gdrcopy", read ? "read" : "write", "gdrcopy", mode, false };
	for (l = bench_loops; l->name; l++)
		if (l->read == read && !l->loose && l->usable())
			cols[n++] = (struct column){ l->name, cols[0].op, l->name, mode, false };
	printf("\n%s, P50\n", what);
	table(r, cols, max);
	printf("\n%s: how many times as long as gdrcopy the loops take\n", what);
	ratios(r, cols, max);
}

static void print(const struct bench_result *r, const struct bench_opts *o)
{
	const struct column hot[] = {
		{ "write P0", "write", "gdrcopy", "alone", true },
		{ "write P50", "write", "gdrcopy", "alone", false },
		{ "b-to-b P0", "write", "gdrcopy", "back-to-back", true },
		{ "b-to-b P50", "write", "gdrcopy", "back-to-back", false },
		{ "cuMemcpy HtoD", "write", "cuMemcpy", NULL, false },
		{ "read P0", "read", "gdrcopy", NULL, true },
		{ "read P50", "read", "gdrcopy", NULL, false },
		{ "cuMemcpy DtoH", "read", "cuMemcpy", NULL, false },
		{ NULL, NULL, NULL, NULL, false }
	};
	const struct column evicted[] = {
		{ "write P0", "write", "gdrcopy", "cold-cache", true },
		{ "write P50", "write", "gdrcopy", "cold-cache", false },
		{ "cuMemcpy HtoD", "write", "cuMemcpy", "cold-cache", false },
		{ "read P0", "read", "gdrcopy", "cold-cache", true },
		{ "read P50", "read", "gdrcopy", "cold-cache", false },
		{ "cuMemcpy DtoH", "read", "cuMemcpy", "cold-cache", false },
		{ NULL, NULL, NULL, NULL, false }
	};

	bench_facts(r, stdout);
	if (pace_of(o) == BENCH_EVICTED) {
		table(r, evicted, o->size);
		loops_table(r, "Writes, after the GPU's", false, "cold-cache", o->size);
		loops_table(r, "Reads, after the GPU's writes", true, "cold-cache", o->size);
	} else {
		table(r, hot, o->size);
		loops_table(r, "Writes alone", false, "alone",
			    o->size < ALONE_MAX ? o->size : ALONE_MAX);
		loops_table(r, "Writes back to back", false, "back-to-back", o->size);
		loops_table(r, "Reads", true, "back-to-back", o->size);
	}
}

static size_t steps(const struct bench_opts *o)
{
	size_t n, count = 0;

	for (n = 1; n && n <= o->size; n = next_size(n))
		count++;
	return count;
}

/* Copies one by one. */
static void run(const struct copylat *l)
{
	const struct bench_opts *o = l->gpu->opts;
	static struct heat h;

	for (size_t n = 1; n && n <= o->size; n = next_size(n)) {
		struct bench_op op = l->base;

		op.size = n;
		progress("%zu of %zu bytes", n, o->size);
		enter(&h, l->gpu, l->map, &op);
		race(l, h.cells, h.n);
	}
}

/* Reads whose bytes are used before the next one. */

#define LIBC_MAX 4096u	/* above, libc's reads take too long */

static const size_t used_sizes[] = {
	1, 2, 3, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 16384, 65536, 0
};

static size_t steps_used(const struct bench_opts *o)
{
	size_t n = 0;

	while (used_sizes[n] && used_sizes[n] <= o->size)
		n++;
	return n;
}

static void run_used(const struct copylat *c)
{
	const struct bench_opts *o = c->gpu->opts;
	static struct bench_cell cells[CELLS];

	for (const size_t *size = used_sizes; *size && *size <= o->size; size++) {
		struct bench_cell cell = {
			.op = "read", .who = "gdrcopy", .pace = BENCH_USED, .run = bench_gdr_read,
			.arg = c->base, .max = o->reads,
		};
		size_t n = 0;

		progress("%zu bytes, used", *size);
		cell.arg.size = *size;
		cells[n++] = cell;
		for (const struct bench_loop *l = bench_loops; l->name; l++) {
			if (!l->read || !can_do(c->map, l, &cell.arg) ||
			    (!strcmp(l->name, "memcpy") && *size > LIBC_MAX))
				continue;
			cell.who = l->name;
			cell.run = bench_loop_of(l, *size);
			cells[n++] = cell;
		}
		race(c, cells, n);
	}
}

static void print_used(const struct bench_result *r, const struct bench_opts *o)
{
	static const char *const whos[] = {
		"plain", "sse4.1", "avx2", "avx512", "memcpy", "plain loose", "sse4.1 loose", "avx2 loose", NULL
	};
	char text[32];

	bench_facts(r, stdout);
	printf("\nReads, the bytes used before the next read, P50; x: times as long as gdrcopy\n%9s %10s",
	       "bytes", "gdrcopy");
	for (const char *const *who = whos; *who; who++)
		printf(" %12s %5s", *who, "x");
	putchar('\n');
	for (const size_t *size = used_sizes; *size && *size <= o->size; size++) {
		const struct bench_row *ours = bench_find(r, "read", "gdrcopy", "used", *size);

		printf("%9zu %10s", *size, text_of(text, sizeof(text), ours, 50));
		for (const char *const *who = whos; *who; who++) {
			const struct bench_row *row = bench_find(r, "read", *who, "used", *size);

			printf(" %12s", text_of(text, sizeof(text), row, 50));
			if (row && ours && ours->p50 > 0)
				printf(" %5.2f", row->p50 / ours->p50);
			else
				printf(" %5s", "-");
		}
		putchar('\n');
	}
}

int main(int argc, char **argv)
{
	struct bench_opts o = {
		.size = 16 << 20, .writes = 100000, .reads = 10000, .budget_ms = 100, .cpu = -1,
	};
	struct bench_result r;
	struct bench_gpu b;
	struct bench_buf buf;
	struct bench_map m;
	struct copylat l;
	bool used;

	bench_parse(&o, &tool, argc, argv);
	used = o.mode == BENCH_MODE_USED;
	if (used)
		bench_no_effect(&o, &tool, (const char[]){ OPT_WRITES, OPT_EVICTED, OPT_COMPAT, 0 }, "--mode used");
	bench_on_cpu(o.cpu);
	bench_clock_init();
	bench_result_init(&r, tool.name);
	bench_gpu_start(&b, &tool, &o);
	bench_gpu_open(&b);
	bench_buf_alloc(&b, &buf, o.offset + o.size);
	bench_map_make(&b, &m, &buf);
	if (o.given[OPT_EVICTED] && m.info.mapping_type != GDR_MAPPING_TYPE_CACHING)
		bench_die("%s: --cold-cache has no effect on this mapping, which the CPU does not cache: leave it out",
			  tool.name);
	bench_gpu_facts(&b, &m, &r);
	bench_fact(&r, "clock", "%s", bench_clock_text());
	l = (struct copylat){
		.gpu = &b, .map = &m, .result = &r,
		.base = {
			.mh = m.mh, .addr = buf.addr + o.offset, .dev = m.p + o.offset,
			.host = bench_host_alloc(o.size), .user = &b.cu,
		},
	};
	progress_total(used ? steps_used(&o) : steps(&o));
	(used ? run_used : run)(&l);
	progress_wipe();
	bench_map_drop(&b, &m);
	bench_buf_free(&b, &buf);
	bench_gpu_stop(&b);
	bench_fact(&r, "data", "verified, every size and competitor");

	bench_print(&r, &o, o.given[OPT_COMPAT] ? bench_compat : used ? print_used : print);
	bench_result_free(&r);
	return BENCH_OK;
}
