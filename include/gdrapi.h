/* SPDX-License-Identifier: MIT */
/*
 * gdrapi.h - CPU access to GPU memory through a mapping of it.
 *
 * The life of a buffer:
 *
 *	gdr_open -> gdr_pin_buffer -> gdr_map -> copies, loads and stores
 *	         -> gdr_unmap -> gdr_unpin_buffer -> gdr_close
 *
 * What holds for every function, unless its own text says otherwise:
 *
 * Errors.  A function returns 0 on success and a positive errno value on
 * failure. It does not set errno. It writes out-parameters only on success; only
 * gdr_get_attribute stores 0 on failure.
 * A function returns EINVAL for a NULL out-parameter, a NULL or unknown gdr_t, and a
 * gdr_mh_t that is stale, made up, or from another gdr_t. It returns EIO if a driver
 * fails for reasons of its own. If GDRCOPY_ENABLE_LOGGING is set, a failure writes a
 * line on stderr: what went wrong and what to do.
 *
 * Units.  Sizes are bytes. A GPU address is the integer value of a CUdeviceptr
 * or of a pointer that the CUDA runtime returned. Sizes given to gdr_map and
 * gdr_unmap are rounded up to whole pages of the CPU.
 *
 * Threads.  Every function may be called from any thread, at the same time, on
 * one gdr_t or on many. While a buffer is unmapped or unpinned, its library closed or
 * its memory freed, no copy of yours may use the buffer. docs/ordering.md (Threads) has
 * each call in a table. A signal handler may call only the copies,
 * gdr_runtime_get_version, gdr_get_mapping_type_string and gdr_ext_version.
 *
 * Fork.  A forked child inherits no access. In the child, a call with the parent's
 * gdr_t or gdr_mh_t returns EACCES; only gdr_close of the parent's gdr_t returns 0 and
 * does nothing. The parent's mappings do not exist in the child: a load or store to one
 * faults. The child may call gdr_open and pin for itself. Nothing that the child does
 * with inherited handles changes the parent.
 * No file descriptor of this library survives exec.
 *
 * Backends.  gdr_open chooses one of three ways to the memory:
 *
 *	gdrdrv	the gdrdrv kernel module
 *	dmabuf	dma-buf exports of the CUDA driver
 *	rm	requests to the resource manager of NVIDIA's driver
 *
 * The backend's page is 64 KiB on gdrdrv and rm. It is the CPU's page on dmabuf.
 */
#ifndef GDRAPI_H
#define GDRAPI_H
/* NVIDIA's header has this guard, too. If both are included, the first one counts. */
#ifndef __GDRAPI_H__
#define __GDRAPI_H__

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* The version of this interface. gdr_runtime_get_version gives the library's version. */
#define GDR_API_MAJOR_VERSION 2
#define GDR_API_MINOR_VERSION 6

/* A version in one number: the major part in the high half, the minor below. */
#define MAJOR_VERSION_SHIFT 16
#define MINOR_VERSION_MASK (((uint32_t)1 << MAJOR_VERSION_SHIFT) - 1)
#define GDR_API_VERSION \
	((GDR_API_MAJOR_VERSION << MAJOR_VERSION_SHIFT) | GDR_API_MINOR_VERSION)

/* The oldest gdrdrv kernel module that this interface works with. */
#define MINIMUM_GDRDRV_MAJOR_VERSION 2
#define MINIMUM_GDRDRV_MINOR_VERSION 0
#define MINIMUM_GDRDRV_VERSION \
	((MINIMUM_GDRDRV_MAJOR_VERSION << MAJOR_VERSION_SHIFT) | \
	 MINIMUM_GDRDRV_MINOR_VERSION)

/* The page of the backends gdrdrv and rm, in bytes. Every backend can map a buffer
 * whose address is a multiple of this page.
 */
#define GPU_PAGE_SHIFT 16
#define GPU_PAGE_SIZE (1UL << GPU_PAGE_SHIFT)
#define GPU_PAGE_OFFSET (GPU_PAGE_SIZE - 1)
#define GPU_PAGE_MASK (~GPU_PAGE_OFFSET)

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of gdr_pin_buffer_v2; they may be or-ed. */
typedef enum gdr_pin_flags {
	GDR_PIN_FLAG_DEFAULT = 0,
	/* Map the memory over PCIe, even if the CPU has a coherent link to the
	 * GPU. GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE is 1 if the backend has
	 * this flag.
	 */
	GDR_PIN_FLAG_FORCE_PCIE = 1
} gdr_pin_flags_t;

