/* SPDX-License-Identifier: MIT */
/*
 * gdrcopy_pplat - how long a word, and data with it, takes from the CPU to a
 * running GPU kernel and its answer back.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gpu.h"
#include "bench/loops.h"
#include "bench/timing.h"
#include "pplat_kernel.h"

/* Where things lie, in GPU memory and in the host's, in bytes. The word is at 0. */
#define ANSWERS_AT 4096u	/* one a block */
#define DATA_AT GPU_PAGE_SIZE

#define WARM_UP 200u		/* round trips that are not counted */
#define SALT 0x5a5a0000u	/* tells an answer from the word itself */

static const struct bench_tool tool = {
	.name = "gdrcopy_pplat",
	.codes = (const char[]){ OPT_GPU, OPT_MAP, OPT_ALLOC, OPT_ROUNDS, OPT_TIMEOUT,
				 OPT_WORD, OPT_ANSWER, OPT_DATA, OPT_DATA_AT, OPT_PRODUCER,
				 OPT_BLOCKS, OPT_BLOCK_THREADS, OPT_CPU, OPT_JSON, OPT_CSV, OPT_COMPAT,
				 OPT_BACKEND, 0 },
	.what = "Plays ping-pong with a GPU kernel: the CPU writes a word to GPU memory through\n"
		"the mapping, the kernel sees it and answers. Needs a real GPU.",
	.method =
		"  A round trip lasts from before the write until the CPU has the answer. Without\n"
		"  data the kernel is one thread. It polls the word and answers in pinned host\n"
		"  memory (hostmem), which the CPU polls, or in GPU memory (gpumem), which the CPU\n"
		"  polls through the mapping. 'gdrcopy' writes and polls by the library's copies.\n"
		"  'plain' does so by stores with a store fence, and by loads of its own. Each\n"
		"  answer is checked. P0 is the shortest round trip. P50 is the median. The first\n"
		"  200 are not counted. With -G hostmem the CPU writes the word into pinned host\n"
		"  memory by a plain store, and the kernel polls it there.\n"
		"  With -s the kernel has blocks of threads, and each block answers. With -m 0 the\n"
		"  CPU writes data and then the word, and the kernel reads the data before it\n"
		"  answers. With -m 1 the kernel sees the word, writes data and answers, and the\n"
		"  round trip ends when the CPU has read the data. Data in GPU memory is copied\n"
		"  by the library. Each word of it is checked. The checks are not timed.",
};

/* Memory that the CPU and the kernel see. */
struct side {
	uint8_t *p;
	cu_ptr dev;
};

/* The GPU's side, and where the two meet. */
struct table {
	struct bench_gpu gpu;
	cu_module module;
	cu_function kernel;
	cu_stream stream;
	struct bench_buf buf;
	struct bench_map map;
	struct side in_gpu;	/* through the mapping */
	struct side in_host;	/* pinned */
	uint32_t *data;		/* the CPU's own copy */
	unsigned int blocks, threads;	/* of the kernel */
};

/* One match. */
struct match {
	const char *who;
	const char *mode;
	bool library;		/* gdr_copy_*, not plain loads and stores */
	bool host_answer;
};

static void cu(const struct table *t, int result, const char *what)
{
	bench_cu(&t->gpu, result, what);
}

static cu_ptr where(const struct table *t, bool host, size_t at)
{
	return (host ? t->in_host.dev : t->in_gpu.dev) + at;
}

static void launch(struct table *t, const struct match *m, uint32_t rounds)
{
	const struct bench_opts *o = t->gpu.opts;
	cu_ptr flag = where(t, o->word == BENCH_IN_HOST, 0);
	cu_ptr answer = where(t, m->host_answer, ANSWERS_AT);
	cu_ptr data = where(t, o->data_at == BENCH_IN_HOST, DATA_AT);
	uint32_t salt = SALT, words = (uint32_t)(o->data / sizeof(uint32_t)), make = o->gpu_produces;
	static const uint32_t zero[BENCH_MAX_BLOCKS];
	unsigned long long limit = bench_gpu_clocks(&t->gpu, o->timeout_s);
	void *params[] = { &flag, &answer, &rounds, &salt, &limit, &data, &words, &make };

	bench_gpu_put(&t->gpu, t->in_gpu.dev, zero, sizeof(zero[0]));
	bench_gpu_put(&t->gpu, t->in_gpu.dev + ANSWERS_AT, zero, sizeof(zero));
	memset(t->in_host.p, 0, ANSWERS_AT + sizeof(zero));
	cu(t, t->gpu.cu.launch(t->kernel, t->blocks, 1, 1, t->threads, 1, 1, 0, t->stream, params, NULL),
	   "cuLaunchKernel");
}

