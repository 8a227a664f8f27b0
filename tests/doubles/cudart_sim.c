// SPDX-License-Identifier: MIT
/*
 * A stand-in for the CUDA runtime over the simulated libcuda, for consumers that are
 * linked against libcudart: UCX and libfabric. Test code: it is no CUDA runtime, and
 * never ships. It has the calls of those two, and no kernels.
 *
 * As in the real runtime:
 *
 * - The first call that needs a context makes one current, unless one is already: the
 *   primary context of the thread's device.
 * - Results are the driver's. The runtime has the same numbers.
 * - Each thread keeps its last failure.
 * - No program has variables on the GPU here, so no symbol is known.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

enum { OK = 0, INVALID_VALUE = 1, INVALID_SYMBOL = 13, INVALID_DEVICE = 101, NOT_READY = 600 };
enum { MAX_DEVICES = 8, RUNTIME_VERSION = 12040 };

struct ctx;
struct stream;
struct event;
struct pool;
struct ipc_handle {
	char reserved[64];
};

int cuInit(unsigned int flags);
int cuDriverGetVersion(int *version);
int cuGetErrorName(int result, const char **name);
int cuGetErrorString(int result, const char **text);
int cuDeviceGetCount(int *count);
int cuDeviceGetAttribute(int *value, int attr, int device);
int cuDeviceCanAccessPeer(int *can, int device, int peer);
int cuDevicePrimaryCtxRetain(struct ctx **ctx, int device);
int cuCtxGetCurrent(struct ctx **ctx);
int cuCtxSetCurrent(struct ctx *ctx);
int cuCtxGetDevice(int *device);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(uint64_t *addr, size_t size);
int cuMemAllocPitch_v2(uint64_t *addr, size_t *pitch, size_t width, size_t height,
		       unsigned int element);
int cuMemAllocManaged(uint64_t *addr, size_t size, unsigned int flags);
int cuMemAllocHost_v2(void **addr, size_t size);
int cuMemHostAlloc(void **addr, size_t size, unsigned int flags);
int cuMemHostGetDevicePointer_v2(uint64_t *dptr, void *addr, unsigned int flags);
int cuMemAllocAsync(uint64_t *addr, size_t size, struct stream *stream);
int cuMemAllocFromPoolAsync(uint64_t *addr, size_t size, struct pool *pool, struct stream *stream);
int cuMemFreeAsync(uint64_t addr, struct stream *stream);
int cuMemFree_v2(uint64_t addr);
int cuMemFreeHost(void *addr);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
int cuMemHostRegister_v2(void *addr, size_t size, unsigned int flags);
int cuMemHostUnregister(void *addr);
int cuMemcpy(uint64_t dst, uint64_t src, size_t size);
int cuMemcpyAsync(uint64_t dst, uint64_t src, size_t size, struct stream *stream);
int cuMemsetD8_v2(uint64_t addr, unsigned char value, size_t n);
int cuStreamCreate(struct stream **stream, unsigned int flags);
int cuStreamDestroy_v2(struct stream *stream);
int cuStreamSynchronize(struct stream *stream);
int cuStreamQuery(struct stream *stream);
int cuStreamWaitEvent(struct stream *stream, struct event *event, unsigned int flags);
int cuEventCreate(struct event **event, unsigned int flags);
int cuEventDestroy_v2(struct event *event);
int cuEventRecord(struct event *event, struct stream *stream);
int cuEventQuery(struct event *event);
int cuEventSynchronize(struct event *event);
int cuIpcGetMemHandle(struct ipc_handle *h, uint64_t addr);
int cuIpcOpenMemHandle_v2(uint64_t *addr, struct ipc_handle h, unsigned int flags);
int cuIpcCloseMemHandle(uint64_t addr);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ctx *primary[MAX_DEVICES];	/* retained once for each device */
static _Thread_local int chosen;		/* of cudaSetDevice */
static _Thread_local int last;			/* of cudaGetLastError */

/* "Not ready" is no failure. */
static int note(int result)
{
	if (result != OK && result != NOT_READY)
		last = result;
	return result;
}

static int use(int device)
{
	int result = OK;

	pthread_mutex_lock(&lock);
	if (!primary[device])
		result = cuDevicePrimaryCtxRetain(&primary[device], device);
	pthread_mutex_unlock(&lock);
	return result ? result : cuCtxSetCurrent(primary[device]);
}

static int count(int *n)
{
	int result = cuInit(0);

	return result ? result : cuDeviceGetCount(n);
}

/* Makes sure that a context is current, or fails. */
static int start(void)
{
	struct ctx *ctx = NULL;
	int n, result = count(&n);

	if (!result)
		result = cuCtxGetCurrent(&ctx);
	if (result || ctx)
		return result;
	return use(chosen);
}

