// SPDX-License-Identifier: MIT
/*
 * driver.c - capi/host/driver.c, built in here, over a loader that is the test's: how a load
 * ends, who waits for whom, and what a forked child is told. Naps are counted, not slept.
 * Each case is a process.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "expect.h"
#include "tap.h"

/* The loader: what it answers, and how it was asked. */
static struct {
	void *lib;		/* NULL: it does not load */
	const char *why;
	void (*inside)(void);	/* a constructor, or another thread's turn */
	int opens, mode, finds;
	const char *name;
} loader;

static void *dlopen_of(const char *name, int mode)
{
	void (*inside)(void) = loader.inside;

	loader.opens++;
	loader.mode = mode;
	loader.inside = NULL;
	expect(!strcmp(name, "libcuda.so.1"));
	if (inside)
		inside();
	return loader.lib;
}

static void *dlsym_of(void *lib, const char *name)
{
	if (lib == RTLD_DEFAULT)
		return dlsym(lib, name);
	loader.finds++;
	expect(lib == loader.lib);
	return strcmp(name, "cuThere") ? NULL : (void *)0x1234;
}

static int errors_taken;

static char *dlerror_of(void)
{
	errors_taken++;
	return (char *)loader.why;
}

static _Atomic int naps, yields;
static bool sleeps;		/* a child waits for its parent indeed */
static int nap_that_ends;	/* after so many something happens */
static void (*at_that_nap)(void);

static int nap_of(const struct timespec *time)
{
	expect(!time->tv_sec && time->tv_nsec == 1000000);
	if (++naps == nap_that_ends)
		at_that_nap();
	if (sleeps)
		usleep(10000);
	return 0;
}

static bool no_shared_memory;
static void *mmap_of(size_t len, int prot, int flags, int fd, off_t off)
{
	expect(prot == (PROT_READ | PROT_WRITE) && fd == -1 && !off);
	return no_shared_memory ? MAP_FAILED : mmap(NULL, len, PROT_READ | PROT_WRITE, flags, -1, 0);
}

#define dlopen dlopen_of
#define dlsym dlsym_of
#define dlerror dlerror_of
#define nanosleep(time, left) nap_of(time)
#define sched_yield() ((void)yields++)
#define mmap(addr, len, prot, flags, fd, off) mmap_of(len, prot, flags, fd, off)
#include "host/driver.c"
#undef dlopen
#undef dlsym
#undef dlerror
#undef nanosleep
#undef sched_yield
#undef mmap

static struct tap tap;
static char a_library, why[256];
static pthread_mutex_t locks[2];	/* of the loader, in the test's hands */
static uint64_t ever;
static uint32_t now;

static pid_t self(void)
{
	return (pid_t)syscall(SYS_gettid);
}

/* The C library's own locks are out of the way. */
static void set_up(void)
{
	dlopen_lock = &locks[0];
	list_lock = &locks[1];
	loads_ever = &ever;
	loads_now = &now;
	loader.lib = &a_library;
}

static void hold(pthread_mutex_t *lock, pid_t thread)
{
	lock->__data.__owner = thread;
	lock->__data.__lock = 1;
}

static void let_go(pthread_mutex_t *lock)
{
	lock->__data.__lock = 0;
}

static bool in_child(void (*run)(void))
{
	int status = -1;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		naps = 0;
		sleeps = true;
		run();
		_exit(0);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && !status;
}

static void *stay(void *tid)
{
	*(_Atomic pid_t *)tid = self();
	pause();
	return tid;
}

static pid_t another_thread(void)
{
	static _Atomic pid_t tid;
	pthread_t t;

	expect(!pthread_create(&t, NULL, stay, &tid));
	while (!tid)
		sched_yield();
	return tid;
}

/* A thread of this process that has ended. */
static pid_t dead_thread(void)
{
	pid_t pid = fork();

	if (!pid)
		_exit(0);
	expect(waitpid(pid, NULL, 0) == pid);
	return pid;
}

static enum gdr_driver_state load(void)
{
	memset(why, 'x', sizeof(why));
	return gdr_driver_load(why, sizeof(why));
}

static void loaded_meanwhile(void)
{
	cuda = &a_library;
}

