// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "threads.h"

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STACK_BYTES (256u << 10)

/* As many CPUs as the kernel may have. */
struct cpus {
	size_t bytes;
	unsigned long bits[8192 / 8 / sizeof(unsigned long)];
};

static struct cpus cpus_at_load;

static void add_cpus(struct cpus *to, pid_t tid)
{
	struct cpus c = { 0 };
	long n = syscall(SYS_sched_getaffinity, tid, sizeof(c.bits), c.bits);

	if (n <= 0)
		return;
	if (to->bytes < (size_t)n)
		to->bytes = n;
	for (size_t i = 0; i < sizeof(c.bits) / sizeof(c.bits[0]); i++)
		to->bits[i] |= c.bits[i];
}

/* Those of the process, before it has put threads on CPUs of their own. */
static __attribute__((constructor)) void note_cpus(void)
{
	add_cpus(&cpus_at_load, 0);
}

static int set_attributes(pthread_attr_t *attr, size_t stack)
{
	struct cpus c = cpus_at_load;
	struct sched_param normal = { 0 };
	int rc;

	rc = pthread_attr_setinheritsched(attr, PTHREAD_EXPLICIT_SCHED);
	if (!rc)
		rc = pthread_attr_setschedpolicy(attr, SCHED_OTHER);
	if (!rc)
		rc = pthread_attr_setschedparam(attr, &normal);
	if (!rc && stack)
		rc = pthread_attr_setstacksize(attr, stack);
	add_cpus(&c, getpid());
	if (!rc && c.bytes)
		rc = pthread_attr_setaffinity_np(attr, c.bytes, (cpu_set_t *)c.bits);
	return rc;
}

static int make_thread(pthread_t *id, void *(*fn)(void *), void *arg, size_t stack)
{
	pthread_attr_t attr;
	int rc = pthread_attr_init(&attr);

	if (rc)
		return rc;
	rc = set_attributes(&attr, stack);
	if (!rc)
		rc = pthread_create(id, &attr, fn, arg);
	pthread_attr_destroy(&attr);
	return rc;
}

/* The host's thread-local storage may be too big for a small stack. */
int gdr_thread_make(pthread_t *id, void *(*fn)(void *), void *arg)
{
	int rc = make_thread(id, fn, arg, STACK_BYTES);

	return rc == EINVAL ? make_thread(id, fn, arg, 0) : rc;
}
