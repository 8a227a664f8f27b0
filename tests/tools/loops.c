// SPDX-License-Identifier: MIT
/*
 * loops.c - the benchmarks' plain copy loops, and the team that shares a copy: which bytes
 * move, by which instructions, behind which fences, and whose error is kept. The
 * instructions are noted on their way; the library's copies, the threads and the CPU's
 * features are the test's own.
 */
#define _GNU_SOURCE 1
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "gdrapi.h"

#define SPACE 8192u
#define EDGE 64u	/* bytes on both sides that nothing may change */
#define TIMES 3u	/* operations a call */

static _Alignas(64) uint8_t device[EDGE + SPACE + EDGE], host[EDGE + SPACE + EDGE];
static uint8_t *target;		/* what the operation under test changes; NULL: none is */
static const uint8_t *source;
static size_t moving;		/* bytes */
static char trace[1 << 14];	/* a letter for each noted instruction */
static size_t traced;
static unsigned int whole;	/* operations that had moved all at their last fence */

static void note(char c)
{
	if (traced + 1 < sizeof(trace))
		trace[traced++] = c;
	trace[traced] = '\0';
}

/* The bytes go away once they are there: the next operation has to move them again. */
static void note_fence(char c)
{
	note(c);
	if (target && !memcmp(target, source, moving)) {
		whole++;
		memset(target, 0xee, moving);
	}
}

#if defined(__x86_64__)
static unsigned int leaf7_ecx;
static bool own_leaf7;

static int fake_cpuid_count(unsigned int leaf, unsigned int sub, unsigned int *a, unsigned int *b,
			    unsigned int *c, unsigned int *d)
{
	if (!own_leaf7 || leaf != 7 || sub)
		return __get_cpuid_count(leaf, sub, a, b, c, d);
	*a = *b = *d = 0;
	*c = leaf7_ecx;
	return 1;
}

static const uint8_t *flushed[64];
static size_t flushes;

static void fake_clflush(const void *p)
{
	note('f');
	if (flushes < sizeof(flushed) / sizeof(flushed[0]))
		flushed[flushes++] = p;
}

#define __get_cpuid_count fake_cpuid_count
#define _mm_clflush fake_clflush
#define _mm_sfence() (note_fence('s'), _mm_sfence())
#define _mm_lfence() (note_fence('l'), _mm_lfence())
#define _mm_mfence() (note_fence('m'), _mm_mfence())
#define _mm_stream_si128(d, v) (note('1'), _mm_stream_si128(d, v))
#define _mm256_stream_si256(d, v) (note('2'), _mm256_stream_si256(d, v))
#define _mm512_stream_si512(d, v) (note('5'), _mm512_stream_si512(d, v))
#define _mm_stream_load_si128(s) (note('1'), _mm_stream_load_si128(s))
#define _mm256_stream_load_si256(s) (note('2'), _mm256_stream_load_si256(s))
#define _mm512_stream_load_si512(s) (note('5'), _mm512_stream_load_si512(s))
/* No CPU of CI has it. */
#define _movdir64b(d, s) (note('d'), (void)memcpy(d, s, 64))
#endif
#include "bench/loops.c"

static int fake_to(gdr_mh_t handle, void *va, const void *from, size_t size);
static int fake_from(gdr_mh_t handle, void *to, const void *va, size_t size);
static int fake_create(pthread_t *thread, const pthread_attr_t *attr, void *(*f)(void *), void *arg);
static int fake_join(pthread_t thread, void **result);
static void *fake_alloc(size_t align, size_t size);
static void fake_free(void *p);
static int fake_yield(void);

#define gdr_copy_to_mapping fake_to
#define gdr_copy_from_mapping fake_from
#define pthread_create fake_create
#define pthread_join fake_join
#define aligned_alloc fake_alloc
#define free fake_free
#define sched_yield fake_yield
#include "bench/team.c"
#undef pthread_create
#undef pthread_join
#undef aligned_alloc
#undef free
#undef sched_yield
#include "said.h"

