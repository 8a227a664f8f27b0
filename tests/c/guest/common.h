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
static inline void note(const char *fmt, ...)
{
	char line[512] = "# ";
	va_list args;
	size_t used;

	va_start(args, fmt);
	vsnprintf(line + 2, sizeof(line) - 3, fmt, args);
	va_end(args);
	used = strlen(line);
	line[used++] = '\n';
	fflush(stdout);
	if (write(STDOUT_FILENO, line, used) < 0)
		_exit(2);
}

/* Ends this process, and so the case, as failed unless ok. */
static inline void expect_at(bool ok, const char *what, const char *file, int line)
{
	if (ok)
		return;
	note("%s:%d: failed: %s", file, line, what);
	_exit(1);
}

static inline void expect_is_at(long got, long want, const char *what,
				const char *file, int line)
{
	if (got == want)
		return;
	note("%s:%d: %s is %ld, want %ld", file, line, what, got, want);
	_exit(1);
}

#define expect(cond) expect_at((cond), #cond, __FILE__, __LINE__)
#define expect_is(got, want) \
	expect_is_at((long)(got), (long)(want), #got, __FILE__, __LINE__)

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
static inline void skip_case(const char *fmt, ...)
{
	char why[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(why, sizeof(why), fmt, args);
	va_end(args);
	note("skipped: %s", why);
	_exit(GUEST_SKIP);
}

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

/* CPU time of this process. */
static inline double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
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
static inline int wait_child(pid_t pid, double seconds)
{
	double limit = seconds_now() + PATIENCE * seconds;
	long nap = 50;
	int status;

	for (;;) {
		pid_t got = waitpid(pid, &status, WNOHANG);

		if (got == pid)
			return status;
		if (got < 0 && errno != EINTR)
			return -1;
		if (seconds_now() > limit) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			return -1;
		}
		sleep_us(nap);
		if (nap < 5000)
			nap *= 2;
	}
}

/* Whether a child ended well; says why not. */
static inline bool child_ok(const char *what, int status)
{
	if (status == 0)
		return true;
	if (status == -1)
		note("%s: the child hung", what);
	else if (WIFSIGNALED(status))
		note("%s: the child died of signal %d", what, WTERMSIG(status));
	else
		note("%s: the child ended with %d", what, WEXITSTATUS(status));
	return false;
}

/*
 * Forks a child that runs fn(arg) and ends with 0, unless an expect in it
 * fails. Returns whether it ended well within the time.
 */
static inline bool in_child(const char *what, void (*fn)(void *), void *arg, double seconds)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0) {
		note("%s: fork: %s", what, strerror(errno));
		return false;
	}
	if (!pid) {
		fn(arg);
		_exit(0);
	}
	return child_ok(what, wait_child(pid, seconds));
}

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
static inline long proc_number(const char *file, const char *key)
{
	char line[256];
	long value = -1;
	FILE *f = fopen(file, "re");

	if (!f)
		return -1;
	while (value < 0 && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)))
			value = strtol(line + strlen(key), NULL, 10);
	fclose(f);
	return value;
}

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

static inline long count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	long n = -1;	/* the directory's own */

	if (!d)
		return -1;
	for (struct dirent *e; (e = readdir(d)); )
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

/* None would survive exec. */
static inline void each_fd_is_cloexec(void)
{
	DIR *d = opendir("/proc/self/fd");
	int bad = 0;

	expect(d != NULL);
	for (struct dirent *e; (e = readdir(d)); ) {
		int fd = atoi(e->d_name);
		char link[256] = "";

		if (e->d_name[0] == '.' || fd <= STDERR_FILENO)
			continue;
		if (fcntl(fd, F_GETFD) & FD_CLOEXEC)
			continue;
		if (readlinkat(dirfd(d), e->d_name, link, sizeof(link) - 1) < 0)
			link[0] = '\0';
		/* What the driver opens for itself is the driver's. */
		if (!strncmp(link, "/dev/nvidia", 11))
			continue;
		note("fd %d (%s) would survive exec", fd, link);
		bad++;
	}
	closedir(d);
	expect_is(bad, 0);
}

