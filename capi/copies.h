/* SPDX-License-Identifier: MIT */
/*
 * copies.h - what copy_one.c and copy_many.c share.
 *
 * A copy owns nothing: it stores its payload and no other byte, has no record and no
 * lock, and nobody waits for it.
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

/* Moves n bytes, of a mapping of that type, without fences. */
void gdr_copy_move(uint32_t type, bool to, void *dev, void *host, size_t n);

/* Logs and returns why call cannot copy through key. */
int gdr_copy_refuse(const char *call, uint64_t key);

static inline void gdr_copy_end_write(void)
{
	if (atomic_load_explicit(&gdr_front.table.mixed, memory_order_relaxed))
		copy_fence_full();
	else
		copy_fence_store();
}

#pragma GCC visibility pop

#endif
