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
#include <cpuid.h>

#define CPU_7_ECX_MOVDIRI (1u << 27)

static inline bool copy_has_direct(void)
{
	unsigned int a, b, c, d;

	return __get_cpuid_count(7, 0, &a, &b, &c, &d) && c & CPU_7_ECX_MOVDIRI;
}

/*
 * Writes n bytes to dev if they are one aligned word. Otherwise it returns false and
 * writes nothing. Two direct stores to one line take longer than the buffer does.
 */
static inline bool copy_put_direct(void *dev, const void *host, size_t n)
{
	typedef uint32_t __attribute__((may_alias)) dev32;
	typedef uint64_t __attribute__((may_alias)) dev64;
	uint64_t v8;
	uint32_t v4;

	if (n == 8 && (uintptr_t)dev % 8 == 0) {
		memcpy(&v8, host, 8);
		__asm__ __volatile__("movdiri %1, %0" : "=m"(*(dev64 *)dev) : "r"(v8));
		return true;
	}
	if (n == 4 && (uintptr_t)dev % 4 == 0) {
		memcpy(&v4, host, 4);
		__asm__ __volatile__("movdiri %1, %0" : "=m"(*(dev32 *)dev) : "r"(v4));
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
