// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "threads.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>

#include "float.h"
#include "signals.h"

#define STACK_BYTES (256u << 10)
#define TIMER_SLACK_NS 50000ul	/* the kernel's default; a host's may be seconds */

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
static void *start(void *arg)
{
	const struct gdr_run *run = arg;
	struct cpus c = cpus_at_load;

	if (add_cpus(&c, getpid()))
		syscall(SYS_sched_setaffinity, 0, sizeof(c.bits), c.bits);
	prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);
	gdr_float_default();
	prctl(PR_SET_NAME, run->name);
	return run->fn(run->arg);
}

static int make_thread(pthread_t *id, const struct gdr_run *run, size_t stack)
{
	pthread_attr_t attr;
	int rc = pthread_attr_init(&attr);

	if (rc)
		return rc;
	rc = set_attributes(&attr, stack);
	if (!rc)
		rc = pthread_create(id, &attr, start, (void *)run);
	pthread_attr_destroy(&attr);
	return rc;
}

int gdr_thread_make(pthread_t *id, const struct gdr_run *run)
{
	uint64_t held;
	int rc;

	gdr_hold_signals(gdr_open_on_ours(), &held);
	rc = make_thread(id, run, STACK_BYTES);
	/* The host's thread-local storage may be too big for a small stack. */
	if (rc == EINVAL)
		rc = make_thread(id, run, 0);
	gdr_release_signals(held);
	return rc;
}
