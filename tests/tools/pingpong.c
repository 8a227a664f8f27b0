// SPDX-License-Identifier: MIT
/*
 * pingpong.c - gdrcopy_pplat's matches against a GPU that is a thread: it runs the kernel's
 * own text, and does each thing that may go wrong.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gdrapi.h"
#include "bench/timing.h"
#include "progress.h"

static int fake_to(gdr_mh_t handle, void *va, const void *host, size_t size);
static int fake_from(gdr_mh_t handle, void *host, const void *va, size_t size);

#define gdr_copy_to_mapping fake_to
#define gdr_copy_from_mapping fake_from
/* The CPU that polls leaves it to the kernel, which may have no other. */
#undef atomic_load_explicit
#define atomic_load_explicit(p, order) (sched_yield(), __atomic_load_n((uint32_t *)(p), __ATOMIC_ACQUIRE))
static unsigned int samples;	/* that were added, also beyond what there is room for */

static void counted_add(struct bench_samples *s, double ns);
static uint64_t clock_ns(void);
static void counted_store_fence(void);
static inline void counted_load_fence(void);
void bench_store_fence(void);

#define main pplat_main
#define bench_samples_add counted_add
#define bench_monotonic_ns clock_ns
#define bench_store_fence counted_store_fence
#undef atomic_thread_fence
#define atomic_thread_fence(order) ((void)(order), counted_load_fence())
#define progress(...) snprintf(step, sizeof(step), __VA_ARGS__)
static char step[64];	/* what the line of progress says */
#include "pplat.c"
#undef progress
#undef bench_monotonic_ns
#undef main
#undef bench_samples_add
#undef bench_store_fence
#undef atomic_thread_fence
#include "ptx.h"
#include "said.h"

static void counted_add(struct bench_samples *s, double ns)
{
	samples++;
	bench_samples_add(s, ns);
}

#define ROUNDS 50	/* that are counted */
#define SPOILT 100u	/* the copy with which it goes wrong */
#define MAX_DATA 4096u
#define GPU_AT 0x700000000000u	/* where the GPU sees its memory, and the host's */
#define HOST_AT 0x200000000000u

enum fault { NONE, WRONG_ANSWER, GIVES_UP, LATE_ANSWER, SLOW_KERNEL, REFUSED, LAST_WORD, OLD_DATA, FLIPPED_DATA, FLIPPED_READ };

static enum fault fault;
static unsigned int words_to, words_from, data_to, data_from;	/* copies by the library */
static _Alignas(64) uint8_t gpu_memory[DATA_AT + MAX_DATA], host_memory[DATA_AT + MAX_DATA];
static struct {
	pthread_t thread;
	struct ptx *ptx;
	unsigned int blocks, threads;
	cu_ptr flag, answer, data;
	uint32_t rounds, salt, words, make;
	unsigned long long limit;	/* ticks of the GPU's clock */
	uint32_t word;	/* as it starts */
	const char *end;	/* why it ended; NULL: it came to its end */
} kernel;

/* With a slow kernel an hour passes from one look at the clock to the next. */
static uint64_t clock_ns(void)
{
	static uint64_t hours;

	return bench_monotonic_ns() + (fault == SLOW_KERNEL ? ++hours * 3600 * 1000000000u : 0);
}

/* What is new at the CPU's fences: the word, its data in host memory, an answer. */
static unsigned int word_fences, data_fences, answer_fences;

static void counted_store_fence(void)
{
	uint32_t word = *(volatile uint32_t *)gpu_memory, data = *(volatile uint32_t *)(host_memory + DATA_AT);

	if (!kernel.make && data == data_fences + 1)
		data_fences++;
	else
		word_fences += word == word_fences + 1;
	bench_store_fence();
}

