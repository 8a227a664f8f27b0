// SPDX-License-Identifier: MIT
/*
 * runtime_test - capi/host/runtime.c, built in here, with an entry, variables and limits
 * that are the test's. Each thing that the runtime takes is refused in turn: the start has
 * the errno, and leaves nothing. What runtime/cgo calls has its answers.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "copy/threads.h"
#include "host/guest.h"
#include "host/reserve.h"
#include "tap.h"
#include "../c/log_double.h"

/* What is had now, and the number of the call that fails, with its errno. */
static long mapped, descriptors, most_descriptors, pauses;
static int running;	/* threads of the library's */
static struct limit {
	int calls, fails, rc;
} maps, protects, fds, threads_made_so_far;

static bool fails(struct limit *l)
{
	return ++l->calls == l->fails;
}

/* What no call may do; it ends the test. */
static void never(bool wrong, const char *what)
{
	if (!wrong)
		return;
	printf("# %s\n", what);
	fflush(stdout);
	_exit(1);
}

#define MIB (1ul << 20)

/* What a start asks for: address space, memory to write to. */
static size_t space, writable;
static const char *split;	/* the space, while it is there */

static void *mmap_of(void *addr, size_t len, int prot, int flags, int fd, off_t off)
{
	void *mem = MAP_FAILED;

	never(fd != -1 || off || !(flags & MAP_PRIVATE) || !(flags & MAP_ANONYMOUS), "memory of a file");
	if (prot == PROT_NONE && flags & MAP_NORESERVE)
		space = len;
	else if (prot == (PROT_READ | PROT_WRITE))
		writable = len > writable ? len : writable;
	else
		never(true, "memory of another kind");
	if (fails(&maps))
		errno = maps.rc;
	else
		mem = mmap(addr, len, prot, flags, fd, off);
	mapped += mem != MAP_FAILED ? (long)len : 0;
	if (prot == PROT_NONE)
		split = mem == MAP_FAILED ? NULL : mem;
	return mem;
}

static int munmap_of(void *addr, size_t len)
{
	mapped -= (long)len;
	split = len == space ? NULL : split;
	return munmap(addr, len);
}

/* Neighbours with one protection are one mapping. */
static const char *last_protected;
static bool neighbours;

static int mprotect_of(void *addr, size_t len, int prot)
{
	never(prot != PROT_READ, "memory is made something else");
	never(split && ((const char *)addr < split || (const char *)addr + len > split + space), "other memory is split");
	neighbours |= last_protected == addr;
	last_protected = (const char *)addr + len;
	if (fails(&protects)) {
		errno = protects.rc;
		return -1;
	}
	return mprotect(addr, len, prot);
}

static int eventfd_of(unsigned int value, int flags)
{
	if (fails(&fds)) {
		errno = fds.rc;
		return -1;
	}
	never(flags != EFD_CLOEXEC || value, "another descriptor");
	descriptors++;
	most_descriptors = descriptors > most_descriptors ? descriptors : most_descriptors;
	return eventfd(value, flags);
}

static int close_of(int fd)
{
	descriptors--;
	return close(fd);
}

static int make_of(pthread_t *id, const struct gdr_run *run)
{
	int rc = fails(&threads_made_so_far) ? threads_made_so_far.rc : pthread_create(id, NULL, run->fn, run->arg);

	__atomic_fetch_add(&running, !rc, __ATOMIC_SEQ_CST);
	return rc;
}

static int join_of(pthread_t id)
{
	__atomic_fetch_sub(&running, 1, __ATOMIC_SEQ_CST);
	return pthread_join(id, NULL);
}

void *gdr_map_memory(void *addr, size_t len, int prot, int flags)
{
	return mmap_of(addr, len, prot, flags, -1, 0);
}

static int pause_of(const struct timespec *time)
{
	never(time->tv_sec || time->tv_nsec != 10000000, "a pause is no hundredth of a second");
	pauses++;
	return 0;
}

static _Atomic int waits;	/* threads that sleep, or have */

static long futex_of(long number, void *at, int op, int value, void *a, void *b, int c)
{
	never(number != SYS_futex || a || b || c, "another call");
	waits += op == FUTEX_WAIT_PRIVATE && !value;
	return syscall(number, at, op, value, a, b, c);
}

static bool locked;

