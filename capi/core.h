/* SPDX-License-Identifier: MIT */
/*
 * core.h - what C hands to the core, and gets from it.
 *
 * Go's functions (_cgo_export.h) return 0 or a positive errno value. Handles are the 64-bit
 * values of slot.h. No pointer to an answer is NULL.
 */
#ifndef GDR_CORE_H
#define GDR_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "../include/gdrapi_ext.h"

#pragma GCC visibility push(hidden)

struct gdr_core_info {
	uint64_t va;
	uint64_t mapped_size;
	uint64_t tm_cycles;
	uint32_t page_size;
	uint32_t cycles_per_ms;
	uint32_t mapping_type;
	bool mapped;
};

/* A gdr_cache_get that is no hit, and what it refuses. */
int gdr_cache_get_slowly(gdr_cache_t c, unsigned long addr, size_t size, gdr_mh_t *mh, void **va);

/* Unpins what the puts of a cache have left to unpin. */
void gdr_cache_settle(gdr_cache_t c);

#pragma GCC visibility pop

#endif