/* What each loop is: the sizes that it takes, its instruction, the fences around it. */
static const struct expected {
	const char *name;
	bool read, loose;
	size_t unit;		/* the sizes are its multiples; 0: 1, 2, 3, 4, 7 and 8; 1: any */
	char insn;		/* one a unit; 0: not noted */
	const char *before, *after;
	const char *flag;	/* in /proc/cpuinfo; NULL: every CPU can */
} expected[] = {
	{ "plain", false, false, 0, 0, "", "s", NULL },
	{ "plain", true, false, 0, 0, "", "l", NULL },
	{ "memcpy", false, false, 1, 0, "", "s", NULL },
	{ "memcpy", true, false, 1, 0, "", "l", NULL },
	{ "plain loose", true, true, 0, 0, "", "s", NULL },
#if defined(__x86_64__)
	{ "sse2", false, false, 16, '1', "", "s", NULL },
	{ "avx2", false, false, 32, '2', "", "s", "avx2" },
	{ "avx512", false, false, 64, '5', "", "s", "avx512f" },
	{ "movdir64b", false, false, 64, 'd', "", "s", "movdir64b" },
	{ "sse4.1", true, false, 16, '1', "m", "l", "sse4_1" },
	{ "avx2", true, false, 32, '2', "m", "l", "avx2" },
	{ "avx512", true, false, 64, '5', "m", "l", "avx512f" },
	{ "sse4.1 loose", true, true, 16, '1', "", "s", "sse4_1" },
	{ "avx2 loose", true, true, 32, '2', "", "s", "avx2" },
#endif
};

#define NEXPECTED (sizeof(expected) / sizeof(expected[0]))

/* Whether /proc/cpuinfo has the flag. */
static bool has(const char *flag)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	static char line[1 << 14];
	char word[64];
	bool found = !flag;

	snprintf(word, sizeof(word), " %s ", flag ? flag : "");
	while (!found && f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = ' ';
		found = !strncmp(line, "flags", 5) && strstr(line, word);
	}
	if (f)
		fclose(f);
	return found;
}

static bool fits(const struct expected *e, size_t size)
{
	return e->unit ? size % e->unit == 0 : size && size <= 8 && size != 5 && size != 6;
}

/* Moves size bytes TIMES times; whether they moved, nothing else did, and the trace is right. */
static bool moves(const struct expected *e, bench_run *run, size_t size)
{
	struct bench_op op = { .dev = device + EDGE, .host = host + EDGE, .size = size };
	uint8_t *to = e->read ? host : device, *from = e->read ? device : host;
	static uint8_t before[sizeof(device)];
	char want[sizeof(trace)];
	size_t n = 0;

	for (unsigned int t = 0; t < TIMES; t++) {
		n += (size_t)sprintf(want + n, "%s", e->before);
		for (size_t i = 0; e->insn && i < size / e->unit; i++)
			want[n++] = e->insn;
		n += (size_t)sprintf(want + n, "%s", e->after);
	}
	for (size_t i = 0; i < sizeof(device); i++) {
		from[i] = (uint8_t)(i * 7 + (i >> 8) + 1);
		to[i] = 0xee;
	}
	memcpy(before, from, sizeof(before));
	target = to + EDGE;
	source = from + EDGE;
	moving = size;
	traced = whole = 0;
	trace[0] = '\0';
	run(&op, TIMES);
#if !defined(__x86_64__)
	whole += memcmp(target, source, size) ? 0 : TIMES;	/* no fence is noted */
	memset(target, 0xee, size);
	strcpy(trace, want);
#endif
	target = NULL;
	for (size_t i = 0; i < sizeof(device); i++)
		if (to[i] != 0xee || from[i] != before[i]) {
			printf("# byte %zu is %#x\n", i, to[i]);
			return false;
		}
	if (whole != TIMES || strcmp(trace, want) || op.rc) {
		printf("# %u of %u moved all; %.60s, not %.60s\n", whole, TIMES, trace, want);
		return false;
	}
	return true;
}

