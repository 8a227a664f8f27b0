/* SPDX-License-Identifier: MIT */
/*
 * copies.h - what copy.c and pieces.c share.
 *
 * A copy owns nothing: it stores its payload and no other byte, has no record and no
 * lock, and nobody waits for it. An unmap puts private memory in the place of its mapping
 * (core/internal/sys/rest.go), so a copy that an unmap overtakes touches no other mapping.
 */
#ifndef GDR_COPIES_H
#define GDR_COPIES_H

#include <string.h>

#include "../include/gdrapi.h"
#include "copy/copy.h"
#include "copy/fence.h"
#include "copy/slot.h"
#include "guest/front.h"

#pragma GCC visibility push(hidden)

/* A copy of more bytes than these looks at its slot again after each so many. */
#define COPY_LOOK ((size_t)64 << 10)

/* One copy, as the caller asked for it. */
struct copy {
	uint64_t key;
	void *dev;
	void *host;
	size_t size;
	bool to;	/* the device */
};

/*
 * Makes a copy whose view was read and has its bytes, without fences. Returns 0, or EINVAL
 * after it logged a line: an unmap has overtaken it.
 */
int gdr_copy_move(const struct copy *c, struct gdr_view v);

/* Logs and returns why key cannot be copied through. */
int gdr_copy_refuse(uint64_t key);

static inline void gdr_copy_end_write(void)
{
	if (atomic_load_explicit(&gdr_front.table.mixed, memory_order_relaxed))
		copy_fence_full();
	else
		copy_fence_store();
}

#pragma GCC visibility pop

#endif
