// SPDX-License-Identifier: MIT
/*
 * latency.c - what gdrcopy_copylat times in each mode: which copies, by whom, where and how
 * often, that each is verified, and what it prints. The library, the GPU, the race, the
 * clock and the number of CPUs are the test's own: the linker puts them in (--wrap).
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "bench/cuda.h"
#include "bench/race.h"
#include "copylat_modes.h"
#include "gdrapi_ext.h"
#include "said.h"

#define SPACE ((size_t)17 << 20)
#define GPU_AT 0x700000000000u
#define MAPS 32
#define REGION 65536u	/* of a caller */
#define REGIONS 16
#define ROW 64u		/* copies that a caller makes at a time */
#define PIECE (67u * 64u)	/* from one of many pieces to the next */

int copylat_main(int argc, char **argv);

/* The GPU's memory, and the mappings of it. */

static int memory = -1;
static uint8_t *gpu, *host;
static size_t buf_size, host_size;
static struct { uint8_t *va; } maps[MAPS];
static int live_maps, live_bufs, live_gpus;
static gdr_mapping_type_t map_type = GDR_MAPPING_TYPE_WC;

/* What went on: a line for each step of main. */
static char events[4096];
static unsigned int steps, total;
static char first_step[64], last_step[64];

__attribute__((format(printf, 1, 2)))
static void event(const char *fmt, ...)
{
	size_t len = strlen(events);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(events + len, sizeof(events) - len, fmt, ap);
	va_end(ap);
}

static int cu_put(cu_ptr to, const void *from, size_t n);
static int cu_get(void *to, cu_ptr from, size_t n);
static int cu_sync(void);
static int cu_error(int result, const char **name);

void __wrap_bench_gpu_start(struct bench_gpu *b, const struct bench_tool *tool, const struct bench_opts *o);
void __wrap_bench_gpu_start(struct bench_gpu *b, const struct bench_tool *tool, const struct bench_opts *o)
{
	*b = (struct bench_gpu){ .tool = tool, .opts = o, .cu = { .to_gpu = cu_put, .from_gpu = cu_get, .ctx_sync = cu_sync, .error_name = cu_error } };
	live_gpus++;
	event("start\n");
}

void __wrap_bench_gpu_open(struct bench_gpu *b);
void __wrap_bench_gpu_open(struct bench_gpu *b)
{
	(void)b;
	event("open\n");
}

void __wrap_bench_gpu_stop(struct bench_gpu *b);
void __wrap_bench_gpu_stop(struct bench_gpu *b)
{
	(void)b;
	live_gpus--;
	event("stop\n");
}

void __wrap_bench_buf_alloc(struct bench_gpu *b, struct bench_buf *buf, size_t size);
void __wrap_bench_buf_alloc(struct bench_gpu *b, struct bench_buf *buf, size_t size)
{
	(void)b;
	*buf = (struct bench_buf){ .addr = GPU_AT, .size = (size + GPU_PAGE_SIZE - 1) / GPU_PAGE_SIZE * GPU_PAGE_SIZE };
	if (size > SPACE)
		bench_die("the test has no such memory");
	buf_size = size;
	live_bufs++;
	event("alloc %zu\n", size);
}

void __wrap_bench_buf_free(struct bench_gpu *b, struct bench_buf *buf);
void __wrap_bench_buf_free(struct bench_gpu *b, struct bench_buf *buf)
{
	(void)b;
	live_bufs -= buf->addr == GPU_AT;
	event("free\n");
}

