/* SPDX-License-Identifier: MIT */
/*
 * cpu_amd64.h - what this CPU can do and this OS allows.
 *
 * A CPUID bit alone is not enough for the wide registers. The OS must save them at a
 * context switch. XCR0 shows whether it does.
 */
#ifndef GDR_COPY_CPU_AMD64_H
#define GDR_COPY_CPU_AMD64_H

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdbool.h>
#include <stdint.h>

struct cpu_regs {
	uint32_t eax, ebx, ecx, edx;
};

/* All zero when the CPU does not have that leaf. */
static inline struct cpu_regs cpu_leaf(uint32_t leaf)
{
	struct cpu_regs r = { 0, 0, 0, 0 };

	if (!__get_cpuid_count(leaf, 0, &r.eax, &r.ebx, &r.ecx, &r.edx))
		r = (struct cpu_regs){ 0, 0, 0, 0 };
	return r;
}

#define CPU_1_ECX_SSE41 (1u << 19)
#define CPU_1_ECX_OSXSAVE (1u << 27)
#define CPU_7_EBX_AVX2 (1u << 5)
#define CPU_7_EBX_AVX512F (1u << 16)
#define CPU_7_EBX_AVX512BW (1u << 30)
#define CPU_7_ECX_MOVDIRI (1u << 27)

#define XCR0_AVX 0x06u		/* XMM and the upper halves of YMM */
#define XCR0_AVX512 0xe6u	/* the masks and all of ZMM, too */

/* Whether the OS saves all the register state in mask. */
static inline bool cpu_os_saves(uint32_t mask)
{
	uint32_t lo, hi;

	if (!(cpu_leaf(1).ecx & CPU_1_ECX_OSXSAVE))
		return false;
	__asm__ __volatile__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
	return (lo & mask) == mask;
}

#endif
#endif