static void test_loop(const struct expected *e)
{
	static const size_t sizes[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 24, 32, 48, 63, 64, 65, 80, 96, 128, 160,
					192, 200, 224, 256, 272, 288, 320, 4096, 4096 + 16, 4096 + 32, 4096 + 64 };
	const struct bench_loop *l = bench_loops;
	bool runs = has(e->flag) || e->insn == 'd', same = true, all = true;

	while (l->name && (strcmp(l->name, e->name) || l->read != e->read))
		l++;
	if (!tap_ok(&tap, l->name && l->loose == e->loose, "%s, %s: it is there", e->name, e->read ? "read" : "write"))
		return;
	tap_ok(&tap, l->usable() == has(e->flag), "%s, %s: it is for this CPU or not", e->name, e->read ? "read" : "write");
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		bench_run *run = l->run(sizes[i]);

		same &= !!run == fits(e, sizes[i]);
		if (run && runs && !moves(e, run, sizes[i])) {
			printf("# %zu bytes\n", sizes[i]);
			all = false;
		}
	}
	tap_ok(&tap, same, "%s, %s: the sizes that it takes", e->name, e->read ? "read" : "write");
	if (runs)
		tap_ok(&tap, all, "%s, %s: its bytes, its instructions, its fences", e->name, e->read ? "read" : "write");
	else
		tap_skip(&tap, "this CPU has no such instruction", "%s, %s: its bytes", e->name, e->read ? "read" : "write");
}

static void test_loops(void)
{
	size_t n = 0;

	while (bench_loops[n].name)
		n++;
	tap_is(&tap, (long)n, NEXPECTED, "loops: their number");
	for (size_t i = 0; i < NEXPECTED; i++)
		test_loop(&expected[i]);
}

#if defined(__x86_64__)
/* MOVDIRI and MOVDIR64B are bits 27 and 28 of leaf 7's ECX. */
static void test_features(void)
{
	own_leaf7 = true;
	for (unsigned int bit = 0; bit < 32; bit++) {
		leaf7_ecx = 1u << bit;
		if (bench_has_movdiri() != (bit == 27) || has_movdir64b() != (bit == 28))
			break;
		leaf7_ecx = ~leaf7_ecx;
		if (bench_has_movdiri() != (bit != 27) || has_movdir64b() != (bit != 28))
			break;
		if (bit == 31)
			leaf7_ecx = 0;
	}
	tap_is(&tap, leaf7_ecx, 0, "MOVDIRI and MOVDIR64B have their bits: the wrong one");
	own_leaf7 = false;
}

