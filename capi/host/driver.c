// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../copy/signals.h"

static const char library[] = "libcuda.so.1";

/* What this process or an ancestor has loaded. A forked child has both in its memory. */
static _Atomic(void *) cuda;
struct gdr_driver_functions gdr_driver_functions;

/*
 * The loader of a forked child. Where a thread of the parent was inside it at the fork, the
 * child's loader hangs, crashes, or ends the process by an assertion. fork frees the lock of
 * dlopen in the child, so there it says nothing. Whether a thread was inside:
 *
 * 1. before_fork looks whether a thread has the lock, and how many libraries were loaded so
 *    far. Then the C library waits for malloc's locks, so a thread may enter.
 * 2. after_fork_in_parent looks again. A thread that was inside at the fork still has the
 *    lock, or has changed the list since, or has changed nothing.
 * 3. It writes the answer where the child reads it.
 */
enum { NOT_YET, FREE, BUSY };
typedef _Atomic uint8_t answer;

#define ANSWERS 16380u

/*
 * Shared with all children, and theirs; NULL: there was no memory. A child that asks after
 * ANSWERS more forks may read a later one's answer.
 */
static struct {
	_Atomic uint32_t forks;
	answer of[ANSWERS];
} *shared;

static answer always_free = FREE, always_busy = BUSY;

/* The answer to this process. */
static _Atomic(answer *) own = &always_free;

static pid_t process_at_load;

/*
 * Two locks of the C library: dlopen holds the first, and whoever walks the list of
 * libraries the second. NULL: not found, and then taken to be free.
 */
static const pthread_mutex_t *dlopen_lock, *list_lock;

/* Under the first lock: how many libraries were ever loaded, and how many are. */
struct loads {
	uint64_t ever;
	uint32_t now;
};

static const uint64_t *loads_ever = &(const uint64_t){ 0 };
static const uint32_t *loads_now = &(const uint32_t){ 0 };

/* The fork that this thread makes. */
static __thread struct {
	answer *answer;
	struct loads before;
} this_fork __attribute__((tls_model("initial-exec")));

static bool is_alive(pid_t thread)
{
	return !syscall(SYS_tgkill, getpid(), thread, 0) || errno != ESRCH;
}

/*
 * The thread that has the lock; 0: nobody has it; NO_THREAD: a thread takes it or gives it
 * back just now, or did so when the parent forked.
 */
#define NO_THREAD (-1)

static pid_t holder(const pthread_mutex_t *lock)
{
	pid_t thread;

	if (!lock)
		return 0;
	thread = __atomic_load_n(&lock->__data.__owner, __ATOMIC_ACQUIRE);
	if (!__atomic_load_n(&lock->__data.__lock, __ATOMIC_ACQUIRE))
		return 0;
	return thread ? thread : NO_THREAD;
}

static struct loads count_loads(void)
{
	return (struct loads){
		.ever = __atomic_load_n(loads_ever, __ATOMIC_ACQUIRE),
		.now = __atomic_load_n(loads_now, __ATOMIC_ACQUIRE),
	};
}

/* The number of loads lies behind the locks. There are two locks, or three since glibc 2.34. */
static void find_loads(const struct dl_phdr_info *info, const void *variables)
{
	const uint64_t *behind = (const uint64_t *)&list_lock[1];

	for (size_t i = 0; i <= sizeof(*list_lock) / sizeof(*behind); i++) {
		if (behind[i] != info->dlpi_adds)
			continue;
		loads_ever = &behind[i];
		break;
	}
	/* The variables begin with the list, and its length. */
	if (*(struct link_map *const *)variables == _r_debug.r_map)
		loads_now = (const uint32_t *)((const char *)variables + sizeof(void *));
}

/*
 * dl_iterate_phdr calls this for the loader itself, too, and holds the second lock
 * meanwhile. So that lock is the one recursive lock among the loader's variables that this
 * thread has. The first lock lies before it.
 */
static int find_locks(struct dl_phdr_info *info, size_t size, void *variables)
{
	uintptr_t at = (uintptr_t)variables, end = 0;
	pid_t thread = (pid_t)syscall(SYS_gettid);

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + p->p_vaddr;

		if (p->p_type == PT_LOAD && at - start < p->p_memsz)
			end = start + p->p_memsz;
	}
	for (; at + 4 * sizeof(pthread_mutex_t) <= end; at += sizeof(void *)) {
		const pthread_mutex_t *m = (const pthread_mutex_t *)at;

		if (!m[1].__data.__lock || m[1].__data.__owner != thread ||
		    m[1].__data.__kind != PTHREAD_MUTEX_RECURSIVE_NP ||
		    m[0].__data.__kind != PTHREAD_MUTEX_RECURSIVE_NP)
			continue;
		dlopen_lock = &m[0];
		list_lock = &m[1];
		find_loads(info, variables);
		break;
	}
	return end != 0;
}

#define LOOKS 1000	/* for a thread that runs to go on */

/* Whether a thread that did not survive the fork has the lock. */
static bool is_left_locked(const pthread_mutex_t *lock)
{
	pid_t thread;

	for (int looks = 0; looks < LOOKS; looks++) {
		thread = holder(lock);
		if (thread != NO_THREAD)
			return thread && !is_alive(thread);
		sched_yield();
	}
	return true;
}

#define WAIT_MS 1000

