/* SPDX-License-Identifier: MIT */
/*
 * threads.h - the threads of Go's runtime, which are all that the library has.
 *
 * They have nothing of the host's: the normal policy, 256 KiB of stack, the floating-point
 * environment that a process begins with, a timer slack of 50 us, and all signals held but
 * SIGSETXID and SIGSYS. They may run on all CPUs that the process had when this library was
 * loaded and still has. They sleep until the runtime asks for one.
 */
#ifndef GDR_THREADS_H
#define GDR_THREADS_H

#include <pthread.h>

#pragma GCC visibility push(hidden)

/*
 * With GOMAXPROCS=2 the runtime has these threads at once: its first, sysmon, the one
 * that starts others, two that run Go, and one that waits for a timer. A thread that gave
 * up its turn may still be busy when the next one is needed. So now and then there is one
 * more, which stays. Calls of the host run on the host's threads.
 */
#define GDR_THREADS_AT_FIRST 10
#define GDR_THREADS_MAX 256

/* Makes the first ones. Those of an ancestor are not here. Returns 0, or an errno value and there are none. */
int gdr_threads_start(void);

/* Ends them, where the runtime was not started. */
void gdr_threads_stop(void);

/* pthread_create, for runtime/cgo. */
int gdr_go_pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);

#pragma GCC visibility pop

#endif
