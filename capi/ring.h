/* SPDX-License-Identifier: MIT */
/*
 * ring.h - reads into pageable memory: the engine fills chunks of page-locked memory of
 * the library's, while the caller copies those before out to its own, with the threads
 * that share reads. This takes less time than a read by the driver into pageable memory,
 * up to 1 MiB also without threads (docs/dataplane.md).
 *
 * One read at a time has the ring.
 */
#ifndef GDR_RING_H
#define GDR_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "words.h"

#pragma GCC visibility push(hidden)

/* One GPU's. All zero: there is none. */
struct gdr_ring {
	_Atomic bool free;	/* there is one, and nobody has it */
	uint8_t *at;		/* never given back */
};

/* Copies n bytes of page-locked memory out, by whichever threads. arg is the reader's. */
typedef void gdr_copy_out(const void *arg, void *to, void *locked, size_t n);

/* A read that the engine makes. */
struct gdr_ring_read {
	uint64_t src;		/* the GPU's address */
	uint8_t *host;
	size_t n;
	int (*from)(void *dst, uint64_t src, size_t n, void *stream);
	gdr_copy_out *out;
	const void *arg;
};

/* Makes the ring, in the context that is current. */
void gdr_ring_start(struct gdr_ring *ring);

/* Takes the ring. false: there is none, or it is in use. */
bool gdr_ring_take(struct gdr_ring *ring);

/*
 * Reads by the ring, which the caller has taken, and gives it back. Returns 0, or what the
 * driver answers. Then some bytes may have been read.
 */
int gdr_ring_read(struct gdr_ring *ring, struct gdr_words *words, const struct gdr_ring_read *r);

#pragma GCC visibility pop

#endif