/* Each line of the bytes is flushed, no other is, and then there are the fences. */
static void test_flush(void)
{
	static _Alignas(64) uint8_t lines[1024];
	static const struct { size_t from, n; } cases[] = {
		{ 256, 0 }, { 256, 1 }, { 256, 64 }, { 256, 65 }, { 287, 2 }, { 319, 2 }, { 300, 200 }, { 256, 512 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool gone[sizeof(lines) / 64] = { false }, right = true;

		flushes = traced = 0;
		trace[0] = '\0';
		bench_flush(lines + cases[i].from, cases[i].n);
		for (size_t k = 0; k < flushes; k++) {
			size_t at = (size_t)(flushed[k] - lines);

			/* Some CPUs' lines have 32 bytes. */
			right &= at < sizeof(lines) && (!k || flushed[k] - flushed[k - 1] <= 32);
			gone[at / 64 % (sizeof(lines) / 64)] = true;
		}
		for (size_t k = 0; k < sizeof(lines) / 64; k++)
			right &= gone[k] == (64 * k < cases[i].from + cases[i].n && 64 * (k + 1) > cases[i].from && cases[i].n);
		tap_ok(&tap, right && strchr(trace, 'l') && strrchr(trace, 's') && strspn(trace, "f") == flushes,
		       "%zu bytes from %zu are flushed, then fenced", cases[i].n, cases[i].from);
	}
	traced = 0;
	bench_store_fence();
	is_text(trace, "s", "the store fence is one");
}
#endif

/* The team. */

#define HANDLE 0x1234u
#define COPIES 256

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct copy {
	bool read;
	size_t from, size;
	pthread_t thread;
} copies[COPIES];
static size_t ncopies;		/* under lock */
static int started, joined, start_fails;	/* threads; the one that cannot be started */
static bool no_memory;
static void *memory;		/* of the team */
static size_t memory_size;
static struct { size_t from; unsigned int turn; int rc; } failing;	/* the copy from there, in that turn */
static atomic_uint yields;
static atomic_bool slow;
static unsigned int turns_seen;

static int fake_create(pthread_t *thread, const pthread_attr_t *attr, void *(*f)(void *), void *arg)
{
	return ++started == start_fails ? EAGAIN : pthread_create(thread, attr, f, arg);
}

static int fake_join(pthread_t thread, void **result)
{
	joined++;
	return pthread_join(thread, result);
}

static void *fake_alloc(size_t align, size_t size)
{
	if (no_memory || size % align || align < _Alignof(struct bench_team))
		return NULL;
	memory_size = size;
	return memory = aligned_alloc(align, size);
}

static void fake_free(void *p)
{
	if (p == memory)
		memory = NULL;
	free(p);
}

static int fake_yield(void)
{
	atomic_fetch_add(&yields, 1);
	return sched_yield();
}

/* A part of a copy, by one thread. */
static int part(bool read, gdr_mh_t handle, void *to, const void *from, const uint8_t *dev, const uint8_t *mem, size_t size)
{
	size_t at = (size_t)(dev - device);
	unsigned int turn = 1;
	int rc = 0;

	if (handle.h != HANDLE || at != (size_t)(mem - host) || at > sizeof(device) || size > sizeof(device) - at)
		return EINVAL;
	for (int i = 0; atomic_load(&slow) && at && !atomic_load(&yields) && i < 5000; i++)
		usleep(1000);
	memcpy(to, from, size);
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < ncopies; i++)
		turn += copies[i].from == at && copies[i].size == size;
	if (ncopies < COPIES)
		copies[ncopies++] = (struct copy){ read, at, size, pthread_self() };
	if (failing.rc && failing.from == at && failing.turn == turn)
		rc = failing.rc;
	turns_seen = turn > turns_seen ? turn : turns_seen;
	pthread_mutex_unlock(&lock);
	return rc;
}

static int fake_to(gdr_mh_t handle, void *va, const void *from, size_t size)
{
	return part(false, handle, va, from, va, from, size);
}

static int fake_from(gdr_mh_t handle, void *to, const void *va, size_t size)
{
	return part(true, handle, to, va, va, to, size);
}

static struct bench_op team_op(struct bench_team *team, size_t size)
{
	return (struct bench_op){ .mh = { HANDLE }, .dev = device, .host = host, .size = size, .user = team };
}

/* Each thread has its part, of whole lines but for the last one's; together they are all. */
static bool shared(int n, bool read, size_t size)
{
	size_t least = size, most = 0, end = 0;

	if (ncopies != TIMES * (size_t)n)
		return false;
	for (int i = 0; i < n; i++) {
		const struct copy *first = NULL;
		unsigned int times = 0;

		/* The part that begins where the last one ended: one may be empty. */
		for (size_t k = 0; k < ncopies; k++)
			if (copies[k].from == end && copies[k].read == read && (!first || copies[k].size > first->size))
				first = &copies[k];
		for (size_t k = 0; first && k < ncopies; k++)
			times += copies[k].from == end && copies[k].size == first->size &&
				 pthread_equal(copies[k].thread, first->thread);
		if (!first || (first->size && times != TIMES))
			return false;
		if (end + first->size != size && first->size % 64)
			return false;
		end += first->size;
		least = first->size < least ? first->size : least;
		most = first->size > most ? first->size : most;
		if (end == size)
			break;
	}
	return end == size && (size < 64 * (size_t)n || most - least < 128);
}

/* The caller makes a part, too, and each other thread one. */
static int threads_used(void)
{
	int n = 0;

	for (size_t i = 0; i < ncopies; i++) {
		size_t k = 0;

		while (k < i && !pthread_equal(copies[k].thread, copies[i].thread))
			k++;
		n += k == i;
	}
	return n;
}

static int threads_alive(void)
{
	DIR *d = opendir("/proc/self/task");
	int n = 0;

	for (struct dirent *e; d && (e = readdir(d)); )
		n += e->d_name[0] != '.';
	if (d)
		closedir(d);
	return n;
}

