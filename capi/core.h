/* SPDX-License-Identifier: MIT */
/*
 * core.h - what the C front asks of a Go core.
 *
 * The functions return 0 or a positive errno value. Handles are the 64-bit
 * values of slot.h. Out-pointers are never NULL here: abi.c has checked.
 */
#ifndef GDR_CORE_H
#define GDR_CORE_H

#include <stddef.h>
#include <stdint.h>

#include "copy/slot.h"

#pragma GCC visibility push(hidden)

/* What the environment asks for; Go itself sees an empty one. */
struct gdr_options {
	const char *backend;	/* GDRCOPY_BACKEND or NULL */
	int force_dmabuf;	/* GDRCOPY_USE_DMABUF_MMAP is exactly "1" */
	const char *vk_driver_files;	/* VK_DRIVER_FILES or NULL */
	int log_level;		/* lowest level that is logged; 5 is none */
};

struct gdr_core_info {
	uint64_t va;
	uint64_t mapped_size;
	uint64_t tm_cycles;
	uint32_t page_size;
	uint32_t cycles_per_ms;
	uint32_t mapped;
	uint32_t mapping_type;
};

struct gdr_core {
	int (*open)(struct gdr_options *opts, uint64_t *g);
	int (*close)(uint64_t g);
	int (*pin)(uint64_t g, uint64_t addr, uint64_t size, uint64_t token,
		   uint32_t va_space, uint32_t flags, uint64_t *h);
	int (*unpin)(uint64_t g, uint64_t h);
	int (*map)(uint64_t g, uint64_t h, uint64_t size, int flags, uint64_t *va);
	int (*unmap)(uint64_t g, uint64_t h, uint64_t va, uint64_t size);
	int (*info)(uint64_t g, uint64_t h, struct gdr_core_info *info);
	int (*callback_flag)(uint64_t g, uint64_t h, int *flag);
	int (*attribute)(uint64_t g, int attr, int *value);
	int (*driver_version)(uint64_t g, int *major, int *minor);
	int (*backend)(uint64_t g, char *name, size_t size);
	int (*mem_alloc)(uint64_t g, int device, uint64_t size, uint64_t *m);
	int (*mem_free)(uint64_t g, uint64_t m);
	int (*mem_ptr)(uint64_t g, uint64_t m, uint64_t *ptr, uint64_t *size);
};

/* The core, in Go. */
extern const struct gdr_core gdr_own_core;

#pragma GCC visibility pop

#endif
