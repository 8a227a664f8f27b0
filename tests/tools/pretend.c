// SPDX-License-Identifier: MIT
/*
 * pretend.c - what the simulated drivers lack and a tool asks for, by TRACE_PRETEND:
 *
 *	gdrdrv	the library says that it uses gdrdrv, and /dev/gdrdrv is a device that
 *		pins and maps. As the module, it wants whole GPU pages (kmod: pin), a handle
 *		of its own file, and a mapping of all of a pinning at its own offset (kmod: mmap).
 *	kernels	modules, functions and launches, by ptx.c. A kernel reaches GPU memory by
 *		the program's own mapping of it, and memory of cuMemHostAlloc. It runs until it
 *		ends; what its parameters point to is read at the launch, as with CUDA.
 *	/FOLDER	files that a tool opens by fopen lie below that folder.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../kmod/gdrdrv_uapi.h"
#include "ptx.h"
#include "trace.h"

#define UNUSED __attribute__((unused))
#define PARAMS long a0 UNUSED, long a1 UNUSED, long a2 UNUSED, long a3 UNUSED, long a4 UNUSED, long a5 UNUSED, \
	long a6 UNUSED, long a7 UNUSED, long a8 UNUSED, long a9 UNUSED, long a10 UNUSED, long a11 UNUSED
#define ARGS a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11

static void bad(const char *what)
{
	fprintf(stderr, "pretend: %s\n", what);
	abort();
}

/* The one file of /dev/gdrdrv, and its one pinning. */
static struct {
	int fd;		/* 0: not open */
	uint64_t handle, size;	/* 0: nothing is pinned */
	void *va;	/* NULL: not mapped */
	trace_fn *open, *ioctl, *mmap, *munmap, *close;
} drv;

static long backend_name(PARAMS)
{
	snprintf((char *)a1, (size_t)a2, "gdrdrv");
	return 0;
}

static long drv_open(PARAMS)
{
	if (strcmp((const char *)a0, "/dev/gdrdrv"))
		return drv.open(ARGS);
	if (drv.fd)
		bad("a second file of gdrdrv");
	if ((int)a1 != (O_RDWR | O_CLOEXEC))
		bad("gdrdrv is opened otherwise than for both and without a child");
	drv.fd = memfd_create("gdrdrv", MFD_CLOEXEC);
	return drv.fd;
}

static long drv_pin(struct gdrdrv_pin *pin)
{
	static uint64_t last = 1000;

	if (!pin->addr || pin->addr % GDRDRV_GPU_PAGE_SIZE || !pin->size || pin->size % GDRDRV_GPU_PAGE_SIZE || drv.size) {
		errno = EINVAL;
		return -1;
	}
	drv.handle = pin->handle = ++last;
	drv.size = pin->size;
	return ftruncate(drv.fd, (off_t)drv.size);
}

static long drv_ioctl(PARAMS)
{
	if ((int)a0 != drv.fd)
		return drv.ioctl(ARGS);
	if ((unsigned long)a1 == GDRDRV_IOC_PIN)
		return drv_pin((struct gdrdrv_pin *)a2);
	if ((unsigned long)a1 != GDRDRV_IOC_UNPIN)
		bad("another request of gdrdrv");
	if (((struct gdrdrv_unpin *)a2)->handle != drv.handle || !drv.size || drv.va) {
		errno = EINVAL;
		return -1;
	}
	drv.size = 0;
	return 0;
}

static long drv_mmap(PARAMS)
{
	if ((int)a4 != drv.fd || !drv.fd)
		return drv.mmap(ARGS);
	if ((uint64_t)a1 != drv.size || (int)a2 != (PROT_READ | PROT_WRITE) || (int)a3 != MAP_SHARED ||
	    (uint64_t)a5 != drv.handle * (uint64_t)getpagesize() || drv.va) {
		errno = EINVAL;
		return -1;
	}
	drv.va = (void *)drv.mmap(a0, a1, a2, a3, a4, 0, 0, 0, 0, 0, 0, 0);
	return (long)drv.va;
}

static long drv_munmap(PARAMS)
{
	if (drv.va && (void *)a0 == drv.va) {
		if ((uint64_t)a1 != drv.size)
			bad("a part of the mapping is taken down");
		drv.va = NULL;
	}
	return drv.munmap(ARGS);
}

static long drv_close(PARAMS)
{
	if (drv.fd && (int)a0 == drv.fd) {
		if (drv.va || drv.size)
			bad("gdrdrv is closed with a pinning");
		drv.fd = 0;
	}
	return drv.close(ARGS);
}

/* The GPU: what is mapped of it, host memory, and the kernel that runs. */
static struct {
	uint64_t gpu, gpu_size, host, host_size;
	uint8_t *va;
	struct ptx *ptx;
	pthread_t thread;
	bool runs, streams;
	unsigned int blocks, threads;
	uint64_t params[8];
	const char *end;
	trace_fn *sync;
} k;

static void *memory(uint64_t addr, size_t size)
{
	if (k.va && addr - k.gpu <= k.gpu_size - size)
		return k.va + (addr - k.gpu);
	if (k.host && addr - k.host <= k.host_size - size)
		return (void *)addr;
	return NULL;
}

static long module_load(PARAMS)
{
	char said[128];

	if (k.ptx)
		bad("a second module");
	k.ptx = ptx_load((const char *)a1, "pingpong", said);
	*(struct ptx **)a0 = k.ptx;
	return k.ptx ? 0 : 218;		/* CUDA_ERROR_INVALID_PTX */
}

