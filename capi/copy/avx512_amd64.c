// SPDX-License-Identifier: MIT
/*
 * avx512_amd64.c - a whole line by one non-temporal store or one streaming load.
 */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdbool.h>

typedef __m512i vec;

static bool usable(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}

#define NAME "avx512"
#define ROUTINE copy_avx512
#define TARGET __attribute__((target("avx512f,avx512bw")))
#define LOAD "vmovntdqa %1, %0"
#define LOAD_ONE "vmovdqa64 %1, %0"
#define STORE "vmovntdq %1, %0"
#define STREAMS 1
#define GROUP 8u
#define PUT(dev, host, n) copy_puts[n](dev, host)

/* The mask limits the store to the wanted bytes. All others neither change nor fault. */
#define KEEP(host, vecs, off, n) \
	_mm512_mask_storeu_epi8((uint8_t *)(host) - (off), (~0ull >> (COPY_LINE - (n))) << (off), *(vecs))

/*
 * Uses one of the upper sixteen registers. So the state that VZEROUPPER would have to
 * clear stays as it is.
 */
#define STORE_LINE(dev, host) \
	__asm__ __volatile__("vmovdqu64 %1, %%zmm16\n\t" \
			     "vmovntdq %%zmm16, %0" \
			     : "=m"(*(vec *)(dev)) \
			     : "m"(*(const vec *)(host)) \
			     : "xmm16")
#include "routine.h"
#endif
