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
#include <time.h>
#include <unistd.h>

#include "copy/signals.h"

static const char library[] = "libcuda.so.1";

/*
 * What this process or an ancestor has loaded, and the functions that were looked up. A
 * forked child has both in its memory.
 */
static _Atomic(void *) cuda;

#define FUNCTIONS_MAX 128u
#define NAME_MAX_BYTES 48u

static struct function {
	_Atomic bool known;	/* stored last */
	char name[NAME_MAX_BYTES];
	void *at;		/* NULL: this driver lacks it */
} functions[FUNCTIONS_MAX];
static _Atomic uint32_t functions_taken;

/* The loader of a forked child. */

static pid_t process_at_load;

/*
 * Two locks of the C library: dlopen holds the first, and whoever walks the list of
 * libraries the second. NULL: not found, and then taken to be free.
 */
static const pthread_mutex_t *dlopen_lock, *list_lock;

/* Whether an ancestor was loading a library when it forked. */
static bool parent_was_loading;

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
	for (; at + 2 * sizeof(pthread_mutex_t) <= end; at += sizeof(void *)) {
		const pthread_mutex_t *m = (const pthread_mutex_t *)at;

		if (!m[1].__data.__lock || m[1].__data.__owner != thread ||
		    m[1].__data.__kind != PTHREAD_MUTEX_RECURSIVE_NP ||
		    m[0].__data.__kind != PTHREAD_MUTEX_RECURSIVE_NP)
			continue;
		dlopen_lock = &m[0];
		list_lock = &m[1];
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

/* While the list of libraries is inconsistent, a thread is changing it. */
static bool is_in_order(void)
{
	for (int looks = 0; looks < LOOKS; looks++) {
		if (_r_debug.r_state == RT_CONSISTENT || holder(dlopen_lock))
			return true;
		sched_yield();
	}
	return false;
}

/*
 * The loader of a child whose parent was inside it at the fork hangs, or ends the process
 * by an assertion.
 */
bool gdr_driver_can_load(void)
{
	if (getpid() == process_at_load)
		return true;
	return !parent_was_loading && !is_left_locked(dlopen_lock) &&
	       !is_left_locked(list_lock) && is_in_order();
}

/* The thread that forks notes here whether the parent is in the loader. */
static __thread bool loads_now __attribute__((tls_model("initial-exec")));

static _Atomic pid_t loading;	/* the thread that loads libcuda for us, or 0 */

#define WAIT_MS 1000

/* Not for a load that waits until another thread has left the loader. */
static bool is_worth_waiting(pid_t self)
{
	pid_t thread = atomic_load(&loading), inside = holder(dlopen_lock);

	return thread && thread != self && (!inside || inside == thread) && is_alive(thread);
}

/* A fork waits for a load of ours, so that the child has the library. */
static void before_fork(void)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	pid_t self = (pid_t)syscall(SYS_gettid), inside;

	for (int ms = 0; ms < WAIT_MS && is_worth_waiting(self); ms++)
		nanosleep(&pause, NULL);
	inside = holder(dlopen_lock);
	loads_now = inside && inside != self;
}

static void after_fork_in_child(void)
{
	parent_was_loading |= loads_now;
	atomic_store(&loading, 0);
}

static __attribute__((constructor)) void note_loader(void)
{
	void *variables = dlsym(RTLD_DEFAULT, "_rtld_global");

	process_at_load = getpid();
	dlerror();
	if (variables)
		dl_iterate_phdr(find_locks, variables);
	pthread_atfork(before_fork, NULL, after_fork_in_child);
}

/* Loading. */

static void keep_reason(char *why, size_t size)
{
	const char *text = dlerror();

	snprintf(why, size, "%s", text ? text : "no reason given");
}

enum gdr_driver_state gdr_driver_load(char *why, size_t size)
{
	pid_t none = 0, self = (pid_t)syscall(SYS_gettid);
	bool marked;
	void *lib;

	if (atomic_load(&cuda))
		return GDR_DRIVER_LOADED;
	if (!gdr_driver_can_load()) {
		snprintf(why, size, "another thread of the parent was in the loader when this process was forked");
		return GDR_DRIVER_NO_LOADER;
	}
	marked = atomic_compare_exchange_strong(&loading, &none, self);
	lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (lib)
		atomic_store(&cuda, lib);
	else
		keep_reason(why, size);
	if (marked)
		atomic_store(&loading, 0);
	if (lib)
		return GDR_DRIVER_LOADED;
	return strstr(why, strerror(ENOENT)) ? GDR_DRIVER_NOT_FOUND : GDR_DRIVER_BROKEN;
}

/* The library, if anybody has loaded it. */
static void *loaded(void)
{
	void *lib = atomic_load(&cuda);

	if (lib || !gdr_driver_can_load())
		return lib;
	lib = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
	if (lib)
		atomic_store(&cuda, lib);
	return lib;
}

bool gdr_driver_is_loaded(void)
{
	return loaded() != NULL;
}

static const struct function *find_known(const char *name)
{
	for (uint32_t i = 0; i < FUNCTIONS_MAX; i++)
		if (atomic_load_explicit(&functions[i].known, memory_order_acquire) &&
		    !strcmp(functions[i].name, name))
			return &functions[i];
	return NULL;
}

/* Two threads may note the same function. */
static void note_function(const char *name, void *at)
{
	uint32_t i = atomic_load(&functions_taken);

	if (i >= FUNCTIONS_MAX || strlen(name) >= NAME_MAX_BYTES)
		return;
	i = atomic_fetch_add(&functions_taken, 1);
	if (i >= FUNCTIONS_MAX)
		return;
	strcpy(functions[i].name, name);
	functions[i].at = at;
	atomic_store_explicit(&functions[i].known, true, memory_order_release);
}

bool gdr_driver_find(const char *name, void *place)
{
	const struct function *f = find_known(name);
	void *lib, *at = f ? f->at : NULL;

	if (!f) {
		lib = loaded();
		if (lib && gdr_driver_can_load()) {
			at = dlsym(lib, name);
			note_function(name, at);
		}
	}
	*(void **)place = at;
	return at != NULL;
}
