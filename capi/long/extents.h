/* SPDX-License-Identifier: MIT */
/*
 * extents.h - which memory of CUDA's a range of GPU addresses means.
 *
 * A mapping shows the memory that was pinned. An address means what lies there today:
 * memory that was freed, and allocated anew at the same address, is another one. CUDA
 * gives each memory a number, BUFFER_ID, that it never gives again. So a copy by address
 * reaches the pinned memory if the numbers are still those of the pin.
 */
#ifndef GDR_EXTENTS_H
#define GDR_EXTENTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "relaxed.h"

#pragma GCC visibility push(hidden)

/* One memory. Go finds it (cuda.Extent). */
struct gdr_extent {
	uint64_t start, end;
	_Atomic uint64_t id;	/* 0: the address means another memory since */
};

/* The memories in a range, by address. What lies between them is free, or unknown. */
struct gdr_extents {
	size_t count;
	struct gdr_extent at[];
};

/*
 * Whether all n bytes at addr are of the same memories as then. A memory that has gone
 * does not come back. With c NULL the driver is not asked: false is certain.
 */
bool gdr_extents_are_same(const struct gdr_cuda_calls *c, struct gdr_extents *x, uint64_t addr,
			  uint64_t n);

#pragma GCC visibility pop

#endif