void __wrap_bench_map_make(struct bench_gpu *b, struct bench_map *m, const struct bench_buf *buf);
void __wrap_bench_map_make(struct bench_gpu *b, struct bench_map *m, const struct bench_buf *buf)
{
	unsigned long i = 0;

	(void)b;
	if (buf->addr != GPU_AT || buf->size % GPU_PAGE_SIZE || !live_bufs)
		bench_die("gdr_pin_buffer_v2: %s", strerror(EINVAL));
	while (maps[i].va)
		i++;
	maps[i].va = mmap(NULL, SPACE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	*m = (struct bench_map){ .mh = { i + 100 }, .va = maps[i].va, .size = buf->size, .p = maps[i].va,
				 .info = { .mapping_type = map_type } };
	if (!live_maps++)
		event("map\n");
}

void __wrap_bench_map_drop(struct bench_gpu *b, struct bench_map *m);
void __wrap_bench_map_drop(struct bench_gpu *b, struct bench_map *m)
{
	(void)b;
	munmap(maps[m->mh.h - 100].va, SPACE);
	maps[m->mh.h - 100].va = NULL;
	if (!--live_maps)
		event("drop\n");
}

void __wrap_bench_gpu_facts(struct bench_gpu *b, const struct bench_map *m, struct bench_result *r);
void __wrap_bench_gpu_facts(struct bench_gpu *b, const struct bench_map *m, struct bench_result *r)
{
	bench_fact(r, "fake", "%d", b->opts->gpu);
	event("facts%s\n", m->va ? "" : " of no mapping");
}

void __wrap_bench_on_cpu(int cpu);
void __wrap_bench_on_cpu(int cpu)
{
	event("cpu %d\n", cpu);
}

void __wrap_bench_clock_init(void);
void __wrap_bench_clock_init(void)
{
	event("clock\n");
}

const char *__wrap_bench_clock_text(void);
const char *__wrap_bench_clock_text(void)
{
	return "a clock";
}

void *__real_bench_host_alloc(size_t n);
void *__wrap_bench_host_alloc(size_t n);
void *__wrap_bench_host_alloc(size_t n)
{
	event("host %zu\n", n);
	host_size = n;
	return host = __real_bench_host_alloc(n);
}

static const char *cuda_error_text;
static bool no_register;
static int register_rc;

static int host_register(void *p, size_t size, unsigned int flags)
{
	event("register %s %u\n", p == host && size == host_size ? "all" : "another", flags);
	return register_rc;
}

const char *__wrap_bench_cuda_load(struct bench_cuda *c);
const char *__wrap_bench_cuda_load(struct bench_cuda *c)
{
	*c = (struct bench_cuda){ .host_register = no_register ? NULL : host_register };
	return cuda_error_text;
}

void __wrap_progress_total(size_t n);
void __wrap_progress_total(size_t n)
{
	total = (unsigned int)n;
	steps = 0;
}

void __wrap_progress(const char *fmt, ...);
void __wrap_progress(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(steps++ ? last_step : first_step, sizeof(last_step), fmt, ap);
	va_end(ap);
}

void __wrap_progress_wipe(void);
void __wrap_progress_wipe(void)
{
	event("wipe\n");
}

/* Copies: by the library, by vectors of it, by the driver, and of which regions. */

enum spoil { NO_SPOIL, FLIP, REFUSE };

static atomic_uint singles, vectors, driver, fences;
static struct {
	enum spoil how;
	int region;
} spoil;
static unsigned int spoilt;	/* the call of many pieces that leaves this piece out; -1: that fails */
static int spoilt_piece;
static atomic_uint calls_v;
static atomic_uint of_region[REGIONS];
static atomic_ulong maps_of[REGIONS];	/* a bit for each mapping that a region was reached by */

static bool inside(gdr_mh_t mh, const uint8_t *va, size_t size)
{
	unsigned long i = mh.h - 100;

	return i < MAPS && maps[i].va && va >= maps[i].va && va + size <= maps[i].va + buf_size;
}

static size_t offset_asked;	/* -o: regions begin there */

static int copy(gdr_mh_t mh, bool to, uint8_t *va, uint8_t *mem, size_t size)
{
	size_t region;
	bool hit;

	if (!inside(mh, va, size) || mem < host || mem + size > host + host_size)
		return EINVAL;
	region = ((size_t)(va - maps[mh.h - 100].va) - offset_asked) / REGION % REGIONS;
	atomic_fetch_add(&of_region[region], 1);
	atomic_fetch_or(&maps_of[region], 1ul << (mh.h - 100));
	hit = spoil.how && spoil.region == (int)region;
	if (hit && spoil.how == REFUSE)
		return EIO;
	memcpy(to ? va : mem, to ? mem : va, size);
	if (hit)
		(to ? va : mem)[size - 1] = (uint8_t)((to ? mem : va)[size - 1] ^ 0x10);
	return 0;
}

int gdr_copy_to_mapping(gdr_mh_t mh, void *va, const void *mem, size_t size)
{
	atomic_fetch_add(&singles, 1);
	return copy(mh, true, va, (uint8_t *)(uintptr_t)mem, size);
}

int gdr_copy_from_mapping(gdr_mh_t mh, void *mem, const void *va, size_t size)
{
	atomic_fetch_add(&singles, 1);
	return copy(mh, false, (uint8_t *)(uintptr_t)va, mem, size);
}

/* Leaves a piece out, or fails, in the call that is asked for. */
static int copy_v(const gdr_piece_t *p, size_t n, bool to)
{
	unsigned int call = atomic_fetch_add(&calls_v, 1) + 1;
	int rc = 0;

	atomic_fetch_add(&vectors, 1);
	for (size_t i = 0; i < n && !rc; i++)
		if (spoilt != call || spoilt_piece != (int)i)
			rc = copy(p[i].handle, to, p[i].map_d_ptr, p[i].h_ptr, p[i].size);
	return spoilt == call && spoilt_piece < 0 ? EIO : rc;
}

static int to_v(const gdr_piece_t *p, size_t n)
{
	return copy_v(p, n, true);
}

static int from_v(const gdr_piece_t *p, size_t n)
{
	return copy_v(p, n, false);
}

/* copylat_modes.c calls these by name. Another libgdrapi has neither. */
int (*vector_to)(const gdr_piece_t *p, size_t n) = to_v;
int (*vector_from)(const gdr_piece_t *p, size_t n) = from_v;

static int cu_put(cu_ptr to, const void *from, size_t n)
{
	atomic_fetch_add(&driver, 1);
	memcpy(gpu + (to - GPU_AT), from, n);
	return CU_OK;
}

static int cu_get(void *to, cu_ptr from, size_t n)
{
	atomic_fetch_add(&driver, 1);
	memcpy(to, gpu + (from - GPU_AT), n);
	return CU_OK;
}

static int cu_sync(void)
{
	return CU_OK;
}

static int cu_error(int result, const char **name)
{
	*name = result == CU_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : "?";
	return CU_OK;
}

void __real_bench_store_fence(void);
void __wrap_bench_store_fence(void);
void __wrap_bench_store_fence(void)
{
	atomic_fetch_add(&fences, 1);
	__real_bench_store_fence();
}

/* The race: it notes each cell, and tries it. */

#define CELLS 4096
static struct bench_cell timed[CELLS];
static size_t ntimed;
static char verified[CELLS];	/* how often the cell was, before and after: 1 and 2 */
static size_t first_of_race;
static unsigned int races;
static long budget;
static bool bad;

static struct bench_cell last_verified[64];
static size_t nverified;

static bool same_cell(const struct bench_cell *a, const struct bench_cell *b)
{
	return !strcmp(a->op, b->op) && !strcmp(a->who, b->who) && a->run == b->run && a->pace == b->pace &&
	       a->arg.size == b->arg.size;
}

void __wrap_bench_verify(struct bench_gpu *b, struct bench_cell *c);
void __wrap_bench_verify(struct bench_gpu *b, struct bench_cell *c)
{
	(void)b;
	/* After the race: one of its cells. Before it: kept until it comes. */
	for (size_t i = first_of_race; i < ntimed; i++)
		if (verified[i] == 1 && same_cell(&timed[i], c)) {
			verified[i] = 2;
			return;
		}
	if (nverified < sizeof(last_verified) / sizeof(last_verified[0]))
		last_verified[nverified++] = *c;
}

static size_t pieces_of(const struct bench_cell *c)
{
	int n = atoi(c->op);

	return n ? (size_t)n : 1;
}

static bool reads(const struct bench_cell *c)
{
	return !!strstr(c->op, "read");
}

/* Makes the copy twice. Whether its bytes move, no other does, and who was called. */
static bool moves(struct bench_cell c, size_t offset)
{
	size_t n = pieces_of(&c), room = n > 1 ? n * PIECE : c.arg.size + 64;
	uint8_t *dev = gpu + offset, *to = reads(&c) ? host : dev, *from = reads(&c) ? dev : host;
	unsigned int one = n == 1 ? 2 : 2 * (unsigned int)n, want[4] = { 0 };
	size_t edge = offset < 64 ? offset : 64;

	room = room > host_size ? host_size : room;
	bench_fill(from, room, c.arg.size);
	for (size_t i = 0; i < room; i++)
		to[i] = (uint8_t)~from[i];
	memset(dev - edge, 0x77, edge);
	singles = vectors = driver = fences = 0;
	c.run(&c.arg, 2);
	if (!strcmp(c.who, "gdrcopy"))
		want[0] = one;
	if (!strcmp(c.who, "gdrcopy_v"))
		want[1] = 2;
	if (!strcmp(c.who, "cuMemcpy"))
		want[2] = 2;
	if (strstr(c.who, ", 1 f"))
		want[3] = 2;
	if (c.arg.rc || singles != want[0] || vectors != want[1] || driver != want[2] || fences != want[3])
		return false;
	for (size_t i = 0; i < room; i++) {
		bool moved = n > 1 ? i % PIECE < c.arg.size : i < c.arg.size;

		if ((to[i] == from[i]) != moved)
			return false;
	}
	for (size_t i = 1; i <= edge; i++)
		if (*(dev - i) != 0x77)
			return false;
	return true;
}

void __wrap_bench_race(struct bench_cell *cells, size_t n, long budget_ms, struct bench_result *r);
void __wrap_bench_race(struct bench_cell *cells, size_t n, long budget_ms, struct bench_result *r)
{
	first_of_race = ntimed;
	budget = budget_ms;
	races++;
	for (size_t i = 0; i < n; i++) {
		struct bench_row row = { .op = cells[i].op, .who = cells[i].who, .size = cells[i].arg.size, .p50 = 1,
					 .mode = cells[i].mode ? cells[i].mode : bench_pace_name(cells[i].pace) };

		bench_row(r, &row);
		if (cells[i].arg.host != host || cells[i].arg.addr != GPU_AT + offset_asked ||
		    cells[i].arg.dev != maps[0].va + offset_asked || cells[i].arg.mh.h != 100)
			bad = true;
		if (!moves(cells[i], offset_asked)) {
			printf("# %s of %zu bytes by %s\n", cells[i].op, cells[i].arg.size, cells[i].who);
			bad = true;
		}
		if (ntimed == CELLS)
			abort();
		verified[ntimed] = 0;
		for (size_t k = 0; k < nverified; k++)
			if (same_cell(&last_verified[k], &cells[i]))
				verified[ntimed] = 1;
		timed[ntimed++] = cells[i];
	}
	nverified = 0;
}

static char *words[32];
static int status;

static void run_main(const struct bench_result *r, const struct bench_opts *o)
{
	int n = 0;

	(void)r, (void)o;
	while (words[n])
		n++;
	optind = 0;
	status = copylat_main(n, words);
}

static void set_words(const char *line)
{
	static char text[256];
	size_t n = 1;

	snprintf(text, sizeof(text), "%s", line);
	words[0] = (char *)"gdrcopy_copylat";
	for (char *w = strtok(text, " "); w; w = strtok(NULL, " "))
		words[n++] = w;
	words[n] = NULL;
}

/* What it prints with those arguments. */
static const char *copylat(const char *line)
{
	set_words(line);
	ntimed = nverified = first_of_race = races = 0;
	bad = false;
	events[0] = '\0';
	steps = total = 0;
	return printed(run_main, NULL, NULL);
}

/* Whether it is timed, so often in all: op, who, mode, size, and the most. */
static size_t cells_of(const char *op, const char *who, enum bench_pace pace, size_t size, long max)
{
	size_t n = 0;

	for (size_t i = 0; i < ntimed; i++)
		n += !strcmp(timed[i].op, op) && !strcmp(timed[i].who, who) && timed[i].pace == pace &&
		     timed[i].arg.size == size && timed[i].max == max;
	return n;
}

static bool all_verified(void)
{
	for (size_t i = 0; i < ntimed; i++)
		if (verified[i] != 2) {
			printf("# %s of %zu bytes by %s: %d\n", timed[i].op, timed[i].arg.size, timed[i].who, verified[i]);
			return false;
		}
	return !nverified;
}

static bool nothing_left(void)
{
	return !live_maps && !live_bufs && !live_gpus && !status;
}

static bool loop_at(const struct bench_loop *l, size_t size)
{
	return l->usable() && l->run(size);
}

/* Copies one by one: the cells of each size, and no other. */
static void test_each(const char *line, enum bench_pace pace, size_t offset, long writes, long most_reads)
{
	static const size_t sizes[] = { 1, 2, 3, 4, 7, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192,
					16384, 32768, 65536, 131072, 0 };
	size_t want = 0, found = 0;

	map_type = pace == BENCH_EVICTED ? GDR_MAPPING_TYPE_CACHING : GDR_MAPPING_TYPE_WC;
	offset_asked = offset;
	copylat(line);
	for (const size_t *n = sizes; *n; n++) {
		bool alone = pace == BENCH_BACK_TO_BACK && *n <= 65536;

		for (int i = 0; i < 2; i++) {
			const char *who = i ? "cuMemcpy" : "gdrcopy";

			found += cells_of("write", who, pace, *n, writes) + cells_of("read", who, pace, *n, most_reads);
			want += 2;
		}
		found += alone ? cells_of("write", "gdrcopy", BENCH_ALONE, *n, writes) : 0;
		want += alone;
		for (const struct bench_loop *l = bench_loops; l->name; l++) {
			if (l->loose || !loop_at(l, *n) || offset % 64 || (l->read && !strcmp(l->name, "memcpy") && *n > 65536))
				continue;
			found += cells_of(l->read ? "read" : "write", l->name, pace, *n, l->read ? most_reads : writes);
			want++;
			if (l->read || !alone)
				continue;
			found += cells_of("write", l->name, BENCH_ALONE, *n, writes);
			want++;
		}
	}
	tap_ok(&tap, found == want && ntimed == want && races == 23, "%s: the copies that are timed: %zu of %zu, %zu",
	       line, found, want, ntimed);
	tap_ok(&tap, !bad, "%s: each moves its bytes, by whom it says", line);
	tap_ok(&tap, all_verified(), "%s: each is verified before and after", line);
	tap_ok(&tap, steps == total && steps == 23 && nothing_left(), "%s: its steps are counted, and nothing is left", line);
	map_type = GDR_MAPPING_TYPE_WC;
}

/* What the line of progress says, at the first step and at the last one. */
static void is_steps(const char *first, const char *last)
{
	is_text(first_step, first, "the first step");
	is_text(last_step, last, "the last one");
}

static void test_used(void)
{
	static const size_t sizes[] = { 1, 2, 3, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 16384, 65536, 0 };
	size_t want = 0, found = 0;

	offset_asked = 0;
	copylat("--mode used -r 77 --budget 5");
	for (const size_t *n = sizes; *n; n++) {
		found += cells_of("read", "gdrcopy", BENCH_USED, *n, 77);
		want++;
		for (const struct bench_loop *l = bench_loops; l->name; l++)
			if (l->read && loop_at(l, *n) && (strcmp(l->name, "memcpy") || *n <= 4096)) {
				found += cells_of("read", l->name, BENCH_USED, *n, 77);
				want++;
			}
	}
	tap_ok(&tap, found == want && ntimed == want && races == 19 && budget == 5, "used: the reads that are timed: %zu of %zu, %zu",
	       found, want, ntimed);
	tap_ok(&tap, !bad && all_verified(), "used: each moves its bytes, and is verified before and after");
	tap_ok(&tap, steps == total && steps == 19 && nothing_left(), "used: its steps are counted, and nothing is left");
	is_steps("1 bytes, used", "65536 bytes, used");
	copylat("--mode used -s 4");
	tap_ok(&tap, races == 4 && total == 4 && buf_size == 65536 && cells_of("read", "gdrcopy", BENCH_USED, 4, 10000) == 1,
	       "used: -s is the largest, and the reads are 10000 at most");
	copylat("--mode used -s 3");
	tap_ok(&tap, races == 3 && total == 3, "used: what is below it is not");
}

static void test_many(bool has_v)
{
	static const size_t sizes[] = { 4, 8, 16, 32, 64, 128, 256, 512, 1024, 0 };
	static const enum bench_pace paces[] = { BENCH_BACK_TO_BACK, BENCH_ALONE };
	size_t want = 0, found = 0;
	const char *text;

	vector_to = has_v ? to_v : NULL;
	vector_from = has_v ? from_v : NULL;
	offset_asked = 64;
	text = copylat("--mode many -w 66 -r 55 -o 64");
	for (const size_t *n = sizes; *n; n++)
		for (int p = 0; p < 2; p++)
			for (int read = 0; read < (p ? 1 : 2); read++) {
				const char *op = read ? "16 reads" : "64 writes";
				long max = read ? 55 : 66;

				found += cells_of(op, "gdrcopy", paces[p], *n, max) + cells_of(op, "gdrcopy_v", paces[p], *n, max);
				want += has_v ? 2 : 1;
				if (!read && *n == 8) {
					found += cells_of(op, "plain, 1 fence", paces[p], *n, max);
					want++;
				}
#if defined(__x86_64__)
				if (!read && *n == 8 && bench_has_movdiri()) {
					found += cells_of(op, "movdiri, 1 f", paces[p], *n, max);
					want++;
				}
#endif
				for (const struct bench_loop *l = bench_loops; l->name; l++)
					if (l->read == !!read && loop_at(l, *n) && strcmp(l->name, "memcpy")) {
						found += cells_of(op, l->name, paces[p], *n, max);
						want++;
					}
			}
	for (size_t i = 0; i < ntimed; i++)
		bad |= timed[i].pieces != pieces_of(&timed[i]);
	tap_ok(&tap, found == want && ntimed == want && races == 27, "many%s: the copies that are timed: %zu of %zu, %zu",
	       has_v ? "" : ", without vectors", found, want, ntimed);
	tap_ok(&tap, !bad, "many: each moves all its pieces, and nothing else");
	tap_ok(&tap, steps == total && steps == 18 && nothing_left() && copylat_many.room == 64 * PIECE,
	       "many: its steps are counted, nothing is left, and all pieces have room");
	is_steps("64 writes of 4 bytes", "16 reads of 1024 bytes");
	tap_ok(&tap, !!strstr(text, has_v ? "\n     1024    1.00 ns      1.00 ns  1.00 " : "\n     1024          -      1.00 ns     - "),
	       "many: its last lines, %s vectors", has_v ? "with" : "without");
	vector_to = to_v;
	vector_from = from_v;
}

static void test_pause(void)
{
	static const size_t sizes[] = { 64, 1024, 4096, 16384, 65536, 262144, 1048576, 0 };
	static const struct { double ns; const char *mode; } gaps[] = {
		{ 0, "after 0" }, { 20000, "after 20 us" }, { 200000, "after 200 us" }, { 2000000, "after 2 ms" },
	};
	static const char *const ops[] = { "read", "write" }, *const who[] = { "gdrcopy", "cuMemcpy" };
	size_t found = 0, i = 0;

	offset_asked = 0;
	copylat("--mode pause -s 1M --registered");
	for (const size_t *n = sizes; *n; n++)
		for (int g = 0; g < 4; g++)
			for (int c = 0; c < 4; c++, i++)
				found += i < ntimed && timed[i].arg.size == *n && timed[i].pace == BENCH_PAUSED && timed[i].max == 10000 &&
					 (long)timed[i].gap_ns == (long)gaps[g].ns && !strcmp(timed[i].mode, gaps[g].mode) &&
					 !strcmp(timed[i].op, ops[c / 2]) && !strcmp(timed[i].who, who[c % 2]);
	tap_ok(&tap, found == i && ntimed == i && races == 28, "pause: the copies that are timed: %zu of %zu, %zu", found, i, ntimed);
	tap_ok(&tap, !bad && all_verified(), "pause: each moves its bytes, and is verified before and after");
	tap_ok(&tap, steps == total && steps == 28 && nothing_left(), "pause: its steps are counted, and nothing is left");
	is_steps("64 bytes after 0", "1048576 bytes after 2 ms");
	copylat("--mode pause -s 1023");
	tap_ok(&tap, races == 4 && total == 4, "pause: -s is the largest");
}

/* One of the calls with many pieces leaves one out, or fails, before the race or after it. */
static void go_on(const void *line)
{
	copylat(line);
}

static void test_many_bad(void)
{
	static const struct { unsigned int call; int piece; const char *text; } cases[] = {
		/* 1 of 64 writes, two in each of two races, 1; then the same of 16 reads and one race. */
		{ 1, 0, "64 writes, piece 0 of 4 bytes, by gdrcopy_v: wrong bytes" },
		{ 1, 63, "64 writes, piece 63 of 4 bytes, by gdrcopy_v: wrong bytes" },
		{ 1, -1, "gdrcopy_v: Input/output error" },
		{ 6, 5, "64 writes, piece 5 of 4 bytes, by gdrcopy_v: wrong bytes" },
		{ 6, -1, "gdrcopy_v: Input/output error" },
		{ 7, 15, "16 reads, piece 15 of 4 bytes, by gdrcopy_v: wrong bytes" },
		{ 7, -1, "gdrcopy_v: Input/output error" },
		{ 10, 0, "16 reads, piece 0 of 4 bytes, by gdrcopy_v: wrong bytes" },
		{ 10, -1, "gdrcopy_v: Input/output error" },
		{ 11, 1, "64 writes, piece 1 of 8 bytes, by gdrcopy_v: wrong bytes" },
	};

	offset_asked = 0;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		spoilt = cases[i].call;
		spoilt_piece = cases[i].piece;
		calls_v = 0;
		tap_ok(&tap, ends(go_on, "--mode many", BENCH_FAILED, cases[i].text), "call %u: it ends: %s", spoilt, cases[i].text);
	}
	spoilt = 0;
}

