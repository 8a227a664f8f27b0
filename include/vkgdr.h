/* SPDX-License-Identifier: MIT */
/*
 * vkgdr.h - GPU memory that the CPU has mapped, with the interface of vkgdr.
 *
 * A program written for vkgdr compiles against this header and runs with
 * libvkgdr.so unchanged. The library is a thin one: the memory is of gdr_mem_alloc,
 * pinned and mapped by libgdrapi.so.2 on whichever backend gdr_open takes. So
 * Vulkan need not be there.
 *
 * Errors.  A function that fails returns NULL, and vkgdr_last_error says why.
 * Threads.  Every function may be called from any thread at any time.
 * Fork.  A child has nothing of its parent's: it opens for itself.
 */
#ifndef VKGDR_H
#define VKGDR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* With a CUDA toolkit the two types are its own; they are the same. */
#if defined(__has_include)
#if __has_include(<cuda.h>)
#include <cuda.h>
#define VKGDR_HAS_CUDA_H
#endif
#endif
#ifndef VKGDR_HAS_CUDA_H
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
#endif

#define VKGDR_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of vkgdr_open; they may be or-ed. */
#define VKGDR_OPEN_CURRENT_CONTEXT_BIT 1	/* the GPU of the thread's CUDA context */
#define VKGDR_OPEN_FORCE_NON_COHERENT_BIT 2	/* accepted: there is no such memory */
#define VKGDR_OPEN_REQUIRE_COHERENT_BIT 4	/* accepted: all memory is coherent */
#define VKGDR_OPEN_REQUIRE_COHERENT VKGDR_OPEN_REQUIRE_COHERENT_BIT

typedef struct vkgdr *vkgdr_t;			/* an open library */
typedef struct vkgdr_memory *vkgdr_memory_t;	/* memory of it */

/**
 * vkgdr_open - open the library for one GPU
 * @device: CUDA's GPU; not looked at with VKGDR_OPEN_CURRENT_CONTEXT_BIT
 * @flags: VKGDR_OPEN_ flags or-ed
 *
 * CUDA must be initialised (cuInit). gdr_open(3) says which backend is taken.
 *
 * Returns: the open library, or NULL.
 */
VKGDR_API vkgdr_t vkgdr_open(CUdevice device, uint32_t flags);

/**
 * vkgdr_close - end what vkgdr_open gave
 * @g: open library, or NULL
 *
 * Memory of it that is left stays valid until vkgdr_memory_free.
 */
VKGDR_API void vkgdr_close(vkgdr_t g);

/**
 * vkgdr_memory_alloc - allocate GPU memory and map it for the CPU
 * @g: open library
 * @size: bytes, not 0; the driver allocates in units of, usually, 2 MiB
 * @flags: 0
 *
 * Both addresses begin on 64 KiB at least. The contents are undefined.
 *
 * Returns: the memory, or NULL.
 */
VKGDR_API vkgdr_memory_t vkgdr_memory_alloc(vkgdr_t g, size_t size, uint32_t flags);

/**
 * vkgdr_memory_free - free memory
 * @mem: memory, or NULL; the GPU's work on it must be done
 */
VKGDR_API void vkgdr_memory_free(vkgdr_memory_t mem);

/* The CPU's address of the memory's first byte. */
VKGDR_API void *vkgdr_memory_get_host_ptr(vkgdr_memory_t mem);

/* The GPU's address of the memory's first byte. */
VKGDR_API CUdeviceptr vkgdr_memory_get_device_ptr(vkgdr_memory_t mem);

/* The bytes that were asked for. */
VKGDR_API size_t vkgdr_memory_get_size(vkgdr_memory_t mem);

/* Always true: a kernel that is launched after a store of the CPU's sees it. */
VKGDR_API bool vkgdr_memory_is_coherent(vkgdr_memory_t mem);

/* What flushed ranges would have to be multiples of: 1, for any will do. */
VKGDR_API size_t vkgdr_memory_get_non_coherent_atom_size(vkgdr_memory_t mem);

/**
 * vkgdr_memory_flush - after the CPU wrote
 * @mem: memory
 * @offset: bytes from its start
 * @size: bytes
 *
 * Coherent memory does not need it before a launch. Here it is a fence over all
 * memory: stores before it come before those after it, for a running kernel, too.
 */
VKGDR_API void vkgdr_memory_flush(vkgdr_memory_t mem, size_t offset, size_t size);

/**
 * vkgdr_memory_invalidate - before the CPU reads what the GPU wrote
 * @mem: memory
 * @offset: bytes from its start
 * @size: bytes
 *
 * Coherent memory does not need it after the GPU's work is done. Here it is the
 * same fence: loads after it come after those before it.
 */
VKGDR_API void vkgdr_memory_invalidate(vkgdr_memory_t mem, size_t offset, size_t size);

/**
 * vkgdr_last_error - what went wrong last in this thread
 *
 * Returns: a text that is valid until the thread's next call that fails; "" when
 * none has failed.
 */
VKGDR_API const char *vkgdr_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* VKGDR_H */
