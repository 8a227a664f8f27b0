/* SPDX-License-Identifier: MIT */
/*
 * vkgdr.h - GPU memory that the CPU has mapped, with the interface of vkgdr.
 *
 * A program written for vkgdr compiles against this header and runs with
 * libvkgdr.so unchanged. The memory is from gdr_mem_alloc. libgdrapi.so.2 pins and
 * maps the memory, on the backend that gdr_open chooses. So Vulkan need not be
 * installed. The library loads libcuda.so.1 itself.
 *
 * Errors.  A function that fails returns NULL. vkgdr_last_error says why.
 * Threads.  Every function may be called from any thread at any time.
 * Fork.  A child inherits no access: the child opens for itself.
 */
#ifndef VKGDR_H
#define VKGDR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The CUDA toolkit's types. If its header is installed, that header defines them. */
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
typedef enum vkgdr_open_flags {
	/* the GPU of the thread's current CUDA context, whatever device says */
	VKGDR_OPEN_CURRENT_CONTEXT_BIT = 1,
	/* vkgdr_memory_is_coherent says false, though memory is coherent: tests a program's flushes */
	VKGDR_OPEN_FORCE_NON_COHERENT_BIT = 2,
	/* fail unless memory is coherent; memory always is */
	VKGDR_OPEN_REQUIRE_COHERENT_BIT = 4
} vkgdr_open_flags;

typedef struct vkgdr *vkgdr_t;			/* an open library */
typedef struct vkgdr_memory *vkgdr_memory_t;	/* memory from vkgdr_memory_alloc */

/**
 * vkgdr_open - open the library for one GPU
 * @device: CUDA's GPU; ignored with VKGDR_OPEN_CURRENT_CONTEXT_BIT
 * @flags: VKGDR_OPEN_ flags or-ed
 *
 * CUDA must be initialised (cuInit). gdr_open(3) says which backend is chosen.
 *
 * Returns: the open library, or NULL. Other bits in @flags are an error.
 */
VKGDR_API vkgdr_t vkgdr_open(CUdevice device, uint32_t flags);

/**
 * vkgdr_close - close what vkgdr_open opened
 * @g: open library, or NULL
 *
 * Memory that @g allocated stays valid until vkgdr_memory_free.
 */
VKGDR_API void vkgdr_close(vkgdr_t g);

/**
 * vkgdr_memory_alloc - allocate GPU memory and map it for the CPU
 * @g: open library
 * @size: bytes, not 0; the driver allocates units of usually 2 MiB
 * @flags: 0
 *
 * The thread's current CUDA context must belong to the GPU that was given to
 * vkgdr_open. The CPU's and the GPU's address are multiples of 64 KiB. The contents
 * are undefined.
 *
 * Returns: the memory, or NULL.
 */
VKGDR_API vkgdr_memory_t vkgdr_memory_alloc(vkgdr_t g, size_t size, uint32_t flags);

/**
 * vkgdr_memory_free - free memory
 * @mem: memory on which the GPU's work is done, or NULL
 */
VKGDR_API void vkgdr_memory_free(vkgdr_memory_t mem);

/* The CPU's address of the memory's first byte. */
VKGDR_API void *vkgdr_memory_get_host_ptr(vkgdr_memory_t mem);

/* The GPU's address of the memory's first byte. */
VKGDR_API CUdeviceptr vkgdr_memory_get_device_ptr(vkgdr_memory_t mem);

/* The size that vkgdr_memory_alloc was given, in bytes. */
VKGDR_API size_t vkgdr_memory_get_size(vkgdr_memory_t mem);

/*
 * True unless VKGDR_OPEN_FORCE_NON_COHERENT_BIT was given. The memory is coherent in
 * either case: a kernel sees every store that the CPU made before the launch.
 */
VKGDR_API bool vkgdr_memory_is_coherent(vkgdr_memory_t mem);

/*
 * The alignment of flushed and invalidated ranges, in bytes: 1 if
 * vkgdr_memory_is_coherent is true, else 64.
 */
VKGDR_API size_t vkgdr_memory_non_coherent_atom_size(vkgdr_memory_t mem);

/**
 * vkgdr_memory_flush - make stores of the CPU visible to the GPU
 * @mem: memory
 * @offset: bytes from its start
 * @size: bytes
 *
 * The memory is coherent, so no flush is needed before a launch. The call is a fence
 * over all memory: a running kernel sees the stores before the call earlier than the
 * stores after the call.
 */
VKGDR_API void vkgdr_memory_flush(vkgdr_memory_t mem, size_t offset, size_t size);

/**
 * vkgdr_memory_invalidate - make stores of the GPU visible to the CPU
 * @mem: memory
 * @offset: bytes from its start
 * @size: bytes
 *
 * The memory is coherent, so finished work of the GPU needs no invalidation. The
 * call is the fence of vkgdr_memory_flush: loads after the call follow the loads before
 * the call.
 */
VKGDR_API void vkgdr_memory_invalidate(vkgdr_memory_t mem, size_t offset, size_t size);

/**
 * vkgdr_last_error - why this thread's last vkgdr_open or vkgdr_memory_alloc failed
 *
 * The text names an error from CUDA, such as CUDA_ERROR_INVALID_DEVICE.
 *
 * Returns: a text that the caller frees by free(3); NULL if the last call succeeded, if
 * there was no call, or if memory is short.
 */
VKGDR_API char *vkgdr_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* VKGDR_H */