/* Callers: threads that make copies until a time is over, which here is when all made some. */

static long cpus;
static uint64_t now;	/* ns */
static atomic_int created, joined, create_fails;
static atomic_bool waited;	/* main waits for the threads; they begin then */
static unsigned int readings;
static struct {
	unsigned int early[REGIONS];	/* copies before the time begins */
	unsigned int all[REGIONS];
	unsigned long maps[REGIONS];
	int threads;
	bool left;		/* a thread was not joined */
	uint64_t ns;
} rounds[256];
static size_t nrounds;

long __real_sysconf(int name);
long __wrap_sysconf(int name);
long __wrap_sysconf(int name)
{
	return name == _SC_NPROCESSORS_ONLN && cpus ? cpus : __real_sysconf(name);
}

static bool by_library(void)
{
	for (int i = 0; i < REGIONS; i++)
		if (of_region[i])
			return true;
	return false;
}

/* Twice a round: when its time begins, and when all threads are joined. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
	(void)clock;
	if (nrounds == sizeof(rounds) / sizeof(rounds[0]))
		abort();
	atomic_store(&waited, true);
	if (readings++ % 2 == 0) {
		struct timespec ms = { 0, 1000000 };

		nanosleep(&ms, NULL);	/* threads that do not wait show */
		for (int i = 0; i < REGIONS; i++)
			rounds[nrounds].early[i] = of_region[i];
		rounds[nrounds].ns = now;
	} else {
		for (int i = 0; i < REGIONS; i++) {
			rounds[nrounds].all[i] = atomic_exchange(&of_region[i], 0);
			rounds[nrounds].maps[i] = atomic_exchange(&maps_of[i], 0);
		}
		rounds[nrounds].threads = created;
		rounds[nrounds].left = created != joined;
		rounds[nrounds].ns = now - rounds[nrounds].ns;
		created = joined = 0;
		atomic_store(&waited, false);
		nrounds++;
	}
	*t = (struct timespec){ (time_t)(now / 1000000000u), (long)(now % 1000000000u) };
	return 0;
}