static int lock_of(pthread_mutex_t *lock)
{
	int rc = pthread_mutex_lock(lock);

	locked = true;
	return rc;
}

static int unlock_of(pthread_mutex_t *lock)
{
	never(!locked, "a lock that nobody holds");
	locked = false;
	return pthread_mutex_unlock(lock);
}

#define mmap mmap_of
#define munmap munmap_of
#define mprotect mprotect_of
#define eventfd eventfd_of
#define close close_of
#define gdr_thread_make make_of
#define pthread_join(id, answer) join_of(id)
#define nanosleep(time, left) pause_of(time)
#define syscall futex_of
#define pthread_mutex_lock lock_of
#define pthread_mutex_unlock unlock_of
#include "host/runtime.c"
#undef mmap
#undef pthread_join
#undef syscall
#undef pthread_mutex_lock
#undef pthread_mutex_unlock
/* The numbers here are the test's. */
#undef THREADS_AT_FIRST
#undef THREADS_MAX
#undef SPARE
#undef MAPS
#undef FDS
#undef REQUEST_BYTES
#define THREADS_AT_FIRST 10
#define THREADS_MAX 256
#define SPARE 4
#define MAPS 64
#define FDS 4
#define REQUEST_BYTES 64

/*
 * The entry and the variables, in the sections and between the names that Go's linker and
 * extld.sh would give them.
 */
__asm__(".data\n"
	".globl runtime.data, runtime.edata, runtime.noptrdata, runtime.enoptrdata\n"
	"runtime.data: .quad 11\nruntime.edata:\n"
	".quad 99\n"
	"runtime.noptrdata: .quad 12, 13\nruntime.enoptrdata:\n"
	".quad 99\n"
	".bss\n"
	".globl runtime.bss, runtime.ebss, runtime.noptrbss, runtime.enoptrbss\n"
	"runtime.bss: .zero 8\nruntime.ebss:\n"
	".zero 8\n"
	"runtime.noptrbss: .zero 16\nruntime.enoptrbss:\n"
	".zero 8\n"
	".text\n");
static uint64_t module[2] __attribute__((section("gdr_go_module"), used)) = { 14, 15 };
static uint64_t go_c[3] __attribute__((section("gdr_go_c"), used)) = { 16, 17, 18 };

static int entries, reserves;
static bool good_block;

/* Each start finds the variables as they were at first, and changes them all. */
static bool as_at_first(void)
{
	const uint64_t *data = (const uint64_t *)go_data, *noptr = (const uint64_t *)go_noptrdata;
	const uint64_t *bss = (const uint64_t *)go_bss, *noptrbss = (const uint64_t *)go_noptrbss;

	return data[0] == 11 && noptr[0] == 12 && noptr[1] == 13 && module[0] == 14 && module[1] == 15 &&
	       go_c[0] == 16 && go_c[1] == 17 && go_c[2] == 18 && !bss[0] && !noptrbss[0] && !noptrbss[1];
}

static void change_all(void)
{
	memset(go_data, 0xee, 8);
	memset(go_noptrdata, 0xee, 16);
	memset(module, 0xee, sizeof(module));
	memset(go_c, 0xee, sizeof(go_c));
	memset(go_bss, 0xee, 8);
	memset(go_noptrbss, 0xee, 16);
}

/* The block that Go reads as the kernel's: arguments, the environment, the vector. */
static bool is_good(int argc, char **argv, char **envp)
{
	static const unsigned long types[] = { AT_PAGESZ, AT_RANDOM, AT_HWCAP, AT_SYSINFO_EHDR, AT_SECURE };
	unsigned long *vector;
	bool good = argc == 1 && !strcmp(argv[0], "libgdrapi") && !argv[1] && envp == argv + 2;

	good &= !strcmp(envp[0], "GOMAXPROCS=2") && !strcmp(envp[1], "GOMEMLIMIT=512MiB") &&
		!strncmp(envp[2], "GODEBUG=", 8) && !envp[3];
	good &= strstr(envp[2], "asyncpreemptoff=1") && strstr(envp[2], "gcshrinkstackoff=1") &&
		strstr(envp[2], "containermaxprocs=0") && strstr(envp[2], "updatemaxprocs=0");
	vector = (unsigned long *)(envp + 4);
	for (int i = 0; i < 5; i++)
		good &= vector[2 * i] == types[i] && vector[2 * i + 1] == getauxval(types[i]);
	return good && vector[10] == AT_NULL;
}

