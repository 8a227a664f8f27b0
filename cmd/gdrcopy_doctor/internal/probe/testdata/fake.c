/* SPDX-License-Identifier: MIT */
/*
 * libcuda, NVML and libgdrapi in one file, as the probes meet them, with two GPUs. All that they answer
 * differs, so that nothing can be taken for another. Each call is noted in the file FAKE_LOG.
 *
 *	FAKE_FAIL=NAME@N=VALUE	the N-th call of the function answers VALUE
 *	FAKE_DEVICES=N		that many GPUs
 *	FAKE_BACKEND=NAME	what libgdrapi takes; without it the first pin chooses
 *
 * With OLD it is of a time before pools, gdr_get_backend and confidential computing.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 2, FIRST = 70 };	/* a CUdevice is no ordinal */
enum { GPU_PAGE = 65536, MIB = 1 << 20 };
enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201 };	/* CUresult */

/* What a call answers that is to fail; else 0. */
static int call(const char *name, int n, const char *format, ...)
{
	const char *fail = getenv("FAKE_FAIL"), *path = getenv("FAKE_LOG");
	static int fd = -1;
	char key[64];
	va_list ap;

	if (fd < 0)
		fd = open(path ? path : "/dev/null", O_WRONLY | O_APPEND | O_CLOEXEC);
	if (fd < 0)
		abort();
	va_start(ap, format);
	dprintf(fd, "%s", name);
	vdprintf(fd, format, ap);
	dprintf(fd, "\n");
	va_end(ap);
	snprintf(key, sizeof(key), "%s@%d=", name, n);
	return fail && !strncmp(fail, key, strlen(key)) ? atoi(fail + strlen(key)) : 0;
}

#define CALL(...) do {						\
		static int calls_;				\
		int failed_ = call(__func__, ++calls_, __VA_ARGS__); \
								\
		if (failed_)					\
			return failed_;				\
	} while (0)

#define NEEDS(condition, error) do {				\
		if (!(condition))				\
			return error;				\
	} while (0)

static int devices(void)
{
	const char *n = getenv("FAKE_DEVICES");

	return n ? atoi(n) : DEVICES;
}

/* libcuda */

static int started;
static char contexts[DEVICES];
static int retained[DEVICES];
static _Thread_local char *current;	/* the one context of the thread's stack */
static uint64_t memory, pool;		/* what is allocated; 0: nothing */

int cuDriverGetVersion(int *version)
{
	CALL("");
	*version = 13040;
	return 0;
}

int cuInit(unsigned int flags)
{
	CALL(" %u", flags);
	NEEDS(!flags, INVALID_VALUE);
	started = 1;
	return 0;
}

int cuDeviceGetCount(int *n)
{
	CALL("");
	NEEDS(started, NOT_INITIALIZED);
	*n = devices();
	return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
	CALL(" %d", ordinal);
	NEEDS(started, NOT_INITIALIZED);
	NEEDS(ordinal >= 0 && ordinal < devices(), INVALID_DEVICE);
	*device = FIRST + ordinal;
	return 0;
}

static int is_device(int device)
{
	return device >= FIRST && device < FIRST + devices();
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	CALL(" %d", attribute);
	NEEDS(is_device(device), INVALID_DEVICE);
	*value = attribute * 10 + device - FIRST;
	return 0;
}

int cuDeviceGetPCIBusId(char *id, int size, int device)
{
	CALL("");
	NEEDS(is_device(device), INVALID_DEVICE);
	snprintf(id, size, "%04X:AB:0C.0", device);
	return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	CALL(" %d", device);
	NEEDS(is_device(device), INVALID_DEVICE);
	retained[device - FIRST]++;
	*context = &contexts[device - FIRST];
	return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
	CALL(" %d", device);
	if (!is_device(device) || !retained[device - FIRST]--)
		abort();
	return 0;
}

int cuCtxPushCurrent_v2(void *context)
{
	CALL("");
	if (current || !context)
		abort();
	current = context;
	return 0;
}

int cuCtxPopCurrent_v2(void **context)
{
	CALL("");
	NEEDS(current, INVALID_CONTEXT);
	*context = current;
	current = NULL;
	return 0;
}

int cuMemAlloc_v2(uint64_t *at, size_t size)
{
	CALL(" %zu", size);
	NEEDS(current, INVALID_CONTEXT);
	memory = *at = ((uint64_t)(current - contexts + 1) << 32) + 0x200;
	return 0;
}

int cuMemFree_v2(uint64_t at)
{
	CALL(" %#lx", at);
	NEEDS(current, INVALID_CONTEXT);
	NEEDS(at && at == memory, INVALID_VALUE);
	memory = 0;
	return 0;
}

#ifndef OLD
static int ready = 1;	/* what was allocated in order is there */

int cuMemAllocAsync(uint64_t *at, size_t size, void *stream)
{
	CALL(" %zu %p", size, stream);
	NEEDS(current, INVALID_CONTEXT);
	pool = *at = ((uint64_t)(current - contexts + 1) << 36) + 0xff00;
	ready = 0;
	return 0;
}

int cuMemFreeAsync(uint64_t at, void *stream)
{
	CALL(" %#lx %p", at, stream);
	NEEDS(at && at == pool, INVALID_VALUE);
	pool = 0;
	return 0;
}
#else
static const int ready = 1;
#endif

int cuStreamSynchronize(void *stream)
{
	CALL(" %p", stream);
	NEEDS(current, INVALID_CONTEXT);
#ifndef OLD
	ready = 1;
#endif
	return 0;
}

