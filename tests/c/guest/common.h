/* SPDX-License-Identifier: MIT */
/*
 * guest/common.h - what the guest_* programs are made of.
 *
 * They show that the library is a good guest in the process of somebody else:
 * that it starts late, survives forks, leaves signals alone, and so on. Every
 * case runs in a process of its own, in which nothing has touched the library
 * or CUDA before, and in a process group of its own: a case that takes too
 * long is killed with all that it started, and counts as failed.
 */
#ifndef GUEST_COMMON_H
#define GUEST_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

/* Handlers, threads and rows of cases leave out what they do not need. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gdrapi.h"
#include "gdrapi_ext.h"
#include "tap.h"

/* The call behind the plain name, which fills 40 bytes. */
#undef gdr_get_info
int gdr_get_info(gdr_t g, gdr_mh_t handle, void *info);

#define GUEST_SKIP 77	/* exit status of a case that does not apply here */
#define KIB 1024ul
#define MIB (1024 * KIB)

/* --long asks for the stress length. */
extern bool guest_long;

/* GUEST_SCALE in the environment: how many times that much is done; 1 if unset. */
extern double guest_scale;

/* So many times, or seconds, at the scale that is asked for. */
static inline long scaled(long n)
{
	long m = n * guest_scale;

	return m > 0 ? m : 1;
}

/*
 * Whether the drivers are those of tests/doubles; who runs the tests says so.
 * A real driver's start takes a second, its calls a millisecond, and it brings
 * threads, file descriptors and memory of its own.
 */
static inline bool on_doubles(void)
{
	const char *set = getenv("GDR_TEST_DOUBLES");

	return set && !strcmp(set, "1");
}

/* A line that is no TAP result, in one write: many processes print. */
__attribute__((format(printf, 1, 2)))
void note(const char *fmt, ...);

/* Ends this process, and so the case, as failed unless ok. */
static inline void expect_at(bool ok, const char *what, const char *file, int line)
{
	if (ok)
		return;
	note("%s:%d: failed: %s", file, line, what);
	_exit(1);
}

static inline void expect_is_at(long got, long want, const char *what, const char *file, int line)
{
	if (got == want)
		return;
	note("%s:%d: %s is %ld, want %ld", file, line, what, got, want);
	_exit(1);
}
#define expect(cond) expect_at((cond), #cond, __FILE__, __LINE__)
#define expect_is(got, want) expect_is_at((long)(got), (long)(want), #got, __FILE__, __LINE__)

/* For a call on what another thread may end: it succeeds, or gives EINVAL or that other errno. */
static inline bool succeeds_at(int rc, int other, const char *what, const char *file, int line)
{
	if (!rc || rc == EINVAL || rc == other)
		return !rc;
	note("%s:%d: %s is %d", file, line, what, rc);
	_exit(1);
}
#define succeeds(rc, other) succeeds_at((rc), (other), #rc, __FILE__, __LINE__)

__attribute__((format(printf, 1, 2), noreturn))
void skip_case(const char *fmt, ...);

static inline void needs_doubles(const char *why)
{
	if (!on_doubles())
		skip_case("%s", why);
}

/* Whether the environment asks for that backend. */
static inline bool backend_is(const char *name)
{
	const char *set = getenv("GDRCOPY_BACKEND");

	return set && !strcmp(set, name);
}

static inline double seconds_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static inline void sleep_us(long us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000 };

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/* A small generator, one state a thread: the same seed gives the same run. */
static inline uint32_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

/*
 * The limits of cases and of their children are for a quiet host. A busy one, or one that
 * stands still for a minute, gets so many times as long: what hangs does so for ever.
 */
#define PATIENCE 4

/*
 * Waits for a child that must end by itself. Returns its wait status, or -1
 * for one that did not end within the time and was killed: it hung.
 */
int wait_child(pid_t pid, double seconds);

/* Whether a child ended well; says why not. */
bool child_ok(const char *what, int status);

/*
 * Forks a child that runs fn(arg) and ends with 0, unless an expect in it
 * fails. Returns whether it ended well within the time.
 */
bool in_child(const char *what, void (*fn)(void *), void *arg, double seconds);

/* One case: run(), or run_with(arg). */
struct guest_case {
	const char *name;
	void (*run)(void);
	int short_s;	/* the case is killed after this many seconds, times PATIENCE; 0: run_anew() makes it */
	int long_s;	/* the same for --long; 0: as short_s */
	void (*run_with)(void *arg);
	void *arg;
};

/* Those of the program, up to one without a name. */
extern const struct guest_case cases[];

/* This program begins anew, as that case. */
static inline void run_anew(const char *name)
{
	execl("/proc/self/exe", program_invocation_name, "--anew", name, (char *)NULL);
	_exit(127);
}

/* The number after a key such as "VmSize:" in a file of /proc, or -1. */
long proc_number(const char *file, const char *key);

/*
 * GUEST_OTHER_THREADS in the environment: how many threads of an emulator the process
 * has beside its own.
 */
static inline long count_threads(void)
{
	const char *others = getenv("GUEST_OTHER_THREADS");

	return proc_number("/proc/self/status", "Threads:") - (others ? atol(others) : 0);
}

/*
 * Waits for threads that are ending: pthread_join returns a moment before the
 * kernel has forgotten the thread.
 */
static inline long count_threads_settled(long want)
{
	for (int i = 0; i < 200 && count_threads() > want; i++)
		sleep_us(5000);
	return count_threads();
}

long count_fds(void);

/* Leaves room for free more file descriptors; returns the old limit. */
struct rlimit leave_fds(int free);

