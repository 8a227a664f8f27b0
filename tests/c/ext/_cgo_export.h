/* SPDX-License-Identifier: MIT */
/*
 * _cgo_export.h - what cgo makes of capi/main.go, as far as capi/cache.c needs it, for a
 * build without Go.
 */
#include <stddef.h>
#include <stdint.h>

#include "core.h"

int gdrcore_cache_open(uint64_t g, uint64_t most, uint64_t *c);
int gdrcore_cache_get(uint64_t c, uint64_t addr, uint64_t size, uint64_t now,
		      struct gdr_core_held *out);
int gdrcore_cache_settle(uint64_t c);
int gdrcore_cache_flush(uint64_t c);
int gdrcore_cache_close(uint64_t c);
