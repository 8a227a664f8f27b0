/* SPDX-License-Identifier: MIT */
/*
 * copy_litmus - whether a read may show what was there before the data that a flag
 * promises.
 *
 * A kernel writes a number to all words of the data and then to the flag, again and
 * again. Readers read the flag, then the data: a word that is less than the flag is
 * stale. The library's reads must find none.
 *
 * Built for measuring (make litmus), and not installed.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gpu.h"
#include "bench/timing.h"

#define FLAG_AT 0u
#define STOP_AT 256u
#define DATA_AT 4096u
#define WORDS 64u	/* of the data */
#define BYTES (8 * WORDS)
#define READERS_MAX 64

static const struct bench_tool tool = {
	.name = "copy_litmus",
	.codes = (const char[]){ OPT_GPU, OPT_MAP, OPT_ALLOC, OPT_ROUNDS, OPT_TIMEOUT, OPT_THREADS,
				 OPT_BUDGET, OPT_BACKEND, 0 },
	.what = "Looks for stale reads: a kernel writes data, then a flag; readers read the\n"
		"flag, then the data.",
	.method =
		"  -t is the rounds of each of the library's reads by all --threads readers\n"
		"  together. No case takes longer than --budget. Exits 1 if reads were stale.",
};

struct stage {
	struct bench_gpu gpu;
	struct bench_buf buf;
	struct bench_map map;
	cu_module module;
	cu_function kernel;
	cu_stream stream;
	_Atomic bool reading;
	_Atomic long rounds;	/* to go */
};

static struct stage st;

/* Readers. */

static inline uint64_t lib_flag(void)
{
	uint64_t flag = 0;

	bench_rc(gdr_copy_from_mapping(st.map.mh, &flag, st.map.p + FLAG_AT, sizeof(flag)),
		 "gdr_copy_from_mapping");
	return flag;
}

static uint64_t lib_read(uint64_t *data, size_t words)
{
	uint64_t flag = lib_flag();

	bench_rc(gdr_copy_from_mapping(st.map.mh, data, st.map.p + DATA_AT, 8 * words),
		 "gdr_copy_from_mapping");
	return flag;
}

/* All words, by pieces of 64 bytes. */
static uint64_t lib_many(uint64_t *data, size_t words)
{
	gdr_piece_t pieces[WORDS / 8];
	uint64_t flag = lib_flag();

	for (size_t i = 0; i < words / 8; i++)
		pieces[i] = (gdr_piece_t){ st.map.mh, st.map.p + DATA_AT + 64 * i, data + 8 * i, 64 };
	bench_rc(gdr_copy_from_mapping_v(pieces, words / 8), "gdr_copy_from_mapping_v");
	return flag;
}

static const struct reader {
	const char *name;
	uint64_t (*read)(uint64_t *data, size_t words);
	size_t words;	/* that it reads */
} readers[] = {
	{ "gdr_copy, 8 bytes", lib_read, 1 },
	{ "gdr_copy, 64 bytes", lib_read, 8 },
	{ "gdr_copy, 512 bytes", lib_read, WORDS },
	{ "gdr_copy_v, 8 times 64 bytes", lib_many, WORDS },
};

#define NREADERS (sizeof(readers) / sizeof(readers[0]))
#define SLICE 1000	/* rounds that a reader takes at a time */

struct tally {
	const struct reader *reader;
	long rounds, stale, seen;
};

static bool take_slice(void)
{
	return atomic_load(&st.reading) && atomic_fetch_sub(&st.rounds, SLICE) > 0;
}

static void *read_rounds(void *arg)
{
	_Alignas(64) uint64_t data[WORDS] = { 0 };
	struct tally *t = arg;
	uint64_t last = 0;

	while (take_slice())
		for (int i = 0; i < SLICE; i++) {
			uint64_t flag = t->reader->read(data, t->reader->words);
			bool stale = false;

			for (size_t k = 0; k < t->reader->words; k++)
				stale |= data[k] < flag;
			t->rounds++;
			t->stale += stale;
			t->seen += flag != last;
			last = flag;
		}
	return NULL;
}

/* The writer counts up until it is told to stop. */

static const char ptx_body[] =
	".address_size 64\n"
	".visible .entry litmus(.param .u64 pflag, .param .u64 pdata, .param .u64 pstop,\n"
	"	.param .u64 pwords, .param .u64 plimit)\n"
	"{\n"
	"	.reg .pred %p<4>;\n"
	"	.reg .b32 %r<4>;\n"
	"	.reg .b64 %rd<12>;\n"
	"	ld.param.u64 %rd1, [pflag];\n"
	"	ld.param.u64 %rd2, [pdata];\n"
	"	ld.param.u64 %rd3, [pstop];\n"
	"	ld.param.u64 %rd4, [pwords];\n"
	"	ld.param.u64 %rd5, [plimit];\n"
	"	cvta.to.global.u64 %rd1, %rd1;\n"
	"	cvta.to.global.u64 %rd2, %rd2;\n"
	"	cvta.to.global.u64 %rd3, %rd3;\n"
	"	mov.u64 %rd6, 0;\n"
	"	mov.u64 %rd7, %clock64;\n"
	"NEXT:\n"
	"	add.u64 %rd6, %rd6, 1;\n"
	"	mov.u64 %rd8, 0;\n"
	"	mov.u64 %rd9, %rd2;\n"
	"WORD:\n"
	"	st.volatile.global.u64 [%rd9], %rd6;\n"
	"	add.u64 %rd9, %rd9, 8;\n"
	"	add.u64 %rd8, %rd8, 1;\n"
	"	setp.lt.u64 %p1, %rd8, %rd4;\n"
	"	@%p1 bra WORD;\n"
	"	membar.sys;\n"
	"	st.volatile.global.u64 [%rd1], %rd6;\n"
	"	ld.volatile.global.u32 %r1, [%rd3];\n"
	"	setp.ne.u32 %p2, %r1, 0;\n"
	"	@%p2 bra DONE;\n"
	"	mov.u64 %rd10, %clock64;\n"
	"	sub.u64 %rd11, %rd10, %rd7;\n"
	"	setp.lt.u64 %p3, %rd11, %rd5;\n"
	"	@%p3 bra NEXT;\n"
	"DONE:\n"
	"	ret;\n"
	"}\n";