/* How often it looks at threads that still have to copy: for ten seconds in all. */
static unsigned int waits = 40000;

int __wrap_usleep(useconds_t us);
int __wrap_usleep(useconds_t us)
{
	struct timespec short_time = { 0, 200000 };
	bool all = us == 100;

	if (us == 100)
		atomic_store(&waited, true);
	else
		now += us * 1000ull;
	do {
		nanosleep(&short_time, NULL);
		if (!all && by_library()) {
			all = true;
			for (int i = 0; i < created; i++)
				all &= of_region[i] >= 4 * ROW;
			waits -= waits > 0;
		} else {
			all = true;
		}
	} while (!all && waits);
	return 0;
}

struct work {
	void *(*f)(void *);
	void *arg;
};

static void *later(void *arg)
{
	struct work w = *(struct work *)arg;
	struct timespec short_time = { 0, 200000 };

	free(arg);
	for (int i = 0; i < 5000 && !atomic_load(&waited); i++)
		nanosleep(&short_time, NULL);
	return w.f(w.arg);
}

int __real_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*f)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*f)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*f)(void *), void *arg)
{
	struct work *w = malloc(sizeof(*w));

	if (!w || (create_fails && create_fails == created + 1)) {
		free(w);
		return EAGAIN;
	}
	*w = (struct work){ f, arg };
	atomic_fetch_add(&created, 1);
	return __real_pthread_create(t, attr, later, w);
}