static void answers(void)
{
	static const struct {
		const char *why;
		enum gdr_driver_state state;
	} rows[] = {
		{ "libcuda.so.1: cannot open shared object file: No such file or directory", GDR_DRIVER_NOT_FOUND },
		{ "libcuda.so.1: invalid ELF header", GDR_DRIVER_BROKEN },
		{ NULL, GDR_DRIVER_BROKEN },
	};

	loader.lib = NULL;
	expect(!gdr_driver_is_loaded() && loader.mode == (RTLD_NOW | RTLD_NOLOAD));
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		loader.opens = 0;
		loader.why = rows[i].why;
		expect(load() == rows[i].state && loader.opens == 1 && loader.mode == (RTLD_NOW | RTLD_LOCAL));
		expect(!strcmp(why, rows[i].why ? rows[i].why : "no reason given"));
		expect(!ours && !naps);
	}
	memset(why, 'x', sizeof(why));
	loader.why = rows[0].why;
	expect(gdr_driver_load(why, 8) == GDR_DRIVER_BROKEN && !strcmp(why, "libcuda") && why[8] == 'x');
	/* This load fails, and another thread's does not. */
	loader.inside = loaded_meanwhile;
	expect(load() == GDR_DRIVER_NOT_FOUND && gdr_driver_is_loaded());
	cuda = NULL;
	loader.lib = &a_library;
	loader.opens = 0;
	expect(load() == GDR_DRIVER_LOADED && load() == GDR_DRIVER_LOADED && loader.opens == 1);
	expect(gdr_driver_is_loaded() && loader.opens == 1);
	expect(gdr_driver_find("cuThere") == 0x1234 && !gdr_driver_find("cuAbsent") && loader.finds == 2 && !ours);
}

/* Someone else has loaded it. */
static void loaded_by_others(void)
{
	expect(gdr_driver_is_loaded() && loader.opens == 1 && loader.mode == (RTLD_NOW | RTLD_NOLOAD));
	expect(gdr_driver_is_loaded() && load() == GDR_DRIVER_LOADED && loader.opens == 1);
}

static void load_again(void)
{
	expect(ours == self());
	expect(load() == GDR_DRIVER_LOADED && ours == self());
	expect(gdr_driver_find("cuThere") == 0x1234 && ours == self());
	before_fork();
	after_fork_in_parent();
}

/* A constructor of libcuda's opens, looks up and forks: nobody waits for himself. */
static void constructor(void)
{
	loader.inside = load_again;
	expect(load() == GDR_DRIVER_LOADED && loader.opens == 2 && !naps && !ours && !forking);
}

static void end_fork(void)
{
	after_fork_in_parent();
}

/* A load waits for a fork: to its end, or a second, and then for no more. */
static void load_waits(void)
{
	before_fork();
	nap_that_ends = 7;
	at_that_nap = end_fork;
	expect(load() == GDR_DRIVER_LOADED && naps == 7 && !ours && !forking);
	before_fork();
	before_fork();
	naps = nap_that_ends = 0;
	expect(gdr_driver_find("cuThere") && naps == 1000 && !ours);
	expect(gdr_driver_find("cuThere") && naps == 1000);
	/* The end of the one that was left counts nothing. */
	after_fork_in_parent();
	expect(!forking && gdr_driver_find("cuThere") && naps == 1000);
	before_fork();
	expect(forking == 1);
	after_fork_in_parent();
	expect(!forking);
}

static pid_t other;

static void end_load(void)
{
	ours = 0;
}

static int naps_of_a_fork(void)
{
	naps = 0;
	before_fork();
	after_fork_in_parent();
	expect(!forking);
	return naps;
}

/* A fork waits for a load of another thread, unless that one waits for the loader itself. */
static void fork_waits(void)
{
	other = another_thread();
	expect(naps_of_a_fork() == 0);
	ours = other;
	expect(naps_of_a_fork() == 1000);
	nap_that_ends = 9;
	at_that_nap = end_load;
	expect(naps_of_a_fork() == 9);
	ours = other;
	nap_that_ends = 0;
	hold(&locks[0], other);
	expect(naps_of_a_fork() == 1000);
	hold(&locks[0], self());
	expect(naps_of_a_fork() == 0);
	let_go(&locks[0]);
	ours = self();
	expect(naps_of_a_fork() == 0);
	ours = dead_thread();
	expect(naps_of_a_fork() == 0);
	/* Two loads: the second one waits for the first, and does not end it. */
	ours = other;
	naps = 0;
	expect(load() == GDR_DRIVER_LOADED && naps == 1000 && ours == other);
}