API int cudaGetDeviceCount(int *n)
{
	int result = n ? count(n) : INVALID_VALUE;

	if (result && n)
		*n = 0;
	return note(result);
}

API int cudaSetDevice(int device)
{
	int n, result = count(&n);

	if (!result && (device < 0 || device >= n || device >= MAX_DEVICES))
		result = INVALID_DEVICE;
	if (!result)
		result = use(device);
	if (!result)
		chosen = device;
	return note(result);
}

API int cudaGetDevice(int *device)
{
	int current, result = device ? start() : INVALID_VALUE;

	if (!result)
		result = cuCtxGetDevice(&current);
	if (!result)
		*device = current;
	return note(result);
}

API int cudaDeviceGetAttribute(int *value, int attr, int device)
{
	int result = cuInit(0);

	return note(result ? result : cuDeviceGetAttribute(value, attr, device));
}

API int cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
	int result = cuInit(0);

	return note(result ? result : cuDeviceCanAccessPeer(can, device, peer));
}

API int cudaDeviceSynchronize(void)
{
	int result = start();

	return note(result ? result : cuCtxSynchronize());
}

API int cudaRuntimeGetVersion(int *version)
{
	if (!version)
		return note(INVALID_VALUE);
	*version = RUNTIME_VERSION;
	return OK;
}

API int cudaDriverGetVersion(int *version)
{
	return note(cuDriverGetVersion(version));
}

API int cudaGetLastError(void)
{
	int result = last;

	last = OK;
	return result;
}

API int cudaPeekAtLastError(void)
{
	return last;
}

API const char *cudaGetErrorName(int result)
{
	const char *name = NULL;

	return cuGetErrorName(result, &name) || !name ? "unrecognized error code" : name;
}

API const char *cudaGetErrorString(int result)
{
	const char *text = NULL;

	return cuGetErrorString(result, &text) || !text ? "unrecognized error code" : text;
}

API int cudaMalloc(void **p, size_t size)
{
	int result = p ? start() : INVALID_VALUE;
	uint64_t addr = 0;

	if (!result && size)
		result = cuMemAlloc_v2(&addr, size);
	if (!result)
		*p = (void *)(uintptr_t)addr;
	return note(result);
}

API int cudaMallocPitch(void **p, size_t *pitch, size_t width, size_t height)
{
	int result = p ? start() : INVALID_VALUE;
	uint64_t addr;

	if (!result)
		result = cuMemAllocPitch_v2(&addr, pitch, width, height, 4);
	if (!result)
		*p = (void *)(uintptr_t)addr;
	return note(result);
}

API int cudaMallocManaged(void **p, size_t size, unsigned int flags)
{
	int result = p ? start() : INVALID_VALUE;
	uint64_t addr;

	if (!result)
		result = cuMemAllocManaged(&addr, size, flags);
	if (!result)
		*p = (void *)(uintptr_t)addr;
	return note(result);
}

API int cudaMallocHost(void **p, size_t size)
{
	int result = start();

	return note(result ? result : cuMemAllocHost_v2(p, size));
}

/* The flags are the driver's. */
API int cudaHostAlloc(void **p, size_t size, unsigned int flags)
{
	int result = start();

	return note(result ? result : cuMemHostAlloc(p, size, flags));
}

API int cudaHostGetDevicePointer(void **dptr, void *p, unsigned int flags)
{
	int result = dptr ? start() : INVALID_VALUE;
	uint64_t addr;

	if (!result)
		result = cuMemHostGetDevicePointer_v2(&addr, p, flags);
	if (!result)
		*dptr = (void *)(uintptr_t)addr;
	return note(result);
}

API int cudaMallocAsync(void **p, size_t size, struct stream *stream)
{
	int result = p ? start() : INVALID_VALUE;
	uint64_t addr;

	if (!result)
		result = cuMemAllocAsync(&addr, size, stream);
	if (!result)
		*p = (void *)(uintptr_t)addr;
	return note(result);
}

API int cudaMallocFromPoolAsync(void **p, size_t size, struct pool *pool, struct stream *stream)
{
	int result = p ? start() : INVALID_VALUE;
	uint64_t addr;

	if (!result)
		result = cuMemAllocFromPoolAsync(&addr, size, pool, stream);
	if (!result)
		*p = (void *)(uintptr_t)addr;
	return note(result);
}

API int cudaFreeAsync(void *p, struct stream *stream)
{
	int result = start();

	return note(result ? result : cuMemFreeAsync((uint64_t)(uintptr_t)p, stream));
}

