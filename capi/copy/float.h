/* SPDX-License-Identifier: MIT */
/*
 * float.h - the floating-point environment that a process begins with: rounding to nearest,
 * no exception raised, none that traps.
 */
#ifndef GDR_COPY_FLOAT_H
#define GDR_COPY_FLOAT_H

#include <stdint.h>

/* Sets it for this thread. (fesetenv is in libm, which the library does not need.) */
static inline void gdr_float_default(void)
{
#if defined(__x86_64__)
	const uint32_t mxcsr = 0x1f80;

	__asm__ __volatile__("fninit; ldmxcsr %0" : : "m"(mxcsr));
#elif defined(__aarch64__)
	__asm__ __volatile__("msr fpcr, %0; msr fpsr, %0" : : "r"(0ul));
#elif defined(__powerpc64__)
	__asm__ __volatile__("mtfsf 0xff,%0" : : "d"(0.0));
#endif
}

#endif
