/* SPDX-License-Identifier: MIT */
/*
 * relaxed.h - C's calls of the CUDA driver: one way to make them.
 *
 * Whatever the library asks of CUDA must not end a capture of a CUDA graph, on this thread
 * or on another, and must leave the thread as it was.
 */
#ifndef GDR_RELAXED_H
#define GDR_RELAXED_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Functions of libcuda.so.1. All return a CUresult: 0, or an error above 0. */
struct gdr_cuda_calls {
	int (*attributes)(unsigned int n, int *names, void **values, uint64_t ptr);
	int (*push)(void *ctx);
	int (*pop)(void **ctx);
	int (*stream_wait)(void *stream);
	int (*to)(uint64_t dst, const void *src, size_t n, void *stream);
	int (*from)(void *dst, uint64_t src, size_t n, void *stream);
	/* NULL in an old driver */
	int (*write)(void *stream, uint64_t at, uint32_t value, unsigned int flags);
	int (*exchange_mode)(int *mode);
};

/* gdr_cuda_run alone reads it. Go fills it (dma.go). */
struct gdr_cuda {
	struct gdr_cuda_calls unscoped;
};

typedef int gdr_cuda_work(const struct gdr_cuda_calls *c, void *arg);

/*
 * Calls work with the driver's functions. Meanwhile ctx is current; the thread's capture mode is relaxed; it gets no signals and
 * is not cancelled, so no handler leaves the driver by siglongjmp. Returns what work
 * returns, or the driver's error. work must not touch memory of the host's that may fault.
 */
int gdr_cuda_run(const struct gdr_cuda *cuda, void *ctx, gdr_cuda_work *work, void *arg);

#pragma GCC visibility pop

#endif
