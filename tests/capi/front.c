// SPDX-License-Identifier: MIT
/*
 * front_test - capi/host/front.c, built in here, over a runtime, a core, a
 * driver and an environment that are the test's: each step of a start fails in turn, in
 * parents and in children, with and without a kernel that empties pages in a fork.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"
#include "../c/log_double.h"

/* Which files are not there, and how each step ends. */
static bool no_gdrdrv, no_nvidiactl, may_not_look, no_memory, old_kernel;
static int access_of(const char *path, int mode)
{
	(void)mode;
	errno = may_not_look ? EACCES : ENOENT;
	return (!strcmp(path, "/dev/gdrdrv") && no_gdrdrv) || (!strcmp(path, "/dev/nvidiactl") && no_nvidiactl) ? -1 : 0;
}

static void (*meanwhile)(void);	/* another thread's turn, before the page is there */

static int pages, directs;	/* that are mapped; how often the CPU was asked for direct stores */

static void *mmap_of(size_t len, int prot, int flags, int fd, off_t off)
{
	void (*now)(void) = meanwhile;

	if (fd != -1 || off)
		_exit(1);
	pages++;
	meanwhile = NULL;
	if (now)
		now();
	errno = ENOMEM;
	return no_memory ? MAP_FAILED : mmap(NULL, len, prot, flags, -1, 0);
}

static int madvise_of(void *mem, size_t len, int advice)
{
	errno = EINVAL;
	return old_kernel ? -1 : madvise(mem, len, advice);
}

static int munmap_of(void *mem, size_t len)
{
	pages--;
	return munmap(mem, len);
}

/* This CPU has direct stores. */
static bool has_direct(void)
{
	directs++;
	return true;
}

static int refuses_barrier;	/* errno of membarrier(2) */

static long membarrier_of(long number, int command, unsigned int flags, int cpu)
{
	if (number != SYS_membarrier || flags || cpu)
		_exit(1);
	errno = refuses_barrier;
	return refuses_barrier ? -1 : syscall(number, command, flags, cpu);
}

#include "copy/direct.h"
#include "host/front.h"
#define access access_of
#define mmap(addr, len, prot, flags, fd, off) mmap_of(len, prot, flags, fd, off)
#define munmap munmap_of
#define madvise madvise_of
#define copy_has_direct has_direct
#define syscall membarrier_of
#include "host/front.c"
#undef mmap
#undef munmap
#undef syscall

static struct tap tap;

static struct {
	enum gdr_driver_state driver;
	int runtime, core;	/* what each answers */
	const char *routine;	/* that the environment names */
	_Atomic int loads, choices, runtimes, cores;
	uint32_t epoch;		/* that the core was given last */
} of;

static struct gdr_table table;
static const struct copy_impl impl = { .name = "its own" };

enum gdr_driver_state gdr_driver_load(char *why, size_t size)
{
	snprintf(why, size, "no reason");
	of.loads++;
	return of.driver;
}

const char *gdr_env_copy_impl(void)
{
	return of.routine;
}

/* This CPU can run the one of its own alone. */
const struct copy_impl *copy_select(const char *name)
{
	of.choices++;
	return name && strcmp(name, impl.name) ? NULL : &impl;
}

/* Whether the last line names it, as "(errno 19)". */
static bool said_errno(int rc)
{
	char want[32];

	snprintf(want, sizeof(want), "(errno %d)", rc);
	return strstr(said, want);
}

int gdr_runtime_start(void)
{
	of.runtimes++;
	return of.runtime;
}

static int core(uint32_t epoch, uintptr_t *at)
{
	of.cores++;
	of.epoch = epoch;
	for (int i = 0; i < 50; i++)
		sched_yield();
	*at = of.core ? 0 : (uintptr_t)&table;
	return of.core;
}

static void check(bool ok, const char *what)
{
	tap_ok(&tap, ok, "%s", what);
}

static const struct gdr_options any;

static int start(void)
{
	return gdr_front_start(&any, core);
}

