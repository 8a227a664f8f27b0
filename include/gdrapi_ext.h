/* SPDX-License-Identifier: MIT */
/*
 * gdrapi_ext.h - what this library has beyond the interface of gdrapi.h.
 *
 * Other libgdrapi libraries lack these functions: find them by dlsym where
 * that matters. Errors, threads and fork are as gdrapi.h says; a gdr_mem_t and a
 * gdr_cache_t are checked as a gdr_mh_t is.
 */
#ifndef GDRAPI_EXT_H
#define GDRAPI_EXT_H

#include "gdrapi.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * gdr_get_backend - the name of the way by which @g maps GPU memory
 * @g: open library
 * @name: receives "gdrdrv", "dmabuf", "rm" or "vulkan", with a NUL at its end
 * @size: bytes at @name; 16 are enough
 *
 * A library that was opened before CUDA was initialised may not know yet: its
 * first pin decides, and until then the name is "dmabuf|rm". From any thread.
 *
 * Returns: 0; EINVAL for a NULL @name or a bad @g; ERANGE for a @size that is too
 * small; EACCES for a @g from before a fork.
 */
int gdr_get_backend(gdr_t g, char *name, size_t size);

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
 * gdr_mem_export_dmabuf - memory of gdr_mem_alloc as a dma-buf
 * @g: open library that allocated it
 * @mem: memory
 * @flags: 0, or GDR_PIN_FLAG_FORCE_PCIE
 * @fd: receives a descriptor that the caller closes; it does not survive exec
 *
 * The driver of another device imports the descriptor, and that device reads and
 * writes the GPU memory by DMA: a capture card, a network card. The dma-buf has all
 * the bytes that gdr_mem_get_device_ptr tells. It keeps the memory, after
 * gdr_mem_free too, until the descriptor and what was imported are closed. The
 * GPU's driver must export dma-bufs: with NVIDIA's open kernel modules it does.
 * Any backend will do. The thread's current context does not change.
 *
 * Returns: 0; EINVAL for another flag, a NULL @fd, and a bad @g or @mem; ENOTSUP for
 * a GPU or a driver that exports none; EMFILE; EACCES in a forked child.
 */
int gdr_mem_export_dmabuf(gdr_t g, gdr_mem_t mem, unsigned flags, int *fd);

/* One piece of a copy of many; 32 bytes. */
typedef struct gdr_piece_s {
	gdr_mh_t handle;	/* mapped buffer */
	void *map_d_ptr;	/* anywhere inside its mapping */
	void *h_ptr;		/* in the memory of the process; writes only read it */
	size_t size;		/* bytes; a piece of 0 bytes is not copied */
} gdr_piece_t;

/**
 * gdr_copy_to_mapping_v - write many pieces to GPU memory
 * @pieces: what goes where; the pieces may be of different buffers
 * @count: how many; 0 does nothing
 *
 * Does what a gdr_copy_to_mapping of each piece would, and takes less time: the
 * pieces are written in any order, and one fence comes after all of them. So a
 * flag for data of the same call needs a call of its own, after this one. All
 * pieces are checked before the first byte moves, and what the pieces are must not
 * change during the call. Pieces that overlap are written in no order. Threads,
 * DMA and signal handlers: as gdr_copy_to_mapping; each piece counts for itself.
 *
 * Returns: 0, and all is written; else nothing is: EINVAL, EAGAIN and EACCES as
 * gdr_copy_to_mapping, for the first piece that is wrong, and EINVAL when @pieces
 * is NULL and @count is not 0.
 */
int gdr_copy_to_mapping_v(const gdr_piece_t *pieces, size_t count);

/**
 * gdr_copy_from_mapping_v - read many pieces of GPU memory
 * @pieces: what goes where; the pieces may be of different buffers
 * @count: how many; 0 does nothing
 *
 * As gdr_copy_to_mapping_v in the other direction. The pieces are read in any
 * order, by one CPU up to 16 lines of 64 bytes at a time; calls of
 * gdr_copy_from_mapping wait for one after the other. All loads are done, and in
 * order before every later load of this thread, when the call returns.
 *
 * Returns: as gdr_copy_to_mapping_v.
 */
int gdr_copy_from_mapping_v(const gdr_piece_t *pieces, size_t count);

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
 * They run on the CPUs that the thread which starts them may use, those of its
 * NUMA node if they are enough, each on some of its own. There are never more of
 * them than it has CPUs less one.
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

/* Who makes long copies; the size of an int. */
typedef enum gdr_copy_policy {
	GDR_COPY_POLICY_CALLER = 0,	/* the thread that calls, and who it asked for */
	GDR_COPY_POLICY_AUTO = 1	/* who is thought to take the least time */
} gdr_copy_policy_t;

/**
 * gdr_set_copy_policy - have the library choose how long copies are made
 * @policy: GDR_COPY_POLICY_CALLER, as it is at first, or GDR_COPY_POLICY_AUTO
 *
 * With GDR_COPY_POLICY_AUTO each read from 4 KiB and each write from 64 KiB on is
 * made by the way that takes the least time for so many bytes: by the caller, by
 * threads as of gdr_set_copy_threads, or by the GPU's copy engine as with
 * GDRCOPY_DMA_READ. The library begins with times that were measured on an H200 and
 * goes on with those of the copies that it makes; it tries a way that it does not
 * know well if that may be the fastest. GDRCOPY_COPY=auto in the environment asks for
 * the same; this call goes before it. It may come at any time, and before gdr_open.
 *
 * As many as 8 threads share a read and 2 a write, unless gdr_set_copy_threads or the
 * environment says how many. They start, and the copy engine is made ready, with the
 * next gdr_map: it makes copies of what is mapped from then on. Such copies call the
 * driver: they must not be made in a signal handler.
 *
 * Returns: 0; EINVAL for another @policy, and nothing changes; ENOMEM when not all
 * threads can be started: those that were are used.
 */
