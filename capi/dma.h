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
 * Makes DMA possible through handle key, whose mapping begins at gpu. Callers take turns
 * for one ref. A failure is logged. Then the CPU makes the copies.
 */
void gdr_dma_map(gdr_dma_ref *ref, uint64_t key, uint64_t gpu);

/* Whether DMA can copy through the mapping of key. dma may be NULL. */
bool gdr_dma_has(struct gdr_dma *dma, uint64_t key);

/*
 * Whether the CUDA driver knows host memory as page-locked. It refuses a copy whose buffer
 * is page-locked in part, so the first byte answers for all.
 */
bool gdr_dma_is_locked(struct gdr_dma *dma, const void *host);

struct gdr_dma_copy {
	uint64_t key, off;	/* the place in a mapping */
	void *host;
	size_t n;
	bool to;		/* the device */
	bool locked;		/* host is page-locked */
	gdr_copy_out *out;	/* for a read by the ring; NULL: not by it */
	const void *arg;
};

/*
 * Makes a copy. It returns when the bytes are there. false: the CPU must make the copy;
 * some bytes may have been copied.
 */
bool gdr_dma_copy(struct gdr_dma *dma, const struct gdr_dma_copy *copy);

#pragma GCC visibility pop

#endif
