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
	gdr_t (*open)(void);
	int (*close)(gdr_t g);
	int (*pin)(gdr_t g, unsigned long addr, size_t size, uint64_t token, uint32_t space, gdr_mh_t *mh);
	int (*pin_v2)(gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t *mh);
	int (*unpin)(gdr_t g, gdr_mh_t mh);
	int (*info)(gdr_t g, gdr_mh_t mh, gdr_info_t *info);
	int (*map)(gdr_t g, gdr_mh_t mh, void **va, size_t size);
	int (*unmap)(gdr_t g, gdr_mh_t mh, void *va, size_t size);
	int (*to)(gdr_mh_t mh, void *map, const void *host, size_t size);
	int (*from)(gdr_mh_t mh, void *host, const void *map, size_t size);
	void (*runtime_version)(int *major, int *minor);
	int (*driver_version)(gdr_t g, int *major, int *minor);
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