static inline void counted_load_fence(void)
{
	const uint8_t *answers = kernel.answer == HOST_AT + ANSWERS_AT ? host_memory : gpu_memory;

	answer_fences += *(const volatile uint32_t *)(answers + ANSWERS_AT) == ((answer_fences + 1) ^ SALT);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static void *memory(uint64_t addr, size_t size)
{
	if (addr >= GPU_AT && addr - GPU_AT <= sizeof(gpu_memory) - size)
		return gpu_memory + (addr - GPU_AT);
	if (addr >= HOST_AT && addr - HOST_AT <= sizeof(host_memory) - size)
		return host_memory + (addr - HOST_AT);
	return NULL;
}

/* Words are seen whole, as a mapping's are. */
static void copy(void *to, const void *from, size_t size)
{
	for (size_t i = 0; i < size / sizeof(uint32_t); i++)
		atomic_store((_Atomic uint32_t *)to + i, atomic_load((const _Atomic uint32_t *)from + i));
}

static int fake_to(gdr_mh_t handle, void *va, const void *host, size_t size)
{
	bool word = va == gpu_memory;
	unsigned int n = word ? ++words_to : ++data_to;

	(void)handle;
	if (n == SPOILT && fault == REFUSED)
		return EIO;
	if ((word && fault == GIVES_UP) || (!word && n == SPOILT && fault == OLD_DATA))
		return 0;
	copy(va, host, size);
	if (!word && n == SPOILT && fault == FLIPPED_DATA)
		((uint8_t *)va)[size - 1] ^= 0x10;
	return 0;
}

static int fake_from(gdr_mh_t handle, void *host, const void *va, size_t size)
{
	bool data = (const uint8_t *)va >= gpu_memory + DATA_AT;
	unsigned int n = data ? ++data_from : ++words_from;

	(void)handle;
	sched_yield();
	copy(host, va, size);
	if (data && n == SPOILT && fault == FLIPPED_READ)
		((uint8_t *)host)[size - 1] ^= 0x10;
	return 0;
}

static void *run_kernel(void *arg)
{
	void *params[] = { &kernel.flag, &kernel.answer, &kernel.rounds, &kernel.salt, &kernel.limit,
			   &kernel.data, &kernel.words, &kernel.make };

	if (fault == SLOW_KERNEL)
		usleep(200000);
	kernel.end = ptx_run(kernel.ptx, kernel.blocks, kernel.threads, params, memory);
	return arg;
}

/* The driver takes the parameters at once. */
static int launch_kernel(cu_function f, unsigned int gx, unsigned int gy, unsigned int gz,
			 unsigned int bx, unsigned int by, unsigned int bz,
			 unsigned int shared, cu_stream s, void **params, void **extra)
{
	(void)s;
	if ((struct ptx *)f != kernel.ptx || gy * gz * by * bz != 1 || shared || extra)
		return CU_INVALID_VALUE;
	kernel.blocks = gx;
	kernel.threads = bx;
	kernel.flag = *(cu_ptr *)params[0];
	kernel.answer = *(cu_ptr *)params[1];
	kernel.rounds = *(uint32_t *)params[2];
	kernel.salt = *(uint32_t *)params[3] ^ (fault == WRONG_ANSWER ? 2 : 0);
	kernel.limit = *(unsigned long long *)params[4];
	kernel.data = *(cu_ptr *)params[5];
	kernel.words = *(uint32_t *)params[6];
	kernel.make = *(uint32_t *)params[7];
	memcpy(&kernel.word, memory(kernel.flag, sizeof(kernel.word)), sizeof(kernel.word));
	return fault == LATE_ANSWER ? 0 : pthread_create(&kernel.thread, NULL, run_kernel, NULL);
}

static int wait_kernel(cu_stream s)
{
	(void)s;
	if (pthread_join(kernel.thread, NULL))
		abort();
	if (fault == LAST_WORD)
		--*(uint32_t *)gpu_memory;
	return kernel.end ? 700 : CU_OK;
}

static int put(cu_ptr to, const void *from, size_t n)
{
	memcpy(memory(to, n), from, n);
	return CU_OK;
}

static int get(void *to, cu_ptr from, size_t n)
{
	memcpy(to, memory(from, n), n);
	return CU_OK;
}

static int no_wait(void)
{
	return CU_OK;
}

/* With the slow clock 600 s are 0.6 ms. */
static int attribute(int *value, int attr, int dev)
{
	(void)dev;
	switch (attr) {
	case CU_DEV_CLOCK_KHZ: *value = fault == GIVES_UP ? 1 : 1000000; return CU_OK;
	case CU_DEV_MULTIPROCESSORS: *value = 3; return CU_OK;
	}
	return CU_INVALID_VALUE;
}

/* A multiprocessor of 2048 threads and 32 blocks. */
static int occupancy(int *blocks, cu_function f, int threads, size_t shared)
{
	if ((struct ptx *)f != kernel.ptx || shared || threads < 1)
		return CU_INVALID_VALUE;
	*blocks = 2048 / threads < 32 ? 2048 / threads : 32;
	return CU_OK;
}

static int error_name(int result, const char **name)
{
	*name = result == 218 ? "CUDA_ERROR_INVALID_PTX" : "?";
	return CU_OK;
}

static const char *refused = "";	/* targets that this driver no longer has */

static int module_load(cu_module *m, const void *image)
{
	char said[128];

	if (*refused && strstr(image, refused))
		return 218;	/* CUDA_ERROR_INVALID_PTX */
	kernel.ptx = ptx_load(image, "pingpong", said);
	if (!kernel.ptx)
		printf("# %s\n", said);
	*m = (cu_module)kernel.ptx;
	return kernel.ptx ? CU_OK : 218;
}

static int module_function(cu_function *f, cu_module m, const char *name)
{
	*f = (cu_function)m;
	return strcmp(name, "pingpong") ? 500 : CU_OK;	/* CUDA_ERROR_NOT_FOUND */
}

static struct table table(const struct bench_opts *o)
{
	static uint32_t data[MAX_DATA / sizeof(uint32_t)];
	struct table t = {
		.gpu = { .tool = &tool, .opts = o, .cu = {
			.to_gpu = put, .from_gpu = get, .ctx_sync = no_wait,
			.device_attribute = attribute, .error_name = error_name } },
		.cuda = { .launch = launch_kernel, .stream_sync = wait_kernel, .occupancy = occupancy,
			.module_load = module_load, .module_function = module_function },
		.in_gpu = { gpu_memory, GPU_AT }, .in_host = { host_memory, HOST_AT }, .data = data,
	};

	load_kernel(&t);
	set_grid(&t);
	return t;
}

/* One match. Only the fault for which it waits has a short limit. */
static struct bench_row match(const struct match *m, struct bench_opts o)
{
	struct bench_result r = { .tool = "t" };
	struct bench_row row;
	struct table t;

	o.rounds = ROUNDS;
	o.timeout_s = fault == LATE_ANSWER ? 1 : fault == SLOW_KERNEL ? 0 : 600;
	t = table(&o);
	memset(gpu_memory, 0xee, sizeof(gpu_memory));
	memset(host_memory, 0xdd, sizeof(host_memory));
	words_to = words_from = data_to = data_from = samples = 0;
	word_fences = data_fences = answer_fences = 0;
	play(&t, m, &r);
	row = r.rows[0];
	bench_result_free(&r);
	ptx_free(kernel.ptx);
	return row;
}

static const char *place(enum bench_where w)
{
	return w == BENCH_IN_HOST ? "hostmem" : "gpumem";
}

static void test_match(const struct match *m, const struct bench_opts *o)
{
	struct bench_row row = match(m, *o);
	bool mapped = o->data && o->data_at == BENCH_IN_GPU, in_host = o->data && o->data_at == BENCH_IN_HOST;
	unsigned int all = ROUNDS + WARM_UP;
	char said[64];

	snprintf(said, sizeof(said), "%s, %s", m->who, m->mode);
	printf("# %s, word in %s, answer in %s, %zu bytes in %s by the %s\n", m->who, place(o->word), m->mode,
	       o->data, place(o->data_at), o->gpu_produces ? "GPU" : "CPU");
	tap_ok(&tap, row.samples == ROUNDS && samples == ROUNDS && row.p0 <= row.p50 && row.batch == 1 &&
	       row.size == (o->data ? o->data : 4), "each round is a sample");
	is_text(step, said, "the step is said");
	tap_ok(&tap, kernel.flag == (o->word == BENCH_IN_HOST ? HOST_AT : GPU_AT) &&
	       kernel.answer == (m->host_answer ? HOST_AT : GPU_AT) + ANSWERS_AT &&
	       kernel.data == (o->data_at == BENCH_IN_HOST ? HOST_AT : GPU_AT) + DATA_AT,
	       "word, answers and data lie there");
	tap_is(&tap, kernel.word, 0, "the word that was there before");
	tap_ok(&tap, kernel.blocks == (o->data ? o->blocks : 1) && kernel.threads == (o->data ? o->block_threads : 1),
	       "blocks and threads are those asked for: %u, %u", kernel.blocks, kernel.threads);
	tap_ok(&tap, words_to == (m->library && o->word == BENCH_IN_GPU ? all : 0) &&
	       (words_from > 0) == (m->library && !m->host_answer),
	       "the library copies words where that is its own: %u, %u", words_to, words_from);
	tap_ok(&tap, data_to == (mapped && !o->gpu_produces ? all : 0) &&
	       data_from == (mapped && o->gpu_produces ? all : 0),
	       "and data: %u, %u", data_to, data_from);
	tap_ok(&tap, word_fences == (!m->library && o->word == BENCH_IN_GPU ? all : 0) &&
	       data_fences == (in_host && !o->gpu_produces ? all : 0) && answer_fences == (in_host && o->gpu_produces ? all : 0),
	       "fences follow the word, data in host memory and answers: %u, %u, %u", word_fences, data_fences, answer_fences);
}

static void test_matches(void)
{
	/* More words than threads. */
	struct bench_opts o = { .blocks = 2, .block_threads = 3 };

	for (unsigned int n = 0; n < 16 * NMATCHES; n++) {
		const struct match *m = &matches[n / 16];

		o.word = n & 1 ? BENCH_IN_HOST : BENCH_IN_GPU;
		o.data_at = n & 2 ? BENCH_IN_HOST : BENCH_IN_GPU;
		o.gpu_produces = n & 4;
		o.data = n & 8 ? 4 * 7 : 0;
		if (plays(&o, m) && (o.data || n % 16 < 2))
			test_match(m, &o);
	}
	/* Fewer of them. */
	o = (struct bench_opts){ .word = BENCH_IN_GPU, .data_at = BENCH_IN_GPU, .blocks = 3, .block_threads = 5, .data = 4 };
	test_match(&matches[0], &o);
}

static void play_first(const void *opts)
{
	match(&matches[0], *(const struct bench_opts *)opts);
}

static void test_faults(void)
{
	static const struct {
		enum fault fault;
		bool data, gpu_produces;
		const char *text;
	} cases[] = {
		{ WRONG_ANSWER, false, false, "the answer to word 1 is 0x5a5a0003, not 0x5a5a0001" },
		{ WRONG_ANSWER, true, false, "the answer to word 1 is 0x5a5a0003, not 0x5a5a0001" },
		{ GIVES_UP, false, false, "word 1 did not reach the GPU kernel within 600 s" },
		{ GIVES_UP, true, false, "word 1 did not reach the GPU kernel within 600 s" },
		{ LATE_ANSWER, false, false, "no answer to word 1" },
		{ REFUSED, false, false, "gdr_copy_to_mapping: Input/output error" },
		{ REFUSED, true, false, "gdr_copy_to_mapping: Input/output error" },
		{ LAST_WORD, false, false, "the last word is 249, not 250" },
		{ OLD_DATA, true, false, "block 0 of the GPU kernel saw word 100, but not its data" },
		{ FLIPPED_DATA, true, false, "of the GPU kernel saw word 100, but not its data" },
		{ FLIPPED_READ, true, true, "word 15 of the data of word 100 is 0x1000006b, not 0x6b" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct bench_opts o = {
			.word = BENCH_IN_GPU, .data_at = BENCH_IN_GPU, .data = cases[i].data ? 64 : 0,
			.gpu_produces = cases[i].gpu_produces, .blocks = 2, .block_threads = 4,
		};

		fault = cases[i].fault;
		tap_ok(&tap, ends(play_first, &o, BENCH_FAILED, cases[i].text), "it is noticed: %s", cases[i].text);
	}
	fault = NONE;
}

static void make_table(const void *opts)
{
	table(opts);
}

static void test_grid(void)
{
	struct bench_opts o = { .data = 4, .blocks = 6, .block_threads = 1024 };

	tap_ok(&tap, ends(make_table, &o, BENCH_OK, ""), "as many blocks as the GPU runs at a time");
	o.blocks++;
	tap_ok(&tap, ends(make_table, &o, BENCH_USAGE, "-B 7: this GPU runs at most 6 blocks of 1024 threads at a time"),
	       "one more is refused");
	o.data = 0;
	tap_ok(&tap, ends(make_table, &o, BENCH_OK, ""), "but not without data, for that is one block");
}

/* The kernel is for the oldest target that the driver still has. */
static void test_targets(void)
{
	static const char *const gone[] = { "", ".target sm_50\n", "sm_" };
	struct bench_opts o = { .data = 0 };

	for (int i = 0; i < 3; i++) {
		refused = gone[i];
		tap_ok(&tap, ends(make_table, &o, i < 2 ? BENCH_OK : BENCH_FAILED, i < 2 ? "" : "cuModuleLoadData gave CUDA_ERROR_INVALID_PTX (218)"),
		       "a driver that %s%.13s", i ? "refuses " : "takes all", gone[i]);
	}
	refused = "";
}

/* Which matches there are, by -G, -C and -D. */
static void test_plays(void)
{
	static const struct {
		enum bench_where word, answer, data_at;
		size_t data;
		const char *played;	/* of matches[] */
	} cases[] = {
		{ BENCH_IN_GPU, BENCH_IN_BOTH, BENCH_IN_GPU, 0, "1111" },
		{ BENCH_IN_GPU, BENCH_IN_HOST, BENCH_IN_GPU, 0, "1100" },
		{ BENCH_IN_GPU, BENCH_IN_GPU, BENCH_IN_GPU, 0, "0011" },
		{ BENCH_IN_HOST, BENCH_IN_BOTH, BENCH_IN_GPU, 0, "0111" },
		{ BENCH_IN_HOST, BENCH_IN_HOST, BENCH_IN_GPU, 0, "0100" },
		{ BENCH_IN_HOST, BENCH_IN_GPU, BENCH_IN_GPU, 0, "0011" },
		{ BENCH_IN_GPU, BENCH_IN_BOTH, BENCH_IN_GPU, 4, "1010" },
		{ BENCH_IN_HOST, BENCH_IN_HOST, BENCH_IN_GPU, 4, "1000" },
		{ BENCH_IN_GPU, BENCH_IN_BOTH, BENCH_IN_HOST, 4, "1111" },
		{ BENCH_IN_HOST, BENCH_IN_BOTH, BENCH_IN_HOST, 4, "0111" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct bench_opts o = { .word = cases[i].word, .answer = cases[i].answer,
					.data_at = cases[i].data_at, .data = cases[i].data };
		bool ok = true;

		for (size_t m = 0; m < NMATCHES; m++)
			ok &= plays(&o, &matches[m]) == (cases[i].played[m] == '1');
		tap_ok(&tap, ok, "word %d, answer %d, %zu bytes at %d: the matches %s", o.word, o.answer,
		       o.data, o.data_at, cases[i].played);
	}
}

static void test_text(void)
{
	static const struct bench_row rows[] = {
		{ .who = "gdrcopy", .mode = "hostmem", .p0 = 10, .p50 = 11, .samples = 12 },
		{ .who = "plain", .mode = "gpumem", .p0 = 2000, .p50 = 3000, .samples = 13 },
	};

	is_printed(print, rows, sizeof(rows) / sizeof(rows[0]),
		"# k: v\n\n"
		"by         answer in                        P0        P50     rounds\n"
		"gdrcopy    hostmem                     10.0 ns    11.0 ns         12\n"
		"plain      gpumem                      2.00 us    3.00 us         13\n", "gdrcopy_pplat's text");
}

static void test_limit(void)
{
	struct bench_opts o = { .word = BENCH_IN_GPU, .data_at = BENCH_IN_GPU };

	match(&matches[0], o);
	tap_ok(&tap, kernel.limit == 600ull * 1000000 * 1000, "the kernel waits 600 s by its clock of 1 GHz");
	fault = SLOW_KERNEL;
	tap_ok(&tap, ends(play_first, &o, BENCH_OK, ""), "with a timeout of 0 nobody gives up");
	fault = NONE;
}

int main(void)
{
	bench_clock_init();
	test_matches();
	test_limit();
	test_plays();
	test_text();
	test_grid();
	test_targets();
	test_faults();
	return tap_done(&tap);
}
