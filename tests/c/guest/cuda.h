/* SPDX-License-Identifier: MIT */
/*
 * guest/cuda.h - for guest programs that call the CUDA driver themselves.
 */
#ifndef GUEST_CUDA_H
#define GUEST_CUDA_H

#include "common.h"
#include "cuda_dl.h"

/* Loads and initialises it; the first GPU's primary context, which is retained. */
static inline cu_ctx start_cuda(struct cuda_dl *cu)
{
	const char *err = cuda_load(cu);
	cu_ctx context;
	int dev;

	if (err)
		note("%s", err);
	expect(!err);
	expect_is(cu->init(0), 0);
	expect_is(cu->device_get(&dev, 0), 0);
	expect_is(cu->primary_retain(&context, dev), 0);
	return context;
}

/*
 * With a real driver, holds the first GPU's primary context until the process ends,
 * as a program that uses CUDA does. Where nobody holds it, each allocation makes it
 * and its end destroys it: 0.15 s on an H100, so that few calls fit into a test. The
 * simulated driver's takes no time. The threads that CUDA starts get no signals.
 */
static inline void hold_context(void)
{
	sigset_t all, before;
	struct cuda_dl cu;

	if (on_doubles())
		return;
	sigfillset(&all);
	expect_is(pthread_sigmask(SIG_BLOCK, &all, &before), 0);
	start_cuda(&cu);
	expect_is(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
}

static inline gdr_t open_with_context(void)
{
	hold_context();
	return open_or_fail();
}

#endif
