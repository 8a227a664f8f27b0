/* SPDX-License-Identifier: MIT */
/*
 * _cgo_export.h - what cgo makes of capi/main.go, for a build of the C front
 * without Go: counts.c has these functions.
 */
#include <stddef.h>
#include <stdint.h>

#include "core.h"
#include "host/env.h"

int gdrcore_init(uint32_t epoch, uintptr_t *table);
int gdrcore_open(struct gdr_options *opts, uint64_t *g);
int gdrcore_close(uint64_t g);
int gdrcore_pin(uint64_t g, uint64_t addr, uint64_t size, uint64_t token, uint32_t va_space,
		uint32_t flags, uint64_t *h);
int gdrcore_unpin(uint64_t g, uint64_t h);
int gdrcore_map(uint64_t g, uint64_t h, uint64_t size, int flags, uint64_t *va);
int gdrcore_start_threads(void);
int gdrcore_unmap(uint64_t g, uint64_t h, uint64_t va, uint64_t size);
int gdrcore_info(uint64_t g, uint64_t h, struct gdr_core_info *info);
int gdrcore_callback_flag(uint64_t g, uint64_t h, int *flag);
int gdrcore_attribute(uint64_t g, int attr, int *value);
int gdrcore_driver_version(uint64_t g, int *major, int *minor);
int gdrcore_backend(uint64_t g, char *name, size_t size);
int gdrcore_mem_alloc(uint64_t g, int device, uint64_t size, uint64_t *m);
int gdrcore_mem_free(uint64_t g, uint64_t m);
int gdrcore_mem_ptr(uint64_t g, uint64_t m, uint64_t *ptr, uint64_t *size);
int gdrcore_mem_export(uint64_t g, uint64_t m, uint32_t flags, int *fd);
int gdrcore_cache_open(uint64_t g, uint64_t most, uint64_t *c);
int gdrcore_cache_get(uint64_t c, uint64_t addr, uint64_t size, uint64_t now,
		      struct gdr_core_held *out);
int gdrcore_cache_settle(uint64_t c);
int gdrcore_cache_flush(uint64_t c);
int gdrcore_cache_close(uint64_t c);
