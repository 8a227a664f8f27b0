/* SPDX-License-Identifier: MIT */
/*
 * dma.h - long copies by the GPU's copy engine, through the CUDA driver. There
 * are none unless the host asks for them.
 */
#ifndef GDR_DMA_H
#define GDR_DMA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring.h"

#pragma GCC visibility push(hidden)

/* The least size of a copy by DMA, in bytes. SIZE_MAX: no copy is made by DMA. */
extern _Atomic size_t gdr_dma_least_to, gdr_dma_least_from;

/* What a process knows of its mappings, for DMA. A forked child must not touch it. */
struct gdr_dma;
typedef _Atomic(struct gdr_dma *) gdr_dma_ref;

/* Sets the least sizes. */
void gdr_dma_want(size_t from, size_t to);

/*
 * Makes DMA possible through handle key, whose mapping begins at gpu. With shares, threads
 * may copy out what the engine reads. Callers take turns for one ref. A failure is logged.
 * Then the CPU makes the copies.
 */
void gdr_dma_map(gdr_dma_ref *ref, uint64_t key, uint64_t gpu, bool shares);

/* Whether DMA can copy through the mapping of key. dma may be NULL. */
bool gdr_dma_has(struct gdr_dma *dma, uint64_t key);

/*
 * Copies n bytes at offset off of the mapping of key. It returns when they are there.
 * false: the CPU must make the copy; some bytes may have been copied.
 *
 * out: what copies parts of a read out of the library's memory, by threads. NULL: the
 * driver does.
 */
bool gdr_dma_copy(struct gdr_dma *dma, uint64_t key, uint64_t off, void *host, size_t n, bool to,
		  gdr_copy_out *out);

#pragma GCC visibility pop

#endif
