/* SPDX-License-Identifier: MIT */
/*
 * gdrcopy_apiperf - how long each control call takes, beside the calls of the
 * system and the driver that the work comes down to.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../kmod/gdrdrv_uapi.h"
#include "bench/cuda.h"
#include "bench/gpu.h"
#include "bench/timing.h"

/* Other libgdrapi libraries lack the extensions: there, these are NULL. */
extern __typeof__(gdr_copy_to_mapping_v) gdr_copy_to_mapping_v __attribute__((weak));
extern __typeof__(gdr_copy_from_mapping_v) gdr_copy_from_mapping_v __attribute__((weak));
extern __typeof__(gdr_cache_open) gdr_cache_open __attribute__((weak));
extern __typeof__(gdr_cache_get) gdr_cache_get __attribute__((weak));
extern __typeof__(gdr_cache_put) gdr_cache_put __attribute__((weak));
extern __typeof__(gdr_cache_flush) gdr_cache_flush __attribute__((weak));
extern __typeof__(gdr_cache_close) gdr_cache_close __attribute__((weak));

#define STEPS 32
#define ROW 1000		/* calls that are timed together */
#define MIN_SAMPLES 3

static const struct bench_tool tool = {
	.name = "gdrcopy_apiperf",
	.codes = (const char[]){ OPT_GPU, OPT_SIZE, OPT_MAP, OPT_ALLOC, OPT_ITERS, OPT_WARM_UPS, OPT_BUDGET,
				 OPT_CPU, OPT_JSON, OPT_CSV, OPT_COMPAT, OPT_BACKEND, 0 },
	.what = "Times each control call of the library, for buffers of 64 KiB, 1 MiB and 16 MiB\n"
		"up to -s (16 MiB), beside the calls that the work comes down to.",
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
		"  The calls beneath are made by this program itself, on the same memory. They are\n"
		"  those of the backend in use that can be made from outside of the library.\n"
		"  What each copy moves is compared with the driver's copy of it, outside the times.",
};

/* One call. Steps live in the order in which they were first timed. */
struct step {
	const char *op, *who;
	struct bench_samples samples;
};

struct life {
	struct bench_gpu gpu;
	struct bench_cuda cuda;
	struct bench_buf buf;
	gdr_cache_t cache;
	const char *backend;
	struct step steps[STEPS];
	size_t nsteps;
	bool warm;		/* times count */
};

/* ticks: of one call, less the clock's cost. */
static void step_add(struct life *l, const char *op, const char *who, uint64_t ticks)
{
	struct step *s = l->steps;

	if (!l->warm)
		return;
	while (s < l->steps + l->nsteps && strcmp(s->op, op))
		s++;
	if (s == l->steps + l->nsteps) {
		if (l->nsteps == STEPS)
			bench_die("%s: too many kinds of calls", tool.name);
		l->nsteps++;
		*s = (struct step){ .op = op, .who = who };
		if (!bench_samples_init(&s->samples, (size_t)l->gpu.opts->iters + MIN_SAMPLES))
			bench_die("out of memory for samples");
	}
	bench_samples_add(&s->samples, bench_ns(ticks));
}

/* Times the expression that follows and ends the program unless it gives 0. */
#define TIME(l, op, who, rc_of, call)			\
	do {						\
		uint64_t t0_ = bench_ticks();		\
		int rc_ = (call);			\
							\
		step_add(l, op, who, bench_since(t0_));	\
		rc_of;					\
	} while (0)
