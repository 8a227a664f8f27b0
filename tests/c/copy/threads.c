// SPDX-License-Identifier: MIT
/*
 * copy/threads.c - what a thread of the library's own has of its maker: nothing. The maker
 * is real-time, on one CPU, blocks other signals and traps floating-point exceptions.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "copy/signals.h"
#include "copy/threads.h"
#include "tap.h"

struct seen {
	char name[16];
	int policy, cpus, traps, rounding;
	uint64_t mask;
	size_t stack;
};

static int asked, refuse, answer;	/* calls of pthread_create; the first ones that fail, and how */

/* In place of the C library's. */
int pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*f)(void *), void *arg)
{
	static __typeof__(pthread_create) *next;

	*(void **)&next = dlsym(RTLD_NEXT, "pthread_create");
	if (!next)
		abort();
	return asked++ < refuse ? answer : next(id, attr, f, arg);
}

static uint64_t mask_now(void)
{
	uint64_t mask = 0;

	syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, KERNEL_SIGSET_BYTES);
	return mask;
}

static void look(struct seen *s)
{
	pthread_attr_t attr;
	cpu_set_t cpus;

	sched_getaffinity(0, sizeof(cpus), &cpus);
	prctl(PR_GET_NAME, s->name);
	s->policy = sched_getscheduler(0);
	s->cpus = CPU_COUNT(&cpus);
	s->traps = fegetexcept();
	s->rounding = fegetround();
	s->mask = mask_now();
	pthread_getattr_np(pthread_self(), &attr);
	pthread_attr_getstacksize(&attr, &s->stack);
	pthread_attr_destroy(&attr);
}

static void *look_in_thread(void *arg)
{
	look(arg);
	return arg;
}

/* As far as this user and this machine let it. */
static void be_odd(void)
{
	const struct sched_param p = { .sched_priority = 5 };
	cpu_set_t one;
	sigset_t some;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	sched_setaffinity(0, sizeof(one), &one);
	if (sched_setscheduler(0, SCHED_FIFO, &p) && sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){ 0 }))
		exit(1);
	sigemptyset(&some);
	sigaddset(&some, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &some, NULL);
	fesetround(FE_UPWARD);
	feenableexcept(FE_ALL_EXCEPT);
}

/*
 * A process that is loaded on one CPU, and may then run on all: so may the library's
 * threads. The exit status is 0 if they do.
 */
static int be_widened(void)
{
	struct seen all, thread = { .cpus = 0 };
	const struct gdr_run run = { "wide", look_in_thread, &thread };
	cpu_set_t every;
	pthread_t id;

	memset(&every, 0xff, sizeof(every));
	if (sched_setaffinity(0, sizeof(every), &every) || gdr_thread_make(&id, &run) || pthread_join(id, NULL))
		return 1;
	look(&all);
	return thread.cpus != all.cpus;
}

static int run_widened(char *self)
{
	int status = -1;
	pid_t child = fork();

	if (!child) {
		cpu_set_t one;

		CPU_ZERO(&one);
		CPU_SET(sched_getcpu(), &one);
		sched_setaffinity(0, sizeof(one), &one);
		execl(self, self, "widened", NULL);
		_exit(2);
	}
	waitpid(child, &status, 0);
	return status;
}

int main(int argc, char **argv)
{
	struct tap t = { 0, 0, 0 };
	struct seen before, maker, thread;
	uint64_t all_but_two = ~(gdr_signal_bit(SIGSETXID) | gdr_signal_bit(SIGSYS));
	const struct gdr_run run = { "the name", look_in_thread, &thread };
	pthread_t id;
	void *back = NULL;
	int traps, rc;

	if (argc > 1)
		return be_widened();
	tap_is(&t, run_widened(argv[0]), 0, "a process that has got more CPUs since its load: status");
	look(&before);
	be_odd();
	look(&maker);
	traps = maker.traps;
	tap_is(&t, gdr_thread_make(&id, &run), 0, "it is made");
	tap_is(&t, mask_now() == maker.mask, true, "its maker's mask stays");
	tap_is(&t, fegetexcept() == traps, true, "its maker's traps stay");
	rc = pthread_join(id, &back);
	tap_ok(&t, !rc && back == &thread, "it ran");
	tap_ok(&t, !strcmp(thread.name, "the name"), "name: %s", thread.name);
	tap_is(&t, thread.policy, SCHED_OTHER, "policy");
	tap_is(&t, thread.cpus, before.cpus, "CPUs");
	tap_is(&t, thread.traps, 0, "trapped exceptions");
	tap_is(&t, thread.rounding, FE_TONEAREST, "rounding");
	/* SIGKILL and SIGSTOP cannot be held. Signal 32 is the C library's, which opens it. */
	all_but_two &= ~(gdr_signal_bit(SIGKILL) | gdr_signal_bit(SIGSTOP) | gdr_signal_bit(32));
	tap_ok(&t, thread.mask == all_but_two, "held signals: %#lx", (unsigned long)thread.mask);
	tap_ok(&t, thread.stack <= 512 << 10, "%zu bytes of stack", thread.stack);
	/* The host's thread-local storage may be too big for a small stack. */
	asked = 0;
	refuse = 1;
	answer = EINVAL;
	tap_is(&t, gdr_thread_make(&id, &run), 0, "where the small stack is refused it is made");
	tap_is(&t, asked, 2, "by the second call: calls");
	pthread_join(id, NULL);
	tap_ok(&t, thread.stack > 512 << 10, "with a larger stack: %zu bytes", thread.stack);
	tap_ok(&t, thread.policy == SCHED_OTHER && thread.cpus == before.cpus && thread.mask == all_but_two,
	       "and like others else");
	asked = 0;
	answer = EAGAIN;
	tap_is(&t, gdr_thread_make(&id, &run), EAGAIN, "where no thread can be made, the errno");
	tap_is(&t, asked, 1, "calls");
	asked = 0;
	refuse = 2;
	answer = EINVAL;
	tap_is(&t, gdr_thread_make(&id, &run), EINVAL, "where no stack will do, the errno");
	tap_is(&t, asked, 2, "calls");
	tap_is(&t, mask_now() == maker.mask, true, "the mask stays then, too");
	return tap_done(&t);
}