static void cu(int result, const char *what)
{
	bench_cu(&st.gpu, result, what);
}

static void start_kernel(void)
{
	cu_ptr flag = st.buf.addr + FLAG_AT, data = st.buf.addr + DATA_AT;
	cu_ptr stop = st.buf.addr + STOP_AT;
	unsigned long long words = WORDS, limit = bench_gpu_clocks(&st.gpu, st.gpu.opts->timeout_s);
	void *params[] = { &flag, &data, &stop, &words, &limit };

	cu(st.gpu.cu.launch(st.kernel, 1, 1, 1, 1, 1, 1, 0, st.stream, params, NULL), "cuLaunchKernel");
}

static void stop_kernel(void)
{
	uint32_t one = 1;

	bench_rc(gdr_copy_to_mapping(st.map.mh, st.map.p + STOP_AT, &one, sizeof(one)),
		 "gdr_copy_to_mapping");
	cu(st.gpu.cu.stream_sync(st.stream), "cuStreamSynchronize");
}

/* Waits until the readers are through, or the time is. */
static void wait_for(pthread_t *threads, int n)
{
	uint64_t end = bench_monotonic_ns() + (uint64_t)st.gpu.opts->budget_ms * 1000000u;
	struct timespec some = { 0, 2000000 };

	while (atomic_load(&st.rounds) > 0 && bench_monotonic_ns() < end)
		nanosleep(&some, NULL);
	atomic_store(&st.reading, false);
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
}

/* Returns the stale rounds. */
static long try(const struct reader *r)
{
	static uint8_t zero[DATA_AT + BYTES];
	static struct tally tallies[READERS_MAX];
	pthread_t threads[READERS_MAX];
	int n = st.gpu.opts->threads;
	uint64_t t0 = bench_monotonic_ns();
	struct tally sum = { r, 0, 0, 0 };

	bench_gpu_put(&st.gpu, st.buf.addr, zero, sizeof(zero));
	atomic_store(&st.rounds, st.gpu.opts->rounds);
	atomic_store(&st.reading, true);
	start_kernel();
	for (int i = 0; i < n; i++) {
		tallies[i] = sum;
		bench_rc(pthread_create(&threads[i], NULL, read_rounds, &tallies[i]), "pthread_create");
	}
	wait_for(threads, n);
	stop_kernel();
	for (int i = 0; i < n; i++) {
		sum.rounds += tallies[i].rounds;
		sum.stale += tallies[i].stale;
		sum.seen += tallies[i].seen;
	}
	printf("%-30s %12ld %12ld %10ld %5.1f s\n", r->name, sum.rounds, sum.seen, sum.stale,
	       (double)(bench_monotonic_ns() - t0) / 1e9);
	fflush(stdout);
	return sum.stale;
}

static void set_stage(const struct bench_opts *o)
{
	bench_gpu_start(&st.gpu, &tool, o);
	if (st.gpu.cu.no_kernels)
		bench_skip("%s: needs a real GPU: this libcuda.so.1 has no %s", tool.name, st.gpu.cu.no_kernels);
	bench_gpu_open(&st.gpu);
	bench_buf_alloc(&st.gpu, &st.buf, DATA_AT + BYTES);
	bench_map_make(&st.gpu, &st.map, &st.buf);
	cu(st.gpu.cu.stream_create(&st.stream, CU_STREAM_APART), "cuStreamCreate");
	cu(cuda_module(&st.gpu.cu, &st.module, ptx_body), "cuModuleLoadData");
	cu(st.gpu.cu.module_function(&st.kernel, st.module, "litmus"), "cuModuleGetFunction");
}

static void clear_stage(void)
{
	cu(st.gpu.cu.stream_destroy(st.stream), "cuStreamDestroy");
	cu(st.gpu.cu.module_unload(st.module), "cuModuleUnload");
	bench_map_drop(&st.gpu, &st.map);
	bench_buf_free(&st.gpu, &st.buf);
	bench_gpu_stop(&st.gpu);
}

int main(int argc, char **argv)
{
	struct bench_opts o = {
		.size = GPU_PAGE_SIZE, .rounds = 1000000, .timeout_s = 300, .budget_ms = 20000,
		.threads = 1, .cpu = -1,
	};
	struct bench_result r;
	long stale = 0;

	bench_parse(&o, &tool, argc, argv);
	if (o.threads > READERS_MAX)
		bench_usage(&tool, "at most %d threads", READERS_MAX);
	bench_clock_init();
	bench_result_init(&r, tool.name);
	set_stage(&o);
	bench_gpu_facts(&st.gpu, &st.map, &r);
	bench_facts(&r, stdout);
	printf("\n%-30s %12s %12s %10s\n", "read by", "rounds", "new flags", "stale");
	for (size_t i = 0; i < NREADERS; i++)
		stale += try(&readers[i]);
	clear_stage();
	bench_result_free(&r);
	printf("\n%s\n", stale ? "FAILED: reads were stale" : "no read was stale");
	return stale ? BENCH_FAILED : BENCH_OK;
}
