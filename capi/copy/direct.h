/* SPDX-License-Identifier: MIT */
/*
 * direct.h - one short write of many, as a direct store.
 *
 * A plain store to WC memory waits in a buffer of the CPU until the buffer is needed for
 * another line: 13 to 16 ns for each line. MOVDIRI does not wait in a buffer: 6 ns for
 * each store (docs/dataplane.md, "Many pieces at once"). So MOVDIRI is faster only if
 * each store is to a line of its own.
 *
 * Direct stores are ordered as weakly as other stores to WC memory. The caller fences
 * (copy_fence_store).
 */
#ifndef GDR_COPY_DIRECT_H
#define GDR_COPY_DIRECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include "cpu_amd64.h"

static inline bool copy_has_direct(void)
{
	return cpu_leaf(7).ecx & CPU_7_ECX_MOVDIRI;
}

static inline void copy_direct_8(void *dev, const void *host)
{
	uint64_t __attribute__((may_alias)) *d = dev;
	uint64_t v;

	memcpy(&v, host, sizeof(v));
	__asm__ __volatile__("movdiri %1, %0" : "=m"(*d) : "r"(v));
}

static inline void copy_direct_4(void *dev, const void *host)
{
	uint32_t __attribute__((may_alias)) *d = dev;
	uint32_t v;

	memcpy(&v, host, sizeof(v));
	__asm__ __volatile__("movdiri %1, %0" : "=m"(*d) : "r"(v));
}

/*
 * Writes n bytes to dev if they are one aligned word. Otherwise it returns false and
 * writes nothing. Two direct stores to one line take longer than the buffer does: 64
 * times 16 bytes took 2.6 us as pairs of direct stores, and 1.0 us as vectors.
 */
static inline bool copy_put_direct(void *dev, const void *host, size_t n)
{
	if (n == 8 && (uintptr_t)dev % 8 == 0) {
		copy_direct_8(dev, host);
		return true;
	}
	if (n == 4 && (uintptr_t)dev % 4 == 0) {
		copy_direct_4(dev, host);
		return true;
	}
	return false;
}
#else
static inline bool copy_has_direct(void)
{
	return false;
}

static inline bool copy_put_direct(void *dev, const void *host, size_t n)
{
	(void)dev;
	(void)host;
	(void)n;
	return false;
}
#endif

#endif
