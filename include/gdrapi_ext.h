/* SPDX-License-Identifier: MIT */
/*
 * gdrapi_ext.h - the functions of this library that gdrapi.h does not have.
 *
 * Other libgdrapi libraries lack these functions. A program that must run with other
 * libraries, too, finds the functions by dlsym. What gdrapi.h says about errors, threads
 * and fork holds here, too. The library checks a gdr_mem_t and a gdr_cache_t as it
 * checks a gdr_mh_t.
 */
#ifndef GDRAPI_EXT_H
#define GDRAPI_EXT_H

#include "gdrapi.h"

/*
 * Which functions this header has: the number grows when functions are added. Functions
 * that came with number N have the symbol version GDRAPI_EXT_N; the functions of gdrapi.h
 * have no version.
 */
#define GDRAPI_EXT_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/**
 * gdr_ext_version - which build of the library this is
 *
 * The text is one line, such as "libgdrapi 2.6.0 (commit 0123456789ab, go1.27.0, backends
 * gdrdrv dmabuf rm)": the release, the commit that was built or "unknown", Go's version,
 * and all backends in the order in which gdr_open tries them. The library owns the text.
 * The text is for people: a program asks gdr_runtime_get_version and gdr_get_backend.
 *
 * Starts nothing. May be called from any thread at any time, even in a signal handler or
 * a forked child.
 *
 * Returns: the text; never NULL.
 */
const char *gdr_ext_version(void);

/**
 * gdr_get_backend - the name of the backend of an open library
 * @g: open library
 * @name: receives "gdrdrv", "dmabuf" or "rm", and a NUL
 * @size: bytes at @name; 16 are enough
 *
 * If gdr_open could not decide between dmabuf and rm, the name is "dmabuf|rm"
 * until the first pin. May be called from any thread.
 *
 * Returns: 0; EINVAL for a NULL @name or a bad @g; ERANGE for a @size that is too
 * small; EACCES for a @g from before a fork.
 */
int gdr_get_backend(gdr_t g, char *name, size_t size);

/**
 * gdr_pin_bytes - pin the caller's own bytes, of any alignment, so that they can be mapped
 * @g: open library
 * @addr: GPU address of the first byte
 * @size: bytes, not 0; all of them are the caller's
 * @flags: gdr_pin_flags_t values or-ed; other bits are ignored
 * @handle: receives the pinned buffer
 *
 * The buffer begins at @addr rounded down to the backend's page: gdr_get_info gives this
 * address as va. So the byte at @addr lies @addr - va bytes behind the address that gdr_map
 * gives, and a mapping of all bytes has the size @addr - va + @size. Other bytes on the
 * first and the last page may belong to anybody. gdr_pin_buffer says on which backends
 * other threads may free them during the call.
 *
 * No other thread may free the memory of @addr to @addr + @size during the call. The call
 * sets CUDA's attribute SYNC_MEMOPS on this memory, even if the bytes are whole pages, and
 * on no other memory: gdr_pin_buffer says what the attribute does. Otherwise the call does
 * what gdr_pin_buffer_v2 does. May be called from any thread.
 *
 * Returns: as gdr_pin_buffer_v2.
 */
int gdr_pin_bytes(gdr_t g, unsigned long addr, size_t size, unsigned flags,
		  gdr_mh_t *handle);

/* GPU memory from gdr_mem_alloc. It is passed by value. 0 is never a valid h. */
typedef struct gdr_mem_s {
	unsigned long h;
} gdr_mem_t;

/**
 * gdr_mem_alloc - allocate GPU memory that can be pinned on any backend
 * @g: open library
 * @cuda_device: CUDA's number of the GPU, from 0
 * @size: bytes, not 0; rounded up to the driver's unit, which is usually 2 MiB
 * @flags: 0
 * @mem: receives the memory
 *
 * The library makes the memory with cuMemCreate. The memory can be exported as a
 * POSIX file descriptor. @cuda_device can read and write the memory; its contents are
 * undefined. The thread's current context does not change.
 *
 * If the thread has no context of that GPU and nobody holds the GPU's primary
 * context, the call makes the primary context, which takes 0.2 s on an H100, and
 * gdr_close releases it. So no later allocation and no pin makes another context.
 *
 * The call initialises CUDA (cuInit) if the process has not done so. A child
 * that is forked after that cannot use CUDA.
 *
 * Returns: 0;
 * EINVAL for a @size of 0 or above 128 TiB, a flag, a NULL @mem or a bad @g;
 * ENODEV for a GPU or a CUDA driver that does not exist, and in a child of a
 * process that had initialised CUDA;
 * ENOTSUP if the GPU or the driver has no virtual memory management;
 * ENOMEM;
 * EACCES for a @g from before a fork.
 */
