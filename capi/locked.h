/* SPDX-License-Identifier: MIT */
/*
 * locked.h - page-locked memory of the library's own.
 */
#ifndef GDR_LOCKED_H
#define GDR_LOCKED_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/*
 * Returns n bytes of zeros, page-locked in the current context, and stores the GPU's
 * address of them in *gpu_at. A forked child does not have them. NULL: there is no memory,
 * or the driver locks none. Memory whose context ends stays, but is not locked any more.
 */
void *gdr_locked_new(size_t n, uint64_t *gpu_at);

void gdr_locked_free(void *p, size_t n);

#pragma GCC visibility pop

#endif
