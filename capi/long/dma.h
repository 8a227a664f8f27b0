/* SPDX-License-Identifier: MIT */
/*
 * dma.h - which copies the GPUs' copy engines may make. There are none unless the host
 * asks for them.
 *
 * Go asks the driver at a pin: that is when the address means the memory that was pinned.
 * Each copy asks whether it still does (engine.h).
 *
 * An engine that fails is tried again after 1, 3, 7, ... copies, at last 1023. The CPU
 * makes the others.
 */
#ifndef GDR_DMA_H
#define GDR_DMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine.h"

#pragma GCC visibility push(hidden)

/* What a process knows of its handles, for DMA. A forked child must not touch it. */
struct gdr_dma;

/* One handle's. */
struct gdr_dma_handle;

#define GDR_GPUS_MAX 64u

/*
 * The next four are for Go, at a pin or a mapping (dma.go). The library is open.
 *
 * Whether the host wants long copies to be made by an engine, or leaves it to the library.
 */
bool gdr_dma_is_wanted(void);

/*
 * Says which memories handle key has pinned: count of them, by address, the first of which is
 * of the GPU with that ordinal. false: no memory to note it.
 */
bool gdr_dma_pinned(uint64_t key, unsigned int gpu, const struct gdr_extent *memories, size_t count);

/* Has e copy the memory of a GPU, of which a handle has pinned some, in place of the one before. */
void gdr_dma_set_engine(unsigned int gpu, struct gdr_engine *e, const struct gdr_engine_parts *parts);

/* Says that a mapping of key begins at the GPU's address gpu. */
void gdr_dma_mapped(uint64_t key, uint64_t gpu);

/*
 * What a copy of n bytes needs, off bytes into the mapping of key. It is called once for a
 * copy, and does not call the driver. NULL: the CPU makes the copy. dma may be NULL.
 */
struct gdr_dma_handle *gdr_dma_find(struct gdr_dma *dma, uint64_t key, uint64_t off, uint64_t n);

/*
 * Whether host memory is page-locked: already registered, by this library or another. The
 * driver refuses a copy whose buffer is page-locked only in part. So the first byte answers
 * for all bytes.
 */
bool gdr_dma_is_locked(const struct gdr_dma_handle *h, void *host);

/*
 * Makes a copy, of which at and memory are not set, off bytes into the mapping. It returns
 * when the bytes are there. false: the CPU must make the copy; some bytes may have been
 * copied.
 */
bool gdr_dma_copy(struct gdr_dma *dma, struct gdr_dma_handle *h, uint64_t off,
		  struct gdr_engine_copy *copy);

/* Ends a copy that owner left by siglongjmp. dma may be NULL. */
void gdr_dma_forget(struct gdr_dma *dma, const void *owner);

#pragma GCC visibility pop

#endif