int gdr_mem_alloc(gdr_t g, int cuda_device, size_t size, unsigned flags,
		  gdr_mem_t *mem);

/**
 * gdr_mem_free - free memory from gdr_mem_alloc
 * @g: open library that allocated it
 * @mem: memory; stale from then on
 *
 * The GPU's work on the memory must be done. A pinning of the memory may outlive
 * this call: see GDR_ATTR_USE_PERSISTENT_MAPPING. gdr_close frees all memory of @g.
 *
 * Returns: 0; EINVAL; EACCES in a forked child.
 */
int gdr_mem_free(gdr_t g, gdr_mem_t mem);

/**
 * gdr_mem_get_device_ptr - GPU address and size of memory from gdr_mem_alloc
 * @g: open library that allocated it
 * @mem: memory
 * @dptr: receives its GPU address, a multiple of GPU_PAGE_SIZE
 * @size: receives its size in bytes, after rounding up; may be NULL
 *
 * Returns: 0; EINVAL; EACCES in a forked child.
 */
int gdr_mem_get_device_ptr(gdr_t g, gdr_mem_t mem, unsigned long *dptr,
			   size_t *size);

/**
 * gdr_mem_export_dmabuf - export memory from gdr_mem_alloc as a dma-buf
 * @g: open library that allocated it
 * @mem: memory
 * @flags: 0, or GDR_PIN_FLAG_FORCE_PCIE
 * @fd: receives a descriptor that the caller closes; it does not survive exec
 *
 * The driver of another device, such as a capture card, imports the
 * descriptor. Then that device reads and writes the GPU memory by DMA. The dma-buf
 * has all bytes of the memory, as many as gdr_mem_get_device_ptr says. The dma-buf keeps
 * the memory alive, even after gdr_mem_free, until the descriptor and all imports
 * are closed. The GPU's driver must export dma-bufs: NVIDIA's open kernel modules
 * do. The call works on every backend. The thread's current context does not
 * change.
 *
 * Returns: 0; EINVAL for another flag, a NULL @fd, and a bad @g or @mem; ENOTSUP if the
 * GPU or the driver exports no dma-bufs; EMFILE; EACCES in a forked child.
 */
int gdr_mem_export_dmabuf(gdr_t g, gdr_mem_t mem, unsigned flags, int *fd);

/* Flag of gdr_export_fd: refuse a buffer that is smaller than its memory objects. */
#define GDR_EXPORT_FLAG_WHOLE 0x1

/**
 * gdr_export_fd - make a file descriptor for a pinned buffer, for another process
 * @g: open library that pinned it
 * @handle: pinned buffer, mapped or not
 * @flags: 0 or GDR_EXPORT_FLAG_WHOLE
 * @fd: receives a descriptor that the caller closes; it does not survive exec
 *
 * Another process gets the descriptor over a socket (SCM_RIGHTS), or inherits the
 * descriptor. The descriptor says on which GPU and where in its memory the buffer is. The
 * descriptor keeps the memory, even after cudaFree and the end of this process, if the GPU
 * is in persistence mode, or while any process has the GPU open. nvidia-smi lists nobody
 * for such memory. lsof /dev/nvidiactl lists who holds descriptors, except a descriptor
 * that waits in a socket.
 *
 * CUDA imports the descriptor, too, if gdr_get_object counts one object:
 *
 *	1. cuMemImportFromShareableHandle, as a POSIX file descriptor.
 *	2. cuMemAddressReserve, cuMemMap and cuMemSetAccess, with the length of gdr_get_object.
 *	3. The buffer's first pinned page is at the offset of gdr_get_object.
 *
 * The import was seen only with driver 580.159.04; gdr_pin_fd does not depend on CUDA's
 * import. If a buffer lies in several objects, CUDA refuses its descriptor with
 * CUDA_ERROR_NOT_SUPPORTED.
 *
 * Whoever has the descriptor can read and write whole memory objects: with cudaMalloc up
 * to 2 MiB, in which other allocations may lie, with PyTorch a block of many tensors. CUDA
 * IPC gives the same. With GDR_EXPORT_FLAG_WHOLE the call refuses a buffer that is smaller
 * than its objects. This is not the default, because hardly any buffer from cudaMalloc
 * would pass.
 *
 * After cudaFree of less than 2 MiB the owner's next small cudaMalloc may get the same
 * bytes, even while an import still shows them. So free such memory after the others have
 * ended their imports.
 *
 * May be called from any thread. Makes no CUDA call.
 *
 * Returns: 0; EINVAL for another flag, a NULL @fd, and a bad @g or @handle; EPERM for
 * a buffer that GDR_EXPORT_FLAG_WHOLE refuses; ENOTSUP on gdrdrv, and if the buffer lies
 * in more objects than fit (rm: 128, in 5 runs of one size; dmabuf: 1); EMFILE; EACCES in
 * a forked child.
 */
