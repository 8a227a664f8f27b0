// SPDX-License-Identifier: MIT
/*
 * kernels.c - a preload that gives the simulated libcuda.so.1 kernels: those of the examples, on a
 * thread, by ptx.h. The GPU's memory is where the program has mapped it, and where cuMemHostAlloc
 * put it; the kernel reaches no other. A kernel that faults is an error of cuStreamSynchronize.
 *
 * KERNELS=clock	CLOCK_MONOTONIC counts copies to a mapping, 1 us for each
 * KERNELS=short	the kernel echo moves 8 bytes less of each message's data
 * KERNELS=twist	each copy of 8 bytes to a mapping has another first byte
 * KERNELS=deaf	no kernel starts, and each look at a clock is a second later
 * KERNELS=sm_75	the driver refuses targets before that one
 * KERNELS=none	the driver refuses all
 * KERNELS=CALL	that call fails: cuModuleGetFunction, cuLaunchKernel, cuMemHostAlloc, ...
 */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gdrapi.h>

#include "next.h"
#include "ptx.h"

enum { OK, INVALID_VALUE = 1, INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, UNKNOWN = 999 };
enum { MOST = 8, MOST_PARAMS = 8 };

/* Memory that a kernel reaches. */
static struct range {
	uint64_t dev;
	size_t size;
	unsigned long mh;
	char *va;	/* NULL: not mapped */
} ranges[MOST];

static struct {
	pthread_t thread;
	struct ptx *ptx;
	uint64_t params[MOST_PARAMS];
	const char *fault;
	bool runs, deaf;	/* deaf: it has no thread */
	atomic_bool ended;
	atomic_ulong accesses;
} kernel;

static atomic_long copies;	/* to mappings */

static bool set_to(const char *value)
{
	const char *set = getenv("KERNELS");

	return set && !strcmp(set, value);
}

static struct range *range_of(unsigned long mh)
{
	for (struct range *r = ranges; r < ranges + MOST; r++)
		if (r->size && r->mh == mh)
			return r;
	return NULL;
}

static void add_range(uint64_t dev, size_t size, unsigned long mh, void *va)
{
	for (struct range *r = ranges; r < ranges + MOST; r++)
		if (!r->size) {
			*r = (struct range){ dev, size, mh, va };
			return;
		}
	abort();
}

static void *memory(uint64_t addr, size_t size)
{
	atomic_fetch_add(&kernel.accesses, 1);
	for (struct range *r = ranges; r < ranges + MOST; r++)
		if (r->va && addr >= r->dev && addr - r->dev < r->size && size <= r->size - (addr - r->dev))
			return r->va + (addr - r->dev);
	return NULL;
}

int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t token, uint32_t va_space, gdr_mh_t *handle)
{
	int rc;

	NEXT(gdr_pin_buffer);
	rc = next(g, addr, size, token, va_space, handle);
	if (!rc)
		add_range(addr, size, handle->h, NULL);
	return rc;
}

int gdr_map(gdr_t g, gdr_mh_t handle, void **va, size_t size)
{
	struct range *r = range_of(handle.h);
	int rc;

	NEXT(gdr_map);
	rc = next(g, handle, va, size);
	if (!rc && r)
		r->va = *va;
	return rc;
}

/* A kernel that still runs would touch what is gone. */
int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size)
{
	struct range *r = range_of(handle.h);

	NEXT(gdr_unmap);
	if (kernel.runs)
		fprintf(stderr, "kernels: unmapped under a kernel\n"), abort();
	if (r)
		r->size = 0;
	return next(g, handle, va, size);
}

/* Lets the kernel see it: on one CPU it would run a time slice later. */
int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size)
{
	unsigned long from = atomic_load(&kernel.accesses);
	unsigned char twisted[8];
	int rc;

	NEXT(gdr_copy_to_mapping);
	atomic_fetch_add(&copies, 1);
	if (set_to("twist") && size == sizeof(twisted)) {
		memcpy(twisted, h_ptr, size);
		twisted[0] ^= 0x10;
		h_ptr = twisted;
	}
	rc = next(handle, map_d_ptr, h_ptr, size);
	while (kernel.runs && !kernel.deaf && !atomic_load(&kernel.ended) && atomic_load(&kernel.accesses) - from < 2)
		sched_yield();
	return rc;
}

int cuMemHostAlloc(void **p, size_t size, unsigned int flags);

