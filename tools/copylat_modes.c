/* SPDX-License-Identifier: MIT */
#include "copylat_modes.h"

#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define CELLS 24
#define SIZES 20

/* Other libgdrapi libraries lack the extensions: there, these are NULL. */
extern __typeof__(gdr_copy_to_mapping_v) gdr_copy_to_mapping_v __attribute__((weak));
extern __typeof__(gdr_copy_from_mapping_v) gdr_copy_from_mapping_v __attribute__((weak));

/* Device mappings of Arm allow neither unaligned nor wide accesses. */
bool copylat_allowed(const struct bench_map *m, const struct bench_loop *l,
		     const struct bench_op *op)
{
	if (m->info.mapping_type == GDR_MAPPING_TYPE_DEVICE && strncmp(l->name, "plain", 5))
		return false;
	return (uintptr_t)op->dev % 64 == 0 && l->usable() && bench_loop_of(l, op->size);
}

static void cell_text(char *buf, size_t len, const struct bench_row *row, bool p99)
{
	if (row)
		bench_ns_text(buf, len, p99 ? row->p99 : row->p50);
	else
		snprintf(buf, len, "-");
}

static bool timed(const struct bench_result *r, const char *op, const char *mode,
		  const char *const *whos, size_t size)
{
	for (; *whos; whos++)
		if (bench_find(r, op, *whos, mode, size))
			return true;
	return false;
}

/*
 * A line a size: what the first way takes, and of every other way what it takes and
 * how many times as long that is.
 */