int gdr_export_fd(gdr_t g, gdr_mh_t handle, unsigned flags, int *fd);

/**
 * gdr_get_object - where a pinned buffer lies in the driver's memory objects
 * @g: open library that pinned it
 * @handle: pinned buffer, mapped or not
 * @offset: receives where the buffer's first pinned page lies in its first object, in bytes;
 *	the GPU's address of that page is the va of gdr_get_info
 * @length: receives the size of that object in bytes
 * @count: receives how many objects the buffer lies in
 *
 * If @count is 1, CUDA imports the buffer's descriptor: see gdr_export_fd. The exporter and
 * the importer of a descriptor get the same numbers, which the driver gives. May be called
 * from any thread. Makes no CUDA call.
 *
 * Returns: 0; EINVAL for a NULL pointer, and a bad @g or @handle; ENOTSUP on gdrdrv and
 * dmabuf, which have no such objects; EACCES in a forked child.
 */
int gdr_get_object(gdr_t g, gdr_mh_t handle, uint64_t *offset, uint64_t *length,
		   unsigned *count);

/**
 * gdr_pin_fd - pin the buffer that a descriptor has
 * @g: open library
 * @fd: descriptor; it stays the caller's, who may close it
 * @flags: 0
 * @handle: receives the pinned buffer
 *
 * A descriptor of gdr_export_fd gives the same pages that the exporter pinned. The va of
 * gdr_get_info is the GPU's address in the exporting process; 0 on dmabuf. On rm one of
 * cuMemExportToShareableHandle gives the whole memory of its cuMemCreate, with a va of 0. The
 * memory lives until the last unpin in any process.
 *
 * This call and those on @handle need no CUDA: they work before cuInit, in a child of a
 * process that had initialised it, and as any user who may open the driver's nodes. With
 * GDRCOPY_BACKEND=rm gdr_open needs no libcuda.so.1 then. CPU and GPU are ordered as
 * within one process. May be called from any thread.
 *
 * Returns: 0; EINVAL for a flag, a NULL @handle, a bad @g, a descriptor of anything
 * else, on dmabuf also of rm's, and one of host memory; ENOTSUP on gdrdrv, on rm for a dma-buf
 * (a line in the log says so) and for a memory pool's descriptor, and for a GPU in MIG mode;
 * ENODEV for a GPU that this process does not have; ENOMEM; EMFILE; EACCES in a forked child.
 */
int gdr_pin_fd(gdr_t g, int fd, unsigned flags, gdr_mh_t *handle);

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
 * Takes less time than one gdr_copy_to_mapping for each piece:
 *
 *	1. It checks all pieces.
 *	2. It writes the pieces, in any order.
 *	3. It fences once.
 *
 * So write a flag for the data with a second call, after this one. The array must
 * not change during the call. If pieces overlap, the bytes of any of them may remain.
 * What gdr_copy_to_mapping says about threads and signal handlers holds for each piece.
 *
 * Returns: 0 if all pieces are written; EINVAL and EACCES as gdr_copy_to_mapping, for the
 * first piece that is wrong, and EINVAL if @pieces is NULL and @count is not 0. After an
 * error no piece is written.
 */
int gdr_copy_to_mapping_v(const gdr_piece_t *pieces, size_t count);

/**
 * gdr_copy_from_mapping_v - read many pieces of GPU memory
 * @pieces: what goes where; the pieces may be of different buffers
 * @count: how many; 0 does nothing
 *
 * Does what gdr_copy_to_mapping_v does, in the other direction. The pieces are read
 * in any order, up to 16 lines of 64 bytes at a time. When the call returns, all
 * loads are done, and ordered before every later load of this thread.
 *
 * Returns: as gdr_copy_to_mapping_v.
 */
int gdr_copy_from_mapping_v(const gdr_piece_t *pieces, size_t count);

