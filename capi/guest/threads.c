// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "threads.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "enter.h"

#define STACK_BYTES (256u << 10)
#define TIMER_SLACK_NS 50000ul	/* the kernel's default; a host's may be seconds */

#define MORE_THREADS_NS 10000000

enum { WAITS, RUNS, LEAVES };

struct thread {
	_Atomic uint32_t state;	/* a futex; WAITS, which is 0, at first */
	void *(*fn)(void *);
	void *arg;
	pthread_t id;
};

static struct thread threads[GDR_THREADS_MAX];
static unsigned int made, taken;
static pthread_mutex_t lock;

/* As many CPUs as the kernel may have. */
struct cpus {
	unsigned long bits[8192 / 8 / sizeof(unsigned long)];
};

static struct cpus cpus_at_load;

/* Adds the CPUs of a thread. false: the kernel does not say. */
static bool add_cpus(struct cpus *to, pid_t tid)
{
	struct cpus c = { { 0 } };

	if (syscall(SYS_sched_getaffinity, tid, sizeof(c.bits), c.bits) <= 0)
		return false;
	for (size_t i = 0; i < sizeof(c.bits) / sizeof(c.bits[0]); i++)
		to->bits[i] |= c.bits[i];
	return true;
}

/* Those of the process, before it has put threads on CPUs of their own. */
static __attribute__((constructor)) void note_cpus(void)
{
	add_cpus(&cpus_at_load, 0);
}

static int set_attributes(pthread_attr_t *attr, size_t stack)
{
	struct sched_param normal = { 0 };
	int rc;

	rc = pthread_attr_setinheritsched(attr, PTHREAD_EXPLICIT_SCHED);
	if (!rc)
		rc = pthread_attr_setschedpolicy(attr, SCHED_OTHER);
	if (!rc)
		rc = pthread_attr_setschedparam(attr, &normal);
	if (!rc && stack)
		rc = pthread_attr_setstacksize(attr, stack);
	return rc;
}

/*
 * It does not allocate: malloc would reserve 64 MiB of address space for the thread. It sets
 * its CPUs itself, for which an attribute would allocate.
 */
static void *run(void *arg)
{
	struct cpus c = cpus_at_load;
	struct thread *t = arg;
	struct gdr_float theirs;

	if (add_cpus(&c, getpid()))
		syscall(SYS_sched_setaffinity, 0, sizeof(c.bits), c.bits);
	prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);
	prctl(PR_SET_NAME, "gdrapi");
	gdr_float_enter(&theirs);
	while (atomic_load(&t->state) == WAITS)
		syscall(SYS_futex, &t->state, FUTEX_WAIT_PRIVATE, WAITS, NULL, NULL, 0);
	return atomic_load(&t->state) == RUNS ? t->fn(t->arg) : NULL;
}

static void set_state(struct thread *t, uint32_t state)
{
	atomic_store(&t->state, state);
	syscall(SYS_futex, &t->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static int make_with(struct thread *t, size_t stack)
{
	pthread_attr_t attr;
	int rc = pthread_attr_init(&attr);

	if (rc)
		return rc;
	rc = set_attributes(&attr, stack);
	if (!rc)
		rc = pthread_create(&t->id, &attr, run, t);
	pthread_attr_destroy(&attr);
	return rc;
}

static int make_next(void)
{
	struct thread *t = &threads[made];
	uint64_t held;
	int rc;

	if (made == GDR_THREADS_MAX)
		return EAGAIN;
	gdr_hold_signals(gdr_open_on_ours(), &held);
	rc = make_with(t, STACK_BYTES);
	/* The host's thread-local storage may be too big for a small stack. */
	if (rc == EINVAL)
		rc = make_with(t, 0);
	gdr_release_signals(held);
	made += !rc;
	return rc;
}

int gdr_threads_start(void)
{
	int rc = 0;

	memset(threads, 0, sizeof(threads));
	made = taken = 0;
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	while (!rc && made < GDR_THREADS_AT_FIRST)
		rc = make_next();
	if (rc)
		gdr_threads_stop();
	return rc;
}

void gdr_threads_stop(void)
{
	for (unsigned int i = 0; i < made; i++)
		set_state(&threads[i], LEAVES);
	for (unsigned int i = 0; i < made; i++)
		pthread_join(threads[i].id, NULL);
}

/*
 * The request cannot fail. So what the runtime may need was made at the start. If it asks
 * for more, and there is no room, this waits until one can be made.
 */
int gdr_go_pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
	const struct timespec pause = { .tv_nsec = MORE_THREADS_NS };
	struct thread *t;

	(void)attr;
	pthread_mutex_lock(&lock);
	while (taken == made && make_next())
		nanosleep(&pause, NULL);
	t = &threads[taken++];
	pthread_mutex_unlock(&lock);
	*id = t->id;
	t->fn = fn;
	t->arg = arg;
	set_state(t, RUNS);
	return 0;
}
