/* SPDX-License-Identifier: MIT */
/*
 * gdrcopy_copybw - how fast one size is copied to and from GPU memory, by one
 * thread or several, beside the driver's copies in the same run.
 */
#include <stdio.h>

#include "bench/race.h"
#include "bench/team.h"

static const struct bench_tool tool = {
	.name = "gdrcopy_copybw",
	.codes = (const char[]){ OPT_GPU, OPT_SIZE, OPT_COPY_SIZE, OPT_RANGE, OPT_OFFSET, OPT_MAP, OPT_ALLOC,
				 OPT_WRITES, OPT_READS, OPT_THREADS, OPT_BUDGET, OPT_CPU,
				 OPT_JSON, OPT_CSV, OPT_COMPAT, OPT_BACKEND, 0 },
	.what = "Measures the bandwidth of writes to and reads from GPU memory through a\n"
		"mapping, for one size (-s, 128 KiB) or with -l several, beside cuMemcpy in the same run.",
	.method = BENCH_METHOD "\n"
		"  Here all are back-to-back. A bandwidth is the size over the P50 of the time.\n"
		"  1 MB/s is 2^20 bytes a second. With --threads N a copy lasts from its start to\n"
		"  the end of the last thread's part. Each thread makes a copy of its\n"
		"  own. cuMemcpy uses pageable memory of the host and one thread.",
};

/* The reference's unit: 2^20 bytes a second. */
static double mbps(const struct bench_row *row)
{
	return bench_gbps((double)row->size, row->p50) * 1e9 / (1 << 20);
}

/* The sizes of the copies: -c, or with -l the powers of two up to it. 0 after the last. */
static size_t first_size(const struct bench_opts *o)
{
	return o->given[OPT_RANGE] ? 1 : o->copy_size;
}

static size_t next_size(const struct bench_opts *o, size_t size)
{
	return o->given[OPT_RANGE] && size <= o->copy_size / 2 ? 2 * size : 0;
}

static void print_one(const char *label, const struct bench_result *r, const char *op,
		      const char *who, size_t size)
{
	const struct bench_row *row = bench_find(r, op, who, NULL, size);

	printf("%s: %.2fMB/s\n", label, mbps(row));
}

static void print_size(const struct bench_result *r, const struct bench_opts *o, size_t size)
{
	const struct bench_row *w = bench_find(r, "write", "gdrcopy", NULL, size);
	const struct bench_row *rd = bench_find(r, "read", "gdrcopy", NULL, size);

	printf("writing test, size=%zu offset=%zu num_iters=%zu threads=%d\n", size, o->offset,
	       w->samples * w->batch, o->threads);
	print_one("write BW", r, "write", "gdrcopy", size);
	print_one("cuMemcpyHtoD BW", r, "write", "cuMemcpy", size);
	printf("reading test, size=%zu offset=%zu num_iters=%zu threads=%d\n", size, o->offset,
	       rd->samples * rd->batch, o->threads);
	print_one("read BW", r, "read", "gdrcopy", size);
	print_one("cuMemcpyDtoH BW", r, "read", "cuMemcpy", size);
}

static void print(const struct bench_result *r, const struct bench_opts *o)
{
	bench_facts(r, stdout);
	for (size_t size = first_size(o); size; size = next_size(o, size))
		print_size(r, o, size);
}

/* All figures of one size. */
static void run(struct bench_gpu *b, const struct bench_op *base, size_t size,
		struct bench_team *team, struct bench_result *r)
{
	const struct bench_opts *o = b->opts;
	struct bench_op op = *base;
	size_t i;

	op.size = size;
	op.user = team;
	struct bench_cell cells[] = {
		{ .op = "write", .who = "gdrcopy", .run = bench_team_write, .arg = op,
		  .max = o->writes, .threads = o->threads },
		{ .op = "read", .who = "gdrcopy", .run = bench_team_read, .arg = op,
		  .max = o->reads, .threads = o->threads },
		{ .op = "write", .who = "cuMemcpy", .run = bench_cu_write, .arg = op,
		  .max = o->writes },
		{ .op = "read", .who = "cuMemcpy", .run = bench_cu_read, .arg = op,
		  .max = o->reads },
	};
	cells[2].arg.user = cells[3].arg.user = &b->cu;
	progress("%zu bytes, %d threads", size, o->threads);
	for (i = 0; i < 4; i++)
		bench_verify(b, &cells[i]);
	bench_race(cells, 4, o->budget_ms, r);
	for (i = 0; i < 4; i++)
		bench_verify(b, &cells[i]);
}

int main(int argc, char **argv)
{
	struct bench_opts o = {
		.size = 128 << 10, .writes = 100000, .reads = 10000, .threads = 1,
		.budget_ms = 1000, .cpu = -1,
	};
	struct bench_team *team;
	struct bench_result r;
	struct bench_gpu b;
	struct bench_buf buf;
	struct bench_map m;
	struct bench_op op;
	size_t size, steps = 0;

	bench_parse(&o, &tool, argc, argv);
	if (o.offset >= o.size)
		bench_usage(&tool, "--offset %zu is not inside the %zu bytes of --size", o.offset,
			    o.size);
	if (!o.copy_size)
		o.copy_size = o.size - o.offset;
	if (o.copy_size > o.size - o.offset)
		bench_usage(&tool, "a copy of %zu bytes at offset %zu does not fit into --size %zu",
			    o.copy_size, o.offset, o.size);
	team = bench_team_start(o.threads);
	bench_on_cpu(o.cpu);
	bench_clock_init();
	bench_result_init(&r, tool.name);
	bench_gpu_start(&b, &tool, &o);
	bench_gpu_open(&b);
	bench_buf_alloc(&b, &buf, o.size);
	bench_map_make(&b, &m, &buf);
	bench_gpu_facts(&b, &m, &r);
	bench_fact(&r, "clock", "%s", bench_clock_text());

	op = (struct bench_op){
		.mh = m.mh, .addr = buf.addr + o.offset, .dev = m.p + o.offset,
		.host = bench_host_alloc(o.copy_size),
	};
	for (size = first_size(&o); size; size = next_size(&o, size))
		steps++;
	progress_total(steps);
	for (size = first_size(&o); size; size = next_size(&o, size))
		run(&b, &op, size, team, &r);
	progress_wipe();
	bench_team_stop(team);
	bench_map_drop(&b, &m);
	bench_buf_free(&b, &buf);
	bench_gpu_stop(&b);
	bench_fact(&r, "data", "verified, both directions");

	bench_print(&r, &o, o.given[OPT_COMPAT] ? bench_compat : print);
	bench_result_free(&r);
	return BENCH_OK;
}
