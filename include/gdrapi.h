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
 * failure. It does not set errno. It writes out-parameters on success only, but for
 * gdr_get_attribute, which stores 0 on failure.
 * EINVAL answers a NULL out-parameter, a NULL or unknown gdr_t, and a gdr_mh_t
 * that is stale, made up, or of another gdr_t. EIO answers a driver that fails
 * for reasons of its own. With GDRCOPY_ENABLE_LOGGING set, a failure writes a
 * line on stderr: what went wrong and what to do about it.
 *
 * Units.  Sizes are bytes. A GPU address is the integer value of a CUdeviceptr
 * or of a pointer that the CUDA runtime returned. Sizes given to gdr_map and
 * gdr_unmap are rounded up to whole pages of the CPU.
 *
 * Threads.  Every function may be called from any thread, at the same time, on
 * one gdr_t or on many. Unmap, unpin, close and free end what they name: no copy of
 * yours may run in it then. docs/ordering.md (Threads) has each call in a table. In a signal
 * handler only copies, gdr_runtime_get_version, gdr_get_mapping_type_string and
 * gdr_ext_version may be called.
 *
 * Fork.  A forked child inherits no access. In the child, every gdr_t and
 * gdr_mh_t of the parent answers EACCES; only gdr_close of such a gdr_t answers
 * 0 and does nothing. The parent's mappings do not exist
 * there: a load or store to one faults. The child may call gdr_open and pin for
 * itself. Nothing that the child does with inherited handles changes the parent.
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
/* NVIDIA's header has this guard too. The header that is included first counts. */
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

/* The page of the gdrdrv and rm backends, in bytes. Every backend can map a buffer
 * whose address is aligned to it.
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
	/* Map the memory over PCIe, even where the CPU has a coherent link to
	 * the GPU. GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE is 1 where the backend
	 * has this flag.
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
 * A pinned buffer. It is passed by value. h has no meaning outside of the
 * library, and 0 is never a valid h. The library does not soon use the h of an
 * unpinned buffer again, so an old copy of it answers EINVAL.
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
 * Each of them pins any device memory: what has no dma-buf, as memory of a pool,
 * rm pins where it works and dmabuf is not forced. Before CUDA is initialised,
 * the library cannot know whether dma-bufs can be mapped. Then the first pin
 * decides between dmabuf and rm.
 *
 * The environment can force a backend. GDRCOPY_BACKEND is gdrdrv, dmabuf or
 * rm. GDRCOPY_USE_DMABUF_MMAP=1 is dmabuf. Where both are set, GDRCOPY_BACKEND
 * counts.
 *
 * gdr_open does not initialise CUDA: a process may open first, and fork or call
 * cuInit later. A process may open several times. Each open library has its own
 * buffers.
 *
 * Returns: the open library, or NULL in one of these cases. One log line a
 * backend says why. No backend works. GDRCOPY_BACKEND names no backend, or
 * GDRCOPY_COPY_IMPL no copy routine. There is no memory or no file descriptor to
 * start with.
 */
gdr_t gdr_open(void);

/**
 * gdr_close - close what gdr_open opened
 * @g: ends with this call
 *
 * Unmaps and unpins every buffer of @g, and frees every gdr_mem_t of @g
 * (gdrapi_ext.h). No copy may run. It waits for no other call on @g: what such a
 * call makes is undone, and the call returns EINVAL.
 *
 * Returns: 0; EINVAL for a @g that is NULL, unknown or closed. In a forked child
 * the answer for the parent's @g is 0, and nothing changes.
 * When a driver fails a step, gdr_close does the other steps and returns the
 * driver's error. @g is closed all the same. A mapping that munmap does not end stays,
 * as with gdr_unpin_buffer.
 */
int gdr_close(gdr_t g);