/* How the CPU sees a mapping. */
typedef enum gdr_mapping_type {
	GDR_MAPPING_TYPE_NONE = 0,	/* not mapped */
	GDR_MAPPING_TYPE_WC = 1,	/* write-combined: weak order, slow reads */
	GDR_MAPPING_TYPE_CACHING = 2,	/* like RAM, coherent */
	GDR_MAPPING_TYPE_DEVICE = 3,	/* Arm device memory: aligned access only */
	GDR_MAPPING_TYPE_MAX
} gdr_mapping_type_t;

/* Flags of gdr_map_v2: exactly one of these. They may not be or-ed. */
typedef enum gdr_map_flags {
	GDR_MAP_FLAG_DEFAULT = 0,	/* the type that suits the machine */
	GDR_MAP_FLAG_REQ_WC_MAPPING = 1,
	GDR_MAP_FLAG_REQ_CACHE_MAPPING = 2,
	GDR_MAP_FLAG_REQ_DEVICE_MAPPING = 3
} gdr_map_flags_t;

/* Questions for gdr_get_attribute; each answer is 0 or 1. */
typedef enum gdr_attr {
	/* 1: a mapping stays valid until it is unpinned, even if the GPU
	 * memory is freed first. 0: freeing the memory revokes the mapping.
	 */
	GDR_ATTR_USE_PERSISTENT_MAPPING = 1,
	/* 1: gdr_pin_buffer_v2 accepts GDR_PIN_FLAG_FORCE_PCIE. */
	GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE = 2,
	/* 1: this gdr_t maps through dma-buf. */
	GDR_ATTR_USING_DMA_BUF_MMAP = 3,
	GDR_ATTR_MAX
} gdr_attr_t;

/* An open library. gdr_open makes it and gdr_close ends it. */
struct gdr;
typedef struct gdr *gdr_t;

/*
 * A pinned buffer. It is passed by value. h has no meaning outside the library, and
 * 0 is never a valid h. The library does not soon use the h of an unpinned buffer
 * again, so a call with the old h returns EINVAL.
 */
typedef struct gdr_mh_s {
	unsigned long h;
} gdr_mh_t;

/*
 * The description of a pinned buffer, from gdr_get_info_v2. While mapped is 0,
 * wc_mapping is 0 and mapping_type is GDR_MAPPING_TYPE_NONE.
 */
struct gdr_info_v2 {
	uint64_t va;		/* GPU address of the first page that is pinned */
	uint64_t mapped_size;	/* bytes from va on that may be mapped */
	uint32_t page_size;	/* the backend's page, bytes */
	uint64_t tm_cycles;	/* CPU cycles that pinning took; 0: unknown */
	uint32_t cycles_per_ms;	/* rate of those cycles; 0: unknown */
	unsigned mapped:1;
	unsigned wc_mapping:1;	/* 1: mapping_type is GDR_MAPPING_TYPE_WC */
	gdr_mapping_type_t mapping_type;
};
typedef struct gdr_info_v2 gdr_info_v2_t;
typedef gdr_info_v2_t gdr_info_t;

/**
 * gdr_open - choose a backend and open it
 *
 * Opens the first backend of this list that works:
 *
 *	1. gdrdrv: /dev/gdrdrv
 *	2. dmabuf: a CUDA driver of 13.3 or later
 *	3. rm: /dev/nvidiactl of NVIDIA's driver 535 or later
 *
 * Each of them pins any device memory. Memory that has no dma-buf, such as a pool's, is
 * pinned by rm, if rm works and dmabuf is not forced. Before CUDA is initialised,
 * the library cannot know whether dma-bufs can be mapped. Then the first pin
 * decides between dmabuf and rm.
 *
 * The environment can force a backend: GDRCOPY_BACKEND is gdrdrv, dmabuf or rm, and
 * GDRCOPY_USE_DMABUF_MMAP=1 means dmabuf. If both are set, GDRCOPY_BACKEND counts.
 *
 * gdr_open does not initialise CUDA: a process may open first, and fork or call
 * cuInit later. A process may open several times. Each open library has its own
 * buffers.
 *
 * Returns: the open library. NULL if no backend works, if GDRCOPY_BACKEND names no
 * backend or GDRCOPY_COPY_IMPL no copy routine, or if memory or file descriptors do not
 * suffice for the start. One log line for each backend says why.
 */
