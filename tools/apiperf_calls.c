/* SPDX-License-Identifier: MIT */
/*
 * apiperf_calls.c - the calls that gdrcopy_apiperf times.
 */
#include "apiperf_calls.h"

#include <string.h>

/* Other libgdrapi libraries lack the extensions: there, these are NULL. */
extern __typeof__(gdr_copy_to_mapping_v) gdr_copy_to_mapping_v __attribute__((weak));
extern __typeof__(gdr_copy_from_mapping_v) gdr_copy_from_mapping_v __attribute__((weak));
extern __typeof__(gdr_cache_open) gdr_cache_open __attribute__((weak));
extern __typeof__(gdr_cache_get) gdr_cache_get __attribute__((weak));
extern __typeof__(gdr_cache_put) gdr_cache_put __attribute__((weak));
extern __typeof__(gdr_cache_flush) gdr_cache_flush __attribute__((weak));
extern __typeof__(gdr_cache_close) gdr_cache_close __attribute__((weak));

#define ROW 1000		/* calls that are timed together */
#define MIN_SAMPLES 3

/* ticks: of one call, less the clock's cost. */
static void step_add(struct life *l, const char *op, uint64_t ticks)
{
	struct step *s = l->steps;

	if (!l->warm)
		return;
	while (s < l->steps + l->nsteps && strcmp(s->op, op))
		s++;
	if (s == l->steps + l->nsteps) {
		if (l->nsteps == STEPS)
			bench_die("%s: too many kinds of calls", l->gpu.tool->name);
		l->nsteps++;
		*s = (struct step){ .op = op };
		if (!bench_samples_init(&s->samples, (size_t)l->gpu.opts->iters + MIN_SAMPLES))
			bench_die("out of memory for samples");
	}
	bench_samples_add(&s->samples, bench_ns(ticks));
}

/* Times a call, and ends the program unless it gives 0. */
#define GDR(l, op, call)				\
	do {						\
		uint64_t t0_ = bench_ticks();		\
		int rc_ = (call);			\
							\
		step_add(l, op, bench_since(t0_));	\
		bench_rc(rc_, op);			\
	} while (0)

/* The library's mappings are touched, too, before they are taken down. */
static void touch(void *va)
{
	*(volatile uint8_t *)va = 0;
}

/* Bytes written through the mapping are there for the driver. */
static void check_data(struct life *l, gdr_mh_t mh, void *va)
{
	static uint64_t seed = 1;
	uint8_t want[64], got[64] = { 0 };

	bench_fill(want, sizeof(want), seed++);
	bench_rc(gdr_copy_to_mapping(mh, va, want, sizeof(want)), "gdr_copy_to_mapping");
	bench_gpu_get(&l->gpu, got, l->buf.addr, sizeof(got));
	if (memcmp(want, got, sizeof(got)))
		bench_die("%s: what was written through the mapping is not in GPU memory", l->gpu.tool->name);
}

/* Copies of many pieces, and as many copies of one. */
#define READS 16
#define WRITES 64
#define APART (15 * 64u)	/* an odd number of lines */

static int read_each(const gdr_piece_t *p)
{
	int rc = 0;

	for (int i = 0; i < READS; i++)
		rc |= gdr_copy_from_mapping(p[i].handle, p[i].h_ptr, p[i].map_d_ptr, p[i].size);
	return rc;
}

static int write_each(const gdr_piece_t *p)
{
	int rc = 0;

	for (int i = 0; i < WRITES; i++)
		rc |= gdr_copy_to_mapping(p[i].handle, p[i].map_d_ptr, p[i].h_ptr, p[i].size);
	return rc;
}

/* Each piece by itself; gpu is a copy of GPU memory that the driver made or was given. */
static void check_pieces(const struct life *l, const char *what, const gdr_piece_t *p, int n,
			 const uint8_t *gpu)
{
	for (int i = 0; i < n; i++)
		if (memcmp(p[i].h_ptr, gpu + APART * i, p[i].size))
			bench_die("%s: %s: piece %d has wrong bytes", l->gpu.tool->name, what, i);
}

