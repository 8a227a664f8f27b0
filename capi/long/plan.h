/* SPDX-License-Identifier: MIT */
/*
 * plan.h - who may make long copies, as the host asks by calls and by the environment.
 *
 * A call goes before the environment. A fork changes nothing: a child wants what its
 * parent wanted. Index 0 is for reads, 1 for writes.
 */
#ifndef GDR_COPY_PLAN_H
#define GDR_COPY_PLAN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

#define COPY_THREADS_MAX 64u

/* What the environment asks for. */
struct copy_wishes {
	unsigned int threads[2];	/* 1 to COPY_THREADS_MAX; 0: not set */
	size_t least_dma[2];	/* bytes; SIZE_MAX: never */
	bool chooses;		/* the library chooses the way of long copies */
};

/* For reads, or for writes. Least sizes are in bytes; SIZE_MAX: none. */
struct copy_plan {
	unsigned int threads;	/* that share a copy, with the caller */
	size_t shared;		/* the least copy that threads share */
	size_t dma;		/* that the host has the GPU's engine make */
	size_t chosen;		/* whose way the library chooses */
};

/*
 * The least size of a copy that others than the caller may make: the least of a plan's.
 * The usual copy compares its size with this one number.
 */
extern _Atomic size_t copy_least_long[2];

struct copy_plan copy_plan_of(bool to);

/* Each number is 1 to COPY_THREADS_MAX. On EINVAL nothing changes. */
int copy_plan_set_threads(unsigned int reads, unsigned int writes);
void copy_plan_set_choice(bool chooses);
void copy_plan_set_by_env(const struct copy_wishes *wishes);

#pragma GCC visibility pop

#endif