static uint64_t handle(uint64_t epoch)
{
	return epoch << GDR_HANDLE_EPOCH_SHIFT | 5;
}

/* What a child says of itself; it has a line for what is wrong. */
static bool in_child(int (*f)(void))
{
	int status = -1;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (!child) {
		int line = f();

		if (line)
			printf("# line %d is wrong\n", line);
		fflush(stdout);
		_exit(line != 0);
	}
	waitpid(child, &status, 0);
	return !status;
}

#define MUST(truth) do { if (!(truth)) return __LINE__; } while (0)

/* Which drivers are looked for, and when there is certainly none. */
static void test_prepare(void)
{
	static const struct {
		const char *backend;
		bool force, no_gdrdrv, no_nvidiactl;
		enum gdr_driver_state driver;
		int loads, rc;
	} rows[] = {
		{ NULL, false, false, true, GDR_DRIVER_NOT_FOUND, 0, 0 },
		{ "", false, false, true, GDR_DRIVER_NOT_FOUND, 0, 0 },
		{ NULL, false, true, true, GDR_DRIVER_NOT_FOUND, 1, ENODEV },
		{ "", false, true, true, GDR_DRIVER_NOT_FOUND, 1, ENODEV },
		{ NULL, false, true, false, GDR_DRIVER_NOT_FOUND, 1, 0 },
		{ NULL, false, true, true, GDR_DRIVER_BROKEN, 1, 0 },
		{ NULL, false, true, true, GDR_DRIVER_LOADED, 1, 0 },
		{ NULL, true, false, true, GDR_DRIVER_NOT_FOUND, 1, 0 },
		{ NULL, true, true, true, GDR_DRIVER_NOT_FOUND, 1, 0 },
		{ "gdrdrv", false, true, false, GDR_DRIVER_NOT_FOUND, 0, ENODEV },
		{ "gdrdrv", true, false, true, GDR_DRIVER_NOT_FOUND, 0, 0 },
		{ "rm", false, false, true, GDR_DRIVER_LOADED, 0, ENODEV },
		{ "rm", false, true, false, GDR_DRIVER_NOT_FOUND, 1, 0 },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct gdr_options opts = { .backend = rows[i].backend, .force_dmabuf = rows[i].force };
		int rc;

		memset(&of, 0, sizeof(of));
		lines = 0;
		no_gdrdrv = rows[i].no_gdrdrv;
		no_nvidiactl = rows[i].no_nvidiactl;
		of.driver = rows[i].driver;
		rc = prepare_start(&opts);
		tap_ok(&tap, rc == rows[i].rc && of.loads == rows[i].loads && lines == !!rc && (!rc || said_errno(rc)),
		       "backend %s%s, %s gdrdrv, %s nvidiactl, driver %d: %d", rows[i].backend ? rows[i].backend : "any",
		       rows[i].force ? " or dmabuf" : "", no_gdrdrv ? "no" : "a", no_nvidiactl ? "no" : "a", rows[i].driver, rc);
	}
	memset(&of, 0, sizeof(of));
	lines = 0;
	no_gdrdrv = no_nvidiactl = may_not_look = true;
	of.driver = GDR_DRIVER_NOT_FOUND;
	check(!prepare_start(&any) && !of.loads, "what may not be looked at may be there");
	no_gdrdrv = no_nvidiactl = may_not_look = false;
}

static bool is_registered(void)
{
	return !syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

static void *wait_for_ever(void *arg)
{
	pause();
	return arg;
}

static int alone(void)
{
	MUST(!start() && gdr_front_here());
	MUST(is_registered() || syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0));
	return 0;
}

static int with_threads(void)
{
	pthread_t t;
	int rc;

	MUST(!pthread_create(&t, NULL, wait_for_ever, NULL));
	MUST(!start() && !is_registered());
	rc = gdr_register_barrier();
	MUST(!rc == is_registered());
	return 0;
}

