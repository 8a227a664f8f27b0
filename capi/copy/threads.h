/* SPDX-License-Identifier: MIT */
/*
 * threads.h - the library's own threads. They have nothing of the host's.
 */
#ifndef GDR_COPY_THREADS_H
#define GDR_COPY_THREADS_H

#include <pthread.h>

#pragma GCC visibility push(hidden)

/* What a thread runs. It stays while the thread starts. */
struct gdr_run {
	const char *name;	/* that ps shows */
	void *(*fn)(void *);
	void *arg;
};

/*
 * Makes a thread. All threads of the library are made here. They have the normal policy, 256
 * KiB of stack, the floating-point environment that a process begins with, a timer slack of
 * 50 us, and all signals held but SIGSETXID and SIGSYS. They may run on all CPUs that the process had when this
 * library was loaded and still has. Returns 0 or an errno value.
 */
int gdr_thread_make(pthread_t *id, const struct gdr_run *run);

#pragma GCC visibility pop

#endif