/* The data of word n, in the CPU's own copy. */
static void make_data(struct table *t, uint32_t n)
{
	for (uint32_t i = 0; i < t->gpu.opts->data / sizeof(*t->data); i++)
		t->data[i] = i ^ n;
}

static void check_data(const struct table *t, uint32_t n)
{
	for (uint32_t i = 0; i < t->gpu.opts->data / sizeof(*t->data); i++)
		if (t->data[i] != (i ^ n))
			bench_die("%s: word %u of the data of word %u is %#x, not %#x", tool.name, i, n,
				  t->data[i], i ^ n);
}

static void put_data(struct table *t)
{
	size_t size = t->gpu.opts->data;

	if (t->gpu.opts->data_at != BENCH_IN_HOST) {
		bench_rc(gdr_copy_to_mapping(t->map.mh, t->in_gpu.p + DATA_AT, t->data, size),
			 "gdr_copy_to_mapping");
		return;
	}
	memcpy(t->in_host.p + DATA_AT, t->data, size);
	bench_store_fence();	/* before the word, which may go another way */
}

static void get_data(struct table *t)
{
	size_t size = t->gpu.opts->data;

	if (t->gpu.opts->data_at != BENCH_IN_HOST) {
		bench_rc(gdr_copy_from_mapping(t->map.mh, t->data, t->in_gpu.p + DATA_AT, size),
			 "gdr_copy_from_mapping");
		return;
	}
	atomic_thread_fence(memory_order_seq_cst);	/* after the answer, likewise */
	memcpy(t->data, t->in_host.p + DATA_AT, size);
}

static void put_word(struct table *t, const struct match *m, uint32_t word)
{
	if (t->gpu.opts->word == BENCH_IN_HOST) {
		atomic_store((_Atomic uint32_t *)t->in_host.p, word);
	} else if (m->library) {
		bench_rc(gdr_copy_to_mapping(t->map.mh, t->in_gpu.p, &word, sizeof(word)),
			 "gdr_copy_to_mapping");
	} else {
		*(volatile uint32_t *)t->in_gpu.p = word;
		bench_store_fence();
	}
}

static uint32_t get_answer(struct table *t, const struct match *m, unsigned int block)
{
	size_t at = ANSWERS_AT + block * sizeof(uint32_t);
	uint32_t word = 0;

	if (m->host_answer)
		return atomic_load_explicit((_Atomic uint32_t *)(t->in_host.p + at), memory_order_acquire);
	if (!m->library)
		return *(volatile uint32_t *)(t->in_gpu.p + at);
	bench_rc(gdr_copy_from_mapping(t->map.mh, &word, t->in_gpu.p + at, sizeof(word)),
		 "gdr_copy_from_mapping");
	return word;
}

/* Ends the program if that block's answer to word n is wrong or does not come. */
static void await(struct table *t, const struct match *m, uint32_t n, unsigned int block)
{
	uint32_t before = n == 1 ? 0 : (n - 1) ^ SALT, got;
	uint64_t end = 0;
	unsigned int polls;

	for (polls = 1; (got = get_answer(t, m, block)) != (n ^ SALT); polls++) {
		if (got == GAVE_UP)
			bench_die("%s: word %u did not reach the GPU kernel within %ld s", tool.name,
				  n, t->gpu.opts->timeout_s);
		if (got == BAD_DATA)
			bench_die("%s: block %u of the GPU kernel saw word %u, but not its data", tool.name,
				  block, n);
		if (got != before)
			bench_die("%s: the answer to word %u is %#x, not %#x", tool.name, n, got,
				  n ^ SALT);
		if (polls % 1024 || !t->gpu.opts->timeout_s)
			continue;
		if (!end)
			end = bench_monotonic_ns() +
			      (uint64_t)(t->gpu.opts->timeout_s + 2) * 1000000000u;
		if (bench_monotonic_ns() > end)
			bench_die("%s: no answer to word %u", tool.name, n);
	}
}