int __real_pthread_join(pthread_t t, void **result);
int __wrap_pthread_join(pthread_t t, void **result);
int __wrap_pthread_join(pthread_t t, void **result)
{
	atomic_fetch_add(&joined, 1);
	return __real_pthread_join(t, result);
}

/* The rows are those of the ways that this CPU has, in that order; each with its round. */
static void test_callers(void)
{
	static const struct { const char *who; bool read, library, apart; } ways[] = {
		{ "gdrcopy", false, true, false }, { "gdrcopy, a mapping each", false, true, true },
		{ "avx2", false, false, false }, { "movdir64b", false, false, false },
		{ "gdrcopy", true, true, false }, { "gdrcopy, a mapping each", true, true, true }, { "avx2", true, false, false },
	};
	static const int callers[] = { 1, 2, 4 };
	static const size_t sizes[] = { 8, 64, 256, 4096 };
	bool rows = true, early = true, counted = true, mapped = true, joins = true;
	const char *text;
	size_t round = 0;

	cpus = 4;
	offset_asked = 64;
	nrounds = readings = 0;
	for (int i = 0; i < REGIONS; i++)
		of_region[i] = maps_of[i] = 0;
	text = copylat("--mode callers --budget 3 -o 64 --csv");
	text = strchr(text, '\n');
	for (int k = 0; k < 3; k++)
		for (int s = 0; s < 4; s++)
			for (int w = 0; w < 7; w++) {
				bool there = ways[w].library || sizes[s] == 8;
				char want[128], got[128];
				unsigned long seen = 0;
				unsigned int copies = 0;
				size_t samples;
				double p0, p50;

				for (const struct bench_loop *l = bench_loops; l->name; l++)
					there |= !strcmp(l->name, ways[w].who) && l->read == ways[w].read && loop_at(l, sizes[s]);
				if (!there)
					continue;
				snprintf(want, sizeof(want), ways[w].apart ? "gdrcopy_copylat,%s,\"%s\",callers,%zu,%d,64," : "gdrcopy_copylat,%s,%s,callers,%zu,%d,64,",
					 ways[w].read ? "read" : "write", ways[w].who, sizes[s], callers[k]);
				snprintf(got, sizeof(got), "%s", text ? text + 1 : "");
				rows &= !strncmp(got, want, strlen(want)) && round < nrounds;
				if (!rows) {
					printf("# %s\n# not %s\n", got, want);
					goto out;
				}
				rows &= sscanf(got + strlen(want), "%zu,%lf,%lf", &samples, &p0, &p50) == 3;
				for (int i = 0; i < REGIONS; i++) {
					bool has = ways[w].library && i < callers[k];

					copies += rounds[round].all[i];
					early &= rounds[round].early[i] == (has ? ROW : 0);
					counted &= !has || rounds[round].all[i] >= 4 * ROW;
					mapped &= !has || (ways[w].apart ? !(rounds[round].maps[i] & (seen | 1)) : rounds[round].maps[i] == 1);
					seen |= has ? rounds[round].maps[i] : 0;
				}
				joins &= rounds[round].threads == callers[k] && !rounds[round].left && rounds[round].ns == 3000000;
				if (ways[w].library) {
					char ns[32], said[32];

					counted &= samples * ROW == copies - ROW * (unsigned int)callers[k];
					snprintf(ns, sizeof(ns), "%.2f", 3e6 / (double)(samples * ROW));
					snprintf(said, sizeof(said), "%.2f", p50);
					counted &= !strcmp(ns, said);
					snprintf(said, sizeof(said), "%.2f", p0);
					counted &= !strcmp(ns, said);
				}
				round++;
				text = strchr(text + 1, '\n');
			}
out:
	tap_ok(&tap, rows && round == nrounds && text && !text[1], "callers: the rows, and no other");
	tap_ok(&tap, early, "callers: each makes a row of copies before the time begins, and waits");
	tap_ok(&tap, counted, "callers: the copies that count are those of the time, and all; a copy's time is a share of it");
	tap_ok(&tap, mapped, "callers: one mapping, or one each");
	tap_ok(&tap, joins, "callers: so many threads, joined, after the budget");
	tap_ok(&tap, steps == total && steps == 84 && nothing_left() && copylat_callers.room == 16 * REGION,
	       "callers: their steps are counted, and nothing is left");
	is_steps("1 callers, 8 bytes", "4 callers, 4096 bytes");
	for (cpus = 1; cpus < 20; cpus++) {
		struct bench_opts o = { 0 };

		tap_is(&tap, (long)copylat_callers.steps(&o),
		       28 * (cpus < 2 ? 1 : cpus < 4 ? 2 : cpus < 8 ? 3 : cpus < 14 ? 4 : 5), "callers: the steps of so many CPUs");
	}
	cpus = 2;
	offset_asked = 0;
	for (int region = 0; region < 2; region++) {
		char said[80];

		spoil.region = region;
		spoil.how = FLIP;
		snprintf(said, sizeof(said), "write of 8 bytes by caller %d of %d, gdrcopy: wrong bytes", region + 1, region + 1);
		tap_ok(&tap, ends(go_on, "--mode callers --budget 1", BENCH_FAILED, said), "it ends: %s", said);
		spoil.how = REFUSE;
		tap_ok(&tap, ends(go_on, "--mode callers --budget 1", BENCH_FAILED, "a copy: Input/output error"),
		       "caller %d fails: it ends", region + 1);
		spoil.how = NO_SPOIL;
		create_fails = region + 1;
		tap_ok(&tap, ends(go_on, "--mode callers --budget 1", BENCH_FAILED, "pthread_create: Resource temporarily unavailable"),
		       "thread %d cannot be started: it ends", region + 1);
		create_fails = 0;
	}
	cpus = 0;
}

