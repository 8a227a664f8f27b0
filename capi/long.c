// SPDX-License-Identifier: MIT
/*
 * long.c - copies that the GPU's copy engine makes (core/engine.go).
 */
#define _GNU_SOURCE
#include "copies.h"
#include "core.h"

/* One call of Go for each so many bytes: 1.3 us of some 500 (H200). */
#define CALL_MOST ((size_t)16 << 20)

#define HOST_PAGE 4096u	/* or a part of one */

/* To touch the pages of so many bytes takes as long as a second call of Go. */
#define TOUCH_MOST ((size_t)256 << 10)

/*
 * Touches each page that a read will fill. A host's handler may leave a fault by
 * siglongjmp: it comes here, where nothing is held, and not inside the driver. A write by
 * the engine is of page-locked memory, which does not fault.
 */
static void touch(uint8_t *host, size_t n)
{
	uint8_t *at = host, *end = host + n;

	for (; at < end; at = (uint8_t *)(((uintptr_t)at | (HOST_PAGE - 1)) + 1))
		atomic_fetch_or_explicit((_Atomic uint8_t *)at, 0, memory_order_relaxed);
}

/* 0: the engine has made the copy. */
static int copy_once(const struct copy *c, uint64_t at, uint8_t *host, size_t n)
{
	int rc = GDR_CORE_PAGEABLE;

	if (c->to || n > TOUCH_MOST)
		rc = gdr_core_copy(c, at, host, n, true);
	if (rc != GDR_CORE_PAGEABLE || c->to)
		return rc;
	touch(host, n);
	return gdr_core_copy(c, at, host, n, false);
}

size_t gdr_long_copy(const struct copy *c, struct gdr_view v)
{
	uint64_t off = (uintptr_t)c->dev - v.va;
	uint8_t *host = c->host;
	size_t done = 0, n;

	for (; done < c->size; done += n) {
		n = c->size - done < CALL_MOST ? c->size - done : CALL_MOST;
		if (copy_once(c, off + done, host + done, n))
			break;
	}
	return done;
}
