/* SPDX-License-Identifier: MIT */
/*
 * pause.h - what a thread does between two looks at memory that another one writes.
 */
#ifndef GDR_COPY_PAUSE_H
#define GDR_COPY_PAUSE_H

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