/* main: what it does, in order. */
static void test_main(void)
{
	const char *text;

	offset_asked = 3;
	text = copylat("-s 2 -o 3 --cpu 1 -d 1 --json");
	is_steps("1 of 2 bytes", "2 of 2 bytes");
	is_text(events, "cpu 1\nclock\nstart\nopen\nalloc 5\nmap\nfacts\nhost 2\nwipe\ndrop\nfree\nstop\n", "what main does");
	tap_ok(&tap, strstr(text, "\"clock\": \"a clock\"") && strstr(text, "\"host_memory\": \"pageable\"") && strstr(text, "\"fake\": \"1\"") &&
	       strstr(text, "\"data\": \"verified, every size and competitor\""), "and its facts");
	tap_ok(&tap, budget == 100 && cells_of("write", "gdrcopy", BENCH_ALONE, 2, 100000) == 1 &&
	       cells_of("read", "gdrcopy", BENCH_BACK_TO_BACK, 2, 10000) == 1 && nothing_left(), "what nobody asks for");
	offset_asked = 0;
	text = copylat("-s 4 --registered --budget 9 --json");
	is_text(events, "cpu -1\nclock\nstart\nopen\nalloc 4\nmap\nfacts\nhost 4\nregister all 1\nwipe\ndrop\nfree\nstop\n",
		"with memory that is registered");
	tap_ok(&tap, !!strstr(text, "\"host_memory\": \"registered\"") && budget == 9, "its facts, and its budget");
	no_register = true;
	tap_ok(&tap, ends(go_on, "-s 4 --registered", BENCH_SKIPPED, "this driver has no cuMemHostRegister"), "a driver that cannot");
	cuda_error_text = "no libcuda";
	tap_ok(&tap, ends(go_on, "-s 4 --registered", BENCH_SKIPPED, "no libcuda"), "a driver that is not there");
	cuda_error_text = NULL;
	no_register = false;
	register_rc = 1;
	tap_ok(&tap, ends(go_on, "-s 4 --registered", BENCH_FAILED, "cuMemHostRegister gave CUDA_ERROR_INVALID_VALUE"), "a driver that refuses");
	register_rc = 0;
	tap_ok(&tap, ends(go_on, "-s 4 -C", BENCH_FAILED, "--cold-cache has no effect on this mapping"), "-C where the CPU does not cache");
	tap_ok(&tap, ends(go_on, "--cold -C", BENCH_USAGE, "choose one"), "--cold with -C");
}

