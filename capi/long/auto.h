/* SPDX-License-Identifier: MIT */
/*
 * auto.h - which way a long copy is made, where the host leaves that to the
 * library: by the caller, by threads that share it, or by the GPU's copy engine.
 */
#ifndef GDR_COPY_AUTO_H
#define GDR_COPY_AUTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

enum copy_way {
	COPY_ALONE,
	COPY_SHARED,	/* by threads that are awake */
	COPY_WAKING,	/* by threads of which some must be woken */
	COPY_DMA,	/* with pageable host memory */
	COPY_DMA_LOCKED,	/* with page-locked host memory */
	COPY_WAYS
};

/*
 * The way that takes the least time for n bytes. ways has a bit (1 << way) for each way
 * that is possible; COPY_ALONE's bit is always set. Now and then it returns a way that is
 * not known well yet.
 */
enum copy_way copy_auto_best_way(size_t n, bool to, unsigned int ways);

/* Whether one way is estimated to take less time than another. */
bool copy_auto_is_faster(size_t n, bool to, enum copy_way one, enum copy_way other);

/* Whether the time of a copy of n bytes is wanted. It mostly is not, once a way is known. */
bool copy_auto_learns(size_t n, bool to, enum copy_way way);

/* Notes that a copy of n bytes took this long. */
void copy_auto_learn(size_t n, bool to, enum copy_way way, uint64_t ns);

#pragma GCC visibility pop

#endif
