/* SPDX-License-Identifier: MIT */
/*
 * load.h - the library as a consumer finds it: dlopen of the plain name, which the
 * linker's package has, and dlsym of each function. And a CUDA context.
 */
#ifndef CONSUMERS_LOAD_H
#define CONSUMERS_LOAD_H

#include <gdrapi.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_dl.h"

/* Ends the program unless it is found: nothing could be tested. */
static inline void *consumer_find(void *lib, const char *name)
{
	void *f = dlsym(lib, name);

	if (!f) {
		printf("# libgdrapi.so has no %s\n", name);
		exit(1);
	}
	return f;
}

static inline void *consumer_load(void)
{
	void *lib = dlopen("libgdrapi.so", RTLD_NOW);

	if (!lib) {
		printf("# %s\n", dlerror());
		exit(1);
	}
	return lib;
}

/* The first GPU's primary context is current when it returns. */
static inline void consumer_cuda(struct cuda_dl *cu)
{
	const char *why = cuda_load(cu);
	cu_ctx ctx;
	int dev;

	if (!why && (cu->init(0) || cu->device_get(&dev, 0) || cu->primary_retain(&ctx, dev) ||
		     cu->ctx_set(ctx)))
		why = "no context of the first GPU";
	if (why) {
		printf("# %s\n", why);
		exit(1);
	}
}

#endif
