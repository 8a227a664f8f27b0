/* SPDX-License-Identifier: MIT */
/*
 * enter.h - what is done to a host's thread before it runs Go code or takes a lock of ours,
 * and after.
 */
#ifndef GDR_ENTER_H
#define GDR_ENTER_H

#include <stdint.h>

#include "signals.h"

#pragma GCC visibility push(hidden)

/*
 * gdr_float_enter gives a thread the floating-point environment that a process begins with:
 * rounding to nearest, no exception raised, none that traps. A host may have another, and a
 * new thread has that of its maker; Go counts on the usual one. gdr_float_leave puts back what
 * the thread had, its flags too. (fesetenv is in libm, which the library does not need.)
 */
#if defined(__x86_64__)

#define GDR_MXCSR_DEFAULT 0x1f80u

struct gdr_float {
	uint32_t mxcsr;	/* the x87 unit's stays: Go does not use that unit */
};

static inline void gdr_float_enter(struct gdr_float *f)
{
	const uint32_t mxcsr = GDR_MXCSR_DEFAULT;

	__asm__ volatile("stmxcsr %0" : "=m"(f->mxcsr));
	if (f->mxcsr != mxcsr)
		__asm__ volatile("ldmxcsr %0" : : "m"(mxcsr));
}

static inline void gdr_float_leave(const struct gdr_float *f)
{
	__asm__ volatile("ldmxcsr %0" : : "m"(f->mxcsr));
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

/*
 * The state of a host thread before it entered.
 *
 * 1. All signals are held off inside but SIGSETXID and those of faults: no handler of the
 *    host runs in the middle of our work, or leaves it by siglongjmp.
 * 2. SIGSETXID stays open because setuid(2) in another thread waits for it.
 * 3. The faults stay open because a driver's code, or a filter of system calls (seccomp's
 *    SECCOMP_RET_TRAP, Syscall User Dispatch), may raise one. A forced signal that is
 *    held off kills the process. The handler runs on Go's stack, which is 128 KiB here, or
 *    with SA_ONSTACK on the host's alternate stack. Where the host has none, Go gives the
 *    thread one of 128 KiB.
 * 4. The thread cannot be cancelled inside.
 * 5. Floating-point numbers are as a program finds them at its start, and as they were
 *    afterwards.
 * 6. errno is the same afterwards.
 */
struct gdr_host_thread {
	uint64_t held;
	int cancel;
	int error;
	struct gdr_float floats;
};

void gdr_enter(struct gdr_host_thread *t);
void gdr_leave(const struct gdr_host_thread *t);

#pragma GCC visibility pop

#endif