static void can_load(void)
{
	expect(gdr_driver_can_load() && load() == GDR_DRIVER_LOADED && loader.opens == 1);
}

static void cannot_load(void)
{
	loader.opens = 0;
	expect(!gdr_driver_can_load() && load() == GDR_DRIVER_NO_LOADER && strstr(why, "in the loader"));
	expect(!gdr_driver_is_loaded() && !loader.opens);
}

/* fork frees the lock in the child: the answer alone says that a thread was inside. */
static void cannot_load_family(void)
{
	let_go(&locks[0]);
	cannot_load();
	expect(in_child(cannot_load));
}

static void can_load_freed(void)
{
	let_go(&locks[0]);
	can_load();
}

static void has_no_load(void)
{
	expect(!ours && !forking);
	can_load();
}

static void can_load_family(void)
{
	expect(gdr_driver_can_load() && in_child(can_load));
	can_load();
}

static void load_more(void)
{
	ever++;
}

static void load_fewer(void)
{
	now--;
}

static void enter_now(void)
{
	hold(&locks[0], other);
}

static void (*in_between)(void);	/* the library has looked, and has not forked yet */

static void run_in_between(void)
{
	if (in_between)
		in_between();
}

/*
 * What a child is told. Handlers that were added first run last, so in_between comes after
 * the library's.
 */
static void add_handler(void)
{
	pthread_atfork(run_in_between, NULL, NULL);
}

__attribute__((section(".preinit_array"), used)) static void (*const before_all)(void) = add_handler;

static void children(void)
{
	void (*const changes[])(void) = { load_more, load_fewer, enter_now };

	other = another_thread();
	expect(in_child(can_load) && in_child(can_load_family));
	hold(&locks[0], self());	/* a constructor forks */
	expect(in_child(can_load_freed));
	let_go(&locks[0]);
	ours = other;
	expect(in_child(has_no_load) && ours == other);
	ours = 0;
	hold(&locks[0], other);
	expect(gdr_driver_can_load());
	expect(in_child(cannot_load_family));
	let_go(&locks[0]);
	expect(in_child(can_load));
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		in_between = changes[i];
		expect(in_child(cannot_load_family));
		in_between = NULL;
		let_go(&locks[0]);
		expect(in_child(can_load_family));
	}
}

/* What the parent has loaded and looked up its child has. */
static void has_all(void)
{
	expect(load() == GDR_DRIVER_LOADED && gdr_driver_is_loaded() && !loader.opens);
}

/* What is only loaded is no more than a loader of use. */
static void has_half(void)
{
	expect(!gdr_driver_can_load() && gdr_driver_is_loaded() && load() == GDR_DRIVER_NO_LOADER && !loader.opens);
}

static void inherited(void)
{
	other = another_thread();
	expect(load() == GDR_DRIVER_LOADED);
	hold(&locks[0], other);
	loader.opens = 0;
	expect(in_child(has_half));
	gdr_driver_functions.known = 1;
	expect(in_child(has_all));
}

/* A lock that a thread of the parent's has left held, or is just taking. */
static void left_locked(void)
{
	own = &always_free;
	for (int i = 0; i < 2; i++) {
		hold(&locks[i], dead_thread());
		cannot_load();
		hold(&locks[i], self());
		expect(gdr_driver_can_load());
		yields = 0;
		hold(&locks[i], 0);
		cannot_load();
		expect(yields == 3 * 1000);
		let_go(&locks[i]);
		expect(gdr_driver_can_load());
	}
	dlopen_lock = list_lock = NULL;
	expect(gdr_driver_can_load());
}

/* The parent has not said yet: a second, once. */
static void not_yet(void)
{
	static answer none = NOT_YET;

	own = &none;
	sleeps = false;
	expect(!gdr_driver_can_load() && naps == 1000 && !gdr_driver_can_load() && naps == 1000);
	none = FREE;
	expect(!gdr_driver_can_load());
}

