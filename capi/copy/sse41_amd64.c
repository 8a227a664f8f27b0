// SPDX-License-Identifier: MIT
/*
 * sse41_amd64.c - 16-byte non-temporal stores and streaming loads.
 *
 * A plain load from WC memory asks the device for its own bytes alone. The first MOVNTDQA
 * of a line fetches the whole line into a streaming load buffer. The next three are
 * served from that buffer. So a line takes one round trip, not four.
 */
#if defined(__x86_64__)
#include <emmintrin.h>
#include <stdbool.h>

typedef __m128i vec;

static bool usable(void)
{
	return __builtin_cpu_supports("sse4.1");
}

#define NAME "sse4.1"
#define ROUTINE copy_sse41
#define TARGET
#define LOAD "movntdqa %1, %0"
#define LOAD_ONE "movdqa %1, %0"
#define STORE "movntdq %1, %0"
#define STREAMS 1
#define GROUP 4u	/* all 16 registers */
#define PUT(dev, host, n) copy_puts[n](dev, host)
#include "routine.h"
#endif
