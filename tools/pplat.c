/* SPDX-License-Identifier: MIT */
/*
 * gdrcopy_pplat - how long a word takes from the CPU to a running GPU kernel
 * and its answer back.
 *
 * The kernel is PTX text that the driver compiles, so that no CUDA compiler is
 * needed to build this.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/cuda.h"
#include "bench/gpu.h"
#include "bench/timing.h"

#define ANSWER_AT 4096u		/* from the word, in GPU memory */
#define HOST_WORD 512u		/* from the answer, in words of the host's memory */
#define WARM_UP 200u		/* round trips that are not counted */
#define GAVE_UP 0xffffffffu	/* the kernel's answer when no word came */
#define SALT 0x5a5a0000u	/* tells an answer from the word itself */

static const struct bench_tool tool = {
	.name = "gdrcopy_pplat",
	.codes = (const char[]){ OPT_GPU, OPT_MAP, OPT_ALLOC, OPT_ROUNDS, OPT_TIMEOUT,
				 OPT_WORD, OPT_ANSWER, OPT_DATA, OPT_PRODUCER, OPT_BLOCKS,
				 OPT_BLOCK_THREADS, OPT_DATA_AT, OPT_CPU, OPT_JSON, OPT_CSV,
				 OPT_BACKEND, 0 },
	.what = "Plays ping-pong with a GPU kernel: the CPU writes a word to GPU memory through\n"
		"the mapping, the kernel sees it and answers. Needs a real GPU.",
	.method =
		"  A round trip lasts from before the write until the CPU has the answer. The\n"
		"  kernel is one thread that polls the word. It answers in pinned host memory\n"
		"  (hostmem), which the CPU polls, or in GPU memory (gpumem), which the CPU polls\n"
		"  through the mapping. 'gdrcopy' writes and polls by the library's copies.\n"
		"  'plain' does so by stores with a store fence, and by loads of its own. Each\n"
		"  answer is checked. P0 is the shortest round trip. P50 is the median. The first\n"
		"  200 are not counted. With -G hostmem the CPU writes the word into pinned host\n"
		"  memory by a plain store, and the kernel polls it there.",
};

/* Answers word n with n ^ SALT, for n from 1 to rounds; gives up after limit clocks. */
static const char ptx_body[] =
	".address_size 64\n"
	".visible .entry pingpong(.param .u64 pflag, .param .u64 panswer,\n"
	"	.param .u32 prounds, .param .u32 psalt, .param .u64 plimit)\n"
	"{\n"
	"	.reg .pred %p<4>;\n"
	"	.reg .b32 %r<8>;\n"
	"	.reg .b64 %rd<8>;\n"
	"	ld.param.u64 %rd1, [pflag];\n"
	"	ld.param.u64 %rd2, [panswer];\n"
	"	ld.param.u32 %r1, [prounds];\n"
	"	ld.param.u32 %r2, [psalt];\n"
	"	ld.param.u64 %rd3, [plimit];\n"
	"	cvta.to.global.u64 %rd1, %rd1;\n"
	"	cvta.to.global.u64 %rd2, %rd2;\n"
	"	mov.u32 %r3, 0;\n"
	"NEXT:\n"
	"	add.u32 %r3, %r3, 1;\n"
	"	setp.gt.u32 %p1, %r3, %r1;\n"
	"	@%p1 bra DONE;\n"
	"	mov.u64 %rd4, %clock64;\n"
	"SPIN:\n"
	"	ld.volatile.global.u32 %r4, [%rd1];\n"
	"	setp.eq.u32 %p2, %r4, %r3;\n"
	"	@%p2 bra ANSWER;\n"
	"	mov.u64 %rd5, %clock64;\n"
	"	sub.u64 %rd6, %rd5, %rd4;\n"
	"	setp.lt.u64 %p3, %rd6, %rd3;\n"
	"	@%p3 bra SPIN;\n"
	"	mov.u32 %r5, -1;\n"
	"	st.volatile.global.u32 [%rd2], %r5;\n"
	"	membar.sys;\n"
	"	bra DONE;\n"
	"ANSWER:\n"
	"	xor.b32 %r6, %r3, %r2;\n"
	"	st.volatile.global.u32 [%rd2], %r6;\n"
	"	membar.sys;\n"
	"	bra NEXT;\n"
	"DONE:\n"
	"	ret;\n"
	"}\n";