static void test_shares(void)
{
	static const size_t sizes[] = { 1, 63, 64, 65, 127, 128, 640, 4096, 4096 + 17, 8191, 8192 };
	static const int teams[] = { 1, 2, 3, 5, 8 };

	for (size_t t = 0; t < sizeof(teams) / sizeof(teams[0]); t++) {
		struct bench_team *team = bench_team_start(teams[t]);
		bool all = true, own = true;

		for (size_t i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++) {
			bool read = i & 1;
			struct bench_op op = team_op(team, sizes[i / 2]);
			uint8_t *to = read ? host : device;

			memset(device, read ? 1 + (int)i : 0xee, sizeof(device));
			memset(host, read ? 0xee : 1 + (int)i, sizeof(host));
			ncopies = 0;
			(read ? bench_team_read : bench_team_write)(&op, TIMES);
			all &= shared(teams[t], read, op.size) && !op.rc && to[op.size - 1] == 1 + (int)i && to[op.size] == 0xee;
			own &= threads_used() == teams[t];
		}
		tap_ok(&tap, all, "a team of %d: its parts are the copy", teams[t]);
		tap_ok(&tap, own, "a team of %d: each has a part of its own", teams[t]);
		bench_team_stop(team);
	}
}

/* One part fails once: the whole copy has failed, and the next one has not. */
static void test_errors(void)
{
	enum { N = 4, SIZE = 4096 };
	struct bench_team *team = bench_team_start(N);

	for (int i = 0; i < N; i++)
		for (unsigned int turn = 1; turn <= TIMES; turn++) {
			struct bench_op op = team_op(team, SIZE);

			ncopies = turns_seen = 0;
			failing.from = (size_t)i * SIZE / N;
			failing.turn = turn;
			failing.rc = EIO;
			(turn & 1 ? bench_team_read : bench_team_write)(&op, TIMES);
			tap_ok(&tap, op.rc == EIO && turns_seen == TIMES, "part %d fails in turn %u: the copy has failed", i, turn);
			failing.rc = 0;
			op.rc = 0;
			ncopies = 0;
			bench_team_write(&op, 1);
			tap_is(&tap, op.rc, 0, "and the next one: the error");
		}
	bench_team_stop(team);
}

static void start_three(const void *arg)
{
	(void)arg;
	bench_team_start(3);
}

static void test_threads(void)
{
	struct bench_team *team;
	struct bench_op op;

	started = joined = 0;
	team = bench_team_start(5);
	tap_is(&tap, started, 4, "a team of 5 with the caller: the threads that are started");
	tap_ok(&tap, memory_size >= sizeof(*team) + 5 * sizeof(team->member[0]), "its memory has room for all");
	bench_team_stop(team);
	tap_ok(&tap, !memory, "and is freed");
	tap_is(&tap, joined, 4, "and joined");
	tap_is(&tap, threads_alive(), 1, "the threads that are left");

	team = bench_team_start(2);
	op = team_op(team, 4096);
	ncopies = 0;
	atomic_store(&yields, 0);
	atomic_store(&slow, true);
	bench_team_write(&op, 1);
	tap_ok(&tap, atomic_load(&yields) > 0, "who waits lets others run");
	atomic_store(&slow, false);
	bench_team_stop(team);

	for (start_fails = 1; start_fails <= 2; start_fails++) {
		char text[64];

		started = 0;
		snprintf(text, sizeof(text), "thread %d of 3: %s", start_fails, strerror(EAGAIN));
		tap_ok(&tap, ends(start_three, NULL, BENCH_FAILED, text), "it ends: %s", text);
	}
	start_fails = 0;
	no_memory = true;
	tap_ok(&tap, ends(start_three, NULL, BENCH_FAILED, "out of memory for 3 threads"), "it ends: out of memory");
	no_memory = false;
}

int main(void)
{
	test_loops();
#if defined(__x86_64__)
	test_features();
	test_flush();
#endif
	test_shares();
	test_errors();
	test_threads();
	return tap_done(&tap);
}
