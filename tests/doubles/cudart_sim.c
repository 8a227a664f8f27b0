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
int cuGetErrorName(int result, const char **name);
int cuGetErrorString(int result, const char **text);
int cuDeviceGetCount(int *count);
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
int cuMemHostRegister_v2(void *addr, size_t size, unsigned int flags);
int cuMemHostUnregister(void *addr);
int cuMemcpy(void *dst, const void *src, size_t size);
int cuMemcpyAsync(void *dst, const void *src, size_t size, struct stream *stream);
int cuMemsetD8_v2(void *addr, unsigned char value, size_t n);
int cuStreamCreate(struct stream **stream, unsigned int flags);
int cuStreamDestroy_v2(struct stream *stream);
int cuStreamSynchronize(struct stream *stream);
int cuEventCreate(struct event **event, unsigned int flags);
int cuEventDestroy_v2(struct event *event);
int cuEventRecord(struct event *event, struct stream *stream);
int cuEventQuery(struct event *event);
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

API int cudaRuntimeGetVersion(int *version)
{
	if (!version)
		return note(INVALID_VALUE);
	*version = RUNTIME_VERSION;
	return OK;
}

API int cudaGetLastError(void)
{
	int result = last;

	last = OK;
	return result;
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

/*
 * The rest is the driver's, once a context is current: MADE where ok says that there is room for
 * an answer, or that an argument is one; CALL without such.
 */
#define MADE(name, params, ok, ...)		\
API int name params				\
{						\
	return note(start_if(ok) ?: (__VA_ARGS__));	\
}
#define CALL(name, params, ...) MADE(name, params, true, __VA_ARGS__)

MADE(cudaMalloc, (void **p, size_t size), p, size ? cuMemAlloc_v2(p, size) : (*p = NULL, OK))
MADE(cudaMallocPitch, (void **p, size_t *pitch, size_t width, size_t height), p,
     cuMemAllocPitch_v2(p, pitch, width, height, 4))
MADE(cudaMallocManaged, (void **p, size_t size, unsigned int flags), p, cuMemAllocManaged(p, size, flags))
CALL(cudaMallocHost, (void **p, size_t size), cuMemAllocHost_v2(p, size))
/* The flags are the driver's. */
CALL(cudaHostAlloc, (void **p, size_t size, unsigned int flags), cuMemHostAlloc(p, size, flags))
MADE(cudaHostGetDevicePointer, (void **dptr, void *p, unsigned int flags), dptr,
     cuMemHostGetDevicePointer_v2(dptr, p, flags))
MADE(cudaMallocAsync, (void **p, size_t size, struct stream *s), p, cuMemAllocAsync(p, size, s))
MADE(cudaMallocFromPoolAsync, (void **p, size_t size, struct pool *pool, struct stream *s), p,
     cuMemAllocFromPoolAsync(p, size, pool, s))
CALL(cudaFreeAsync, (void *p, struct stream *s), cuMemFreeAsync(p, s))
MADE(cudaGetSymbolAddress, (void **p, const void *symbol), p, ((void)symbol, INVALID_SYMBOL))
MADE(cudaGetSymbolSize, (size_t *size, const void *symbol), size, ((void)symbol, INVALID_SYMBOL))
/* cudaFree(NULL) makes the context and frees nothing. Programs use that. */
CALL(cudaFree, (void *p), p ? cuMemFree_v2(p) : OK)
CALL(cudaFreeHost, (void *p), p ? cuMemFreeHost(p) : OK)
CALL(cudaHostRegister, (void *p, size_t size, unsigned int flags), cuMemHostRegister_v2(p, size, flags))
CALL(cudaHostUnregister, (void *p), cuMemHostUnregister(p))
/* Unified addresses show the direction. kind is only checked. */
MADE(cudaMemcpy, (void *dst, const void *src, size_t size, int kind), kind >= 0 && kind <= 4,
     cuMemcpy(dst, src, size))
MADE(cudaMemcpyAsync, (void *dst, const void *src, size_t size, int kind, struct stream *s),
     kind >= 0 && kind <= 4, cuMemcpyAsync(dst, src, size, s))
CALL(cudaMemset, (void *p, int value, size_t n), cuMemsetD8_v2(p, (unsigned char)value, n))
CALL(cudaDeviceSynchronize, (void), cuCtxSynchronize())

CALL(cudaStreamCreate, (struct stream **s), cuStreamCreate(s, 0))
CALL(cudaStreamCreateWithFlags, (struct stream **s, unsigned int flags), cuStreamCreate(s, flags))
CALL(cudaStreamDestroy, (struct stream *s), cuStreamDestroy_v2(s))
CALL(cudaStreamSynchronize, (struct stream *s), cuStreamSynchronize(s))

CALL(cudaEventCreateWithFlags, (struct event **e, unsigned int flags), cuEventCreate(e, flags))
CALL(cudaEventDestroy, (struct event *e), cuEventDestroy_v2(e))
CALL(cudaEventRecord, (struct event *e, struct stream *s), cuEventRecord(e, s))
CALL(cudaEventQuery, (struct event *e), cuEventQuery(e))

CALL(cudaIpcGetMemHandle, (struct ipc_handle *h, void *p), cuIpcGetMemHandle(h, p))
MADE(cudaIpcOpenMemHandle, (void **p, struct ipc_handle h, unsigned int flags), p,
     cuIpcOpenMemHandle_v2(p, h, flags))
CALL(cudaIpcCloseMemHandle, (void *p), cuIpcCloseMemHandle(p))