int cuMemHostAlloc(void **p, size_t size, unsigned int flags)
{
	int rc;

	NEXT(cuMemHostAlloc);
	if (set_to(__func__))
		return UNKNOWN;
	rc = next(p, size, flags);
	if (!rc && flags & 2) {	/* CU_MEMHOSTALLOC_DEVICEMAP */
		memset(*p, 0xdd, size);
		add_range((uint64_t)(uintptr_t)*p, size, 0, *p);
	}
	return rc;
}

int cuMemHostGetDevicePointer_v2(uint64_t *dev, void *p, unsigned int flags);

int cuMemHostGetDevicePointer_v2(uint64_t *dev, void *p, unsigned int flags)
{
	NEXT(cuMemHostGetDevicePointer_v2);
	return set_to("cuMemHostGetDevicePointer") ? UNKNOWN : next(dev, p, flags);
}

/* The name of its one kernel: ptx_load wants it. */
static bool entry_of(const char *text, char name[64])
{
	const char *entry = strstr(text, ".visible .entry ");

	return entry && sscanf(entry, ".visible .entry %63[a-z_]", name) == 1;
}

/* Compilers of later versions know the instructions of earlier ones alone. */
static bool is_refused(const char *image)
{
	return set_to("none") || (set_to("sm_75") && strstr(image, ".target sm_70\n"));
}

int cuModuleLoadData(void **module, const void *image);

int cuModuleLoadData(void **module, const void *image)
{
	char said[128] = "", name[64] = "";

	if (is_refused(image))
		return INVALID_PTX;
	kernel.ptx = entry_of(image, name) ? ptx_load(image, name, said) : NULL;
	if (!kernel.ptx)
		fprintf(stderr, "kernels: %s\n", said);
	*module = strdup(name);
	return kernel.ptx ? OK : INVALID_PTX;
}

int cuModuleGetFunction(void **f, void *module, const char *name);

int cuModuleGetFunction(void **f, void *module, const char *name)
{
	*f = kernel.ptx;
	return set_to(__func__) ? UNKNOWN : strcmp(module, name) ? NOT_FOUND : OK;
}

static void *run(void *arg)
{
	void *params[MOST_PARAMS];

	for (int i = 0; i < MOST_PARAMS; i++)
		params[i] = &kernel.params[i];
	kernel.fault = ptx_run(kernel.ptx, 1, 1, params, memory);
	atomic_store(&kernel.ended, true);
	return arg;
}

int cuLaunchKernel(void *f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
		   unsigned int bz, unsigned int shared, void *stream, void **params, void **extra);

/* It takes the parameters at once; here all are 8 bytes long, and those of the program at least 4. */
int cuLaunchKernel(void *f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
		   unsigned int bz, unsigned int shared, void *stream, void **params, void **extra)
{
	if (set_to(__func__))
		return UNKNOWN;
	if (f != kernel.ptx || gx * gy * gz * bx * by * bz != 1 || shared || extra)
		return INVALID_VALUE;
	if (!stream || kernel.runs)
		return INVALID_HANDLE;
	for (unsigned int i = 0, size; i < ptx_params(kernel.ptx); i++) {
		size = ptx_param_size(kernel.ptx, i);
		memcpy(&kernel.params[i], params[i], size);
	}
	if (set_to("short") && kernel.params[3])
		kernel.params[3]--;
	kernel.deaf = set_to("deaf");
	kernel.runs = true;
	atomic_store(&kernel.ended, false);
	return kernel.deaf || !pthread_create(&kernel.thread, NULL, run, NULL) ? OK : UNKNOWN;
}

int cuStreamSynchronize(void *stream);

int cuStreamSynchronize(void *stream)
{
	NEXT(cuStreamSynchronize);
	if (kernel.runs && stream) {
		if (!kernel.deaf)
			pthread_join(kernel.thread, NULL);
		kernel.runs = false;
		if (kernel.fault)
			fprintf(stderr, "kernels: %s\n", kernel.fault);
		if (kernel.fault || set_to(__func__))
			return ILLEGAL_ADDRESS;
	}
	return next(stream);
}

/* The clocks: see above. */
time_t time(time_t *t)
{
	static time_t now = 1000;

	NEXT(time);
	return kernel.deaf ? now++ : next(t);
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
	static time_t now = 1000;

	NEXT(clock_gettime);
	if (clock == CLOCK_MONOTONIC && set_to("clock")) {
		*t = (struct timespec){ 7 + atomic_load(&copies) / 1000000, atomic_load(&copies) % 1000000 * 1000 };
		return 0;
	}
	if (!kernel.deaf || clock != CLOCK_MONOTONIC)
		return next(clock, t);
	*t = (struct timespec){ .tv_sec = now++ };
	return 0;
}