static inline void close_test_fds(void)
{
	/* The runner of the tests may have left some to us. */
	for (int fd = 3; fd < 256; fd++)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* Leaves room for free more file descriptors; returns the old limit. */
static inline struct rlimit leave_fds(int free)
{
	struct rlimit old, low;
	int highest = 0;
	DIR *d = opendir("/proc/self/fd");

	expect(d != NULL);
	for (struct dirent *e; (e = readdir(d)); )
		if (e->d_name[0] != '.' && atoi(e->d_name) != dirfd(d) &&
		    atoi(e->d_name) > highest)
			highest = atoi(e->d_name);
	closedir(d);
	expect_is(getrlimit(RLIMIT_NOFILE, &old), 0);
	/* Holes below the highest one would be free, too. */
	for (int fd = 0; fd < highest; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			expect_is(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, fd), fd);
	low = old;
	low.rlim_cur = highest + 1 + free;
	expect_is(setrlimit(RLIMIT_NOFILE, &low), 0);
	return old;
}

/* Whether a thread of this process, as /proc names it, has that name itself. */
static inline bool is_named(const char *tid, const char *want)
{
	char path[300], name[32] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%s/comm", tid);
	f = fopen(path, "re");
	if (!f)
		return false;	/* it ended */
	if (fgets(name, sizeof(name), f))
		name[strcspn(name, "\n")] = '\0';
	fclose(f);
	return !strcmp(name, want);
}

/* Lines of /proc/self/maps that have the text. */
static inline long count_maps_of(const char *text)
{
	char line[1024];
	long n = 0;
	FILE *f = fopen("/proc/self/maps", "re");

	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f))
		n += strstr(line, text) != NULL;
	fclose(f);
	return n;
}

static inline long count_maps(bool files_only)
{
	return count_maps_of(files_only ? "/" : "");
}

static inline bool va_is_mapped(uintptr_t va)
{
	unsigned char vec;

	return mincore((void *)(va & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1)), 1, &vec) == 0 ||
	       errno != ENOMEM;
}

/* Whether memory of a file or a device is there; the range may have other memory by now. */
static inline bool is_shared(const void *va)
{
	unsigned long from, to;
	char line[1024], mode[5];
	bool found = false;
	FILE *f = fopen("/proc/self/maps", "re");

	if (!f)
		return false;
	while (!found && fgets(line, sizeof(line), f))
		found = sscanf(line, "%lx-%lx %4s", &from, &to, mode) == 3 && mode[3] == 's' &&
			(uintptr_t)va >= from && (uintptr_t)va < to;
	fclose(f);
	return found;
}

/* Resident memory of this process in KiB. */
static inline long rss_kib(void)
{
	long kib = proc_number("/proc/self/smaps_rollup", "Rss:");

	return kib >= 0 ? kib : proc_number("/proc/self/status", "VmRSS:");
}

/* A sandbox, in all threads: that system call is EPERM. */
static inline void refuse_call(unsigned int number)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { 4, code };

	expect_is(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter))
		skip_case("seccomp: %s", strerror(errno));
}

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

/* A copy between the buffer's first bytes and the host: by one call, or as two pieces. */
static inline int copy_as(bool pieces, bool to, const struct buffer *b, void *host, size_t n)
{
	const gdr_piece_t both[2] = {
		{ b->mh, b->va, host, n / 2 },
		{ b->mh, b->va + n / 2, (unsigned char *)host + n / 2, n - n / 2 },
	};

	if (pieces)
		return to ? gdr_copy_to_mapping_v(both, 2) : gdr_copy_from_mapping_v(both, 2);
	return to ? gdr_copy_to_mapping(b->mh, b->va, host, n) : gdr_copy_from_mapping(b->mh, host, b->va, n);
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
static inline void start_thread(pthread_t *t, size_t stack, void *(*fn)(void *), void *arg)
{
	size_t least = sysconf(_SC_THREAD_STACK_MIN);
	pthread_attr_t attr;

	expect_is(pthread_attr_init(&attr), 0);
	if (stack && stack < least)
		stack = least;
	if (stack)
		expect_is(pthread_attr_setstacksize(&attr, stack), 0);
	expect_is(pthread_create(t, &attr, fn, arg), 0);
	pthread_attr_destroy(&attr);
}

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

static inline void expect_same_actions(const struct raw_action a[65], const struct raw_action b[65])
{
	int changed = 0;

	for (int sig = 1; sig <= 64; sig++) {
		if (!memcmp(&a[sig], &b[sig], sizeof(a[sig])))
			continue;
		note("the disposition of signal %d has changed", sig);
		changed++;
	}
	expect_is(changed, 0);
}

#endif
