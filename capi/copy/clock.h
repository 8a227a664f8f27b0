/* SPDX-License-Identifier: MIT */
/*
 * clock.h - the time, and a pause between two looks at memory that another thread writes.
 */
#ifndef GDR_COPY_CLOCK_H
#define GDR_COPY_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds since some time in the past. A reading takes some 30 ns. */
static inline uint64_t copy_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void copy_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("isb" ::: "memory");
#else
	__asm__ __volatile__("" ::: "memory");
#endif
}

#endif
