/* SPDX-License-Identifier: MIT */
/*
 * example.h - what the examples share: the driver's calls that they make, and the end
 * of a program whose call failed. With a CUDA toolkit the calls are those of <cuda.h>.
 *
 *	cc write_read.c -o write_read $(pkg-config --cflags --libs gdrapi) -lcuda
 */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gdrapi.h>
#include <gdrapi_ext.h>

#if defined(__has_include)
#if __has_include(<cuda.h>)
#include <cuda.h>
#define EXAMPLE_HAS_CUDA_H
#endif
#endif
#ifndef EXAMPLE_HAS_CUDA_H
typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
#define CU_MEMHOSTALLOC_DEVICEMAP 2
#define CU_STREAM_NON_BLOCKING 1

#define cuMemAlloc cuMemAlloc_v2
#define cuMemFree cuMemFree_v2
#define cuMemcpyHtoD cuMemcpyHtoD_v2
#define cuMemcpyDtoH cuMemcpyDtoH_v2
#define cuMemHostGetDevicePointer cuMemHostGetDevicePointer_v2
CUresult cuInit(unsigned int flags);
CUresult cuGetErrorName(CUresult result, const char **name);
CUresult cuDeviceGet(CUdevice *dev, int ordinal);
CUresult cuDeviceGetName(char *name, int size, CUdevice dev);
CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev);
CUresult cuCtxSetCurrent(CUcontext ctx);
CUresult cuMemAlloc(CUdeviceptr *p, size_t size);
CUresult cuMemFree(CUdeviceptr p);
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size);
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t size);
CUresult cuMemHostAlloc(void **p, size_t size, unsigned int flags);
CUresult cuMemHostGetDevicePointer(CUdeviceptr *dev, void *p, unsigned int flags);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name);
CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
			unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
			CUstream stream, void **params, void **extra);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamSynchronize(CUstream stream);
#endif

enum { EXAMPLE_NO_GPU = 2 };	/* a program's status */

/* Ends the program unless the driver answered 0. */
static inline void cu(CUresult result, const char *call)
{
	const char *name = NULL;

	if (!result)
		return;
	cuGetErrorName(result, &name);	/* NULL: CUDA does not know it */
	fprintf(stderr, "%s: %s (%d)\n", call, name ? name : "unknown error", (int)result);
	exit(1);
}

/* Ends the program unless the library returned 0. */
static inline void gdr(int err, const char *call)
{
	if (!err)
		return;
	fprintf(stderr, "%s: %s; GDRCOPY_ENABLE_LOGGING=1 in the environment makes it say why\n",
		call, strerror(err));
	exit(1);
}

/* Ends the program unless these are the bytes that were sent. */
static inline void same(const void *got, const void *sent, size_t size, const char *who)
{
	if (!memcmp(got, sent, size))
		return;
	fprintf(stderr, "%s reads other bytes than were written\n", who);
	exit(1);
}

/* A context of the first GPU, current in this thread. Status 2 where there is none. */
static inline CUcontext example_context(void)
{
	CUcontext ctx;
	CUdevice dev;

	if (cuInit(0) || cuDeviceGet(&dev, 0)) {
		fprintf(stderr, "no GPU here\n");
		exit(EXAMPLE_NO_GPU);
	}
	cu(cuDevicePrimaryCtxRetain(&ctx, dev), "cuDevicePrimaryCtxRetain");
	cu(cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
	return ctx;
}

static inline gdr_t example_open(void)
{
	gdr_t g = gdr_open();

	if (!g)
		gdr(ENODEV, "gdr_open");
	return g;
}

/* GPU memory that the CPU has mapped. It begins on a page of the GPU, as a mapping must. */
struct example_memory {
	CUdeviceptr allocated;
	CUdeviceptr dev;	/* the GPU's address */
	void *cpu;		/* the CPU's */
	gdr_mh_t mh;
	size_t size;
};

static inline void example_map(gdr_t g, struct example_memory *m, size_t size)
{
	m->size = size;
	cu(cuMemAlloc(&m->allocated, size + GPU_PAGE_SIZE), "cuMemAlloc");
	m->dev = (m->allocated + GPU_PAGE_SIZE - 1) & GPU_PAGE_MASK;
	/* The bytes are the program's own: so a cuMemcpy to them has ended when it returns. */
	gdr(gdr_pin_bytes(g, m->dev, size, 0, &m->mh), "gdr_pin_bytes");
	gdr(gdr_map(g, m->mh, &m->cpu, size), "gdr_map");
}

static inline void example_unmap(gdr_t g, struct example_memory *m)
{
	gdr(gdr_unmap(g, m->mh, m->cpu, m->size), "gdr_unmap");
	gdr(gdr_unpin_buffer(g, m->mh), "gdr_unpin_buffer");
	cu(cuMemFree(m->allocated), "cuMemFree");
}

#endif
