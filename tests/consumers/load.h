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

/* The functions that most consumers look up. */
struct consumer_gdr {
	__typeof__(gdr_open) *open;
	__typeof__(gdr_close) *close;
	__typeof__(gdr_pin_buffer) *pin;
	__typeof__(gdr_pin_buffer_v2) *pin_v2;
	__typeof__(gdr_unpin_buffer) *unpin;
	__typeof__(gdr_get_info) *info;
	__typeof__(gdr_map) *map;
	__typeof__(gdr_unmap) *unmap;
	__typeof__(gdr_copy_to_mapping) *to;
	__typeof__(gdr_copy_from_mapping) *from;
	__typeof__(gdr_runtime_get_version) *runtime_version;
	__typeof__(gdr_driver_get_version) *driver_version;
};

static inline void consumer_functions(void *lib, struct consumer_gdr *gdr)
{
	gdr->open = consumer_find(lib, "gdr_open");
	gdr->close = consumer_find(lib, "gdr_close");
	gdr->pin = consumer_find(lib, "gdr_pin_buffer");
	gdr->pin_v2 = consumer_find(lib, "gdr_pin_buffer_v2");
	gdr->unpin = consumer_find(lib, "gdr_unpin_buffer");
	gdr->info = consumer_find(lib, "gdr_get_info");
	gdr->map = consumer_find(lib, "gdr_map");
	gdr->unmap = consumer_find(lib, "gdr_unmap");
	gdr->to = consumer_find(lib, "gdr_copy_to_mapping");
	gdr->from = consumer_find(lib, "gdr_copy_from_mapping");
	gdr->runtime_version = consumer_find(lib, "gdr_runtime_get_version");
	gdr->driver_version = consumer_find(lib, "gdr_driver_get_version");
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
