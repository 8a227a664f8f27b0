/* SPDX-License-Identifier: MIT */
/*
 * copylat_modes.c - what the modes share; reads whose bytes are used before the next.
 */
#include "copylat_modes.h"

#include <stdio.h>
#include <string.h>

/* Device mappings of Arm allow neither unaligned nor wide accesses. */
bool copylat_allowed(const struct bench_map *m, const struct bench_loop *l,
		     const struct bench_op *op)
{
	if (m->info.mapping_type == GDR_MAPPING_TYPE_DEVICE && strncmp(l->name, "plain", 5))
		return false;
	return (uintptr_t)op->dev % 64 == 0 && l->usable() && bench_loop_of(l, op->size);
}

const char *copylat_text(char *buf, size_t len, const struct bench_row *row, int percent)
{
	if (!row)
		return "-";
	return bench_ns_text(buf, len, percent ? row->p50 : row->p0);
}

static bool timed(const struct bench_result *r, const char *op, const char *mode,
		  const char *const *whos, size_t size)
{
	for (; *whos; whos++)
		if (bench_find(r, op, *whos, mode, size))
			return true;
	return false;
}

void copylat_ratios(const struct bench_result *r, const char *op, const char *mode,
		    const char *const *whos, const size_t *sizes)
{
	char text[32];

	printf("%9s %10s", "bytes", whos[0]);
	for (size_t i = 1; whos[i]; i++)
		printf(" %12s %5s", whos[i], "x");
	putchar('\n');
	for (; *sizes; sizes++) {
		const struct bench_row *ours = bench_find(r, op, whos[0], mode, *sizes);

		if (!timed(r, op, mode, whos, *sizes))
			continue;
		printf("%9zu %10s", *sizes, copylat_text(text, sizeof(text), ours, 50));
		for (size_t i = 1; whos[i]; i++) {
			const struct bench_row *row = bench_find(r, op, whos[i], mode, *sizes);

			printf(" %12s", copylat_text(text, sizeof(text), row, 50));
			if (row && ours && ours->p50 > 0)
				printf(" %5.2f", row->p50 / ours->p50);
			else
				printf(" %5s", "-");
		}
		putchar('\n');
	}
}

size_t copylat_count(const size_t *sizes, size_t most)
{
	size_t n = 0;

	while (sizes[n] && sizes[n] <= most)
		n++;
	return n;
}

/* Reads whose bytes are used before the next one. */

static const size_t used_sizes[] = {
	1, 2, 3, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 16384, 65536, 0
};

static size_t steps_used(const struct bench_opts *o)
{
	return copylat_count(used_sizes, o->size);
}

static void run_used(const struct copylat *c)
{
	const struct bench_opts *o = c->gpu->opts;
	static struct bench_cell cells[COPYLAT_CELLS];

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
			if (!l->read || !copylat_allowed(c->map, l, &cell.arg) ||
			    (!strcmp(l->name, "memcpy") && *size > 4096))
				continue;
			cell.who = l->name;
			cell.run = bench_loop_of(l, *size);
			cells[n++] = cell;
		}
		for (size_t i = 0; i < n; i++)
			bench_verify(c->gpu, &cells[i]);
		bench_race(cells, n, o->budget_ms, c->result);
		for (size_t i = 0; i < n; i++)
			bench_verify(c->gpu, &cells[i]);
	}
}

static void print_used(const struct bench_result *r, const struct bench_opts *o)
{
	static const char *const whos[] = {
		"gdrcopy", "plain", "sse4.1", "avx2", "avx512", "memcpy", "plain loose",
		"sse4.1 loose", "avx2 loose", NULL
	};

	(void)o;
	bench_facts(r, stdout);
	puts("\nReads, the bytes used before the next read, P50; x: times as long as gdrcopy");
	copylat_ratios(r, "read", "used", whos, used_sizes);
}

const struct copylat_mode copylat_used = {
	.run = run_used, .print = print_used, .room = 65536, .steps = steps_used,
	.name = "--mode used", .unused = (const char[]){ OPT_WRITES, OPT_EVICTED, 0 },
};
