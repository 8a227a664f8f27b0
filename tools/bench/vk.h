/* SPDX-License-Identifier: MIT */
/*
 * bench/vk.h - the few Vulkan calls that bring CUDA's memory into the process,
 * found at run time in libvulkan.so.1, so that no Vulkan header is needed.
 */
#ifndef BENCH_VK_H
#define BENCH_VK_H

#include <stddef.h>
#include <stdint.h>

typedef struct vk_instance *vk_instance;
typedef struct vk_gpu *vk_gpu;
typedef struct vk_device *vk_device;
typedef uint64_t vk_memory;

struct vk_instance_want;
struct vk_device_want;
struct vk_memory_want;
struct vk_gpu_facts;
struct vk_memory_types;

/* The calls, and after bench_vk_open a device of its own. Results are 0 or
 * the driver's number for an error.
 */
struct bench_vk {
	int (*create_instance)(const struct vk_instance_want *want, const void *none,
			       vk_instance *instance);
	void (*destroy_instance)(vk_instance instance, const void *none);
	int (*gpus)(vk_instance instance, uint32_t *count, vk_gpu *gpus);
	void (*facts)(vk_gpu gpu, struct vk_gpu_facts *facts);
	void (*memory_types)(vk_gpu gpu, struct vk_memory_types *types);
	int (*create_device)(vk_gpu gpu, const struct vk_device_want *want, const void *none,
			     vk_device *device);
	void (*destroy_device)(vk_device device, const void *none);
	int (*allocate)(vk_device device, const struct vk_memory_want *want, const void *none,
			vk_memory *memory);
	void (*free)(vk_device device, vk_memory memory, const void *none);
	int (*map)(vk_device device, vk_memory memory, uint64_t offset, uint64_t size,
		   uint32_t flags, void **va);
	void (*unmap)(vk_device device, vk_memory memory);
	vk_instance instance;
	vk_device device;
	uint32_t type;		/* of memory that the CPU can map */
};

/* Makes a device of the GPU with this UUID. Returns NULL, or what went wrong. */
const char *bench_vk_open(struct bench_vk *v, const unsigned char uuid[16]);
void bench_vk_close(struct bench_vk *v);

/* Imports size bytes; on success fd is Vulkan's. */
int bench_vk_import(const struct bench_vk *v, int fd, uint64_t size, vk_memory *memory);

#endif