#define GDR(l, op, call) TIME(l, op, "gdrcopy", bench_rc(rc_, op), call)
#define CUDA(l, op, call) TIME(l, op, "driver", bench_cu(&(l)->gpu, rc_, op), call)
#define SYS(l, op, call) TIME(l, op, "system", bench_rc(rc_ < 0 ? errno : 0, op), call)

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
		bench_die("%s: what was written through the mapping is not in GPU memory", tool.name);
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
static void check_pieces(const char *what, const gdr_piece_t *p, int n, const uint8_t *gpu)
{
	for (int i = 0; i < n; i++)
		if (memcmp(p[i].h_ptr, gpu + APART * i, p[i].size))
			bench_die("%s: %s: piece %d has wrong bytes", tool.name, what, i);
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
	check_pieces("gdr_copy_from_mapping", pieces, READS, gpu);
	if (gdr_copy_from_mapping_v) {
		fresh_gpu(l, gpu, sizeof(gpu));
		GDR(l, "gdr_copy_from_mapping_v, 16 x 64 B",
		    gdr_copy_from_mapping_v(pieces, READS));
		check_pieces("gdr_copy_from_mapping_v", pieces, READS, gpu);
	}
	for (int i = 0; i < WRITES; i++)
		pieces[i].size = 8;
	fresh_host(host, sizeof(host));
	GDR(l, "gdr_copy_to_mapping, 64 x 8 B", write_each(pieces));
	bench_gpu_get(&l->gpu, gpu, l->buf.addr, sizeof(gpu));
	check_pieces("gdr_copy_to_mapping", pieces, WRITES, gpu);
	if (gdr_copy_to_mapping_v) {
		fresh_host(host, sizeof(host));
		GDR(l, "gdr_copy_to_mapping_v, 64 x 8 B",
		    gdr_copy_to_mapping_v(pieces, WRITES));
		bench_gpu_get(&l->gpu, gpu, l->buf.addr, sizeof(gpu));
		check_pieces("gdr_copy_to_mapping_v", pieces, WRITES, gpu);
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

/* What one of ROW calls takes. */
static void add_row(struct life *l, const char *op, const char *who, uint64_t ticks)
{
	step_add(l, op, who, ticks / ROW);
}

static void hits_in_a_row(struct life *l)
{
	unsigned long long id;
	uint64_t t0;
	int rc = 0;

	t0 = bench_ticks();
	for (int i = 0; i < ROW; i++)
		rc |= cache_hit(l);
	add_row(l, "gdr_cache_get + put, hits in a row", "gdrcopy", bench_since(t0));
	bench_rc(rc, "gdr_cache_get");
	t0 = bench_ticks();
	for (int i = 0; i < ROW; i++)
		rc |= l->gpu.cu.pointer_attribute(&id, CU_ATTR_BUFFER_ID, l->buf.addr);
	add_row(l, "BUFFER_ID queries in a row", "driver", bench_since(t0));
	bench_cu(&l->gpu, rc, "cuPointerGetAttribute");
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

/* mmap gives a pointer, and the macros want a number. */
static int map_fd(void **va, size_t size, int fd, off_t at)
{
	*va = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
	return *va == MAP_FAILED ? -1 : 0;
}

static void beneath_gdrdrv(struct life *l)
{
	struct gdrdrv_pin pin = { .addr = l->buf.addr, .size = l->buf.size };
	struct gdrdrv_unpin unpin;
	void *va;
	int fd;

	SYS(l, "open(/dev/gdrdrv)", fd = open("/dev/gdrdrv", O_RDWR | O_CLOEXEC));
	SYS(l, "ioctl(PIN_BUFFER)", ioctl(fd, GDRDRV_IOC_PIN, &pin));
	SYS(l, "mmap", map_fd(&va, l->buf.size, fd, (off_t)pin.handle * getpagesize()));
	touch(va);
	SYS(l, "munmap", munmap(va, l->buf.size));
	unpin.handle = pin.handle;
	SYS(l, "ioctl(UNPIN_BUFFER)", ioctl(fd, GDRDRV_IOC_UNPIN, &unpin));
	SYS(l, "close", close(fd));
}

static void beneath_dmabuf(struct life *l)
{
	int fd = -1;
	void *va;

	if (!l->cuda.range_handle)
		return;
	CUDA(l, "cuMemGetHandleForAddressRange",
	     l->cuda.range_handle(&fd, l->buf.addr, l->buf.size, CU_RANGE_DMA_BUF, 0));
	SYS(l, "mmap", map_fd(&va, l->buf.size, fd, 0));
	touch(va);
	SYS(l, "munmap", munmap(va, l->buf.size));
	SYS(l, "close", close(fd));
}

static void beneath_any(struct life *l)
{
	unsigned long long id = 0;
	unsigned int on = 1;
	cu_ptr base = 0;
	size_t size = 0;

	if (l->cuda.address_range)
		CUDA(l, "cuMemGetAddressRange",
		     l->cuda.address_range(&base, &size, l->buf.addr));
	CUDA(l, "cuPointerGetAttribute(BUFFER_ID)",
	     l->gpu.cu.pointer_attribute(&id, CU_ATTR_BUFFER_ID, l->buf.addr));
	/* Memory of cuMemCreate does not have it: driver 580 answers NOT_SUPPORTED. */
	if (l->cuda.set_attribute &&
	    !l->cuda.set_attribute(&on, CU_ATTR_SYNC_MEMOPS, l->buf.addr))
		CUDA(l, "cuPointerSetAttribute(SYNC_MEMOPS)",
		     l->cuda.set_attribute(&on, CU_ATTR_SYNC_MEMOPS, l->buf.addr));
}

static void round_trip(struct life *l)
{
	library_round(l);
	cache_round(l);
	beneath_any(l);
	if (!strcmp(l->backend, "gdrdrv"))
		beneath_gdrdrv(l);
	else if (!strcmp(l->backend, "dmabuf"))
		beneath_dmabuf(l);
}

static void flush_steps(struct life *l, struct bench_result *r, const char *mode, size_t size)
{
	size_t i;

	for (i = 0; i < l->nsteps; i++) {
		struct step *s = &l->steps[i];
		struct bench_row row = {
			.op = s->op, .who = s->who, .mode = mode, .size = size,
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
	step_add(l, "gdr_open", "gdrcopy", t);
	if (!l->gpu.g)
		bench_die("%s: gdr_open found no way to the GPU's memory; GDRCOPY_ENABLE_LOGGING=1 tells why",
			  tool.name);
	GDR(l, "gdr_close", gdr_close(l->gpu.g));
}

/* The first pin of the process: what a backend puts off until then is in it. */
static void first_pin(struct life *l)
{
	void *va = NULL;
	gdr_mh_t mh;

	GDR(l, "gdr_pin_buffer_v2",
	    gdr_pin_buffer_v2(l->gpu.g, l->buf.addr, l->buf.size, GDR_PIN_FLAG_DEFAULT, &mh));
	GDR(l, "gdr_map_v2", gdr_map_v2(l->gpu.g, mh, &va, l->buf.size, l->gpu.opts->map_flags));
	touch(va);
	GDR(l, "gdr_unmap", gdr_unmap(l->gpu.g, mh, va, l->buf.size));
	GDR(l, "gdr_unpin_buffer", gdr_unpin_buffer(l->gpu.g, mh));
}

static void print(const struct bench_result *r, const struct bench_opts *o)
{
	char p0[32], p50[32], size[32];
	size_t i, last = 0;

	(void)o;
	bench_facts(r, stdout);
	for (i = 0; i < r->nrows; i++) {
		const struct bench_row *row = &r->rows[i];

		if (i == 0 || row->size != last)
			printf("\n%-10s %-36s %-8s %12s %12s %8s\n",
			       row->size ? bench_size_text(size, sizeof(size), row->size) : "",
			       "call", "of", "P0", "P50", "samples");
		last = row->size;
		printf("%-10s %-36s %-8s %12s %12s %8zu\n", row->size ? "" : row->mode, row->op,
		       row->who, bench_ns_text(p0, sizeof(p0), row->p0),
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
	bench_cuda_load(&l.cuda);

	progress_total(1 + steps_of(o.size));
	progress("gdr_open");
	l.warm = true;
	open_and_close(&l);
	flush_steps(&l, &r, "first", 0);
	repeat(&l, open_and_close);
	flush_steps(&l, &r, "again", 0);

	bench_gpu_open(&l.gpu);
	bench_buf_alloc(&l.gpu, &l.buf, sizes[0]);
	l.warm = true;
	first_pin(&l);
	flush_steps(&l, &r, "first", 0);
	bench_map_make(&l.gpu, &m, &l.buf);
	bench_gpu_facts(&l.gpu, &m, &r);
	bench_fact(&r, "clock", "%s", bench_clock_text());
	l.backend = bench_backend(&l.gpu);
	bench_map_drop(&l.gpu, &m);
	bench_buf_free(&l.gpu, &l.buf);
	for (i = 0; i < steps_of(o.size); i++) {
		progress("buffers of %zu bytes", sizes[i]);
		bench_buf_alloc(&l.gpu, &l.buf, sizes[i]);
		if (gdr_cache_open)
			bench_rc(gdr_cache_open(l.gpu.g, SIZE_MAX, 0, &l.cache), "gdr_cache_open");
		repeat(&l, round_trip);
		if (gdr_cache_open)
			bench_rc(gdr_cache_close(l.cache), "gdr_cache_close");
		flush_steps(&l, &r, "alone", sizes[i]);
		bench_buf_free(&l.gpu, &l.buf);
	}
	progress_wipe();
	bench_gpu_stop(&l.gpu);
	bench_fact(&r, "data", "verified, in every mapping");

	bench_print(&r, &o, o.given[OPT_COMPAT] ? bench_compat : print);
	bench_result_free(&r);
	return BENCH_OK;
}