static int no_symbol(const void *out)
{
	int result = out ? start() : INVALID_VALUE;

	return note(result ? result : INVALID_SYMBOL);
}

API int cudaGetSymbolAddress(void **p, const void *symbol)
{
	(void)symbol;
	return no_symbol(p);
}

API int cudaGetSymbolSize(size_t *size, const void *symbol)
{
	(void)symbol;
	return no_symbol(size);
}

/* cudaFree(NULL) makes the context and frees nothing. Programs use that. */
API int cudaFree(void *p)
{
	int result = start();

	if (!result && p)
		result = cuMemFree_v2((uint64_t)(uintptr_t)p);
	return note(result);
}

API int cudaFreeHost(void *p)
{
	int result = start();

	if (!result && p)
		result = cuMemFreeHost(p);
	return note(result);
}

API int cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
	int result = start();

	return note(result ? result : cuMemGetInfo_v2(free_bytes, total));
}

API int cudaHostRegister(void *p, size_t size, unsigned int flags)
{
	int result = start();

	return note(result ? result : cuMemHostRegister_v2(p, size, flags));
}

API int cudaHostUnregister(void *p)
{
	int result = start();

	return note(result ? result : cuMemHostUnregister(p));
}

/* Unified addresses show the direction. kind is only checked. */
API int cudaMemcpy(void *dst, const void *src, size_t size, int kind)
{
	int result = kind >= 0 && kind <= 4 ? start() : INVALID_VALUE;

	if (!result)
		result = cuMemcpy((uint64_t)(uintptr_t)dst, (uint64_t)(uintptr_t)src, size);
	return note(result);
}

API int cudaMemcpyAsync(void *dst, const void *src, size_t size, int kind, struct stream *stream)
{
	int result = kind >= 0 && kind <= 4 ? start() : INVALID_VALUE;

	if (!result)
		result = cuMemcpyAsync((uint64_t)(uintptr_t)dst, (uint64_t)(uintptr_t)src, size,
				       stream);
	return note(result);
}

API int cudaMemset(void *p, int value, size_t n)
{
	int result = start();

	if (!result)
		result = cuMemsetD8_v2((uint64_t)(uintptr_t)p, (unsigned char)value, n);
	return note(result);
}

API int cudaStreamCreateWithFlags(struct stream **stream, unsigned int flags)
{
	int result = start();

	return note(result ? result : cuStreamCreate(stream, flags));
}

API int cudaStreamCreate(struct stream **stream)
{
	return cudaStreamCreateWithFlags(stream, 0);
}

API int cudaStreamDestroy(struct stream *stream)
{
	int result = start();

	return note(result ? result : cuStreamDestroy_v2(stream));
}

API int cudaStreamSynchronize(struct stream *stream)
{
	int result = start();

	return note(result ? result : cuStreamSynchronize(stream));
}

API int cudaStreamQuery(struct stream *stream)
{
	int result = start();

	return note(result ? result : cuStreamQuery(stream));
}

API int cudaStreamWaitEvent(struct stream *stream, struct event *event, unsigned int flags)
{
	int result = start();

	return note(result ? result : cuStreamWaitEvent(stream, event, flags));
}

API int cudaEventCreateWithFlags(struct event **event, unsigned int flags)
{
	int result = start();

	return note(result ? result : cuEventCreate(event, flags));
}

API int cudaEventCreate(struct event **event)
{
	return cudaEventCreateWithFlags(event, 0);
}

API int cudaEventDestroy(struct event *event)
{
	int result = start();

	return note(result ? result : cuEventDestroy_v2(event));
}

API int cudaEventRecord(struct event *event, struct stream *stream)
{
	int result = start();

	return note(result ? result : cuEventRecord(event, stream));
}

API int cudaEventQuery(struct event *event)
{
	int result = start();

	return note(result ? result : cuEventQuery(event));
}

API int cudaEventSynchronize(struct event *event)
{
	int result = start();

	return note(result ? result : cuEventSynchronize(event));
}

API int cudaIpcGetMemHandle(struct ipc_handle *h, void *p)
{
	int result = start();

	return note(result ? result : cuIpcGetMemHandle(h, (uint64_t)(uintptr_t)p));
}

API int cudaIpcOpenMemHandle(void **p, struct ipc_handle h, unsigned int flags)
{
	int result = p ? start() : INVALID_VALUE;
	uint64_t addr;

	if (!result)
		result = cuIpcOpenMemHandle_v2(&addr, h, flags);
	if (!result)
		*p = (void *)(uintptr_t)addr;
	return note(result);
}

API int cudaIpcCloseMemHandle(void *p)
{
	int result = start();

	return note(result ? result : cuIpcCloseMemHandle((uint64_t)(uintptr_t)p));
}
