/* SPDX-License-Identifier: MIT */
/*
 * trace.h - what trace.c records, and what pretend.c stands in for.
 */
#ifndef GDR_TEST_TRACE_H
#define GDR_TEST_TRACE_H

#include <stdbool.h>

#define TRACE_ARGS 12	/* cuLaunchKernel has 11 */

/* A function that takes up to TRACE_ARGS integers or pointers. */
typedef long trace_fn(long, long, long, long, long, long, long, long, long, long, long, long);

/*
 * The function that replaces this one, or NULL. real is NULL where the driver lacks it.
 * pretend_after is told of each call that was made, with what it gave.
 */
trace_fn *pretend(const char *name, trace_fn *real);
void pretend_after(const char *name, const long *args, long result);

#endif