/**
 * gdr_pin_buffer - pin GPU memory so that it can be mapped
 * @g: open library
 * @addr: GPU address of the first byte
 * @size: bytes, not 0; one allocation must hold them all. On rm several may that lie
 *        side by side, of one GPU
 * @p2p_token: CUDA's token of the allocation, or 0
 * @va_space: CUDA's address space number that belongs to the token, or 0
 * @handle: receives the pinned buffer
 *
 * @addr and @size may have any alignment: the library pins whole pages of the
 * backend. But only a buffer whose @addr is aligned to that page can be mapped.
 * The same memory may be pinned more than once. Each pinning has a mapping of its
 * own. Only a gdrdrv before 2.5 reads the token and the address space number.
 *
 * If @addr or @size is no multiple of GPU_PAGE_SIZE, the bytes are the caller's own.
 * No other thread may free memory of them during the call. The pin sets CUDA's
 * attribute SYNC_MEMOPS on each memory that has some of these bytes: from then on a
 * synchronous copy to that memory has ended when CUDA's call returns, so the mapping
 * shows it. If both are multiples, the caller may have rounded, and other threads'
 * memory may lie on the pages. Then the pin sets nothing, as NVIDIA's library never
 * does: the program sets the attribute with cuPointerSetAttribute, or pins with
 * gdr_pin_bytes of gdrapi_ext.h. Memory of cuMemAlloc has the attribute. Memory of
 * cuMemCreate and of gdr_mem_alloc does not: there the caller synchronises after a
 * copy before it reads the mapping (docs/ordering.md). Pinning changes no context,
 * and loses no capture of a CUDA stream.
 *
 * The process must have initialised CUDA, or @addr cannot be GPU memory. The
 * thread needs no current CUDA context. On rm the first pin on a GPU makes the GPU's
 * primary context for a moment if that is not active, which takes 0.2 s on an H200.
 * On dmabuf, and on rm if the memory is older than the first gdr_open, a pin of memory
 * of cuMemCreate or of a pool makes it, if the thread has no context of that GPU and
 * nobody holds the primary one, and keeps it until the unpin.
 *
 * Other threads may free other memory on the same pages meanwhile: on gdrdrv always, on
 * rm if the memory on those pages was allocated after the first gdr_open (docs/rm.md). On
 * dmabuf they may not, because CUDA is asked for the pages.
 *
 * Returns: 0;
 * EINVAL for a @size of 0, a range that wraps, an @addr that is not GPU memory, a
 * range past its allocation, a token that gdrdrv refuses, a NULL @handle or a bad
 * @g;
 * ENOTSUP when the backend cannot map memory of this kind. On dmabuf: memory of a
 * GPU that exports no dma-bufs;
 * ENOMEM;
 * EMFILE when the process is out of file descriptors;
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
 * Where the buffer is still mapped, the call unmaps it first, as gdr_unmap does. Where
 * munmap fails, the mapping and the pin stay until the process ends.
 *
 * Returns: 0; EINVAL; EACCES in a forked child; the errno of munmap.
 */
int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle);

/**
 * gdr_get_callback_flag - was the memory freed under its pinning?
 * @g: open library
 * @handle: pinned buffer
 * @flag: receives 1 once the GPU driver has revoked the buffer, else 0
 *
 * Only gdrdrv without persistent mappings ever answers 1. Then the mapping is
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
 * The byte that was pinned at address addr is addr - @info->va bytes into the
 * mapping.
 *
 * Returns: 0; EINVAL; EACCES in a forked child.
 */
int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_v2_t *info);

/*
 * A source that says gdr_get_info calls gdr_get_info_v2. The library also has a
 * function of the name gdr_get_info, for programs that were compiled before
 * mapping_type existed. That function fills 40 bytes: struct gdr_info_v2 up to
 * mapping_type. Take care with dlsym: pass "gdr_get_info_v2" to get the function
 * that fits gdr_info_t.
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
 * memory itself, not a copy of it. Reads of a WC mapping take ten to twenty times
 * as long as writes. The GPU sees stores to a WC mapping in any order; a store
 * fence puts them in order. The copy functions below fence by themselves.
 *
 * Returns: 0;
 * EINVAL for an unknown flag, a type that the backend does not have for this
 * buffer, a @size of 0 or past the pinning, a buffer whose address is not on a
 * page of the backend, a NULL @va, or a bad @g or @handle;
 * EAGAIN when the buffer is mapped already, or another thread maps or unmaps it;
 * ENOMEM;
 * EMFILE (rm) when the process is out of file descriptors;
 * EACCES in a forked child;
 * ENOTSUP (EOPNOTSUPP) for a gdrdrv that lacks the type, and for a driver that
 * cannot map its dma-bufs.
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
 * @handle names the mapping: where @va is another address, the call unmaps all the
 * same and logs a warning. The whole mapping goes, also where @size is smaller than
 * it, or is its size rounded up to GPU_PAGE_SIZE. No copy may run in the mapping, nor a
 * load or store of your own: that is a fault, as beside munmap.
 *
 * Returns: 0; EINVAL when the buffer is not mapped, when @va is not on a page, when
 * @size is 0 or larger than that; EACCES in a forked child; the errno of munmap. The
 * mapping stays when the call fails with EINVAL, or with munmap's errno.
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
 * 2, 4 or 8 bytes to an address that is aligned to @size is one store, in a mapping of
 * any type. Stores to a mapping that is not caching are naturally aligned. The copy
 * writes nothing outside the range. When the call returns, its stores are in order
 * before every later store of this thread. @h_ptr must be readable; the library does
 * not check that.
 *
 * The CPU makes the copy, without a lock or a system call. A copy may be made in a
 * signal handler, also in one that interrupted a copy. A handler may leave it by
 * siglongjmp.
 *
 * Returns: 0;
 * EINVAL when the buffer is not mapped, when the range is not all inside its
 * mapping, and for a NULL pointer;
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
 * writable. When the call returns, its loads are done, and in order before every later
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
 * Needs no gdr_open. May be called anywhere, also in a forked child.
 */
void gdr_runtime_get_version(int *major, int *minor);

/**
 * gdr_driver_get_version - the version of the kernel module
 * @g: open library
 * @major: receives the major number
 * @minor: receives the minor number
 *
 * On the backends other than gdrdrv the answer is the library's own version; on
 * rm it is 2.4 where a GPU is coherent with the CPU (Grace, GB10).
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
 * A gdrdrv that is too old to know the question answers 0.
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
 * gdr_open. May be called anywhere, also in a forked child.
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