static void entry(int argc, char **argv, char **envp)
{
	entries++;
	good_block = is_good(argc, argv, envp) && as_at_first() && reserves == entries;
	change_all();
}

static const go_entry_fn the_entry __attribute__((section("gdr_go_entry"), used)) = entry;

void gdr_reserve_start(void)
{
	reserves++;
}

void *gdr_reserve_mmap(void *addr, size_t len, int prot, int flags)
{
	(void)prot, (void)flags;
	return (char *)addr + len;
}

static struct tap tap;

static void check(bool ok, const char *what)
{
	tap_ok(&tap, ok, "%s", what);
}

/* A start whose n-th call of a kind fails. Nothing is left of it, and nothing of Go's ran. */
static bool is_refused(struct limit *l, int nth, int rc, int line)
{
	long had = mapped;
	int before = lines, ran = entries, answer;

	said[0] = '\0';
	*l = (struct limit){ .fails = nth, .rc = rc };
	answer = gdr_runtime_start();
	*l = (struct limit){ 0 };
	if (answer == rc && mapped == had && !descriptors && !running && lines == before + line && entries == ran && reserves == ran &&
	    (!line || strstr(said, strerror(rc))))
		return true;
	printf("# %d: %ld bytes, %ld descriptors, %d threads, %d lines\n", answer, mapped - had, descriptors, running, lines - before);
	return false;
}

static void test_refused(void)
{
	bool good = true;

	check(is_refused(&maps, 1, ENOMEM, 1) && strstr(said, " 1536 MiB of address space") && strstr(said, " 64 MiB of it") &&
	      strstr(said, " 128 mappings"), "no address space");
	check(is_refused(&maps, 2, EAGAIN, 1), "no memory to write to");
	check(is_refused(&protects, 1, ENOMEM, 1) && is_refused(&protects, MAPS, ENOMEM, 1), "too few mappings");
	for (int i = 1; i <= FDS; i++)
		good &= is_refused(&fds, i, i % 2 ? EMFILE : ENFILE, 1);
	check(good && strstr(said, " 4 file descriptors"), "too few descriptors");
	for (int i = 1; i <= THREADS_AT_FIRST; i++)
		good &= is_refused(&threads_made_so_far, i, EAGAIN, 1);
	check(good && strstr(said, " 10 threads"), "too few threads");
	check(is_refused(&maps, 3, ENOMEM, 0), "no memory to save the variables in");
}

static _Atomic int ran;

static void *run(void *arg)
{
	atomic_fetch_add(&ran, 1);
	return arg;
}

/* A thread is taken, and what it runs ends. */
static bool is_taken(int *made)
{
	static int marks[THREADS_MAX];
	pthread_t id = 0;
	int before = atomic_load(&ran);
	void *back = NULL;

	if (gdr_go_pthread_create(&id, NULL, run, &marks[before % THREADS_MAX]) || pthread_join(id, &back))
		return false;
	*made = running;
	return back == &marks[before % THREADS_MAX] && atomic_load(&ran) == before + 1;
}

static void test_threads(void)
{
	int made = 0;
	bool good = true;

	for (int i = 1; good && i <= THREADS_AT_FIRST + 5; i++) {
		int want = i + SPARE > THREADS_AT_FIRST ? i + SPARE : THREADS_AT_FIRST;

		good = is_taken(&made) && made == want;
	}
	tap_ok(&tap, good, "each thread that the runtime asks for is there, and some are made ahead: %d", made);
	/* None can be made: the next four are there. Then the runtime waits for one. */
	for (int i = 0; good && i < SPARE; i++) {
		threads_made_so_far = (struct limit){ .fails = 1, .rc = EAGAIN };
		good = is_taken(&made) && made == THREADS_AT_FIRST + 5 + SPARE && !pauses;
	}
	check(good, "where none can be made there are four more");
	threads_made_so_far = (struct limit){ .fails = 1, .rc = EAGAIN };
	check(is_taken(&made) && pauses == 1, "and then one is waited for");
	threads_made_so_far = (struct limit){ 0 };
	while (good && made < THREADS_MAX)
		good = is_taken(&made);
	check(good && made == THREADS_MAX && make_next_thread() == EAGAIN, "up to 256");
}