/* A registration cache from gdr_cache_open. It is passed by value. 0 is never a valid h. */
typedef struct gdr_cache_s {
	unsigned long h;
} gdr_cache_t;

/**
 * gdr_cache_open - make a registration cache
 * @g: open library that pins for the cache
 * @max_bytes: how many bytes that nobody holds may stay pinned; not 0
 * @flags: 0
 * @c: receives the cache
 *
 * A cache pins and maps GPU memory for gdr_cache_get. It keeps the memory pinned
 * and mapped after gdr_cache_put (lazy unpinning). The next gdr_cache_get of the
 * memory gets the same mapping, as long as the allocation is still the same.
 *
 * gdr_close of @g ends the cache too. From then on the cache answers EINVAL. A
 * process may have 64 open caches.
 *
 * Returns: 0; EINVAL for a @max_bytes of 0, a flag, a NULL @c or a bad @g;
 * ENOMEM; EACCES in a forked child.
 */
int gdr_cache_open(gdr_t g, size_t max_bytes, unsigned flags, gdr_cache_t *c);

/**
 * gdr_cache_get - get GPU memory pinned and mapped, and hold it
 * @c: cache
 * @addr: GPU address of the first byte, of any alignment
 * @size: bytes, not 0; one allocation must hold them all
 * @mh: receives the pinned buffer that has the bytes
 * @va: receives the CPU's address of the byte at @addr
 *
 * A hit is a range in the cache that has all the bytes, and that was pinned in the
 * allocation that is at @addr now. To know this, the cache asks the CUDA driver for the
 * allocation's buffer ID (CU_POINTER_ATTRIBUTE_BUFFER_ID), which no two
 * allocations share. The cache itself takes no lock, makes no system call and
 * allocates nothing on a hit.
 *
 * On a miss the cache widens the range to pages of GPU_PAGE_SIZE, within the
 * allocation. Then it pins the range, and maps it with the type that suits the
 * machine. When the cache notices that an allocation is gone, it unpins that
 * allocation's ranges, as soon as nobody holds them.
 *
 * The range stays mapped until gdr_cache_put has been called as often as
 * gdr_cache_get. Only gdr_cache_close and gdr_close end it earlier. @mh is for the
 * copies and gdr_get_info: do not unmap or unpin it.
 *
 * While more than @max_bytes, or 16384 ranges, are pinned, the cache unpins ranges
 * that nobody holds, first the range whose last gdr_cache_get is the oldest. The cache
 * never unpins a range that is held. If memory or file descriptors do not suffice for a
 * pin, the cache unpins ranges in the same order.
 *
 * Returns: 0;
 * EINVAL for a @size of 0, a range that wraps or ends past its allocation, an
 * @addr that is not GPU memory, a NULL @mh or @va, or a bad @c;
 * ENOTSUP for a range over several allocations, for memory that has no buffer ID,
 * and if the process has not loaded libcuda.so.1;
 * and the errors of gdr_pin_buffer and gdr_map.
 */
int gdr_cache_get(gdr_cache_t c, unsigned long addr, size_t size, gdr_mh_t *mh,
		  void **va);

/**
 * gdr_cache_put - end one hold of gdr_cache_get
 * @c: cache
 * @mh: pinned buffer that gdr_cache_get gave
 *
 * The caller must have finished its loads and stores through the mapping. The range
 * stays pinned, unless its allocation is gone or the cache is too big.
 *
 * Returns: 0; EINVAL if nobody holds @mh, if @mh is not from @c, and for a bad @c;
 * EACCES in a forked child.
 */
int gdr_cache_put(gdr_cache_t c, gdr_mh_t mh);

/**
 * gdr_cache_flush - unpin all ranges that nobody holds
 * @c: cache
 *
 * If GDR_ATTR_USE_PERSISTENT_MAPPING is 1, the driver cannot use freed GPU memory
 * again while the memory is pinned. This call unpins the memory.
 *
 * Returns: 0; EINVAL; EACCES in a forked child.
 */
int gdr_cache_flush(gdr_cache_t c);

/**
 * gdr_cache_close - end a cache
 * @c: cache; stale from then on
 *
 * Unmaps and unpins all ranges of the cache, even ranges that are held. Their handles
 * are stale from then on; no copy may run in these ranges during the call.
 *
 * Returns: 0; EINVAL; EACCES in a forked child.
 */
int gdr_cache_close(gdr_cache_t c);

#ifdef __cplusplus
}
#endif

#endif /* GDRAPI_EXT_H */
