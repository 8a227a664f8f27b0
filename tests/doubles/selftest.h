/* SPDX-License-Identifier: MIT */
/*
 * What the self-tests of the simulated libcuda share: the calls, by name from
 * the library under test.
 */
#ifndef SELFTEST_H
#define SELFTEST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "selftest_tap.h"

typedef uint64_t cu_ptr;
typedef void *cu_ctx;

struct place {
	int type, id;
};

struct want {
	int type, handle_types;
	struct place place;
	void *win32;
	uint8_t compression, rdma;
	uint16_t usage;
	uint8_t zero[4];
};

struct grant {
	struct place place;
	int flags;
};

#define MIB (1ull << 20)
#define PAGE ((size_t)4096)

int cuInit(unsigned int flags);
int cuDriverGetVersion(int *v);
int cuGetErrorName(int result, const char **name);
int cuGetErrorString(int result, const char **text);
int cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status);
int cuDeviceGet(int *dev, int ordinal);
int cuDeviceGetCount(int *n);
int cuDeviceGetName(char *name, int len, int dev);
int cuDeviceGetUuid(unsigned char *uuid, int dev);
int cuDeviceGetUuid_v2(unsigned char *uuid, int dev);
int cuDeviceGetAttribute(int *v, int attr, int dev);
int cuDevicePrimaryCtxRetain(cu_ctx *ctx, int dev);
int cuDevicePrimaryCtxRelease_v2(int dev);
int cuDevicePrimaryCtxReset_v2(int dev);
int cuDevicePrimaryCtxGetState(int dev, unsigned int *flags, int *active);
int cuCtxCreate_v2(cu_ctx *ctx, unsigned int flags, int dev);
int cuCtxDestroy_v2(cu_ctx ctx);
int cuCtxGetCurrent(cu_ctx *ctx);
int cuCtxSetCurrent(cu_ctx ctx);
int cuCtxPushCurrent_v2(cu_ctx ctx);
int cuCtxPopCurrent_v2(cu_ctx *ctx);
int cuCtxGetDevice(int *dev);
int cuCtxSynchronize(void);
int cuCtxGetFlags(unsigned int *flags);
int cuCtxSetFlags(unsigned int flags);
int cuStreamCreate(void **stream, unsigned int flags);
int cuStreamDestroy_v2(void *stream);
int cuStreamSynchronize(void *stream);
int cuStreamQuery(void *stream);
int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamEndCapture(void *stream, void **graph);
int cuStreamIsCapturing(void *stream, int *status);
int cuThreadExchangeStreamCaptureMode(int *mode);
int cuGraphDestroy(void *graph);
int cuMemAlloc_v2(cu_ptr *p, size_t size);
int cuMemFree_v2(cu_ptr p);
int cuMemAllocHost_v2(void **p, size_t size);
int cuStreamWriteValue32_v2(void *stream, cu_ptr p, uint32_t value, unsigned int flags);
int cuMemFreeHost(void *p);
int cuMemHostRegister_v2(void *p, size_t size, unsigned int flags);
int cuMemHostUnregister(void *p);
int cuMemHostGetDevicePointer_v2(cu_ptr *dptr, void *p, unsigned int flags);
int cuMemGetAddressRange_v2(cu_ptr *base, size_t *size, cu_ptr p);
int cuMemcpyHtoD_v2(cu_ptr dst, const void *src, size_t n);
int cuMemcpyDtoH_v2(void *dst, cu_ptr src, size_t n);
int cuMemcpyDtoD_v2(cu_ptr dst, cu_ptr src, size_t n);
int cuMemcpyHtoDAsync_v2(cu_ptr dst, const void *src, size_t n, void *stream);
int cuMemcpyDtoHAsync_v2(void *dst, cu_ptr src, size_t n, void *stream);
int cuMemsetD8_v2(cu_ptr p, unsigned char v, size_t n);
int cuMemsetD8Async(cu_ptr p, unsigned char v, size_t n, void *stream);
int cuMemsetD32_v2(cu_ptr p, unsigned int v, size_t n);
int cuPointerGetAttribute(void *data, int attr, cu_ptr p);
int cuPointerGetAttributes(unsigned int n, int *attrs, void **data, cu_ptr p);
int cuPointerSetAttribute(const void *data, int attr, cu_ptr p);
int cuMemGetAllocationGranularity(size_t *g, const struct want *w, int option);
int cuMemCreate(uint64_t *h, size_t size, const struct want *w, uint64_t flags);
int cuMemRelease(uint64_t h);
int cuMemAddressReserve(cu_ptr *p, size_t size, size_t align, cu_ptr at, uint64_t flags);
int cuMemAddressFree(cu_ptr p, size_t size);
int cuMemMap(cu_ptr p, size_t size, size_t offset, uint64_t h, uint64_t flags);
int cuMemUnmap(cu_ptr p, size_t size);
int cuMemSetAccess(cu_ptr p, size_t size, const struct grant *g, size_t n);
int cuMemRetainAllocationHandle(uint64_t *h, void *p);
int cuMemGetAllocationPropertiesFromHandle(struct want *w, uint64_t h);
int cuMemExportToShareableHandle(void *out, uint64_t h, int type, uint64_t flags);
int cuMemImportFromShareableHandle(uint64_t *h, void *os, int type);
int cuMemGetHandleForAddressRange(void *out, cu_ptr p, size_t size, int type, uint64_t flags);
void cuda_sim_fail(const char *name, int result, int nth);
unsigned long cuda_sim_live(void);
unsigned int cuda_sim_streams(unsigned int flags);
unsigned int cuda_sim_called(char *names, size_t size);
int cuda_sim_kernel_start(cu_ptr p, size_t size);
int cuda_sim_kernel_end(void);

/* VMM memory of dev, mapped and accessible, for tests of other things. */
struct vmm {
	uint64_t handle;
	cu_ptr addr;
	size_t size;
};
struct want want_on(int dev, int handle_types);
struct vmm vmm_make(int dev, size_t size, int handle_types);
void vmm_free(struct vmm *v);

/* An attribute of a pointer that has it. */
cu_ptr attribute(int which, cu_ptr p);

void test_old_driver(void);
void test_memory(void);
void test_runtime(void);
void test_consumers(void);
void test_vmm(void);
void test_export(void);
void test_destroyed(void);
void test_capture(void);

#endif
