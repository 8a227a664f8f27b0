/* SPDX-License-Identifier: MIT */
/*
 * gdrapi_ext.h - what this library has beyond the interface of gdrapi.h.
 *
 * Other libgdrapi libraries lack these functions: find them by dlsym where
 * that matters. Errors, threads and fork are as gdrapi.h says; a gdr_mem_t is
 * checked as a gdr_mh_t is.
 */
#ifndef GDRAPI_EXT_H
#define GDRAPI_EXT_H

#include "gdrapi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* GPU memory that gdr_mem_alloc made. By value; 0 is never a valid h. */
typedef struct gdr_mem_s {
	unsigned long h;
} gdr_mem_t;

/**
 * gdr_mem_alloc - allocate GPU memory that can be pinned on any backend
 * @g: open library
 * @cuda_device: CUDA's number of the GPU, from 0
 * @size: bytes, not 0; rounded up to what the driver allocates in, which is
 *	usually 2 MiB
 * @flags: 0
 * @mem: receives the memory
 *
 * The memory is of cuMemCreate, shareable by a POSIX file descriptor, and
 * mapped for reading and writing by @cuda_device. CUDA is initialised (cuInit)
 * if it was not, so no child that is forked later can use CUDA. The thread's
 * current context does not change. The contents are undefined.
 *
 * Returns: 0; EINVAL for a @size of 0 or above 128 TiB, a flag, a NULL @mem or a
 * bad @g; ENODEV for a GPU or a CUDA driver that is not there, or in a child of a
 * process that had initialised CUDA; ENOTSUP for one without virtual memory
 * management; ENOMEM; EACCES for a @g from before a fork.
 */
int gdr_mem_alloc(gdr_t g, int cuda_device, size_t size, unsigned flags,
		  gdr_mem_t *mem);

/**
 * gdr_mem_free - free memory of gdr_mem_alloc
 * @g: open library that allocated it
 * @mem: memory; stale from then on
 *
 * Work of the GPU on the memory must be done. A pinning of it may outlive it:
 * see GDR_ATTR_USE_PERSISTENT_MAPPING. gdr_close frees what is left.
 *
 * Returns: 0; EINVAL; EACCES in a forked child.
 */
int gdr_mem_free(gdr_t g, gdr_mem_t mem);

/**
 * gdr_mem_get_device_ptr - where memory of gdr_mem_alloc is
 * @g: open library that allocated it
 * @mem: memory
 * @dptr: receives its GPU address, on a page of GPU_PAGE_SIZE
 * @size: receives the bytes that it really has; may be NULL
 *
 * Returns: 0; EINVAL; EACCES in a forked child.
 */
int gdr_mem_get_device_ptr(gdr_t g, gdr_mem_t mem, unsigned long *dptr,
			   size_t *size);

/**
 * gdr_set_copy_threads - how many threads share a long copy
 * @reads: threads for gdr_copy_from_mapping, the caller among them: 1 to 64
 * @writes: the same for gdr_copy_to_mapping
 *
 * 1 and 1, as it is at first, means that the library starts no thread to copy.
 * GDRCOPY_READ_THREADS and GDRCOPY_WRITE_THREADS in the environment ask for the
 * same; this call goes before them. It may come at any time, and before
 * gdr_open. A forked child begins with its parent's numbers.
 *
 * The threads start with the next gdr_map, or at once when the library is open;
 * a copy itself starts none. They sleep when there is nothing to do, and stay.
 * They may run where the thread that starts them may, and there are never more
 * of them than it has CPUs less one.
 *
 * Reads from 4 KiB and writes from 64 KiB on to write-combined memory are
 * shared, one copy at a time: others that run at the same time are not. What a
 * copy promises is the same. But a fault in a copy (SIGBUS when the driver takes
 * the memory back) may come in a thread of the library's: a handler that leaves
 * the copy by siglongjmp may not be used then.
 *
 * Returns: 0; EINVAL for a number that is not 1 to 64, and nothing changes;
 * ENOMEM when not all threads can be started: those that were are used.
 */
int gdr_set_copy_threads(unsigned reads, unsigned writes);

#ifdef __cplusplus
}
#endif

#endif /* GDRAPI_EXT_H */