/* Returns its time, in ticks. */
static uint64_t round_trip(struct table *t, const struct match *m, uint32_t n)
{
	const struct bench_opts *o = t->gpu.opts;
	uint64_t t0, dt;

	if (!o->gpu_produces)
		make_data(t, n);
	t0 = bench_ticks();
	if (o->data && !o->gpu_produces)
		put_data(t);
	put_word(t, m, n);
	for (unsigned int b = 0; b < t->blocks; b++)
		await(t, m, n, b);
	if (o->data && o->gpu_produces)
		get_data(t);
	dt = bench_since(t0);
	if (o->gpu_produces)
		check_data(t, n);
	return dt;
}

static void play(struct table *t, const struct match *m, struct bench_result *r)
{
	uint32_t rounds = (uint32_t)t->gpu.opts->rounds + WARM_UP, n, last = 0;
	struct bench_samples s;
	struct bench_row row = {
		.op = "round-trip", .who = m->who, .mode = m->mode,
		.size = t->gpu.opts->data ? t->gpu.opts->data : sizeof(uint32_t),
		.threads = 1, .batch = 1,
	};

	if (!bench_samples_init(&s, (size_t)t->gpu.opts->rounds))
		bench_die("out of memory for %ld samples", t->gpu.opts->rounds);
	progress("%s, %s", m->who, m->mode);
	launch(t, m, rounds);
	for (n = 1; n <= rounds; n++) {
		uint64_t dt = round_trip(t, m, n);

		if (n > WARM_UP)
			bench_samples_add(&s, bench_ns(dt));
		if (n % 65536 == 0)
			progress_part((double)n / rounds);
	}
	cu(t, t->gpu.cu.stream_sync(t->stream), "cuStreamSynchronize");
	if (t->gpu.opts->word == BENCH_IN_HOST)
		last = atomic_load((_Atomic uint32_t *)t->in_host.p);
	else
		bench_gpu_get(&t->gpu, &last, t->in_gpu.dev, sizeof(last));
	if (last != rounds)
		bench_die("%s: the last word is %u, not %u", tool.name, last, rounds);
	row.samples = s.n;
	row.p0 = bench_p0(&s);
	row.p50 = bench_p50(&s);
	bench_row(r, &row);
	bench_samples_free(&s);
}

/* All blocks must run at a time, for the CPU waits for all. */
static void set_grid(struct table *t)
{
	const struct bench_opts *o = t->gpu.opts;
	int each = 0, processors = 0;

	t->blocks = o->data ? o->blocks : 1;
	t->threads = o->data ? o->block_threads : 1;
	cu(t, t->gpu.cu.occupancy(&each, t->kernel, (int)t->threads, 0),
	   "cuOccupancyMaxActiveBlocksPerMultiprocessor");
	cu(t, t->gpu.cu.device_attribute(&processors, CU_DEV_MULTIPROCESSORS, t->gpu.dev),
	   "cuDeviceGetAttribute");
	if (t->blocks > (unsigned int)(each * processors))
		bench_usage(&tool, "-B %u: this GPU runs at most %d blocks of %u threads at a time",
			    t->blocks, each * processors, t->threads);
}

static void set_memory(struct table *t)
{
	size_t data = t->gpu.opts->data;
	void *host = NULL;

	bench_buf_alloc(&t->gpu, &t->buf, DATA_AT + data);
	bench_map_make(&t->gpu, &t->map, &t->buf);
	t->in_gpu = (struct side){ t->map.p, t->buf.addr };
	cu(t, t->gpu.cu.host_alloc(&host, DATA_AT + data, CU_HOST_MAPPED), "cuMemHostAlloc");
	t->in_host.p = host;
	cu(t, t->gpu.cu.host_device_ptr(&t->in_host.dev, host, 0), "cuMemHostGetDevicePointer");
	t->data = bench_host_alloc(data ? data : sizeof(*t->data));
}