/* Each mode refuses what it does not look at, and takes what it does. */
static void test_refused(void)
{
	static const struct { const char *mode, *refused, *taken; } modes[] = {
		{ "used", "w k C R", "s r o" }, { "many", "s k C R", "w r o" },
		{ "pause", "w r k C", "s R o" }, { "callers", "s w r k C R", "o" }, { "each", "", "s w r k R o" },
	};
	static const struct { char letter; const char *words, *name; } options[] = {
		{ 's', "-s 4", "size" }, { 'w', "-w 3", "writes" }, { 'r', "-r 3", "reads" }, { 'k', "--cold", "cold" },
		{ 'C', "-C", "cold-cache" }, { 'R', "--registered", "registered" }, { 'o', "-o 64", "offset" },
	};

	cpus = 1;
	for (size_t m = 0; m < sizeof(modes) / sizeof(modes[0]); m++)
		for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
			bool no = strchr(modes[m].refused, options[i].letter), yes = strchr(modes[m].taken, options[i].letter);
			char line[96], said[96];

			if (!no && !yes)
				continue;
			offset_asked = options[i].letter == 'o' ? 64 : 0;
			snprintf(line, sizeof(line), "--mode %s %s%s --budget 1", modes[m].mode, options[i].words,
				 yes && options[i].letter != 's' && strchr(modes[m].taken, 's') ? " -s 64" : "");
			snprintf(said, sizeof(said), no ? "--%s has no effect with --mode %s: leave one" : "", options[i].name, modes[m].mode);
			tap_ok(&tap, ends(go_on, line, no ? BENCH_USAGE : BENCH_OK, said), "%s: %s", line, no ? "refused" : "taken");
		}
	cpus = 0;
	offset_asked = 0;
}

/* What the modes print: no two figures are the same. */
static void add(struct bench_result *r, const char *op, const char *who, const char *mode, size_t size, int threads)
{
	struct bench_row row = { .op = op, .who = who, .mode = mode, .size = size, .threads = threads,
				 .p50 = 10 * (double)(r->nrows + 1), .p99 = 10 * (double)(r->nrows + 1) + 5,
				 .p0 = 10 * (double)(r->nrows + 1) - 5 };

	bench_row(r, &row);
}

static const char *first_lines(const char *text, int n)
{
	static char lines[4096];
	size_t len = 0;

	for (; n && text[len]; len++)
		n -= text[len] == '\n';
	snprintf(lines, sizeof(lines), "%.*s", (int)len, text);
	return lines;
}

