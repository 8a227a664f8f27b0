/* SPDX-License-Identifier: MIT */
/*
 * gdrcopy_apiperf - how long each control call takes.
 */
#include <stdio.h>

#include "apiperf_calls.h"

static const struct bench_tool tool = {
	.name = "gdrcopy_apiperf",
	.codes = (const char[]){ OPT_GPU, OPT_SIZE, OPT_MAP, OPT_ALLOC, OPT_ITERS, OPT_WARM_UPS, OPT_BUDGET,
				 OPT_CPU, OPT_JSON, OPT_CSV, OPT_COMPAT, OPT_BACKEND, 0 },
	.what = "Times each control call of the library, for buffers of 64 KiB, 1 MiB and 16 MiB\n"
		"up to -s (16 MiB).",
	.method =
		"  Each call is timed alone, by the TSC between two LFENCEs; elsewhere by\n"
		"  CLOCK_MONOTONIC. What reading that costs is subtracted. Calls go in the order\n"
		"  of a buffer's life, again and again: -n times (1000) or --budget milliseconds\n"
		"  (1000) for each size, whichever comes first, but three times if -n allows. P0 is\n"
		"  the smallest sample. P50 is the median.\n"
		"  -w rounds of each size, and as many gdr_open, come first and do not count.\n"
		"  gdr_open 'first' is the first one of the process; 'again' is one when none is\n"
		"  open. The hit of the registration cache is the second one after a miss. It has\n"
		"  a cuPointerGetAttribute(BUFFER_ID) in it. Of those 'in a row' 1000 are timed\n"
		"  together, and what one takes is shown.\n"
		"  What each copy moves is compared with the driver's copy of it, outside the times.",
};

static void print(const struct bench_result *r, const struct bench_opts *o)
{
	char p0[32], p50[32], size[32];
	size_t i, last = 0;

	(void)o;
	bench_facts(r, stdout);
	for (i = 0; i < r->nrows; i++) {
		const struct bench_row *row = &r->rows[i];

		if (i == 0 || row->size != last)
			printf("\n%-10s %-36s %12s %12s %8s\n",
			       row->size ? bench_size_text(size, sizeof(size), row->size) : "",
			       "call", "P0", "P50", "samples");
		last = row->size;
		printf("%-10s %-36s %12s %12s %8zu\n", row->size ? "" : row->mode, row->op,
		       bench_ns_text(p0, sizeof(p0), row->p0),
		       bench_ns_text(p50, sizeof(p50), row->p50), row->samples);
	}
}

static const size_t sizes[] = { 64 << 10, 1 << 20, 16 << 20 };

/* How many of the sizes are not above most. The first one always is. */
static size_t steps_of(size_t most)
{
	size_t n = 1;

	while (n < sizeof(sizes) / sizeof(sizes[0]) && sizes[n] <= most)
		n++;
	return n;
}

int main(int argc, char **argv)
{
	struct bench_opts o = {
		.size = 16 << 20, .iters = 1000, .warm_ups = 10, .budget_ms = 1000, .cpu = -1,
	};
	static struct life l;
	struct bench_result r;
	struct bench_map m;
	size_t i;

	bench_parse(&o, &tool, argc, argv);
	bench_on_cpu(o.cpu);
	bench_clock_init();
	bench_result_init(&r, tool.name);
	bench_gpu_start(&l.gpu, &tool, &o);

	progress_total(1 + steps_of(o.size));
	progress("gdr_open");
	apiperf_open(&l, &r);

	bench_gpu_open(&l.gpu);
	bench_buf_alloc(&l.gpu, &l.buf, sizes[0]);
	apiperf_first_pin(&l, &r);
	bench_map_make(&l.gpu, &m, &l.buf);
	bench_gpu_facts(&l.gpu, &m, &r);
	bench_fact(&r, "clock", "%s", bench_clock_text());
	bench_map_drop(&l.gpu, &m);
	bench_buf_free(&l.gpu, &l.buf);
	for (i = 0; i < steps_of(o.size); i++) {
		progress("buffers of %zu bytes", sizes[i]);
		apiperf_buffer(&l, &r, sizes[i]);
	}
	progress_wipe();
	bench_gpu_stop(&l.gpu);
	bench_fact(&r, "data", "verified, in every mapping");

	bench_print(&r, &o, o.given[OPT_COMPAT] ? bench_compat : print);
	bench_result_free(&r);
	return BENCH_OK;
}
