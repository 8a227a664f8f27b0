/* SPDX-License-Identifier: MIT */
/*
 * copylat_used.c - reads whose bytes are used before the next one.
 */
#include "copylat.h"

#include <stdio.h>
#include <string.h>

#define LIBC_MAX 4096u	/* above, libc's reads take too long */

static const size_t sizes[] = {
	1, 2, 3, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 16384, 65536, 0
};

size_t copylat_steps_used(const struct bench_opts *o)
{
	size_t n = 0;

	while (sizes[n] && sizes[n] <= o->size)
		n++;
	return n;
}

void copylat_run_used(const struct copylat *c)
{
	const struct bench_opts *o = c->gpu->opts;
	static struct bench_cell cells[COPYLAT_CELLS];

	for (const size_t *size = sizes; *size && *size <= o->size; size++) {
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
			    (!strcmp(l->name, "memcpy") && *size > LIBC_MAX))
				continue;
			cell.who = l->name;
			cell.run = bench_loop_of(l, *size);
			cells[n++] = cell;
		}
		copylat_race(c, cells, n);
	}
}

void copylat_print_used(const struct bench_result *r, const struct bench_opts *o)
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
	for (const size_t *size = sizes; *size && *size <= o->size; size++) {
		const struct bench_row *ours = bench_find(r, "read", "gdrcopy", "used", *size);

		printf("%9zu %10s", *size, copylat_text(text, sizeof(text), ours, 50));
		for (const char *const *who = whos; *who; who++) {
			const struct bench_row *row = bench_find(r, "read", *who, "used", *size);

			printf(" %12s", copylat_text(text, sizeof(text), row, 50));
			if (row && ours && ours->p50 > 0)
				printf(" %5.2f", row->p50 / ours->p50);
			else
				printf(" %5s", "-");
		}
		putchar('\n');
	}
}