/* Fresh bytes on the side that the copies read. */
static void fresh_gpu(struct life *l, uint8_t *gpu, size_t n)
{
	static uint64_t seed = 1000;

	bench_fill(gpu, n, seed++);
	bench_gpu_put(&l->gpu, l->buf.addr, gpu, n);
}

static void fresh_host(void *host, size_t n)
{
	static uint64_t seed = 2000;

	bench_fill(host, n, seed++);
}

static void copies(struct life *l, gdr_mh_t mh, uint8_t *va)
{
	static uint8_t host[WRITES][64], gpu[WRITES * APART];
	gdr_piece_t pieces[WRITES];

	for (int i = 0; i < WRITES; i++)
		pieces[i] = (gdr_piece_t){ mh, va + APART * i, host[i], 64 };
	fresh_gpu(l, gpu, sizeof(gpu));
	GDR(l, "gdr_copy_from_mapping, 16 x 64 B", read_each(pieces));
	check_pieces(l, "gdr_copy_from_mapping", pieces, READS, gpu);
	if (gdr_copy_from_mapping_v) {
		fresh_gpu(l, gpu, sizeof(gpu));
		GDR(l, "gdr_copy_from_mapping_v, 16 x 64 B",
		    gdr_copy_from_mapping_v(pieces, READS));
		check_pieces(l, "gdr_copy_from_mapping_v", pieces, READS, gpu);
	}
	for (int i = 0; i < WRITES; i++)
		pieces[i].size = 8;
	fresh_host(host, sizeof(host));
	GDR(l, "gdr_copy_to_mapping, 64 x 8 B", write_each(pieces));
	bench_gpu_get(&l->gpu, gpu, l->buf.addr, sizeof(gpu));
	check_pieces(l, "gdr_copy_to_mapping", pieces, WRITES, gpu);
	if (gdr_copy_to_mapping_v) {
		fresh_host(host, sizeof(host));
		GDR(l, "gdr_copy_to_mapping_v, 64 x 8 B",
		    gdr_copy_to_mapping_v(pieces, WRITES));
		bench_gpu_get(&l->gpu, gpu, l->buf.addr, sizeof(gpu));
		check_pieces(l, "gdr_copy_to_mapping_v", pieces, WRITES, gpu);
	}
}

static void library_round(struct life *l)
{
	unsigned long addr = l->buf.addr;
	size_t size = l->buf.size;
	gdr_t g = l->gpu.g;
	gdr_info_t info;
	gdr_mh_t mh;
	void *va;
	int v;

	GDR(l, "gdr_pin_buffer_v2", gdr_pin_buffer_v2(g, addr, size, GDR_PIN_FLAG_DEFAULT, &mh));
	GDR(l, "gdr_map_v2", gdr_map_v2(g, mh, &va, size, l->gpu.opts->map_flags));
	GDR(l, "gdr_get_info", gdr_get_info(g, mh, &info));
	GDR(l, "gdr_get_callback_flag", gdr_get_callback_flag(g, mh, &v));
	GDR(l, "gdr_get_attribute", gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &v));
	check_data(l, mh, va);
	copies(l, mh, va);
	GDR(l, "gdr_unmap", gdr_unmap(g, mh, va, size));
	GDR(l, "gdr_unpin_buffer", gdr_unpin_buffer(g, mh));
}

static int cache_hit(struct life *l)
{
	gdr_mh_t mh;
	void *va;
	int rc;

	rc = gdr_cache_get(l->cache, l->buf.addr, l->buf.size, &mh, &va);
	return rc ? rc : gdr_cache_put(l->cache, mh);
}

static void hits_in_a_row(struct life *l)
{
	uint64_t t0 = bench_ticks();
	int rc = 0;

	for (int i = 0; i < ROW; i++)
		rc |= cache_hit(l);
	step_add(l, "gdr_cache_get + put, hits in a row", bench_since(t0) / ROW);
	bench_rc(rc, "gdr_cache_get");
}

