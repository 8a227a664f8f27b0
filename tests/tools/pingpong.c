// SPDX-License-Identifier: MIT
/*
 * pingpong.c - gdrcopy_pplat's matches against a GPU that is a thread: it does what the
 * kernel does, and each thing that may go wrong.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gdrapi.h"
#include "bench/timing.h"

static int fake_to(gdr_mh_t handle, void *va, const void *host, size_t size);
static int fake_from(gdr_mh_t handle, void *host, const void *va, size_t size);

#define gdr_copy_to_mapping fake_to
#define gdr_copy_from_mapping fake_from
static unsigned int samples;	/* that were added, also beyond what there is room for */

static void counted_add(struct bench_samples *s, double ns);

#define main pplat_main
#define bench_samples_add counted_add
#include "pplat.c"
#undef main
#undef bench_samples_add
#include "tap.h"

static void counted_add(struct bench_samples *s, double ns)
{
	samples++;
	bench_samples_add(s, ns);
}

#define ROUNDS 50	/* that are counted */
#define SPOILT 100u	/* the word, or the call, with which it goes wrong */

enum fault { NONE, WRONG_ANSWER, GIVES_UP, LATE_ANSWER, REFUSED, LAST_WORD };

static struct tap tap;
static enum fault fault;
static unsigned int writes, reads;
static _Alignas(8) uint8_t gpu_memory[GPU_PAGE_SIZE];
static _Atomic uint32_t host_memory[1024];
static struct {
	pthread_t thread;
	_Atomic uint32_t *word, *answer;
	uint32_t rounds, salt;
	unsigned long long limit;	/* ticks of the GPU's clock */
} kernel;

static int fake_to(gdr_mh_t handle, void *va, const void *host, size_t size)
{
	(void)handle;
	if (++writes == SPOILT && fault == REFUSED)
		return EIO;
	if (size != sizeof(uint32_t))
		return EINVAL;
	atomic_store((_Atomic uint32_t *)va, *(const uint32_t *)host);
	return 0;
}

static int fake_from(gdr_mh_t handle, void *host, const void *va, size_t size)
{
	(void)handle;
	reads++;
	sched_yield();
	if (size != sizeof(uint32_t))
		return EINVAL;
	*(uint32_t *)host = atomic_load((const _Atomic uint32_t *)va);
	return 0;
}

static void *run_kernel(void *arg)
{
	(void)arg;
	for (uint32_t n = 1; n <= kernel.rounds; n++) {
		uint32_t answer = n ^ kernel.salt;

		while (atomic_load(kernel.word) != n)
			sched_yield();
		if (n == SPOILT && fault == WRONG_ANSWER)
			answer ^= 2;
		if (n == SPOILT && fault == GIVES_UP)
			answer = GAVE_UP;
		if (n == SPOILT && fault == LATE_ANSWER)
			return NULL;
		if (n == kernel.rounds && fault == LAST_WORD)
			atomic_store(kernel.word, n - 1);
		atomic_store(kernel.answer, answer);
	}
	return NULL;
}

static int launch_kernel(cu_function f, unsigned int gx, unsigned int gy, unsigned int gz,
			 unsigned int bx, unsigned int by, unsigned int bz,
			 unsigned int shared, cu_stream s, void **params, void **extra)
{
	(void)f;
	(void)shared;
	(void)s;
	(void)extra;
	if (gx * gy * gz * bx * by * bz != 1)
		return 1;
	kernel.word = (_Atomic uint32_t *)(uintptr_t)*(cu_ptr *)params[0];
	kernel.answer = (_Atomic uint32_t *)(uintptr_t)*(cu_ptr *)params[1];
	kernel.rounds = *(uint32_t *)params[2];
	kernel.salt = *(uint32_t *)params[3];
	kernel.limit = *(unsigned long long *)params[4];
	return pthread_create(&kernel.thread, NULL, run_kernel, NULL);
}

static int wait_kernel(cu_stream s)
{
	(void)s;
	return pthread_join(kernel.thread, NULL);
}

static int put(cu_ptr to, const void *from, size_t n)
{
	memcpy((void *)(uintptr_t)to, from, n);
	return 0;
}

static int get(void *to, cu_ptr from, size_t n)
{
	memcpy(to, (const void *)(uintptr_t)from, n);
	return 0;
}

static int no_wait(void)
{
	return 0;
}

static int clock_rate(int *value, int attr, int dev)
{
	(void)attr;
	(void)dev;
	*value = 1000000;
	return 0;
}