gdr_t gdr_open(void);

/**
 * gdr_close - close what gdr_open opened
 * @g: open library; stale from then on
 *
 * Unmaps and unpins every buffer of @g, and frees every gdr_mem_t of @g
 * (gdrapi_ext.h). No copy may run. gdr_close waits for no other call on @g: the library
 * undoes what such a call makes, and the call returns EINVAL.
 *
 * Returns: 0; EINVAL for a @g that is NULL, unknown or closed. In a forked child
 * gdr_close returns 0 for the parent's @g, and changes nothing.
 * If a driver fails a step, gdr_close does the other steps and returns the driver's
 * error; @g is closed anyway. If munmap fails, the mapping stays, as with
 * gdr_unpin_buffer.
 */
int gdr_close(gdr_t g);

/**
 * gdr_pin_buffer - pin GPU memory so that it can be mapped
 * @g: open library
 * @addr: GPU address of the first byte
 * @size: bytes, not 0; all within one allocation. On rm they may reach over several
 *        allocations of one GPU that lie side by side
 * @p2p_token: CUDA's token of the allocation, or 0
 * @va_space: CUDA's address space number that belongs to the token, or 0
 * @handle: receives the pinned buffer
 *
 * @addr and @size may have any alignment: the library pins whole pages of the
 * backend. But a buffer can be mapped only if @addr is a multiple of that page.
 * The same memory may be pinned more than once. Each pinning has a mapping of its
 * own. Only gdrdrv before 2.5 reads the token and the address space number.
 *
 * If @addr or @size is no multiple of GPU_PAGE_SIZE, the library takes the bytes for the
 * caller's own: no other thread may free their memory during the call. The pin sets
 * CUDA's attribute SYNC_MEMOPS on each allocation that has some of these bytes. From
 * then on a synchronous copy to the allocation has ended when CUDA's call returns, so the
 * mapping shows the copied bytes.
 *
 * If both are multiples, the caller may have rounded, and other threads' memory may lie on
 * the pages. Then the pin sets nothing; NVIDIA's library never sets the attribute. The
 * program calls cuPointerSetAttribute, or pins with gdr_pin_bytes (gdrapi_ext.h).
 *
 * Memory from cuMemAlloc has the attribute. Memory from cuMemCreate and gdr_mem_alloc has
 * none: the caller synchronises after a copy, before the caller reads the mapping
 * (docs/ordering.md). Pinning changes no context, and ends no capture of a CUDA stream.
 *
 * The process must have initialised CUDA, or @addr cannot be GPU memory. The
 * thread needs no current CUDA context. On rm the first pin on a GPU makes the GPU's
 * primary context for a moment if that context is not active, which takes 0.2 s on an
 * H200. On dmabuf, and on rm if the memory is older than the first gdr_open, a pin of
 * memory from cuMemCreate or a pool needs a context of that GPU. If the thread has none
 * and nobody holds the primary context, the pin makes the primary context and keeps it
 * until the unpin.
 *
 * During the call other threads may free other memory on the same pages: on gdrdrv always,
 * on rm if the memory on those pages was allocated after the first gdr_open (docs/rm.md).
 * On dmabuf they may not, because the library asks CUDA for the pages.
 *
 * Returns: 0;
 * EINVAL for a @size of 0, a range that wraps, an @addr that is not GPU memory, a
 * range past its allocation, a token that gdrdrv refuses, a NULL @handle or a bad
 * @g;
 * ENOTSUP if the backend cannot map memory of this kind; on dmabuf, if the GPU exports
 * no dma-bufs;
 * ENOMEM;
 * EMFILE if the process is out of file descriptors;
 * EACCES in a forked child.
 */