/* Whether a thread of this process, as /proc names it, has that name itself. */
bool is_named(const char *tid, const char *want);

/* Lines of /proc/self/maps that have the text. */
long count_maps_of(const char *text);

static inline long count_maps(bool files_only)
{
	return count_maps_of(files_only ? "/" : "");
}

/* Whether memory of a file or a device is there; the range may have other memory by now. */
bool is_shared(const void *va);

/* Resident memory of this process in KiB. */
static inline long rss_kib(void)
{
	long kib = proc_number("/proc/self/smaps_rollup", "Rss:");

	return kib >= 0 ? kib : proc_number("/proc/self/status", "VmRSS:");
}

/* A sandbox, in all threads: that system call is EPERM. */
void refuse_call(unsigned int number);

static int log_fd = -1;

/* From here on standard error goes to a file that logged() reads. */
static inline void catch_log(void)
{
	log_fd = memfd_create("log", 0);
	expect(log_fd >= 0 && dup2(log_fd, STDERR_FILENO) >= 0);
	setenv("GDRCOPY_ENABLE_LOGGING", "1", 1);
	setenv("GDRCOPY_LOG_LEVEL", "3", 1);
}

static inline bool logged(const char *what)
{
	char text[8192];
	ssize_t n = pread(log_fd, text, sizeof(text) - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	return strstr(text, what);
}

/* Opens the library; without a backend no case can go on. */
static inline gdr_t open_or_fail(void)
{
	gdr_t g = gdr_open();

	if (!g)
		note("gdr_open: %s; GDRCOPY_ENABLE_LOGGING=1 shows why", strerror(errno));
	expect(g != NULL);
	return g;
}

/* GPU memory, and what of it is pinned. */
struct buffer {
	gdr_mem_t mem;
	unsigned long dptr;
	size_t size;
	gdr_mh_t mh;
	unsigned char *va;	/* NULL: not mapped */
};

static inline void alloc_buffer(gdr_t g, struct buffer *b, size_t size)
{
	size_t real = 0;

	memset(b, 0, sizeof(*b));
	expect_is(gdr_mem_alloc(g, 0, size, 0, &b->mem), 0);
	expect_is(gdr_mem_get_device_ptr(g, b->mem, &b->dptr, &real), 0);
	expect(real >= size && b->dptr);
	b->size = size;
}

static inline void map_buffer(gdr_t g, struct buffer *b)
{
	void *va = NULL;

	expect_is(gdr_pin_buffer(g, b->dptr, b->size, 0, 0, &b->mh), 0);
	expect_is(gdr_map(g, b->mh, &va, b->size), 0);
	expect(va != NULL);
	b->va = va;
}

static inline void make_buffer(gdr_t g, struct buffer *b, size_t size)
{
	alloc_buffer(g, b, size);
	map_buffer(g, b);
}

static inline void drop_buffer(gdr_t g, struct buffer *b)
{
	if (b->va)
		expect_is(gdr_unmap(g, b->mh, b->va, b->size), 0);
	expect_is(gdr_unpin_buffer(g, b->mh), 0);
	expect_is(gdr_mem_free(g, b->mem), 0);
	b->va = NULL;
}

static inline void fill_random(unsigned char *p, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = next_random(&seed);
}

/* Writes size random bytes through the mapping and reads them back. */
static inline void check_copies(struct buffer *b, uint64_t seed)
{
	unsigned char out[4096], in[4096];
	size_t n = b->size < sizeof(out) ? b->size : sizeof(out);

	fill_random(out, n, seed);
	memset(in, 0, sizeof(in));
	expect_is(gdr_copy_to_mapping(b->mh, b->va, out, n), 0);
	expect_is(gdr_copy_from_mapping(b->mh, in, b->va, n), 0);
	expect(!memcmp(in, out, n));
}

/* The whole life of a buffer, with data. */
static inline void whole_life(gdr_t g, uint64_t seed)
{
	struct buffer b;

	make_buffer(g, &b, 64 * KIB);
	check_copies(&b, seed);
	drop_buffer(g, &b);
}

/* With that much stack, or the least of this machine: 128 KiB on arm64 and ppc64le. */
void start_thread(pthread_t *t, size_t stack, void *(*fn)(void *), void *arg);

/* n of them, which have the same to do. */
static inline void start_threads(pthread_t *t, int n, void *(*fn)(void *), void *arg)
{
	for (int i = 0; i < n; i++)
		start_thread(&t[i], 0, fn, arg);
}

static inline void join_threads(const pthread_t *t, int n)
{
	for (int i = 0; i < n; i++)
		expect_is(pthread_join(t[i], NULL), 0);
}

static inline void run_thread(size_t stack, void *(*fn)(void *), void *arg)
{
	pthread_t t;

	start_thread(&t, stack, fn, arg);
	expect_is(pthread_join(t, NULL), 0);
}

/* The calling thread's mask, with the signals that the C library hides. */
static inline uint64_t read_mask(void)
{
	uint64_t mask = 0;

	expect_is(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, sizeof(mask)), 0);
	return mask;
}

/* A disposition as the kernel has it. */
struct raw_action {
	unsigned char bytes[64];
};

/*
 * All but those of signals 32 and 33. They are the C library's, which installs
 * the handler of one with the first thread of a process, and hides both.
 */
static inline void read_actions(struct raw_action act[65])
{
	memset(act, 0, 65 * sizeof(*act));
	for (int sig = 1; sig <= 64; sig++)
		if (sig != 32 && sig != 33)
			expect_is(syscall(SYS_rt_sigaction, sig, NULL, &act[sig], 8), 0);
}

void expect_same_actions(const struct raw_action a[65], const struct raw_action b[65]);

#endif