int gdr_set_copy_policy(gdr_copy_policy_t policy);

/* What a copy is thought to take, in nanoseconds; 32 bytes. */
typedef struct gdr_copy_times_s {
	unsigned long caller;	/* by the thread that calls */
	unsigned long shared;	/* by threads that are awake */
	unsigned long waking;	/* by threads that sleep */
	unsigned long dma;	/* by the GPU's copy engine */
} gdr_copy_times_t;

/**
 * gdr_get_copy_times - what GDR_COPY_POLICY_AUTO chooses by
 * @to_gpu: 1 for writes, 0 for reads
 * @size: bytes of a copy; not 0
 * @times: receives the times
 *
 * Before copies of about @size bytes have been made with that policy, the times are
 * those that the library begins with. A way that this process does not have (no
 * threads, no CUDA driver) is never chosen, whatever its time. Needs no gdr_open, and
 * may be called in a signal handler.
 *
 * Returns: 0; EINVAL for another @to_gpu, a @size of 0 and a NULL @times.
 */
int gdr_get_copy_times(int to_gpu, size_t size, gdr_copy_times_t *times);

/* A registration cache that gdr_cache_open made. By value; 0 is never a valid h. */
typedef struct gdr_cache_s {
	unsigned long h;
} gdr_cache_t;

/**
 * gdr_cache_open - make a registration cache
 * @g: open library that pins for it
 * @max_bytes: how much to keep pinned while nobody uses it; not 0
 * @flags: 0
 * @c: receives the cache
 *
 * A cache keeps GPU memory pinned and mapped after it was used (lazy unpinning),
 * and hands it out again, as long as the memory is still the one that was pinned.
 * Nothing is kept by itself: only what gdr_cache_get pinned is.
 *
 * gdr_close of @g ends the cache, too: it then answers EINVAL. 64 caches may be
 * open in a process.
 *
 * Returns: 0; EINVAL for a @max_bytes of 0, a flag, a NULL @c or a bad @g;
 * ENOMEM; EACCES in a forked child.
 */
int gdr_cache_open(gdr_t g, size_t max_bytes, unsigned flags, gdr_cache_t *c);

/**
 * gdr_cache_get - have GPU memory pinned and mapped, and hold it
 * @c: cache
 * @addr: GPU address of the first byte, of any alignment
 * @size: bytes, not 0; one allocation must hold them all
 * @mh: receives the pinned buffer that has them
 * @va: receives the CPU's address of the byte at @addr
 *
 * A hit is a range in the cache that has all the bytes and was pinned in the
 * allocation that is there now: the CUDA driver is asked for its buffer ID
 * (CU_POINTER_ATTRIBUTE_BUFFER_ID), which no two allocations share. A hit makes
 * that call and takes no lock, makes no system call of its own and allocates
 * nothing. On a miss the range is pinned, widened to pages of GPU_PAGE_SIZE as
 * far as its allocation goes, and mapped with the type that suits the machine.
 * What was pinned in an allocation that is gone is unpinned as soon as that is
 * noticed and nobody holds it.
 *
 * The range stays mapped until gdr_cache_put has been called as often as this,
 * whatever happens to other ranges; gdr_cache_close and gdr_close alone end it
 * earlier. @mh is for the copies and gdr_get_info: do not unmap or unpin it.
 *
 * Once more than @max_bytes are pinned, ranges that nobody holds are unpinned, the
 * one first that was asked for the longest time ago. So more than that is pinned
 * only while it is held; and also 16384 ranges at most. When memory or file
 * descriptors do not suffice to pin, ranges are unpinned in the same order.
 *
 * Returns: 0; EINVAL for a @size of 0, a range that wraps or ends past its
 * allocation, an @addr that is not GPU memory, a NULL @mh or @va, or a bad @c;
 * ENOTSUP for a range over several allocations, memory that has no buffer ID, and
 * in a process that has not loaded libcuda.so.1; and as gdr_pin_buffer and gdr_map.
 */
int gdr_cache_get(gdr_cache_t c, unsigned long addr, size_t size, gdr_mh_t *mh,
		  void **va);

/**
 * gdr_cache_put - end one hold of gdr_cache_get
 * @c: cache
 * @mh: what gdr_cache_get gave
 *
 * The caller's loads and stores through the mapping must be over. The range stays
 * pinned, unless it is stale or the cache is too big.
 *
 * Returns: 0; EINVAL when nobody holds @mh or when it is not of @c, and for a bad
 * @c; EACCES in a forked child.
 */
int gdr_cache_put(gdr_cache_t c, gdr_mh_t mh);

/**
 * gdr_cache_flush - unpin all that nobody holds
 * @c: cache
 *
 * A pinning keeps GPU memory that was freed from being used for anything else
 * where GDR_ATTR_USE_PERSISTENT_MAPPING is 1: this gives it back.
 *
 * Returns: 0; EINVAL; EACCES in a forked child.
 */
int gdr_cache_flush(gdr_cache_t c);

/**
 * gdr_cache_close - end a cache
 * @c: cache; stale from then on
 *
 * All its ranges are unmapped and unpinned, after the copies in progress. That
 * goes for those that are held, too: their handles are stale, and a load or store
 * through their mappings faults.
 *
 * Returns: 0; EINVAL; EACCES in a forked child.
 */
int gdr_cache_close(gdr_cache_t c);

#ifdef __cplusplus
}
#endif

#endif /* GDRAPI_EXT_H */