static void test_answers(void)
{
	static const sigset_t none;
	sigset_t was;
	pthread_attr_t attr;
	void *all[THREADS_MAX], *addr = &was;
	size_t size = 1;
	pthread_key_t key;
	bool good = true;

	memset(&was, 0xff, sizeof(was));
	check(!gdr_go_pthread_sigmask(0, NULL, &was) && !memcmp(&was, &none, 8) && !gdr_go_pthread_sigmask(0, &none, NULL),
	      "no mask is changed");
	check(gdr_go_pthread_key_create(&key, NULL) == EAGAIN, "there is no key");
	check(!gdr_go_pthread_attr_getstacksize(&attr, &size) && size == 65536, "stacks of ours have 64 KiB for Go");
	check(!gdr_go_pthread_getattr_np(0, &attr) && !gdr_go_pthread_attr_getstack(&attr, &addr, &size) && !addr && !size,
	      "those of hosts are not asked about");
	check(gdr_go_mmap(&attr, 24, 0, 0, -1, 0) == (char *)&attr + 24, "memory is the reserve's");
	check(!gdr_go_malloc(REQUEST_BYTES + 1), "a request has 64 bytes at most");
	for (int i = 0; i < THREADS_MAX; i++) {
		all[i] = gdr_go_malloc(i % 2 ? REQUEST_BYTES : 1);
		good &= all[i] && (uintptr_t)all[i] % 16 == 0;
		if (all[i])
			memset(all[i], i, REQUEST_BYTES);
	}
	for (int i = 0; i < THREADS_MAX; i++)
		for (int k = 0; all[i] && k < REQUEST_BYTES; k++)
			good &= ((unsigned char *)all[i])[k] == (unsigned char)i;
	check(good && !gdr_go_malloc(1), "there are 256 requests, each has its own");
	gdr_go_free(NULL);
	gdr_go_free(all[100]);
	check(gdr_go_malloc(8) == all[100] && !gdr_go_malloc(8), "one that is freed is there again");
}

/* A child has the parent's variables and none of its threads. */
static bool starts_in_child(void)
{
	int status = -1;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (!child) {
		int made = 0;

		running = 0;
		good_block = false;
		_exit(gdr_runtime_start() || !good_block || entries != 2 || running != THREADS_AT_FIRST || !is_taken(&made) ||
		      made != THREADS_AT_FIRST || !gdr_go_malloc(1));
	}
	waitpid(child, &status, 0);
	return !status;
}

static bool is_read_only(const char *mem)
{
	char line[512], access[5] = "";
	unsigned long low, high;
	FILE *f = fopen("/proc/self/maps", "re");
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f))
		found = sscanf(line, "%lx-%lx %4s", &low, &high, access) == 3 && (unsigned long)mem >= low && (unsigned long)mem < high;
	if (f)
		fclose(f);
	return found && !strcmp(access, "r--p");
}

int main(void)
{
	long had = mapped;

	alarm(120);	/* ends a test in which a thread waits for ever */
	test_refused();
	most_descriptors = 0;
	protects.calls = 0;
	check(mapped == had && !gdr_runtime_start() && entries == 1 && good_block && running == THREADS_AT_FIRST && !descriptors,
	      "a start has ten threads, and calls the entry once, with a block of our own");
	check(!neighbours && protects.calls == 64 + 1 && space == 1536 * MIB && writable == 64 * MIB && most_descriptors == 4,
	      "it has tried as many mappings as it says, and memory and descriptors");
	check(is_read_only(saved_variables), "what a child begins with is not changed");
	for (int i = 0; i < 10000 && waits < THREADS_AT_FIRST; i++)
		usleep(1000);
	check(waits >= THREADS_AT_FIRST, "idle threads sleep");
	waits = 0;
	/* A futex may wake for no reason. */
	for (int k = 0; k < 10000 && waits < THREADS_AT_FIRST; k++) {
		for (int i = 0; i < THREADS_AT_FIRST; i++)
			syscall(SYS_futex, &threads[i].state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
		usleep(1000);
	}
	check(waits >= THREADS_AT_FIRST, "and sleep again");
	test_threads();
	test_answers();
	pthread_mutex_lock(&threads_lock);	/* as a thread of the parent's may have */
	check(starts_in_child() && starts_in_child(), "a child starts from the first variables, with threads of its own");
	return tap_done(&tap);
}
