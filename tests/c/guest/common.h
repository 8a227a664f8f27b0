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

/* So many times, or seconds, at the scale that is asked for; at least one. */
long scaled(long n);

/*
 * Whether the drivers are those of tests/doubles; who runs the tests says so.
 * A real driver's start takes a second, its calls a millisecond, and it brings
 * threads, file descriptors and memory of its own.
 */
bool on_doubles(void);

/* A line that is no TAP result, in one write: many processes print. */
__attribute__((format(printf, 1, 2)))
void note(const char *fmt, ...);

/* End this process, and so the case, as failed unless it is so. */
__attribute__((noreturn))
void fail_at(const char *what, const char *file, int line);
void expect_is_at(long got, long want, const char *what, const char *file, int line);
#define expect(cond) ((cond) ? (void)0 : fail_at(#cond, __FILE__, __LINE__))
#define expect_is(got, want) expect_is_at((long)(got), (long)(want), #got, __FILE__, __LINE__)

/* For a call on what another thread may end: it succeeds, or gives EINVAL or that other errno. */
bool succeeds_at(int rc, int other, const char *what, const char *file, int line);
#define succeeds(rc, other) succeeds_at((rc), (other), #rc, __FILE__, __LINE__)

__attribute__((format(printf, 1, 2), noreturn))
void skip_case(const char *fmt, ...);

void needs_doubles(const char *why);

/* Whether the environment asks for that backend. */
bool backend_is(const char *name);

double seconds_now(void);
void sleep_us(long us);

/* A small generator, one state a thread: the same seed gives the same run. */
uint32_t next_random(uint64_t *state);

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
void run_anew(const char *name);

/* The number after a key such as "VmSize:" in a file of /proc, or -1. */
long proc_number(const char *file, const char *key);

/*
 * GUEST_OTHER_THREADS in the environment: how many threads of an emulator the process
 * has beside its own.
 */
long count_threads(void);

/*
 * Waits for threads that are ending: pthread_join returns a moment before the
 * kernel has forgotten the thread.
 */
long count_threads_settled(long want);

long count_fds(void);

/* Leaves room for free more file descriptors; returns the old limit. */
struct rlimit leave_fds(int free);

/* Whether a thread of this process, as /proc names it, has that name itself. */
bool is_named(const char *tid, const char *want);

/* Lines of /proc/self/maps that have the text. */
long count_maps_of(const char *text);
long count_maps(void);

/* Whether memory of a file or a device is there; the range may have other memory by now. */
bool is_shared(const void *va);

/* Resident memory of this process in KiB. */
long rss_kib(void);

/* A sandbox, in all threads: that system call is EPERM. */
void refuse_call(unsigned int number);

/* Whether the library's log has that: standard error, which is a file in a case (main.c), from catch_log() on if that was called. */
bool logged(const char *what);
void catch_log(void);

/* Opens the library; without a backend no case can go on. */
gdr_t open_or_fail(void);

/* GPU memory, and what of it is pinned. */
struct buffer {
	gdr_mem_t mem;
	unsigned long dptr;
	size_t size;
	gdr_mh_t mh;
	unsigned char *va;	/* NULL: not mapped */
};

void alloc_buffer(gdr_t g, struct buffer *b, size_t size);
void map_buffer(gdr_t g, struct buffer *b);
void make_buffer(gdr_t g, struct buffer *b, size_t size);
void drop_buffer(gdr_t g, struct buffer *b);

void fill_random(unsigned char *p, size_t n, uint64_t seed);

/* Writes size random bytes through the mapping and reads them back. */
void check_copies(struct buffer *b, uint64_t seed);

/* The whole life of a buffer, with data. */
void whole_life(gdr_t g, uint64_t seed);

/* With that much stack, or the least of this machine: 128 KiB on arm64 and ppc64le. */
void start_thread(pthread_t *t, size_t stack, void *(*fn)(void *), void *arg);

/* n of them, which have the same to do. */
void start_threads(pthread_t *t, int n, void *(*fn)(void *), void *arg);
void join_threads(const pthread_t *t, int n);
void run_thread(size_t stack, void *(*fn)(void *), void *arg);

/* The calling thread's mask, with the signals that the C library hides. */
uint64_t read_mask(void);

/* A disposition as the kernel has it. */
struct raw_action {
	unsigned char bytes[64];
};

/*
 * All but those of signals 32 and 33. They are the C library's, which installs
 * the handler of one with the first thread of a process, and hides both.
 */
void read_actions(struct raw_action act[65]);
void expect_same_actions(const struct raw_action a[65], const struct raw_action b[65]);

#endif
