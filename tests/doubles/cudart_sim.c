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
#include <stdbool.h>
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

/* The driver's calls, with its addresses as the pointers that the runtime has for them. */
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
int cuMemAlloc_v2(void **addr, size_t size);
int cuMemAllocPitch_v2(void **addr, size_t *pitch, size_t width, size_t height,
		       unsigned int element);
int cuMemAllocManaged(void **addr, size_t size, unsigned int flags);
int cuMemAllocHost_v2(void **addr, size_t size);
int cuMemHostAlloc(void **addr, size_t size, unsigned int flags);
int cuMemHostGetDevicePointer_v2(void **dptr, void *addr, unsigned int flags);
int cuMemAllocAsync(void **addr, size_t size, struct stream *stream);
int cuMemAllocFromPoolAsync(void **addr, size_t size, struct pool *pool, struct stream *stream);
int cuMemFreeAsync(void *addr, struct stream *stream);
int cuMemFree_v2(void *addr);
int cuMemFreeHost(void *addr);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
int cuMemHostRegister_v2(void *addr, size_t size, unsigned int flags);
int cuMemHostUnregister(void *addr);
int cuMemcpy(void *dst, const void *src, size_t size);
int cuMemcpyAsync(void *dst, const void *src, size_t size, struct stream *stream);
int cuMemsetD8_v2(void *addr, unsigned char value, size_t n);
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
int cuIpcGetMemHandle(struct ipc_handle *h, void *addr);
int cuIpcOpenMemHandle_v2(void **addr, struct ipc_handle h, unsigned int flags);
int cuIpcCloseMemHandle(void *addr);

_Static_assert(sizeof(void *) == sizeof(uint64_t), "CUdeviceptr");

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
	return cuInit(0) ?: cuDeviceGetCount(n);
}

/* Makes sure that a context is current, or fails. */
static int start(void)
{
	struct ctx *ctx = NULL;
	int n, result = count(&n) ?: cuCtxGetCurrent(&ctx);

	return result || ctx ? result : use(chosen);
}

static int start_if(bool ok)
{
	return ok ? start() : INVALID_VALUE;
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
	return note(start_if(device) ?: cuCtxGetDevice(device));
}

API int cudaDeviceGetAttribute(int *value, int attr, int device)
{
	return note(cuInit(0) ?: cuDeviceGetAttribute(value, attr, device));
}

API int cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
	return note(cuInit(0) ?: cuDeviceCanAccessPeer(can, device, peer));
}

API int cudaDeviceSynchronize(void)
{
	return note(start() ?: cuCtxSynchronize());
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
	int result = start_if(p);

	if (!result && size)
		return note(cuMemAlloc_v2(p, size));
	if (!result)
		*p = NULL;
	return note(result);
}

API int cudaMallocPitch(void **p, size_t *pitch, size_t width, size_t height)
{
	return note(start_if(p) ?: cuMemAllocPitch_v2(p, pitch, width, height, 4));
}

API int cudaMallocManaged(void **p, size_t size, unsigned int flags)
{
	return note(start_if(p) ?: cuMemAllocManaged(p, size, flags));
}

API int cudaMallocHost(void **p, size_t size)
{
	return note(start() ?: cuMemAllocHost_v2(p, size));
}

/* The flags are the driver's. */
API int cudaHostAlloc(void **p, size_t size, unsigned int flags)
{
	return note(start() ?: cuMemHostAlloc(p, size, flags));
}

API int cudaHostGetDevicePointer(void **dptr, void *p, unsigned int flags)
{
	return note(start_if(dptr) ?: cuMemHostGetDevicePointer_v2(dptr, p, flags));
}

API int cudaMallocAsync(void **p, size_t size, struct stream *stream)
{
	return note(start_if(p) ?: cuMemAllocAsync(p, size, stream));
}

API int cudaMallocFromPoolAsync(void **p, size_t size, struct pool *pool, struct stream *stream)
{
	return note(start_if(p) ?: cuMemAllocFromPoolAsync(p, size, pool, stream));
}

API int cudaFreeAsync(void *p, struct stream *stream)
{
	return note(start() ?: cuMemFreeAsync(p, stream));
}

static int no_symbol(const void *out)
{
	return note(start_if(out) ?: INVALID_SYMBOL);
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
	return note(start() ?: (p ? cuMemFree_v2(p) : OK));
}

API int cudaFreeHost(void *p)
{
	return note(start() ?: (p ? cuMemFreeHost(p) : OK));
}

API int cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
	return note(start() ?: cuMemGetInfo_v2(free_bytes, total));
}

API int cudaHostRegister(void *p, size_t size, unsigned int flags)
{
	return note(start() ?: cuMemHostRegister_v2(p, size, flags));
}

API int cudaHostUnregister(void *p)
{
	return note(start() ?: cuMemHostUnregister(p));
}

/* Unified addresses show the direction. kind is only checked. */
API int cudaMemcpy(void *dst, const void *src, size_t size, int kind)
{
	return note(start_if(kind >= 0 && kind <= 4) ?: cuMemcpy(dst, src, size));
}

API int cudaMemcpyAsync(void *dst, const void *src, size_t size, int kind, struct stream *stream)
{
	return note(start_if(kind >= 0 && kind <= 4) ?: cuMemcpyAsync(dst, src, size, stream));
}

API int cudaMemset(void *p, int value, size_t n)
{
	return note(start() ?: cuMemsetD8_v2(p, (unsigned char)value, n));
}

API int cudaStreamCreateWithFlags(struct stream **stream, unsigned int flags)
{
	return note(start() ?: cuStreamCreate(stream, flags));
}

API int cudaStreamCreate(struct stream **stream)
{
	return cudaStreamCreateWithFlags(stream, 0);
}

API int cudaStreamDestroy(struct stream *stream)
{
	return note(start() ?: cuStreamDestroy_v2(stream));
}

API int cudaStreamSynchronize(struct stream *stream)
{
	return note(start() ?: cuStreamSynchronize(stream));
}

API int cudaStreamQuery(struct stream *stream)
{
	return note(start() ?: cuStreamQuery(stream));
}

API int cudaStreamWaitEvent(struct stream *stream, struct event *event, unsigned int flags)
{
	return note(start() ?: cuStreamWaitEvent(stream, event, flags));
}

API int cudaEventCreateWithFlags(struct event **event, unsigned int flags)
{
	return note(start() ?: cuEventCreate(event, flags));
}

API int cudaEventCreate(struct event **event)
{
	return cudaEventCreateWithFlags(event, 0);
}

API int cudaEventDestroy(struct event *event)
{
	return note(start() ?: cuEventDestroy_v2(event));
}

API int cudaEventRecord(struct event *event, struct stream *stream)
{
	return note(start() ?: cuEventRecord(event, stream));
}

API int cudaEventQuery(struct event *event)
{
	return note(start() ?: cuEventQuery(event));
}

API int cudaEventSynchronize(struct event *event)
{
	return note(start() ?: cuEventSynchronize(event));
}

API int cudaIpcGetMemHandle(struct ipc_handle *h, void *p)
{
	return note(start() ?: cuIpcGetMemHandle(h, p));
}

API int cudaIpcOpenMemHandle(void **p, struct ipc_handle h, unsigned int flags)
{
	return note(start_if(p) ?: cuIpcOpenMemHandle_v2(p, h, flags));
}

API int cudaIpcCloseMemHandle(void *p)
{
	return note(start() ?: cuIpcCloseMemHandle(p));
}
