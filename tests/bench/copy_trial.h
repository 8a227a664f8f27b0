/* SPDX-License-Identifier: MIT */
/*
 * copy_trial.h - candidates for the copy routines, each with its fences.
 */
#ifndef COPY_TRIAL_H
#define COPY_TRIAL_H

#include <stdint.h>

#include "bench/loops.h"

struct copy_trial {
	const char *name;
	bool read;
	size_t least;	/* it moves multiples of so many bytes, */
	size_t most;	/* and no more than so many */
	bool (*usable)(void);
	bench_run *run;
};

/* A NULL name ends the table. */
extern const struct copy_trial copy_trials[];

#endif
