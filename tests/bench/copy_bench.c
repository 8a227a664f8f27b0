/* SPDX-License-Identifier: MIT */
/*
 * copy_bench - which instructions move bytes through a mapping fastest: the
 * library's routines and candidates for them, all on one mapping in one run.
 *
 * This is how a routine is chosen; docs/dataplane.md has what it found. It is
 * built from the files of capi/copy/ as well, and is not installed. It asserts nothing but
 * that each candidate moves the right bytes.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench/race.h"
#include "bench/team.h"
#include "copy/copy.h"
#include "copy/fence.h"
#include "copy_trial.h"

#define CELLS 40
#define ALL_SIZES 20
#define ALL_TEAMS 6

static const struct bench_tool tool = {
	.name = "copy_bench",
	.codes = (const char[]){ OPT_GPU, OPT_SIZE, OPT_OFFSET, OPT_MAP, OPT_ALLOC, OPT_WRITES,
				 OPT_READS, OPT_BUDGET, OPT_CPU, OPT_JSON, OPT_CSV, OPT_BACKEND,
				 0 },
	.what = "Compares the library's copy routines, and candidates for them, on a mapping.",
	.method = BENCH_METHOD,
};

static const size_t write_sizes[ALL_SIZES] = {
	1, 4, 8, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216,
};

static const size_t read_sizes[ALL_SIZES] = {
	3, 4, 7, 16, 63, 64, 256, 1024, 2048, 4096, 16384, 65536, 1048576,
};

static void impl_write(struct bench_op *op, size_t count)
{
	const struct copy_impl *impl = op->user;

	for (; count; count--) {
		if (op->size <= COPY_LINE) {
			impl->write[op->size](op->dev, op->host);
			continue;
		}
		impl->to(op->dev, op->host, op->size);
		copy_fence_store();
	}
}

static void impl_read(struct bench_op *op, size_t count)
{
	const struct copy_impl *impl = op->user;

	for (; count; count--) {
		if (op->size <= COPY_LINE) {
			impl->read(op->host, op->dev, op->size);
			continue;
		}
		copy_fence_read_begin();
		impl->from(op->host, op->dev, op->size);
		copy_fence_read_end();
	}
}

/* Threads that share one copy. */
static const struct {
	int threads;
	const char *who;
} teams[ALL_TEAMS] = {
	{ 2, "2 threads" }, { 4, "4 threads" }, { 6, "6 threads" },
	{ 8, "8 threads" }, { 12, "12 threads" }, { 16, "16 threads" },
};

static const size_t team_sizes[ALL_SIZES] = { 4096, 8192, 16384, 65536, 262144, 1048576, 16777216 };

struct heat {
	struct bench_cell cells[CELLS];
	size_t n;
};

static void add(struct heat *h, const struct bench_op *op, bool read, const char *who,
		bench_run *run, const void *user, const struct bench_opts *o)
{
	struct bench_cell *c = &h->cells[h->n++];

	*c = (struct bench_cell){
		.op = read ? "read" : "write", .who = who, .pace = BENCH_BACK_TO_BACK,
		.run = run, .arg = *op, .max = read ? o->reads : o->writes,
	};
	c->arg.user = user;
}

/* The bare accesses that bench_loops has for a few sizes. */
static void add_plain(struct heat *h, const struct bench_op *op, bool read,
		      const struct bench_opts *o)
{
	for (const struct bench_loop *l = bench_loops; l->name; l++)
		if (l->read == read && !strcmp(l->name, "plain") && bench_loop_of(l, op->size))
			add(h, op, read, "plain", bench_loop_of(l, op->size), NULL, o);
}

static void enter(struct heat *h, const struct bench_op *op, bool read, const struct bench_opts *o)
{
	h->n = 0;
	add(h, op, read, "gdrcopy", read ? bench_gdr_read : bench_gdr_write, NULL, o);
	for (size_t i = 0; copy_impls[i]; i++)
		if (copy_impls[i]->usable())
			add(h, op, read, copy_impls[i]->name, read ? impl_read : impl_write,
			    copy_impls[i], o);
	add_plain(h, op, read, o);
	for (const struct copy_trial *t = copy_trials; t->name; t++)
		if (t->read == read && t->usable() && op->size >= t->least &&
		    op->size <= t->most && op->size % t->least == 0)
			add(h, op, read, t->name, t->run, NULL, o);
}

static void print_row(const struct bench_result *r, const char *op, const char *who,
		      const size_t *sizes)
{
	char text[32];

	printf("%-14s", who);
	for (size_t i = 0; i < ALL_SIZES && sizes[i]; i++) {
		const struct bench_row *row = bench_find(r, op, who, NULL, sizes[i]);

		printf(" %9s", row ? bench_ns_text(text, sizeof(text), row->p50) : "-");
	}
	putchar('\n');
}