/* The GPU's side, and where the two meet. */
struct table {
	struct bench_gpu gpu;
	struct bench_cuda cuda;
	cu_module module;
	cu_function kernel;
	cu_stream stream;
	struct bench_buf buf;
	struct bench_map map;
	_Atomic uint32_t *host;	/* pinned memory of the host: the answer; the word at HOST_WORD */
	cu_ptr host_dev;	/* the same, as the GPU sees it */
};

/* One match. In GPU memory the word is at the buffer's start. */
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

/* A new driver may no longer compile for the oldest target. */
static void load_kernel(struct table *t)
{
	static const char *const targets[] = {
		".version 6.0\n.target sm_50\n",
		".version 6.3\n.target sm_75\n",
		".version 7.8\n.target sm_90\n",
	};
	char text[sizeof(ptx_body) + 64];
	size_t i;
	int rc = CU_OK;

	for (i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
		snprintf(text, sizeof(text), "%s%s", targets[i], ptx_body);
		rc = t->cuda.module_load(&t->module, text);
		if (rc == CU_OK)
			break;
	}
	cu(t, rc, "cuModuleLoadData");
	cu(t, t->cuda.module_function(&t->kernel, t->module, "pingpong"), "cuModuleGetFunction");
}

/* Whether the word lies in the host's memory. */
static bool in_host(const struct table *t)
{
	return t->gpu.opts->word == BENCH_IN_HOST;
}

static void launch(struct table *t, const struct match *m, uint32_t rounds)
{
	cu_ptr flag = in_host(t) ? t->host_dev + HOST_WORD * sizeof(uint32_t) : t->buf.addr;
	cu_ptr answer = m->host_answer ? t->host_dev : t->buf.addr + ANSWER_AT;
	uint32_t zero = 0, salt = SALT;
	unsigned long long limit;
	int khz = 0;
	void *params[] = { &flag, &answer, &rounds, &salt, &limit };

	if (t->gpu.cu.device_attribute(&khz, CU_DEV_CLOCK_KHZ, t->gpu.dev) != CU_OK || khz <= 0)
		khz = 2000000;
	limit = (unsigned long long)khz * 1000u * (unsigned long long)t->gpu.opts->timeout_s;
	if (!limit)
		limit = ~0ull;
	bench_gpu_put(&t->gpu, t->buf.addr, &zero, sizeof(zero));
	bench_gpu_put(&t->gpu, t->buf.addr + ANSWER_AT, &zero, sizeof(zero));
	atomic_store(t->host, 0);
	atomic_store(t->host + HOST_WORD, 0);
	cu(t, t->cuda.launch(t->kernel, 1, 1, 1, 1, 1, 1, 0, t->stream, params, NULL),
	   "cuLaunchKernel");
}

