/* SPDX-License-Identifier: MIT */
/*
 * float.h - the floating-point environment that a process begins with: rounding to nearest,
 * no exception raised, none that traps.
 *
 * A host may have another. Our code, Go's and a driver's count on the usual one, and a new
 * thread has that of its maker.
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

/*
 * The same for a while, on a host's thread: gdr_float_leave puts back what the thread had,
 * its flags too.
 */
#if defined(__x86_64__)

#define GDR_MXCSR_DEFAULT 0x1f80u
#define GDR_X87_DEFAULT 0x37f

struct gdr_float {
	uint32_t mxcsr;
	uint16_t x87;
	uint32_t env[7];	/* the x87 unit's, if its control word is not the default */
};

static inline void gdr_float_enter(struct gdr_float *f)
{
	const uint32_t mxcsr = GDR_MXCSR_DEFAULT;
	const uint16_t x87 = GDR_X87_DEFAULT;

	__asm__ volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(f->mxcsr), "=m"(f->x87));
	if (f->mxcsr != mxcsr)
		__asm__ volatile("ldmxcsr %0" : : "m"(mxcsr));
	/* fnstenv also masks what is pending. */
	if (f->x87 != x87)
		__asm__ volatile("fnstenv %0\n\tfnclex\n\tfldcw %1" : "=m"(f->env) : "m"(x87));
}

static inline void gdr_float_leave(const struct gdr_float *f)
{
	uint32_t mxcsr;

	__asm__ volatile("stmxcsr %0" : "=m"(mxcsr));
	if (mxcsr != f->mxcsr)
		__asm__ volatile("ldmxcsr %0" : : "m"(f->mxcsr));
	if (f->x87 != GDR_X87_DEFAULT)
		__asm__ volatile("fldenv %0" : : "m"(f->env));
}

#elif defined(__aarch64__)

struct gdr_float {
	uint64_t control, status;
};

static inline void gdr_float_enter(struct gdr_float *f)
{
	__asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(f->control), "=r"(f->status));
	if (f->control)
		__asm__ volatile("msr fpcr, %0" : : "r"(0ul));
}

static inline void gdr_float_leave(const struct gdr_float *f)
{
	__asm__ volatile("msr fpsr, %0" : : "r"(f->status));
	if (f->control)
		__asm__ volatile("msr fpcr, %0" : : "r"(f->control));
}

#elif defined(__powerpc64__)

struct gdr_float {
	double fpscr;
};

static inline void gdr_float_enter(struct gdr_float *f)
{
	__asm__ volatile("mffs %0" : "=d"(f->fpscr));
	__asm__ volatile("mtfsf 0xff, %0" : : "d"(0.0));
}

static inline void gdr_float_leave(const struct gdr_float *f)
{
	__asm__ volatile("mtfsf 0xff, %0" : : "d"(f->fpscr));
}

#endif
#endif