static void set_table(struct table *t, const struct bench_opts *o)
{
	bench_gpu_start(&t->gpu, &tool, o);
	if (t->gpu.cu.no_kernels)
		bench_skip("%s: needs a real GPU: this libcuda.so.1 has no %s", tool.name, t->gpu.cu.no_kernels);
	cu(t, cuda_module(&t->gpu.cu, &t->module, pplat_kernel), "cuModuleLoadData");
	cu(t, t->gpu.cu.module_function(&t->kernel, t->module, "pingpong"), "cuModuleGetFunction");
	set_grid(t);
	bench_gpu_open(&t->gpu);
	set_memory(t);
	cu(t, t->gpu.cu.stream_create(&t->stream, CU_STREAM_APART), "cuStreamCreate");
}

static void clear_table(struct table *t)
{
	cu(t, t->gpu.cu.stream_destroy(t->stream), "cuStreamDestroy");
	cu(t, t->gpu.cu.module_unload(t->module), "cuModuleUnload");
	cu(t, t->gpu.cu.host_free(t->in_host.p), "cuMemFreeHost");
	bench_map_drop(&t->gpu, &t->map);
	bench_buf_free(&t->gpu, &t->buf);
	bench_gpu_stop(&t->gpu);
}

static void print(const struct bench_result *r, const struct bench_opts *o)
{
	char p0[32], p50[32];

	(void)o;
	bench_facts(r, stdout);
	printf("\n%-10s %-24s %10s %10s %10s\n", "by", "answer in", "P0", "P50", "rounds");
	for (size_t i = 0; i < r->nrows; i++)
		printf("%-10s %-24s %10s %10s %10zu\n", r->rows[i].who, r->rows[i].mode,
		       bench_ns_text(p0, sizeof(p0), r->rows[i].p0),
		       bench_ns_text(p50, sizeof(p50), r->rows[i].p50), r->rows[i].samples);
}

static const struct match matches[] = {
	{ "gdrcopy", "hostmem", true, true },
	{ "plain", "hostmem", false, true },
	{ "gdrcopy", "gpumem", true, false },
	{ "plain", "gpumem", false, false },
};

#define NMATCHES (sizeof(matches) / sizeof(matches[0]))

/*
 * Not where the library would have nothing to do; and data goes through the mapping by the
 * library alone.
 */
static bool plays(const struct bench_opts *o, const struct match *m)
{
	bool mapped_data = o->data && o->data_at != BENCH_IN_HOST;

	if (m->library ? m->host_answer && o->word == BENCH_IN_HOST && !mapped_data : mapped_data)
		return false;
	return o->answer == BENCH_IN_BOTH || (o->answer == BENCH_IN_HOST) == m->host_answer;
}

static void facts(const struct table *t, struct bench_result *r)
{
	const struct bench_opts *o = t->gpu.opts;

	bench_fact(r, "clock", "%s", bench_clock_text());
	bench_fact(r, "word", "%s", o->word == BENCH_IN_HOST ? "hostmem" : "gpumem");
	if (!o->data)
		return;
	bench_fact(r, "payload", "%zu bytes in %s, written by the %s", o->data,
		   o->data_at == BENCH_IN_HOST ? "hostmem" : "gpumem", o->gpu_produces ? "GPU" : "CPU");
	bench_fact(r, "grid", "%u x %u", t->blocks, t->threads);
}

int main(int argc, char **argv)
{
	struct bench_opts o = {
		.word = BENCH_IN_GPU, .data_at = BENCH_IN_GPU, .blocks = 8, .block_threads = 1024,
		.rounds = 10000, .timeout_s = 5, .cpu = -1,
	};
	static struct table t;
	struct bench_result r;
	size_t i, n = 0;

	bench_parse(&o, &tool, argc, argv);
	bench_on_cpu(o.cpu);
	bench_clock_init();
	bench_result_init(&r, tool.name);
	set_table(&t, &o);
	bench_gpu_facts(&t.gpu, &t.map, &r);
	facts(&t, &r);
	for (i = 0; i < NMATCHES; i++)
		n += plays(&o, &matches[i]);
	progress_total(n);
	for (i = 0; i < NMATCHES; i++)
		if (plays(&o, &matches[i]))
			play(&t, &matches[i], &r);
	progress_wipe();
	clear_table(&t);
	bench_fact(&r, "data", o.data ? "verified, every answer and every word" : "verified, every answer");

	bench_print(&r, &o, o.given[OPT_COMPAT] ? bench_compat : print);
	bench_result_free(&r);
	return BENCH_OK;
}