static void put_word(struct table *t, const struct match *m, uint32_t word)
{
	if (in_host(t)) {
		atomic_store(t->host + HOST_WORD, word);
		return;
	}
	if (m->library) {
		bench_rc(gdr_copy_to_mapping(t->map.mh, t->map.p, &word, sizeof(word)),
			 "gdr_copy_to_mapping");
		return;
	}
	*(volatile uint32_t *)t->map.p = word;
#if defined(__x86_64__)
	_mm_sfence();
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

static uint32_t get_answer(struct table *t, const struct match *m)
{
	uint32_t word = 0;

	if (m->host_answer)
		return atomic_load_explicit(t->host, memory_order_acquire);
	if (!m->library)
		return *(volatile uint32_t *)(t->map.p + ANSWER_AT);
	bench_rc(gdr_copy_from_mapping(t->map.mh, &word, t->map.p + ANSWER_AT, sizeof(word)),
		 "gdr_copy_from_mapping");
	return word;
}

/* Ends the program if the answer to word n is wrong or does not come. */
static void await(struct table *t, const struct match *m, uint32_t n)
{
	uint32_t before = n == 1 ? 0 : (n - 1) ^ SALT, got;
	uint64_t end = 0;
	unsigned int polls;

	for (polls = 1; (got = get_answer(t, m)) != (n ^ SALT); polls++) {
		if (got == GAVE_UP)
			bench_die("%s: word %u did not reach the GPU kernel within %ld s", tool.name,
				  n, t->gpu.opts->timeout_s);
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

static void play(struct table *t, const struct match *m, struct bench_result *r)
{
	uint32_t rounds = (uint32_t)t->gpu.opts->rounds + WARM_UP, n, last = 0;
	struct bench_samples s;
	struct bench_row row = {
		.op = "round-trip", .who = m->who, .mode = m->mode, .size = sizeof(uint32_t),
		.threads = 1, .batch = 1,
	};

	if (!bench_samples_init(&s, (size_t)t->gpu.opts->rounds))
		bench_die("out of memory for %ld samples", t->gpu.opts->rounds);
	progress("%s, %s", m->who, m->mode);
	launch(t, m, rounds);
	for (n = 1; n <= rounds; n++) {
		uint64_t t0 = bench_ticks(), dt;

		put_word(t, m, n);
		await(t, m, n);
		dt = bench_since(t0);
		if (n > WARM_UP)
			bench_samples_add(&s, bench_ns(dt));
		if (n % 65536 == 0)
			progress_part((double)n / rounds);
	}
	cu(t, t->cuda.stream_sync(t->stream), "cuStreamSynchronize");
	if (in_host(t))
		last = atomic_load(t->host + HOST_WORD);
	else
		bench_gpu_get(&t->gpu, &last, t->buf.addr, sizeof(last));
	if (last != rounds)
		bench_die("%s: the last word is %u, not %u", tool.name, last, rounds);
	row.samples = s.n;
	row.p0 = bench_p0(&s);
	row.p50 = bench_p50(&s);
	bench_row(r, &row);
	bench_samples_free(&s);
}

static void set_table(struct table *t, const struct bench_opts *o)
{
	const char *err, *missing;
	void *host = NULL;

	bench_gpu_start(&t->gpu, &tool, o);
	err = bench_cuda_load(&t->cuda);
	if (err)
		bench_die("%s: %s", tool.name, err);
	missing = bench_cuda_no_kernels(&t->cuda);
	if (missing)
		bench_skip("%s: needs a real GPU: this libcuda.so.1 has no %s", tool.name, missing);
	bench_gpu_open(&t->gpu);
	bench_buf_alloc(&t->gpu, &t->buf, GPU_PAGE_SIZE);
	bench_map_make(&t->gpu, &t->map, &t->buf);
	cu(t, t->cuda.host_alloc(&host, 4096, CU_HOST_MAPPED), "cuMemHostAlloc");
	t->host = host;
	cu(t, t->cuda.host_device_ptr(&t->host_dev, host, 0), "cuMemHostGetDevicePointer");
	cu(t, t->cuda.stream_create(&t->stream, CU_STREAM_APART), "cuStreamCreate");
	load_kernel(t);
}

static void clear_table(struct table *t)
{
	cu(t, t->cuda.stream_destroy(t->stream), "cuStreamDestroy");
	cu(t, t->cuda.module_unload(t->module), "cuModuleUnload");
	cu(t, t->cuda.host_free((void *)t->host), "cuMemFreeHost");
	bench_map_drop(&t->gpu, &t->map);
	bench_buf_free(&t->gpu, &t->buf);
	bench_gpu_stop(&t->gpu);
}

static void print(const struct bench_result *r, const struct bench_opts *o)
{
	char p0[32], p50[32];
	size_t i;

	(void)o;
	bench_facts(r, stdout);
	printf("\n%-10s %-24s %10s %10s %10s\n", "by", "answer in", "P0", "P50", "rounds");
	for (i = 0; i < r->nrows; i++)
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

/* Not where the library would have nothing to do. */
static bool plays(const struct bench_opts *o, const struct match *m)
{
	if (m->library && m->host_answer && o->word == BENCH_IN_HOST)
		return false;
	return o->answer == BENCH_IN_BOTH || (o->answer == BENCH_IN_HOST) == m->host_answer;
}

int main(int argc, char **argv)
{
	struct bench_opts o = {
		.word = BENCH_IN_GPU, .rounds = 10000, .timeout_s = 5, .cpu = -1,
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
	bench_fact(&r, "clock", "%s", bench_clock_text());
	bench_fact(&r, "word", "%s", in_host(&t) ? "hostmem" : "gpumem");
	for (i = 0; i < NMATCHES; i++)
		n += plays(&o, &matches[i]);
	progress_total(n);
	for (i = 0; i < NMATCHES; i++)
		if (plays(&o, &matches[i]))
			play(&t, &matches[i], &r);
	progress_wipe();
	clear_table(&t);
	bench_fact(&r, "data", "verified, every answer");

	bench_print(&r, &o, print);
	bench_result_free(&r);
	return BENCH_OK;
}