int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size,
		   uint64_t p2p_token, uint32_t va_space, gdr_mh_t *handle);

/**
 * gdr_pin_buffer_v2 - pin GPU memory, with flags and without tokens
 * @g: open library
 * @addr: as for gdr_pin_buffer
 * @size: as for gdr_pin_buffer
 * @flags: gdr_pin_flags_t values or-ed; other bits are ignored
 * @handle: receives the pinned buffer
 *
 * Returns: as gdr_pin_buffer; EINVAL also for a flag that the backend does not have.
 */
int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags,
		      gdr_mh_t *handle);

/**
 * gdr_unpin_buffer - undo gdr_pin_buffer
 * @g: open library that pinned it
 * @handle: pinned buffer; stale from then on
 *
 * If the buffer is still mapped, the call unmaps it first, as gdr_unmap does. If
 * munmap fails, the mapping and the pin stay until the process ends.
 *
 * Returns: 0; EINVAL; EACCES in a forked child; the errno of munmap.
 */
int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle);

/**
 * gdr_get_callback_flag - was the memory freed while it was pinned?
 * @g: open library
 * @handle: pinned buffer
 * @flag: receives 1 once the GPU driver has revoked the buffer, else 0
 *
 * Only gdrdrv without persistent mappings ever stores 1. Then the mapping is
 * gone: a load or store to it faults. The caller must still unpin the buffer.
 *
 * Returns: 0; EINVAL; EACCES in a forked child.
 */
int gdr_get_callback_flag(gdr_t g, gdr_mh_t handle, int *flag);

/**
 * gdr_get_info_v2 - describe a pinned buffer
 * @g: open library
 * @handle: pinned buffer, mapped or not
 * @info: receives the description, 48 bytes
 *
 * The byte at GPU address addr lies addr - @info->va bytes into the mapping.
 *
 * Returns: 0; EINVAL; EACCES in a forked child.
 */
int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_v2_t *info);

/*
 * A program that is compiled with this header and calls gdr_get_info gets
 * gdr_get_info_v2. The library also has a function named gdr_get_info, for programs that
 * were compiled before mapping_type existed; it fills 40 bytes, struct gdr_info_v2 up to
 * mapping_type. With dlsym ask for "gdr_get_info_v2": this function fits gdr_info_t.
 */
#define gdr_get_info gdr_get_info_v2

/**
 * gdr_map - map a pinned buffer into the process
 * @g: open library
 * @handle: pinned buffer that is not mapped
 * @va: receives the address of the mapping, on a page of the CPU
 * @size: bytes from the buffer's start; not 0 and not past the pinning
 *
 * The same as gdr_map_v2 with GDR_MAP_FLAG_DEFAULT.
 */
int gdr_map(gdr_t g, gdr_mh_t handle, void **va, size_t size);

/**
 * gdr_map_v2 - map a pinned buffer with a chosen mapping type
 * @g: open library
 * @handle: pinned buffer that is not mapped
 * @va: receives the address of the mapping, on a page of the CPU
 * @size: bytes from the buffer's start; not 0 and not past the pinning
 * @flags: one gdr_map_flags_t value
 *
 * The mapping can be read and written. It is not executable. It shows the GPU's
 * memory itself, not a copy. Reads of a WC mapping take ten to twenty times
 * as long as writes. The GPU sees stores to a WC mapping in any order; a store
 * fence puts them in order. The copy functions below fence by themselves.
 *
 * Returns: 0;
 * EINVAL for an unknown flag, a type that the backend does not have for this
 * buffer, a @size of 0 or past the pinning, a buffer whose address is not on a
 * page of the backend, a NULL @va, or a bad @g or @handle;
 * EAGAIN if the buffer is mapped already, or if another thread maps or unmaps it;
 * ENOMEM;
 * EMFILE (rm) if the process is out of file descriptors;
 * EACCES in a forked child;
 * ENOTSUP (EOPNOTSUPP) if gdrdrv lacks the type, or if the driver cannot map its
 * dma-bufs.
 */
int gdr_map_v2(gdr_t g, gdr_mh_t handle, void **va, size_t size, int flags);

