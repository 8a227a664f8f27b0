// SPDX-License-Identifier: MIT
/*
 * neon_arm64.c - 16-byte stores and loads.
 *
 * WC on Arm is Normal Non-cacheable memory. The CPU gathers stores to it and does not
 * order them. So a line is written by four stores in a row.
 */
#if defined(__aarch64__)
#include <stdbool.h>
#include <stdint.h>
#include <sys/auxv.h>

typedef uint8_t vec __attribute__((vector_size(16), may_alias));

static bool usable(void)
{
	return getauxval(AT_HWCAP) & (1ul << 1);	/* HWCAP_ASIMD */
}

#define NAME "neon"
#define ROUTINE copy_neon
#define TARGET
#define LOAD "ldr %q0, %1"
#define LOAD_ONE LOAD
#define STORE "str %q1, %0"
#define STREAMS 0
#define GROUP 4u	/* 16 of 32 registers */
#define PUT(dev, host, n) copy_puts[n](dev, host)
#include "routine.h"
#endif