static void say_free(void)
{
	*own = FREE;
}

static void late(void)
{
	static answer none = NOT_YET;

	own = &none;
	sleeps = false;
	nap_that_ends = 20;
	at_that_nap = say_free;
	expect(gdr_driver_can_load() && naps == 20);
}

static void waits(void)
{
	own = &always_free;
	expect(in_child(left_locked) && in_child(not_yet) && in_child(late));
	/* Whoever loaded the library needs no answer. */
	own = &always_busy;
	hold(&locks[0], dead_thread());
	expect(gdr_driver_can_load());
}

/* Without memory that is shared nobody can tell the child. */
static void no_answers(void)
{
	no_shared_memory = true;
	errors_taken = 0;
	note_loader();
	/* What it looked for in vain is no error of the host's. */
	expect(!shared && errors_taken == 1);
	set_up();
	expect(in_child(cannot_load));
	expect(!forking && gdr_driver_can_load());
}

/* Each fork has an answer of its own, up to 16380. */
static void many_answers(void)
{
	const answer *first = &shared->of[shared->forks];

	for (unsigned int i = 0; i < 16380; i++) {
		before_fork();
		expect(this_fork.answer == &shared->of[(first - shared->of + i) % 16380]);
		expect(*this_fork.answer == NOT_YET);
		after_fork_in_parent();
		expect(*this_fork.answer == FREE);
	}
	before_fork();
	expect(this_fork.answer == first);
}

/* The C library's locks and counts, as they are. */
static const pthread_mutex_t *real_locks[2];
static const uint64_t *real_ever;
static const uint32_t *real_now;

static int look(struct dl_phdr_info *info, size_t size, void *seen)
{
	(void)size;
	expect(holder(real_locks[1]) == self() && holder(real_locks[0]) == 0);
	expect(*real_ever == info->dlpi_adds);
	++*(unsigned int *)seen;
	return 0;
}

static void real_loader(void)
{
	uint64_t was = *real_ever;
	unsigned int seen = 0;
	void *lib;

	expect(real_locks[0] && real_locks[1] && real_locks[1] == real_locks[0] + 1);
	expect(!holder(real_locks[0]) && !holder(real_locks[1]));
	dl_iterate_phdr(look, &seen);
	expect(seen == *real_now);
	lib = dlopen("libresolv.so.2", RTLD_NOW);
	expect(lib && *real_ever > was && *real_now > seen);
	expect(!dlclose(lib) && *real_now == seen);
}

/* Who has a lock. */
static void holders(void)
{
	pthread_mutex_t lock = { 0 };

	expect(!holder(NULL) && !holder(&lock));
	hold(&lock, 77);
	expect(holder(&lock) == 77);
	let_go(&lock);
	expect(!holder(&lock));
	hold(&lock, 0);
	expect(holder(&lock) == NO_THREAD);
	expect(is_alive(self()) && is_alive(another_thread()) && !is_alive(dead_thread()));
}

int main(void)
{
	static const struct {
		void (*run)(void);
		const char *what;
	} cases[] = {
		{ answers, "how a load ends" },
		{ loaded_by_others, "a library that is loaded" },
		{ constructor, "a constructor of the library's opens" },
		{ load_waits, "a load waits for a fork" },
		{ fork_waits, "a fork waits for a load" },
		{ children, "what a child is told" },
		{ inherited, "what the parent has, its child has" },
		{ waits, "a lock that was left, an answer that is late" },
		{ no_answers, "no memory for answers" },
		{ many_answers, "an answer for each fork" },
		{ real_loader, "the locks and counts of this C library" },
		{ holders, "who has a lock" },
	};

	setvbuf(stdout, NULL, _IOLBF, 0);
	real_locks[0] = dlopen_lock;
	real_locks[1] = list_lock;
	real_ever = loads_ever;
	real_now = loads_now;
	expect(process_at_load == getpid());
	set_up();
	process_at_load = 0;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int status = -1;
		pid_t pid = fork();

		if (!pid) {
			process_at_load = getpid();
			own = &always_free;
			cases[i].run();
			_exit(0);
		}
		tap_ok(&tap, pid > 0 && waitpid(pid, &status, 0) == pid && !status, "%s", cases[i].what);
	}
	return tap_done(&tap);
}