/* The first hit after a miss is not timed: it finds nothing in the CPU's caches. */
static void cache_round(struct life *l)
{
	gdr_mh_t mh;
	void *va;

	if (!gdr_cache_open)
		return;
	GDR(l, "gdr_cache_get, miss",
	    gdr_cache_get(l->cache, l->buf.addr, l->buf.size, &mh, &va));
	check_data(l, mh, va);
	bench_rc(gdr_cache_put(l->cache, mh), "gdr_cache_put");
	bench_rc(cache_hit(l), "gdr_cache_get");
	GDR(l, "gdr_cache_get + put, hit", cache_hit(l));
	hits_in_a_row(l);
	GDR(l, "gdr_cache_flush", gdr_cache_flush(l->cache));
}

static void round_trip(struct life *l)
{
	library_round(l);
	cache_round(l);
}

static void flush_steps(struct life *l, struct bench_result *r, const char *mode, size_t size)
{
	size_t i;

	for (i = 0; i < l->nsteps; i++) {
		struct step *s = &l->steps[i];
		struct bench_row row = {
			.op = s->op, .who = "gdrcopy", .mode = mode, .size = size,
			.threads = 1, .batch = 1, .samples = s->samples.n,
			.p0 = bench_p0(&s->samples), .p50 = bench_p50(&s->samples),
		};

		bench_row(r, &row);
		bench_samples_free(&s->samples);
	}
	l->nsteps = 0;
}

/* Runs to warm up, and then to be timed, as often as the options say. */
static void repeat(struct life *l, void (*once)(struct life *))
{
	const struct bench_opts *o = l->gpu.opts;
	uint64_t end;
	long i;

	l->warm = false;
	for (i = 0; i < o->warm_ups; i++)
		once(l);
	l->warm = true;
	end = bench_monotonic_ns() + (uint64_t)o->budget_ms * 1000000u;
	for (i = 0; i < o->iters && (i < MIN_SAMPLES || bench_monotonic_ns() < end); i++)
		once(l);
}

static void open_and_close(struct life *l)
{
	uint64_t t0 = bench_ticks(), t;

	l->gpu.g = gdr_open();
	t = bench_since(t0);
	step_add(l, "gdr_open", t);
	if (!l->gpu.g)
		bench_die("%s: gdr_open found no way to the GPU's memory; GDRCOPY_ENABLE_LOGGING=1 tells why",
			  l->gpu.tool->name);
	GDR(l, "gdr_close", gdr_close(l->gpu.g));
}

void apiperf_open(struct life *l, struct bench_result *r)
{
	l->warm = true;
	open_and_close(l);
	flush_steps(l, r, "first", 0);
	repeat(l, open_and_close);
	flush_steps(l, r, "again", 0);
}

void apiperf_first_pin(struct life *l, struct bench_result *r)
{
	void *va = NULL;
	gdr_mh_t mh;

	l->warm = true;
	GDR(l, "gdr_pin_buffer_v2",
	    gdr_pin_buffer_v2(l->gpu.g, l->buf.addr, l->buf.size, GDR_PIN_FLAG_DEFAULT, &mh));
	GDR(l, "gdr_map_v2", gdr_map_v2(l->gpu.g, mh, &va, l->buf.size, l->gpu.opts->map_flags));
	touch(va);
	GDR(l, "gdr_unmap", gdr_unmap(l->gpu.g, mh, va, l->buf.size));
	GDR(l, "gdr_unpin_buffer", gdr_unpin_buffer(l->gpu.g, mh));
	flush_steps(l, r, "first", 0);
}

void apiperf_buffer(struct life *l, struct bench_result *r, size_t size)
{
	bench_buf_alloc(&l->gpu, &l->buf, size);
	if (gdr_cache_open)
		bench_rc(gdr_cache_open(l->gpu.g, SIZE_MAX, 0, &l->cache), "gdr_cache_open");
	repeat(l, round_trip);
	if (gdr_cache_open)
		bench_rc(gdr_cache_close(l->cache), "gdr_cache_close");
	flush_steps(l, r, "alone", size);
	bench_buf_free(&l->gpu, &l->buf);
}
