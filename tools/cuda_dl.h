/* SPDX-License-Identifier: MIT */
/*
 * cuda_dl.h - the few driver calls that the tools make, found at run time in
 * libcuda.so.1, so that no CUDA toolkit is needed to build them.
 */
#ifndef CUDA_DL_H
#define CUDA_DL_H

#include <stdbool.h>
#include <stddef.h>

typedef unsigned long long cu_ptr;	/* address in GPU memory */
typedef unsigned long long cu_mem;	/* memory of cuMemCreate */
typedef struct cu_context *cu_ctx;
typedef struct cu_module *cu_module;
typedef struct cu_function *cu_function;
typedef struct cu_stream *cu_stream;

/* Results that the tools tell apart. */
enum {
	CU_OK = 0,
	CU_INVALID_VALUE = 1,
	CU_OUT_OF_MEMORY = 2,
	CU_NO_DEVICE = 100,
	CU_NOT_SUPPORTED = 801
};

/* Device attributes. */
enum {
	CU_DEV_CLOCK_KHZ = 13,
	CU_DEV_MULTIPROCESSORS = 16,
	CU_DEV_HOST_PAGE_TABLES = 100,	/* the CPU caches the GPU's memory, as on Grace */
	CU_DEV_VMM_RDMA = 110,	/* memory of cuMemCreate is fit for gdrdrv */
	CU_DEV_DMA_BUF = 124	/* memory can be exported as a dma-buf */
};

/* Pointer attributes. */
enum {
	CU_ATTR_P2P_TOKENS = 5,
	CU_ATTR_SYNC_MEMOPS = 6,
	CU_ATTR_BUFFER_ID = 7
};

enum { CU_STREAM_APART = 1 };	/* the stream does not wait for stream 0 */
enum { CU_HOST_MAPPED = 2 };	/* the GPU can reach the memory */

/* What CU_ATTR_P2P_TOKENS gives. */
struct cu_tokens {
	unsigned long long p2p_token;
	unsigned int va_space;
};

/* A place for memory: the GPU of that number. */
struct cu_place {
	int type;
	int id;
};
enum { CU_PLACE_GPU = 1 };

/* What cuMemCreate is asked for; 32 bytes. */
struct cu_mem_want {
	int type;
	int fd_type;	/* how it may be exported; CU_EXPORT_* */
	struct cu_place place;
	void *windows_only;
	unsigned char compression;
	unsigned char rdma;	/* 1: a peer device shall be able to reach it */
	unsigned short usage;
	unsigned char zero[4];
};
enum { CU_MEM_PINNED = 1, CU_EXPORT_NONE = 0, CU_EXPORT_FD = 1 };

/* Who may reach mapped memory; 12 bytes. */
struct cu_access {
	struct cu_place place;
	int flags;
};
enum { CU_ACCESS_RW = 3 };

_Static_assert(sizeof(struct cu_mem_want) == 32, "the driver's layout");
_Static_assert(sizeof(struct cu_access) == 12, "the driver's layout");

/* The calls. cuda_load leaves those of GPU kernels NULL that the driver lacks. */
struct cuda_dl {
	/* This is the project's own test double, with the limits that its
	 * messages state.
	 */
	bool simulated;
	int (*init)(unsigned int flags);
	int (*driver_version)(int *version);
	int (*device_count)(int *count);
	int (*device_get)(int *dev, int ordinal);
	int (*device_name)(char *name, int len, int dev);
	int (*device_attribute)(int *value, int attr, int dev);
	int (*primary_retain)(cu_ctx *ctx, int dev);
	int (*primary_release)(int dev);
	int (*ctx_get)(cu_ctx *ctx);
	int (*ctx_set)(cu_ctx ctx);
	int (*ctx_sync)(void);
	int (*mem_alloc)(cu_ptr *p, size_t size);
	int (*mem_free)(cu_ptr p);
	int (*to_gpu)(cu_ptr dst, const void *src, size_t size);
	int (*from_gpu)(void *dst, cu_ptr src, size_t size);
	int (*set8)(cu_ptr p, unsigned char value, size_t size);
	int (*pointer_attribute)(void *value, int attr, cu_ptr p);
	int (*granularity)(size_t *size, const struct cu_mem_want *want, int option);
	int (*create)(cu_mem *mem, size_t size, const struct cu_mem_want *want,
		      unsigned long long flags);
	int (*release)(cu_mem mem);
	int (*reserve)(cu_ptr *p, size_t size, size_t align, cu_ptr at,
		       unsigned long long flags);
	int (*unreserve)(cu_ptr p, size_t size);
	int (*map)(cu_ptr p, size_t size, size_t offset, cu_mem mem,
		   unsigned long long flags);
	int (*unmap)(cu_ptr p, size_t size);
	int (*set_access)(cu_ptr p, size_t size, const struct cu_access *who,
			  size_t count);
	int (*error_name)(int result, const char **name);

	/* Of GPU kernels. */
	const char *no_kernels;	/* the first call that the driver lacks, or NULL */
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
	int (*host_device_ptr)(cu_ptr *d, void *p, unsigned int flags);
	int (*stream_create)(cu_stream *s, unsigned int flags);
	int (*stream_destroy)(cu_stream s);
	int (*stream_sync)(cu_stream s);
};

/*
 * Finds the calls. Returns NULL, or what went wrong. CUDA is not initialised.
 */
const char *cuda_load(struct cuda_dl *cu);

/* The driver's name of a result; never NULL. */
const char *cuda_error(const struct cuda_dl *cu, int result);

/* Has the driver compile PTX text, which comes without its .version and .target. */
int cuda_module(const struct cuda_dl *cu, cu_module *m, const char *ptx);

#endif