static void test_tables(void)
{
	struct bench_result r = { .tool = "t" };
	struct bench_opts o = { .size = 1024 };
	const char *text;
	struct bench_row zero = { .op = "read", .who = "gdrcopy", .mode = "used", .size = 2 };

	bench_fact(&r, "k", "v");
	add(&r, "read", "gdrcopy", "used", 1, 1);
	add(&r, "read", "plain", "used", 1, 1);
	add(&r, "read", "avx2 loose", "used", 1, 1);
	add(&r, "read", "gdrcopy", "back-to-back", 1, 1);
	bench_row(&r, &zero);
	add(&r, "read", "plain", "used", 2, 1);
	add(&r, "read", "memcpy", "used", 65536, 1);
	is_text(printed(copylat_used.print, &r, &o),
		"# k: v\n\n"
		"Reads, the bytes used before the next read, P50; x: times as long as gdrcopy\n"
		"    bytes    gdrcopy        plain     x       sse4.1     x         avx2     x       avx512     x"
		"       memcpy     x  plain loose     x sse4.1 loose     x   avx2 loose     x\n"
		"        1    10.0 ns      20.0 ns  2.00            -     -            -     -            -     -"
		"            -     -            -     -            -     -      30.0 ns  3.00\n"
		"        2    0.00 ns      60.0 ns     -            -     -            -     -            -     -"
		"            -     -            -     -            -     -            -     -\n"
		"    65536          -            -     -            -     -            -     -            -     -"
		"      70.0 ns     -            -     -            -     -            -     -\n", "the table of --mode used");
	bench_result_free(&r);

	r = (struct bench_result){ .tool = "t" };
	add(&r, "16 reads", "gdrcopy_v", "back-to-back", 4, 1);
	add(&r, "16 reads", "gdrcopy", "back-to-back", 4, 1);
	add(&r, "16 reads", "sse4.1 loose", "back-to-back", 4, 1);
	add(&r, "64 writes", "gdrcopy_v", "back-to-back", 4, 1);
	add(&r, "64 writes", "gdrcopy", "back-to-back", 4, 1);
	add(&r, "64 writes", "gdrcopy_v", "alone", 4, 1);
	add(&r, "64 writes", "movdiri, 1 f", "alone", 4, 1);
	is_text(printed(copylat_many.print, &r, &o),
		"\n16 reads at 16 addresses, all of them, P50; x: times as long as gdrcopy_v\n"
		"    bytes  gdrcopy_v      gdrcopy     x        plain     x       sse4.1     x         avx2     x"
		"       avx512     x  plain loose     x sse4.1 loose     x   avx2 loose     x\n"
		"        4    10.0 ns      20.0 ns  2.00            -     -            -     -            -     -"
		"            -     -            -     -      30.0 ns  3.00            -     -\n"
		"\n64 writes at 64 addresses, all of them, back to back, P50\n"
		"    bytes  gdrcopy_v      gdrcopy     x        plain     x         sse2     x         avx2     x"
		"       avx512     x    movdir64b     x plain, 1 fence     x movdiri, 1 f     x\n"
		"        4    40.0 ns      50.0 ns  1.25            -     -            -     -            -     -"
		"            -     -            -     -            -     -            -     -\n"
		"\n64 writes at 64 addresses, all of them, alone, P50\n"
		"    bytes  gdrcopy_v      gdrcopy     x        plain     x         sse2     x         avx2     x"
		"       avx512     x    movdir64b     x plain, 1 fence     x movdiri, 1 f     x\n"
		"        4    60.0 ns            -     -            -     -            -     -            -     -"
		"            -     -            -     -            -     -      70.0 ns  1.17\n", "the tables of --mode many");
	bench_result_free(&r);

	r = (struct bench_result){ .tool = "t" };
	add(&r, "read", "gdrcopy", "after 0", 64, 1);
	add(&r, "read", "cuMemcpy", "after 20 us", 64, 1);
	add(&r, "write", "gdrcopy", "after 200 us", 1024, 1);
	add(&r, "write", "cuMemcpy", "after 2 ms", 1024, 1);
	add(&r, "write", "cuMemcpy", "after 2 ms", 4096, 1);
	is_text(printed(copylat_pause.print, &r, &o),
		"\nread by gdrcopy after a pause, P50 and P99\n"
		"    bytes                 after 0             after 20 us            after 200 us              after 2 ms\n"
		"       64     10.0 ns     15.0 ns           -           -           -           -           -           -\n"
		"     1024           -           -           -           -           -           -           -           -\n"
		"\nread by cuMemcpy after a pause, P50 and P99\n"
		"    bytes                 after 0             after 20 us            after 200 us              after 2 ms\n"
		"       64           -           -     20.0 ns     25.0 ns           -           -           -           -\n"
		"     1024           -           -           -           -           -           -           -           -\n"
		"\nwrite by gdrcopy after a pause, P50 and P99\n"
		"    bytes                 after 0             after 20 us            after 200 us              after 2 ms\n"
		"       64           -           -           -           -           -           -           -           -\n"
		"     1024           -           -           -           -     30.0 ns     35.0 ns           -           -\n"
		"\nwrite by cuMemcpy after a pause, P50 and P99\n"
		"    bytes                 after 0             after 20 us            after 200 us              after 2 ms\n"
		"       64           -           -           -           -           -           -           -           -\n"
		"     1024           -           -           -           -           -           -     40.0 ns     45.0 ns\n", "the tables of --mode pause");
	bench_result_free(&r);

	r = (struct bench_result){ .tool = "t" };
	add(&r, "write", "gdrcopy", "callers", 8, 1);
	add(&r, "read", "gdrcopy", "callers", 8, 1);
	add(&r, "write", "gdrcopy", "callers", 8, 14);
	add(&r, "write", "gdrcopy", "callers", 4096, 2);
	text = strstr(printed(copylat_callers.print, &r, &o), "\nreads by gdrcopy:");
	tap_ok(&tap, text && strstr(text, "        8   20.0 ns    50.00         -"), "and of its reads");
	is_text(first_lines(printed(copylat_callers.print, &r, &o), 7),
		"\nwrites by gdrcopy: what one copy takes its caller, and millions a second of all\n"
		"    bytes     1 callers          2 callers          4 callers          8 callers         14 callers     \n"
		"        8   10.0 ns   100.00         -        -         -        -         -        -    420 ns    33.33\n"
		"       64         -        -         -        -         -        -         -        -         -        -\n"
		"      256         -        -         -        -         -        -         -        -         -        -\n"
		"     4096         -        -   80.0 ns    25.00         -        -         -        -         -        -\n", "the first tables of --mode callers");
	bench_result_free(&r);
}

int main(void)
{
	memory = memfd_create("gpu", 0);
	if (memory < 0 || ftruncate(memory, SPACE))
		abort();
	gpu = mmap(NULL, SPACE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	test_main();
	test_each("-s 128K -w 123 -r 45", BENCH_BACK_TO_BACK, 0, 123, 45);
	test_each("-s 128K -w 123 -r 45 -o 65", BENCH_BACK_TO_BACK, 65, 123, 45);
	test_each("-s 262143 -w 9 -r 8 --cold -o 192", BENCH_COLD, 192, 9, 8);
	test_each("-s 128K -C", BENCH_EVICTED, 0, 100000, 10000);
	test_used();
	test_many(true);
	test_many(false);
	test_many_bad();
	test_pause();
	test_refused();
	test_tables();
	test_callers();
	return tap_done(&tap);
}
