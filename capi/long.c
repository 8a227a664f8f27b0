// SPDX-License-Identifier: MIT
/*
 * long.c - copies that the GPU's copy engine makes (core/engine.go).
 */
#define _GNU_SOURCE
#include "copies.h"

#include "_cgo_export.h"
#include "host/front.h"

/* One call of Go for each so many bytes: 1.3 us of some 500 (H200). */
#define CALL_MOST ((size_t)16 << 20)

_Atomic size_t gdr_long_least[2] = { SIZE_MAX, SIZE_MAX };

static size_t least_of(uint64_t size)
{
	return size ? size : SIZE_MAX;
}

void gdr_long_set(uint64_t read, uint64_t write)
{
	atomic_store(&gdr_long_least[false], least_of(read));
	atomic_store(&gdr_long_least[true], least_of(write));
}

#define HOST_PAGE 4096u	/* or a part of one */

/*
 * Touches each page of the host's range. A host's handler may leave a fault by
 * siglongjmp: it comes here, where nothing is held, and not inside the driver.
 */
static void touch(const struct copy *c, const uint8_t *host, size_t n)
{
	const uint8_t *at = host, *end = host + n;

	for (; at < end; at = (const uint8_t *)(((uintptr_t)at | (HOST_PAGE - 1)) + 1))
		if (c->to)
			(void)*(const volatile uint8_t *)at;
		else
			atomic_fetch_or_explicit((_Atomic uint8_t *)(uintptr_t)at, 0, memory_order_relaxed);
}

size_t gdr_long_copy(const struct copy *c, struct gdr_view v)
{
	uint64_t off = (uintptr_t)c->dev - v.va;
	uint8_t *host = c->host;
	size_t done = 0, n;

	for (; done < c->size; done += n) {
		n = c->size - done < CALL_MOST ? c->size - done : CALL_MOST;
		touch(c, host + done, n);
		if (INSIDE(gdrcore_copy(c->key, off + done, (uintptr_t)host + done, n, c->to)))
			break;
	}
	return done;
}