/* A filter of the host's may refuse it: the start goes on. */
static int no_barrier(void)
{
	refuses_barrier = EPERM;
	MUST(gdr_register_barrier() == EPERM && !start() && !is_registered());
	refuses_barrier = 0;
	return 0;
}

/* Each step fails, is told of by a line, and leaves the next start the rest. The core has its own line. */
static int steps(void)
{
	no_memory = true;
	MUST(start() == ENOMEM && !gdr_front_here() && !of.runtimes);
	no_memory = false;
	pages = 0;
	no_gdrdrv = no_nvidiactl = true;
	of.driver = GDR_DRIVER_NOT_FOUND;
	MUST(start() == ENODEV && !gdr_front_here() && !of.choices && lines == 1);
	no_gdrdrv = no_nvidiactl = false;
	of.routine = "another CPU's";
	MUST(start() == EINVAL && !gdr_front_here() && !of.runtimes && lines == 2 && strstr(said, "GDRCOPY_COPY_IMPL "));
	of.routine = "";
	MUST(start() == EINVAL && !of.runtimes && lines == 3);
	of.routine = NULL;
	of.runtime = EAGAIN;
	MUST(start() == EAGAIN && !gdr_front_here() && of.runtimes == 1 && !of.cores && lines == 4);
	MUST(strstr(said, strerror(EAGAIN)));
	of.runtime = 0;
	of.core = ENOMEM;
	MUST(start() == ENOMEM && !gdr_front_here() && of.runtimes == 2 && of.cores == 1 && lines == 4);
	MUST(gdr_front_admit(handle(1), 0) == EINVAL);
	of.core = 0;
	MUST(!start() && gdr_front_here() && of.runtimes == 2 && of.cores == 2);
	MUST(of.epoch == 1 && gdr_front_here()->epoch == 1 && gdr_front_here()->table == &table);
	MUST(gdr_front_here()->impl == &impl && gdr_front_here()->direct && directs);
	MUST(pages == 1);
	no_gdrdrv = true;
	MUST(!start() && of.cores == 2 && of.loads == 1 && lines == 5);
	return 0;
}

static void start_first(void)
{
	start();
}

/* A routine that is named makes all stores itself. */
static int named(void)
{
	of.routine = impl.name;
	MUST(!start() && gdr_front_here()->impl == &impl && !gdr_front_here()->direct);
	return 0;
}

/* Another thread makes the page first: there is one page, and one start. */
static int one_page(void)
{
	struct gdr_front *theirs;

	meanwhile = start_first;
	MUST(!start() && of.cores == 1 && of.runtimes == 1);
	theirs = atomic_load(&gdr_front_page);
	MUST(front_page() == theirs && gdr_front_here() == theirs && theirs->epoch == 1 && pages == 1);
	return 0;
}

static void *start_in_thread(void *arg)
{
	*(int *)arg = start();
	return arg;
}

static int at_once(void)
{
	pthread_t t[8];
	int rc[8];

	for (int i = 0; i < 8; i++)
		MUST(!pthread_create(&t[i], NULL, start_in_thread, &rc[i]));
	for (int i = 0; i < 8; i++)
		MUST(!pthread_join(t[i], NULL) && !rc[i]);
	MUST(of.cores == 1 && of.runtimes == 1 && of.epoch == 1);
	return 0;
}

/* Handles of this process, of an ancestor, of nobody. */
static int grandchild(void)
{
	MUST(gdr_front_admit(handle(1), 0) == EACCES && gdr_front_admit(handle(2), 0) == EACCES);
	MUST(gdr_front_admit(handle(3), 0) == EINVAL);
	MUST(!start() && of.epoch == 3 && of.runtimes == 3 && !gdr_front_admit(handle(3), handle(3)));
	return 0;
}

