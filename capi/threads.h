/* SPDX-License-Identifier: MIT */
/*
 * threads.h - threads that have nothing of the host's.
 */
#ifndef GDR_THREADS_H
#define GDR_THREADS_H

#include <pthread.h>

#pragma GCC visibility push(hidden)

/*
 * Makes a thread with the normal policy, the signal mask of its maker, and 256 KiB of
 * stack. It may run on all CPUs that the process had when this library was loaded and
 * still has. Returns 0 or an errno value.
 */
int gdr_thread_make(pthread_t *id, void *(*fn)(void *), void *arg);

#pragma GCC visibility pop

#endif