/**
 * gdr_unmap - undo gdr_map
 * @g: open library
 * @handle: mapped buffer
 * @va: what gdr_map gave, on a page of the CPU
 * @size: what gdr_map was given
 *
 * The buffer stays pinned. It may be mapped again, perhaps at another address.
 * @handle names the mapping: if @va is another address, the call unmaps anyway and logs
 * a warning. The whole mapping goes, even if @size is smaller than the mapping. @size may
 * also be the mapping's size rounded up to GPU_PAGE_SIZE. During the call no copy may run
 * in the mapping, and no load or store of your own: it would fault, as with munmap.
 *
 * Returns: 0; EINVAL if the buffer is not mapped, if @va is not on a page, or if @size is
 * 0 or larger than the mapping so rounded; EACCES in a forked child; the errno of munmap.
 * After EINVAL or munmap's errno the mapping stays.
 */
int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size);

/**
 * gdr_copy_to_mapping - write to GPU memory
 * @handle: mapped buffer
 * @map_d_ptr: where to write, anywhere inside the mapping
 * @h_ptr: what to write, in the memory of the process
 * @size: bytes; 0 does nothing
 *
 * Both pointers may have any alignment, and @size may be any number. A copy of 1,
 * 2, 4 or 8 bytes to an address that is a multiple of @size is one store, in a mapping of
 * any type. Stores to a mapping that is not caching are naturally aligned. The copy
 * writes nothing outside the range. When the call returns, its stores are ordered
 * before every later store of this thread. @h_ptr must be readable; the library does
 * not check that.
 *
 * The CPU makes the copy, without a lock or a system call. A signal handler may copy,
 * even if the signal interrupted a copy. The handler may leave that copy by siglongjmp.
 *
 * Returns: 0;
 * EINVAL if the buffer is not mapped, if the range is not all inside its mapping, or if
 * a pointer is NULL;
 * EACCES in a forked child.
 * A @size of 0 returns 0 for every mapped buffer, whatever the pointers.
 */
int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr,
			size_t size);

/**
 * gdr_copy_from_mapping - read from GPU memory
 * @handle: mapped buffer
 * @h_ptr: where to put the bytes, in the memory of the process
 * @map_d_ptr: where to read, anywhere inside the mapping
 * @size: bytes; 0 does nothing
 *
 * Does what gdr_copy_to_mapping does, in the other direction. @h_ptr must be
 * writable. When the call returns, its loads are done, and ordered before every later
 * load of this thread.
 *
 * Returns: as gdr_copy_to_mapping.
 */
int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr,
			  size_t size);

/**
 * gdr_runtime_get_version - the version of the library
 * @major: receives 2; may be NULL
 * @minor: receives 6; may be NULL
 *
 * Needs no gdr_open. May be called anywhere, even in a forked child.
 */
void gdr_runtime_get_version(int *major, int *minor);

/**
 * gdr_driver_get_version - the version of the kernel module
 * @g: open library
 * @major: receives the major number
 * @minor: receives the minor number
 *
 * On dmabuf and rm the call stores the library's own version; but on rm 2.4 if a GPU is
 * coherent with the CPU (Grace, GB10).
 *
 * Returns: 0; EINVAL; EACCES in a forked child.
 */
int gdr_driver_get_version(gdr_t g, int *major, int *minor);

/**
 * gdr_get_attribute - ask what the backend of an open library can do
 * @g: open library
 * @attr: the question
 * @v: receives the answer, 0 or 1; 0 on failure
 *
 * If gdrdrv is too old to know the question, the answer is 0.
 *
 * Returns: 0; EINVAL for an unknown @attr; EACCES in a forked child.
 */
int gdr_get_attribute(gdr_t g, gdr_attr_t attr, int *v);

/**
 * gdr_get_mapping_type_string - a mapping type in words
 * @mapping_type: a type
 * @str: receives a text that is valid as long as the library is loaded
 *
 * The texts are "None", "Write Combining", "Caching" and "Device". Needs no
 * gdr_open. May be called anywhere, even in a forked child.
 *
 * Returns: 0; EINVAL for any other type.
 */
int gdr_get_mapping_type_string(gdr_mapping_type_t mapping_type,
				const char **str);

#ifdef __cplusplus
}
#endif

#endif /* __GDRAPI_H__ */
#endif /* GDRAPI_H */
