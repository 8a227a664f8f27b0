// SPDX-License-Identifier: MIT
/*
 * avx2_amd64.c - 32-byte non-temporal stores and streaming loads.
 */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdbool.h>

typedef __m256i vec;

static bool usable(void)
{
	return __builtin_cpu_supports("avx2");
}

#define NAME "avx2"
#define ROUTINE copy_avx2
#define TARGET __attribute__((target("avx2")))
#define LOAD "vmovntdqa %1, %0"
#define LOAD_ONE "vmovdqa %1, %0"
#define STORE "vmovntdq %1, %0"
#define STREAMS 1
#define GROUP 8u	/* all 16 registers */
#define PUT(dev, host, n) copy_puts[n](dev, host)
#include "routine.h"
#endif
