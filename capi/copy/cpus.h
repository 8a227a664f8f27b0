/* SPDX-License-Identifier: MIT */
/*
 * cpus.h - on which CPUs threads that share copies run.
 */
#ifndef GDR_COPY_CPUS_H
#define GDR_COPY_CPUS_H

#include <sys/types.h>

#pragma GCC visibility push(hidden)

/* CPUs to spread threads over. */
struct copy_cpus;

/* How many CPUs this thread, and so one that it starts, may run on. */
unsigned int copy_cpus_allowed(void);

/*
 * The CPUs for the given number of threads beside this one: of those that it may
 * run on the ones of its NUMA node, if they are enough, without the one that it
 * is on. NULL: there is no memory, or fewer CPUs than threads.
 */
struct copy_cpus *copy_cpus_new(unsigned int threads);
void copy_cpus_free(struct copy_cpus *cpus);

/*
 * Has thread number i run on its part of them: no other number of the same cpus has a
 * CPU of it, nor, where there are enough, one of the same core.
 */
void copy_cpus_place(const struct copy_cpus *cpus, pid_t thread, unsigned int i);

#pragma GCC visibility pop

#endif