static void sleep_ms(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* The parent answers as soon as its fork has returned. */
static bool is_answered_free(void)
{
	answer *a = atomic_load(&own);

	for (int ms = 0; ms < WAIT_MS && atomic_load(a) == NOT_YET; ms++)
		sleep_ms();
	if (atomic_load(a) == FREE)
		return true;
	atomic_store(&own, &always_busy);
	return false;
}

bool gdr_driver_can_load(void)
{
	if (getpid() == process_at_load)
		return true;
	return is_answered_free() && !is_left_locked(dlopen_lock) && !is_left_locked(list_lock);
}

/*
 * The loader and forks of this process. Whoever comes second waits, up to a second, so a
 * child has what we load.
 */
static _Atomic pid_t ours;	/* the thread that uses the loader for us, or 0 */
static _Atomic int forking;	/* how many threads are between before_fork and its end */

/* Not for one of ours that waits until another thread has left the loader. */
static bool is_worth_waiting(pid_t self)
{
	pid_t thread = atomic_load(&ours), inside = holder(dlopen_lock);

	return thread && thread != self && (!inside || inside == thread) && is_alive(thread);
}

/* Returns whether leave_loader must be called: not if a thread of ours is there already. */
static bool enter_loader(void)
{
	pid_t self = (pid_t)syscall(SYS_gettid);

	for (int ms = 0; ms < WAIT_MS; ms++) {
		pid_t none = 0;

		if (atomic_compare_exchange_strong(&ours, &none, self)) {
			if (atomic_load(&forking) <= 0)
				return true;
			atomic_store(&ours, 0);
		} else if (!is_worth_waiting(self)) {
			return false;
		}
		sleep_ms();
	}
	/* A handler may have left a fork by siglongjmp. */
	atomic_store(&forking, 0);
	return false;
}

static void leave_loader(bool entered)
{
	if (entered)
		atomic_store(&ours, 0);
}

static bool is_another_inside(void)
{
	pid_t inside = holder(dlopen_lock);

	return inside && inside != (pid_t)syscall(SYS_gettid);
}

static void before_fork(void)
{
	pid_t self = (pid_t)syscall(SYS_gettid);

	atomic_fetch_add(&forking, 1);
	for (int ms = 0; ms < WAIT_MS && is_worth_waiting(self); ms++)
		sleep_ms();
	this_fork.answer = NULL;
	if (!shared)
		return;
	this_fork.answer = &shared->of[atomic_fetch_add(&shared->forks, 1) % ANSWERS];
	this_fork.before = count_loads();
	atomic_store(this_fork.answer, is_another_inside() || !gdr_driver_can_load() ? BUSY : NOT_YET);
}

static void after_fork_in_parent(void)
{
	struct loads before = this_fork.before, after;
	bool busy = is_another_inside();

	if (atomic_fetch_sub(&forking, 1) <= 0)
		atomic_store(&forking, 0);
	if (!this_fork.answer || atomic_load(this_fork.answer) == BUSY)
		return;
	after = count_loads();
	busy |= before.ever != after.ever || before.now != after.now;
	atomic_store(this_fork.answer, busy ? BUSY : FREE);
}

static void after_fork_in_child(void)
{
	atomic_store(&own, this_fork.answer ? this_fork.answer : &always_busy);
	atomic_store(&ours, 0);
	atomic_store(&forking, 0);
}

static __attribute__((constructor)) void note_loader(void)
{
	void *variables = dlsym(RTLD_DEFAULT, "_rtld_global");
	void *mem = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	shared = mem == MAP_FAILED ? NULL : mem;
	process_at_load = getpid();
	dlerror();
	if (variables)
		dl_iterate_phdr(find_locks, variables);
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* Loading. */

static void keep_reason(char *why, size_t size)
{
	const char *text = dlerror();

	snprintf(why, size, "%s", text ? text : "no reason given");
}

/* With RTLD_NOLOAD: the library, if anybody has loaded it. dlerror has the reason of NULL. */
static void *open_library(int mode)
{
	bool entered = enter_loader();
	void *lib = dlopen(library, RTLD_NOW | mode);

	if (lib)
		atomic_store(&cuda, lib);
	leave_loader(entered);
	return lib;
}

enum gdr_driver_state gdr_driver_load(char *why, size_t size)
{
	void *lib = atomic_load(&cuda);

	if (lib && __atomic_load_n(&gdr_driver_functions.known, __ATOMIC_ACQUIRE))
		return GDR_DRIVER_LOADED;
	if (!gdr_driver_can_load()) {
		snprintf(why, size, "another thread of the parent was in the loader when this process was forked");
		return GDR_DRIVER_NO_LOADER;
	}
	if (lib || open_library(RTLD_LOCAL))
		return GDR_DRIVER_LOADED;
	keep_reason(why, size);
	return strstr(why, strerror(ENOENT)) ? GDR_DRIVER_NOT_FOUND : GDR_DRIVER_BROKEN;
}

static void *loaded(void)
{
	void *lib = atomic_load(&cuda);

	return lib || !gdr_driver_can_load() ? lib : open_library(RTLD_NOLOAD);
}

bool gdr_driver_is_loaded(void)
{
	return loaded() != NULL;
}

uintptr_t gdr_driver_find(const char *name)
{
	bool entered = enter_loader();
	uintptr_t at = (uintptr_t)dlsym(atomic_load(&cuda), name);

	leave_loader(entered);
	return at;
}
