/* SPDX-License-Identifier: MIT */
/*
 * bench/gpu.h - a GPU, an open library, and GPU memory with a mapping of it.
 */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include <stdint.h>

#include "opt.h"
#include "out.h"
#include "cuda_dl.h"
#include "gdrapi.h"
#include "gdrapi_ext.h"

/* GPU memory of one kind; what the kind does not need is 0. */
struct bench_buf {
	enum bench_mem kind;
	unsigned long addr;	/* on a page of GPU_PAGE_SIZE */
	size_t size;		/* a multiple of GPU_PAGE_SIZE */
	gdr_mem_t ext;
	cu_ptr raw;		/* what the driver gave; addr is inside */
	size_t raw_size;
	cu_mem mem;
};

struct bench_map {
	gdr_mh_t mh;
	void *va;		/* what gdr_map gave */
	size_t size;		/* what gdr_map was given */
	uint8_t *p;		/* the first byte that was pinned */
	gdr_info_t info;	/* while mapped */
};

struct bench_gpu {
	const struct bench_tool *tool;
	const struct bench_opts *opts;
	struct cuda_dl cu;
	cu_ctx ctx;		/* primary context, current in the main thread */
	int dev;
	gdr_t g;
};

/* These end the program with a message if anything fails. */

/* Starts CUDA on opts->gpu, and sets GDRCOPY_BACKEND by opts->backend. */
void bench_gpu_start(struct bench_gpu *b, const struct bench_tool *tool,
		     const struct bench_opts *opts);
/* Opens the library. */
void bench_gpu_open(struct bench_gpu *b);
void bench_gpu_stop(struct bench_gpu *b);

/* size is rounded up to GPU_PAGE_SIZE. */
void bench_buf_alloc(struct bench_gpu *b, struct bench_buf *buf, size_t size);
void bench_buf_free(struct bench_gpu *b, struct bench_buf *buf);

/* Pins and maps all of buf, with the mapping type of the options. */
void bench_map_make(struct bench_gpu *b, struct bench_map *m,
		    const struct bench_buf *buf);
void bench_map_drop(struct bench_gpu *b, struct bench_map *m);

/* Writes and reads GPU memory by the driver and waits for the end of that. */
void bench_gpu_put(struct bench_gpu *b, unsigned long addr, const void *src, size_t n);
void bench_gpu_get(struct bench_gpu *b, void *dst, unsigned long addr, size_t n);

/* What gdr_open chose; of NVIDIA's library, what its attributes tell. */
const char *bench_backend(struct bench_gpu *b);

/* Facts about the GPU, the library and, if m is not NULL, its mapping. */
void bench_gpu_facts(struct bench_gpu *b, const struct bench_map *m,
		     struct bench_result *r);

/* The GPU's clocks in so many seconds; the most there can be for 0. */
unsigned long long bench_gpu_clocks(const struct bench_gpu *b, long seconds);

/* Ends the program unless result is CU_OK; what is the call's name. */
void bench_cu(const struct bench_gpu *b, int result, const char *what);
/* Ends the program unless rc, an errno value, is 0. */
void bench_rc(int rc, const char *what);

/* Runs the calling thread on that CPU; -1 leaves it alone. */
void bench_on_cpu(int cpu);

/* Bytes that differ by place and by seed, so that a wrong place or a stale copy shows. */
void bench_fill(void *p, size_t n, uint64_t seed);

/* Memory on a page's boundary, touched, and filled with seed 0. */
void *bench_host_alloc(size_t n);

#endif