/* NVML: bad calls get NVML_ERROR_UNINITIALIZED or NVML_ERROR_INVALID_ARGUMENT. */

static int users;
static char managed[DEVICES];

static int index_of(const char *device)
{
	return users && device >= managed && device < managed + DEVICES ? (int)(device - managed) : -1;
}

int nvmlInit_v2(void)
{
	CALL("");
	users++;
	return 0;
}

int nvmlShutdown(void)
{
	CALL("");
	NEEDS(users--, 1);
	return 0;
}

int nvmlDeviceGetCount_v2(unsigned int *n)
{
	CALL("");
	NEEDS(users, 1);
	*n = DEVICES;
	return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int i, char **device)
{
	CALL(" %u", i);
	NEEDS(users, 1);
	NEEDS(i < DEVICES, 2);
	*device = &managed[i];
	return 0;
}

int nvmlDeviceGetPciInfo_v3(const char *device, char *info)
{
	CALL("");
	NEEDS(index_of(device) >= 0, 2);
	sprintf(info + 36, "0000004%d:AB:0C.0", index_of(device));
	return 0;
}

int nvmlDeviceGetBAR1MemoryInfo(const char *device, unsigned long long *bar1)
{
	CALL("");
	NEEDS(index_of(device) >= 0, 2);
	bar1[0] = 1000 + index_of(device);	/* total, free, used */
	bar1[1] = 2000 + index_of(device);
	bar1[2] = 3000;
	return 0;
}

int nvmlDeviceGetMigMode(const char *device, unsigned int *now, unsigned int *next)
{
	CALL("");
	NEEDS(index_of(device) >= 0, 2);
	*now = index_of(device) == 0;
	*next = !*now;
	return 0;
}

int nvmlDeviceGetVirtualizationMode(const char *device, int *mode)
{
	CALL("");
	NEEDS(index_of(device) >= 0, 2);
	*mode = 1 + index_of(device);	/* a whole GPU, a part of one */
	return 0;
}

#ifndef OLD
int nvmlSystemGetConfComputeState(unsigned int *state)
{
	CALL("");
	NEEDS(users, 1);
	state[0] = state[2] = 0;
	state[1] = 1;
	return 0;
}
#endif

/* libgdrapi: one handle at a time, which every call must be given. */

static char window[2 * GPU_PAGE];	/* that the mapping is in */
static char handle;
static int opened, chosen;
static unsigned long pinned;	/* the gdr_mh_t; 0: none */
static char *mapped;

int gdr_runtime_get_version(int *major, int *minor)
{
	CALL("");
	*major = 7;
	*minor = 11;
	return 13;	/* the real one answers nothing: whatever is in the register */
}

void *gdr_open(void)
{
	if (call(__func__, 1, "") || opened)
		return NULL;
	opened = 1;
	return &handle;
}

int gdr_close(void *g)
{
	CALL("");
	NEEDS(g == &handle && opened && !pinned, EINVAL);
	opened = 0;
	return 0;
}

#ifndef OLD
int gdr_get_backend(void *g, char *name, size_t size)
{
	const char *backend = getenv("FAKE_BACKEND");

	CALL(" %zu", size);
	NEEDS(g == &handle && opened, EINVAL);
	if (!backend)
		backend = chosen ? "rm" : "dmabuf|rm";
	NEEDS(strlen(backend) < size, ERANGE);
	memset(name, '?', size);	/* what is behind it is anything */
	strcpy(name, backend);
	return 0;
}
#endif

int gdr_pin_buffer(void *g, unsigned long at, size_t size, uint64_t token, uint32_t va_space, unsigned long *mh)
{
	CALL(" %#lx %zu %lu %u", at, size, token, va_space);
	NEEDS(g == &handle && opened && !pinned && ready, EINVAL);
	NEEDS(at % GPU_PAGE == 0 && size == GPU_PAGE, EINVAL);
	NEEDS((memory && at >= memory && at < memory + GPU_PAGE) || (pool && at >= pool && at < pool + GPU_PAGE), EINVAL);
	chosen = 1;
	*mh = pinned = 0xabcd1234ef;
	return 0;
}

int gdr_unpin_buffer(void *g, unsigned long mh)
{
	CALL("");
	NEEDS(g == &handle && pinned && mh == pinned && !mapped, EINVAL);
	pinned = 0;
	return 0;
}

int gdr_map(void *g, unsigned long mh, void **va, size_t size)
{
	CALL(" %zu", size);
	NEEDS(g == &handle && pinned && mh == pinned && !mapped && size == GPU_PAGE, EINVAL);
	mapped = window + GPU_PAGE - (uintptr_t)window % GPU_PAGE;
	*va = mapped;
	return 0;
}

int gdr_unmap(void *g, unsigned long mh, void *va, size_t size)
{
	CALL(" %zu", size);
	NEEDS(g == &handle && mh == pinned && mapped && va == mapped && size == GPU_PAGE, EINVAL);
	mapped = NULL;
	return 0;
}

int gdr_copy_to_mapping(unsigned long mh, void *to, const void *from, size_t size)
{
	CALL(" %zu", size);
	NEEDS(mapped && mh == pinned && to == mapped && size <= GPU_PAGE, EINVAL);
	memcpy(to, from, size);
	return 0;
}

int gdr_copy_from_mapping(unsigned long mh, void *to, const void *from, size_t size)
{
	CALL(" %zu", size);
	NEEDS(mapped && mh == pinned && from == mapped && size <= GPU_PAGE, EINVAL);
	memcpy(to, from, size);
	return 0;
}