/* One match. Only the fault for which it waits has a short limit. */
static struct bench_row match(const struct match *m, enum bench_where word)
{
	struct bench_opts o = { .word = word, .rounds = ROUNDS, .timeout_s = fault == LATE_ANSWER ? 1 : 600 };
	struct bench_result r = { .tool = "t" };
	struct table t = {
		.gpu = { .tool = &tool, .opts = &o, .cu = {
			.to_gpu = put, .from_gpu = get, .ctx_sync = no_wait,
			.device_attribute = clock_rate } },
		.cuda = { .launch = launch_kernel, .stream_sync = wait_kernel },
		.buf = { .addr = (uintptr_t)gpu_memory }, .map = { .p = gpu_memory },
		.host = host_memory, .host_dev = (uintptr_t)host_memory,
	};
	struct bench_row row;

	writes = reads = samples = 0;
	play(&t, m, &r);
	row = r.rows[0];
	bench_result_free(&r);
	return row;
}

static void test_match(const struct match *m, enum bench_where word)
{
	const char *in = word == BENCH_IN_HOST ? "hostmem" : "gpumem";
	struct bench_row row = match(m, word);
	bool wrote = m->library && word == BENCH_IN_GPU, read = m->library && !m->host_answer;

	tap_ok(&tap, row.samples == ROUNDS && samples == ROUNDS && row.p0 <= row.p50 && row.batch == 1,
	       "%s, word in %s, answer in %s: each round is a sample", m->who, in, m->mode);
	tap_ok(&tap, (uint8_t *)kernel.word == (word == BENCH_IN_HOST ?
	       (uint8_t *)(host_memory + HOST_WORD) : gpu_memory) &&
	       (uint8_t *)kernel.answer == (m->host_answer ? (uint8_t *)host_memory :
	       gpu_memory + ANSWER_AT), "word and answer lie there");
	tap_ok(&tap, (wrote ? writes == ROUNDS + WARM_UP : !writes) && (reads > 0) == read,
	       "the library makes the copies that are its own: %u, %u", writes, reads);
}

/* It ends the program with 1, and says text. */
static void test_fault(enum fault f, const char *text)
{
	char said[512] = "";
	int status, ends[2];
	pid_t pid;

	if (pipe(ends))
		abort();
	fflush(stdout);
	pid = fork();
	if (!pid) {
		dup2(ends[1], STDERR_FILENO);
		fault = f;
		match(&matches[0], BENCH_IN_GPU);
		_exit(0);
	}
	close(ends[1]);
	if (read(ends[0], said, sizeof(said) - 1) < 0)
		abort();
	close(ends[0]);
	waitpid(pid, &status, 0);
	if (!tap_ok(&tap, WIFEXITED(status) && WEXITSTATUS(status) == 1 && strstr(said, text),
		    "it is noticed: %s", text))
		printf("# status %#x, %s\n", status, said);
}

/* Which matches there are, by -G and -C: the word's place and the answer's. */
static void test_plays(void)
{
	static const struct {
		enum bench_where word, answer;
		const char *played;	/* of matches[] */
	} cases[] = {
		{ BENCH_IN_GPU, BENCH_IN_BOTH, "1111" }, { BENCH_IN_GPU, BENCH_IN_HOST, "1100" },
		{ BENCH_IN_GPU, BENCH_IN_GPU, "0011" }, { BENCH_IN_HOST, BENCH_IN_BOTH, "0111" },
		{ BENCH_IN_HOST, BENCH_IN_HOST, "0100" }, { BENCH_IN_HOST, BENCH_IN_GPU, "0011" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct bench_opts o = { .word = cases[i].word, .answer = cases[i].answer };
		bool ok = true;

		for (size_t m = 0; m < NMATCHES; m++)
			ok &= plays(&o, &matches[m]) == (cases[i].played[m] == '1');
		tap_ok(&tap, ok, "word %d, answer %d: the matches %s", o.word, o.answer, cases[i].played);
	}
}

int main(void)
{
	struct bench_opts o = { .word = BENCH_IN_HOST };

	bench_clock_init();
	for (size_t i = 0; i < NMATCHES; i++) {
		test_match(&matches[i], BENCH_IN_GPU);
		if (plays(&o, &matches[i]))
			test_match(&matches[i], BENCH_IN_HOST);
	}
	tap_ok(&tap, kernel.limit == 600ull * 1000000 * 1000, "the kernel waits 600 s by its clock of 1 GHz");
	test_plays();
	test_fault(WRONG_ANSWER, "the answer to word 100 is");
	test_fault(GIVES_UP, "word 100 did not reach the GPU kernel within 600 s");
	test_fault(LATE_ANSWER, "no answer to word 100");
	test_fault(REFUSED, "gdr_copy_to_mapping: Input/output error");
	test_fault(LAST_WORD, "the last word is 249, not 250");
	return tap_done(&tap);
}
