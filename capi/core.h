/* SPDX-License-Identifier: MIT */
/*
 * core.h - what C hands to the core, and gets from it.
 *
 * The core's functions are Go's, exported by main.go (_cgo_export.h). They return 0
 * or a positive errno value. Handles are the 64-bit values of slot.h. Out-pointers
 * are never NULL there: abi.c has checked.
 */
#ifndef GDR_CORE_H
#define GDR_CORE_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* What gdrcore_copy answers, beside 0, where the host's memory is not page-locked. */
#define GDR_CORE_PAGEABLE (-1)

/* What gdr_set_copy_policy asked for: a gdr_copy_policy_t; -1: it was not called. */
int gdr_copy_policy_asked(void);

struct gdr_core_info {
	uint64_t va;
	uint64_t mapped_size;
	uint64_t tm_cycles;
	uint32_t page_size;
	uint32_t cycles_per_ms;
	uint32_t mapped;
	uint32_t mapping_type;
};

/* A range that a cache holds for the caller. */
struct gdr_core_held {
	uint64_t handle;
	uint64_t va;	/* the CPU's address of the byte asked for */
};

#pragma GCC visibility pop

#endif