static int child(void)
{
	struct gdr_front *page = atomic_load(&gdr_front_page);

	MUST(!gdr_front_here() && page && !page->epoch && !page->runs && !page->table && !page->impl);
	MUST(gdr_front_inherited(handle(1)) && !gdr_front_inherited(0) && !gdr_front_inherited(5));
	MUST(gdr_front_admit(handle(1), 0) == EACCES && gdr_front_admit(0, 0) == EINVAL && lines == 2);
	MUST(said_errno(EINVAL));
	MUST(gdr_front_admit(handle(2), 0) == EINVAL);
	MUST(!start() && of.epoch == 2 && of.runtimes == 2 && atomic_load(&gdr_front_page) == page);
	MUST(gdr_front_inherited(handle(1)) && !gdr_front_inherited(handle(2)) && !gdr_front_inherited(handle(3)));
	lines = 0;
	MUST(!gdr_front_admit(handle(2), handle(2)) && !gdr_front_admit(0, 0) && !gdr_front_admit(handle(3), 7) && !lines);
	MUST(gdr_front_admit(handle(1), handle(2)) == EACCES && gdr_front_admit(handle(2), handle(1)) == EACCES && lines == 2);
	MUST(said_errno(EACCES));
	MUST(in_child(grandchild));
	MUST(gdr_front_here() && gdr_front_here()->epoch == 2);
	return 0;
}

/* Each inherited gdr_t is closed once, as far as they are remembered. */
static int close_inherited(void)
{
	for (uint64_t i = 0; i < GDR_INHERITED_MAX; i++)
		MUST(!gdr_front_close_inherited(handle(1) + i));
	for (uint64_t i = 0; i < GDR_INHERITED_MAX; i++)
		MUST(gdr_front_close_inherited(handle(1) + i) == EACCES && lines == (int)i + 1);
	MUST(!gdr_front_close_inherited(handle(1) + GDR_INHERITED_MAX));
	for (uint64_t i = 1; i <= GDR_INHERITED_MAX; i++)
		MUST(gdr_front_close_inherited(handle(1) + i) == EACCES);
	MUST(!gdr_front_close_inherited(handle(1)));
	return 0;
}

static int parent(void)
{
	MUST(!gdr_front_inherited(handle(1)) && gdr_front_admit(handle(1), 0) == EINVAL);
	MUST(!start() && of.epoch == 1);
	lines = 0;
	pthread_mutex_lock(&gdr_front_here()->lock);	/* a child finds it free */
	MUST(in_child(child) && in_child(close_inherited));
	pthread_mutex_unlock(&gdr_front_here()->lock);
	MUST(!gdr_front_admit(handle(1), handle(1)) && !lines && gdr_front_here()->epoch == 1);
	return 0;
}

static int last_generation(void)
{
	atomic_store(&last_epoch, GDR_HANDLE_EPOCH_MAX - 1);
	MUST(!start() && of.epoch == GDR_HANDLE_EPOCH_MAX && !lines);
	return 0;
}

static int after_the_last(void)
{
	atomic_store(&last_epoch, GDR_HANDLE_EPOCH_MAX);
	MUST(start() == EAGAIN && start() == EAGAIN && !of.runtimes && !gdr_front_here() && lines == 2 && strstr(said, " 4095 generations"));
	return 0;
}

int main(void)
{
	test_prepare();
	memset(&of, 0, sizeof(of));
	lines = 0;
	check(in_child(alone), "a process of one thread is registered for membarrier");
	check(in_child(with_threads), "one with several is not, by the start");
	check(in_child(no_barrier), "a process that may not register starts all the same");
	check(in_child(steps), "each step of a start fails, and then none");
	check(in_child(named), "a routine that is named, without direct stores");
	check(in_child(one_page), "of two threads that make the page one does");
	check(in_child(at_once), "of threads that start at once one does");
	for (int i = 0; i < 2; i++) {
		old_kernel = i;
		tap_ok(&tap, in_child(parent), "handles of children and grandchildren%s", i ? ", before Linux 4.14" : "");
	}
	check(in_child(last_generation) && in_child(after_the_last), "there are 4095 generations");
	return tap_done(&tap);
}
