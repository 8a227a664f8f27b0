/* SPDX-License-Identifier: MIT */
/*
 * cpus.h - on which CPUs threads that share copies run.
 */
#ifndef GDR_COPY_CPUS_H
#define GDR_COPY_CPUS_H

#include <pthread.h>

#pragma GCC visibility push(hidden)

/* CPUs to spread threads over. */
struct copy_cpus;

/*
 * How many CPUs this thread may run on.
 */
unsigned int copy_cpus_allowed(void);

/*
 * The CPUs for the given number of threads beside this one. They are CPUs that this
 * thread may run on, without the one that it is on. If this NUMA node has enough of them,
 * they are all of this node. Returns NULL without memory, or with fewer CPUs than
 * threads.
 */
struct copy_cpus *copy_cpus_new(unsigned int threads);
void copy_cpus_free(struct copy_cpus *cpus);

/*
 * Makes thread number i run on its part of cpus. No other number has a CPU of that part.
 * If there are enough cores, no other number has a CPU of the same core.
 */
void copy_cpus_place(const struct copy_cpus *cpus, pthread_t thread, unsigned int i);

#pragma GCC visibility pop

#endif