static long module_unload(PARAMS)
{
	if ((struct ptx *)a0 != k.ptx || !k.ptx || k.runs)
		bad("no such module, or its kernel runs");
	ptx_free(k.ptx);
	k.ptx = NULL;
	return 0;
}

static long module_function(PARAMS)
{
	if ((struct ptx *)a1 != k.ptx || strcmp((const char *)a2, "pingpong"))
		return 500;	/* CUDA_ERROR_NOT_FOUND */
	*(struct ptx **)a0 = k.ptx;
	return 0;
}

/* 2 multiprocessors of 2048 threads and 32 blocks; cuDeviceGetAttribute says how many. */
static long occupancy(PARAMS)
{
	int threads = (int)a2;

	if ((struct ptx *)a1 != k.ptx || threads < 1 || a3)
		return 1;
	*(int *)a0 = 2048 / threads < 32 ? 2048 / threads : 32;
	return 0;
}

static void *run_kernel(void *arg)
{
	void *params[8];

	for (int i = 0; i < 8; i++)
		params[i] = &k.params[i];
	k.end = ptx_run(k.ptx, k.blocks, k.threads, params, memory);
	return arg;
}

static long launch(PARAMS)
{
	static const size_t sizes[] = { 8, 8, 4, 4, 8, 8, 4, 4 };

	if ((struct ptx *)a0 != k.ptx || (unsigned int)(a2 * a3 * a5 * a6) != 1 || (unsigned int)a7 || a10 || k.runs)
		return 1;
	if (!a8)
		bad("a kernel on the stream that waits for all");
	for (int i = 0; i < 8; i++)
		memcpy(&k.params[i], ((void **)a9)[i], sizes[i]);
	k.blocks = (unsigned int)a1;
	k.threads = (unsigned int)a4;
	k.runs = true;
	return pthread_create(&k.thread, NULL, run_kernel, NULL) ? 999 : 0;
}

static long stream_sync(PARAMS)
{
	if (k.runs && pthread_join(k.thread, NULL))
		abort();
	k.runs = false;
	if (k.end)
		fprintf(stderr, "pretend: the kernel: %s\n", k.end);
	return k.end ? 700 : k.sync(ARGS);
}

static trace_fn *attribute;

static long device_attribute(PARAMS)
{
	if ((int)a1 != 16 && (int)a1 != 13)
		return attribute(ARGS);
	*(int *)a0 = (int)a1 == 16 ? 2 : 1000000;
	return 0;
}

static trace_fn *real_fopen;

static long open_below(PARAMS)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s%s", getenv("TRACE_PRETEND"), (const char *)a0);
	return real_fopen((long)path, a1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

/* The CPU that polls leaves it to the kernel, which may have no other. */
void pretend_after(const char *name, const long *a, long result)
{
	if (k.runs && !strncmp(name, "gdr_copy_", 9))
		sched_yield();
	if ((int)result)
		return;
	if (!strcmp(name, "gdr_pin_buffer_v2")) {
		k.gpu = (uint64_t)a[1];
		k.gpu_size = (uint64_t)a[2];
	} else if (!strcmp(name, "gdr_map_v2")) {
		k.va = *(uint8_t **)a[2];
	} else if (!strcmp(name, "gdr_unmap")) {
		k.va = NULL;
	} else if (!strcmp(name, "cuMemHostAlloc")) {
		k.host = *(uint64_t *)a[0];
		k.host_size = (uint64_t)a[1];
	} else if (!strcmp(name, "cuMemFreeHost")) {
		k.host = 0;
	}
}

trace_fn *pretend(const char *name, trace_fn *real)
{
	static const struct {
		const char *what, *name;
		trace_fn *instead, **real;
	} parts[] = {
		{ "gdrdrv", "gdr_get_backend", backend_name, NULL },
		{ "gdrdrv", "open", drv_open, &drv.open },
		{ "gdrdrv", "ioctl", drv_ioctl, &drv.ioctl },
		{ "gdrdrv", "mmap", drv_mmap, &drv.mmap },
		{ "gdrdrv", "munmap", drv_munmap, &drv.munmap },
		{ "gdrdrv", "close", drv_close, &drv.close },
		{ "kernels", "cuModuleLoadData", module_load, NULL },
		{ "kernels", "cuModuleUnload", module_unload, NULL },
		{ "kernels", "cuModuleGetFunction", module_function, NULL },
		{ "kernels", "cuOccupancyMaxActiveBlocksPerMultiprocessor", occupancy, NULL },
		{ "kernels", "cuLaunchKernel", launch, NULL },
		{ "kernels", "cuStreamSynchronize", stream_sync, &k.sync },
		{ "kernels", "cuDeviceGetAttribute", device_attribute, &attribute },
	};
	const char *what = getenv("TRACE_PRETEND");

	if (what && *what == '/' && !strcmp(name, "fopen")) {
		real_fopen = real;
		return open_below;
	}
	for (size_t i = 0; what && i < sizeof(parts) / sizeof(parts[0]); i++) {
		if (strcmp(parts[i].name, name) || strcmp(parts[i].what, what))
			continue;
		if (parts[i].real)
			*parts[i].real = real;
		return parts[i].instead;
	}
	return NULL;
}