static void print_table(const struct bench_result *r, const char *op, const size_t *sizes,
			bool threads)
{
	printf("\n%s, P50\n%-14s", op, "bytes");
	for (size_t i = 0; i < ALL_SIZES && sizes[i]; i++)
		printf(" %9zu", sizes[i]);
	putchar('\n');
	for (size_t i = 0; i < r->nrows; i++) {
		const struct bench_row *row = &r->rows[i];

		/* A name is printed where it comes first. */
		size_t k = 0;

		while (k < i && (strcmp(r->rows[k].op, row->op) || strcmp(r->rows[k].who, row->who)))
			k++;
		if (k == i && !strcmp(row->op, op) && (row->threads > 1) == threads)
			print_row(r, op, row->who, sizes);
	}
}

static void print(const struct bench_result *r, const struct bench_opts *o)
{
	bench_facts(r, stdout);
	(void)o;
	print_table(r, "write", write_sizes, false);
	print_table(r, "read", read_sizes, false);
	print_table(r, "write", team_sizes, true);
	print_table(r, "read", team_sizes, true);
}

static void race_all(struct bench_gpu *b, const struct bench_op *base, bool read,
		     struct bench_result *r)
{
	const size_t *sizes = read ? read_sizes : write_sizes;
	const struct bench_opts *o = b->opts;
	static struct heat h;

	for (size_t i = 0; i < ALL_SIZES && sizes[i] && sizes[i] <= o->size; i++) {
		struct bench_op op = *base;

		op.size = sizes[i];
		progress("%s of %zu bytes", read ? "reads" : "writes", sizes[i]);
		enter(&h, &op, read, o);
		for (size_t k = 0; k < h.n; k++)
			bench_verify(b, &h.cells[k]);
		bench_race(h.cells, h.n, o->budget_ms, r);
	}
}

/* A team spins while it waits, so it lives only as long as its race. */
static void race_team(struct bench_gpu *b, const struct bench_op *base, size_t which,
		      struct bench_result *r)
{
	struct bench_team *team = bench_team_start(teams[which].threads);
	const struct bench_opts *o = b->opts;
	static struct heat h;

	for (size_t i = 0; i < ALL_SIZES && team_sizes[i] && team_sizes[i] <= o->size; i++) {
		struct bench_op op = *base;

		op.size = team_sizes[i];
		progress("%d threads, %zu bytes", teams[which].threads, op.size);
		h.n = 0;
		add(&h, &op, false, teams[which].who, bench_team_write, team, o);
		add(&h, &op, true, teams[which].who, bench_team_read, team, o);
		for (size_t k = 0; k < h.n; k++)
			h.cells[k].threads = teams[which].threads;
		for (size_t k = 0; k < h.n; k++)
			bench_verify(b, &h.cells[k]);
		bench_race(h.cells, h.n, o->budget_ms, r);
	}
	bench_team_stop(team);
}

static void race_teams(struct bench_gpu *b, const struct bench_op *base, struct bench_result *r)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	for (size_t i = 0; i < ALL_TEAMS && teams[i].threads <= cpus; i++)
		race_team(b, base, i, r);
}

int main(int argc, char **argv)
{
	struct bench_opts o = {
		.size = 16 << 20, .writes = 100000, .reads = 1000, .budget_ms = 40, .cpu = -1,
	};
	struct bench_result r;
	struct bench_gpu b;
	struct bench_buf buf;
	struct bench_map m;
	struct bench_op op;

	bench_parse(&o, &tool, argc, argv);
	bench_on_cpu(o.cpu);
	bench_clock_init();
	bench_result_init(&r, tool.name);
	bench_gpu_start(&b, &tool, &o);
	bench_gpu_open(&b);
	bench_buf_alloc(&b, &buf, o.offset + o.size);
	bench_map_make(&b, &m, &buf);
	bench_gpu_facts(&b, &m, &r);
	bench_fact(&r, "clock", "%s", bench_clock_text());

	op = (struct bench_op){
		.mh = m.mh, .addr = buf.addr + o.offset, .dev = m.p + o.offset,
		.host = bench_host_alloc(o.size),
	};
	race_all(&b, &op, false, &r);
	race_all(&b, &op, true, &r);
	race_teams(&b, &op, &r);
	progress_wipe();
	bench_map_drop(&b, &m);
	bench_buf_free(&b, &buf);
	bench_gpu_stop(&b);
	bench_fact(&r, "data", "verified, every size and candidate");

	bench_print(&r, &o, print);
	bench_result_free(&r);
	return BENCH_OK;
}