static void print_ratios(const struct bench_result *r, const char *op, const char *mode,
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
		cell_text(text, sizeof(text), ours, false);
		printf("%9zu %10s", *sizes, text);
		for (size_t i = 1; whos[i]; i++) {
			const struct bench_row *row = bench_find(r, op, whos[i], mode, *sizes);

			cell_text(text, sizeof(text), row, false);
			printf(" %12s", text);
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

static const size_t used_sizes[SIZES] = {
	1, 2, 3, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 16384, 65536,
};

static size_t steps_used(const struct bench_opts *o)
{
	return copylat_count(used_sizes, o->size);
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
	print_ratios(r, "read", "used", whos, used_sizes);
}

const struct copylat_mode copylat_used = {
	.run = run_used, .print = print_used, .room = 65536, .steps = steps_used,
	.name = "--mode used", .unused = (const char[]){ OPT_WRITES, OPT_COLD, OPT_EVICTED, OPT_REGISTERED, 0 },
};

/* Many copies at once, each at an address of its own. */

#define MANY_READS 16
#define MANY_WRITES 64
/* An odd number of lines: else all are in one set of the CPU's caches. */
#define APART (67 * 64u)

static const size_t many_sizes[SIZES] = { 4, 8, 16, 32, 64, 128, 256, 512, 1024 };

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

static void race_many(const struct copylat *c, bool read, size_t size)
{
	static struct many plans[CELLS];
	static struct bench_cell cells[CELLS];
	const struct bench_opts *o = c->gpu->opts;
	size_t n = 0, count = read ? MANY_READS : MANY_WRITES;
	struct bench_cell cell = {
		.op = read ? "16 reads" : "64 writes", .pace = BENCH_BACK_TO_BACK,
		.arg = c->base, .max = read ? o->reads : o->writes, .pieces = count,
	};

	progress("%s of %zu bytes", cell.op, size);
	cell.arg.size = size;
	if (gdr_copy_to_mapping_v && gdr_copy_from_mapping_v) {
		cells[n] = cell;
		cells[n].who = "gdrcopy_v";
		cells[n].run = read ? many_read : many_write;
		lay_out(&plans[n], c, NULL, count, size);
		n++;
	}
	cells[n] = cell;
	cells[n].who = "gdrcopy";
	cells[n].run = many_one_by_one;
	lay_out(&plans[n], c, read ? bench_gdr_read : bench_gdr_write, count, size);
	n++;
	for (const struct bench_loop *l = bench_loops; l->name; l++) {
		if (l->read != read || !copylat_allowed(c->map, l, &cell.arg) ||
		    !strcmp(l->name, "memcpy"))
			continue;
		cells[n] = cell;
		cells[n].who = l->name;
		cells[n].run = many_one_by_one;
		lay_out(&plans[n], c, bench_loop_of(l, size), count, size);
		n++;
	}
	if (!read && size == 8) {
		cells[n] = cell;
		cells[n].who = "plain, 1 fence";
		cells[n].run = many_plain_8;
		lay_out(&plans[n], c, NULL, count, size);
		n++;
#if defined(__x86_64__)
		if (bench_has_movdiri()) {
			cells[n] = cell;
			cells[n].who = "movdiri, 1 f";
			cells[n].run = many_movdiri_8;
			lay_out(&plans[n], c, NULL, count, size);
			n++;
		}
#endif
	}
	for (size_t i = 0; i < n; i++) {
		cells[i].arg.user = &plans[i];
		verify_many(c, &cells[i], read);
	}
	bench_race(cells, n, o->budget_ms, c->result);
	for (size_t i = 0; i < n; i++)
		cells[i].pace = BENCH_ALONE;
	if (!read)
		bench_race(cells, n, o->budget_ms, c->result);
	for (size_t i = 0; i < n; i++)
		verify_many(c, &cells[i], read);
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
	print_ratios(r, "16 reads", "back-to-back", reads, many_sizes);
	puts("\n64 writes at 64 addresses, all of them, back to back, P50");
	print_ratios(r, "64 writes", "back-to-back", writes, many_sizes);
	puts("\n64 writes at 64 addresses, all of them, alone, P50");
	print_ratios(r, "64 writes", "alone", writes, many_sizes);
}

const struct copylat_mode copylat_many = {
	.run = run_many, .print = print_many, .room = MANY_WRITES * APART, .steps = steps_many,
	.name = "--mode many", .unused = (const char[]){ OPT_SIZE, OPT_COLD, OPT_EVICTED, OPT_REGISTERED, 0 },
};

/* Copies after a pause. */

static const struct {
	double ns;
	const char *mode;
} gaps[] = {
	{ 0, "after 0" }, { 20e3, "after 20 us" }, { 200e3, "after 200 us" }, { 2e6, "after 2 ms" },
};

#define GAPS (sizeof(gaps) / sizeof(gaps[0]))

static const size_t pause_sizes[SIZES] = {
	64, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216,
};

static const struct {
	const char *op, *who;
	bench_run *run;
} pause_ways[] = {
	{ "read", "gdrcopy", bench_gdr_read },
	{ "read", "cuMemcpy", bench_cu_read },
	{ "write", "gdrcopy", bench_gdr_write },
	{ "write", "cuMemcpy", bench_cu_write },
};

#define WAYS (sizeof(pause_ways) / sizeof(pause_ways[0]))

static size_t steps_pause(const struct bench_opts *o)
{
	return GAPS * copylat_count(pause_sizes, o->size);
}

static void run_pause(const struct copylat *c)
{
	const struct bench_opts *o = c->gpu->opts;
	struct bench_cell cells[WAYS];

	for (const size_t *size = pause_sizes; *size && *size <= o->size; size++)
		for (size_t g = 0; g < GAPS; g++) {
			progress("%zu bytes %s", *size, gaps[g].mode);
			for (size_t i = 0; i < WAYS; i++) {
				cells[i] = (struct bench_cell){
					.op = pause_ways[i].op, .who = pause_ways[i].who,
					.pace = BENCH_PAUSED, .run = pause_ways[i].run,
					.arg = c->base, .max = 10000, .gap_ns = gaps[g].ns,
					.mode = gaps[g].mode,
				};
				cells[i].arg.size = *size;
				bench_verify(c->gpu, &cells[i]);
			}
			bench_race(cells, WAYS, o->budget_ms, c->result);
			for (size_t i = 0; i < WAYS; i++)
				bench_verify(c->gpu, &cells[i]);
		}
}

static void print_pause(const struct bench_result *r, const struct bench_opts *o)
{
	char p50[32], p99[32];

	bench_facts(r, stdout);
	for (size_t i = 0; i < WAYS; i++) {
		printf("\n%s by %s after a pause, P50 and P99\n%9s", pause_ways[i].op,
		       pause_ways[i].who, "bytes");
		for (size_t g = 0; g < GAPS; g++)
			printf(" %23s", gaps[g].mode);
		putchar('\n');
		for (const size_t *size = pause_sizes; *size && *size <= o->size; size++) {
			printf("%9zu", *size);
			for (size_t g = 0; g < GAPS; g++) {
				const struct bench_row *row = bench_find(r, pause_ways[i].op,
									 pause_ways[i].who,
									 gaps[g].mode, *size);

				cell_text(p50, sizeof(p50), row, false);
				cell_text(p99, sizeof(p99), row, true);
				printf(" %11s %11s", p50, p99);
			}
			putchar('\n');
		}
	}
}

const struct copylat_mode copylat_pause = {
	.run = run_pause, .print = print_pause, .steps = steps_pause,
	.name = "--mode pause", .unused = (const char[]){ OPT_WRITES, OPT_READS, OPT_COLD, OPT_EVICTED, 0 },
};
