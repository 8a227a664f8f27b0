/* SPDX-License-Identifier: MIT */
/*
 * bench/cuda.h - driver calls that only the benchmarks make. Each is NULL when
 * the driver has no such call.
 */
#ifndef BENCH_CUDA_H
#define BENCH_CUDA_H

#include "cuda_dl.h"

typedef struct cu_module *cu_module;
typedef struct cu_function *cu_function;
typedef struct cu_stream *cu_stream;

enum {
	CU_DEV_CLOCK_KHZ = 13,		/* attributes of a device */
	CU_DEV_MULTIPROCESSORS = 16,
	CU_ATTR_SYNC_MEMOPS = 6,	/* attribute of a pointer */
	CU_ATTR_BUFFER_ID = 7,
	CU_RANGE_DMA_BUF = 1,		/* kind of handle of a range */
	CU_STREAM_APART = 1,		/* the stream does not wait for stream 0 */
	CU_HOST_MAPPED = 2,		/* the GPU can reach the memory */
	CU_HOST_REGISTER_PORTABLE = 1	/* the memory is page-locked in all contexts */
};

struct bench_cuda {
	int (*module_load)(cu_module *m, const void *image);
	int (*module_unload)(cu_module m);
	int (*module_function)(cu_function *f, cu_module m, const char *name);
	int (*launch)(cu_function f, unsigned int gx, unsigned int gy, unsigned int gz,
		      unsigned int bx, unsigned int by, unsigned int bz,
		      unsigned int shared, cu_stream s, void **params, void **extra);
	/* How many blocks of that many threads a multiprocessor runs at a time. */
	int (*occupancy)(int *blocks, cu_function f, int threads, size_t shared);
	int (*host_alloc)(void **p, size_t size, unsigned int flags);
	int (*host_free)(void *p);
	int (*host_register)(void *p, size_t size, unsigned int flags);
	int (*host_device_ptr)(cu_ptr *d, void *p, unsigned int flags);
	int (*stream_create)(cu_stream *s, unsigned int flags);
	int (*stream_destroy)(cu_stream s);
	int (*stream_sync)(cu_stream s);
	int (*to_gpu_async)(cu_ptr dst, const void *src, size_t n, cu_stream s);
	int (*set_attribute)(const void *value, int attr, cu_ptr p);
	int (*address_range)(cu_ptr *base, size_t *size, cu_ptr p);
	int (*range_handle)(void *handle, cu_ptr p, size_t size, int kind,
			    unsigned long long flags);
};

/* libcuda.so.1 must be loaded already. */
void bench_cuda_load(struct bench_cuda *c);

/* Has the driver compile PTX text, which comes without its .version and .target. */
int bench_cuda_module(const struct bench_cuda *c, cu_module *m, const char *ptx);

/* The first of the calls of a GPU kernel that is missing, or NULL. */
const char *bench_cuda_no_kernels(const struct bench_cuda *c);

#endif
