/* SPDX-License-Identifier: MIT */
/*
 * cpu_double.h - included before all else: machines.c says what the CPU has and the OS
 * saves. The names of the bits stay cpu_amd64.h's.
 */
#ifndef GDR_TEST_CPU_DOUBLE_H
#define GDR_TEST_CPU_DOUBLE_H

#ifdef __x86_64__
#define cpu_leaf cpu_leaf_of_this_machine
#define cpu_os_saves cpu_os_saves_of_this_machine
#include "copy/cpu_amd64.h"
#undef cpu_leaf
#undef cpu_os_saves

struct cpu_regs cpu_leaf(uint32_t leaf);
bool cpu_os_saves(uint32_t mask);
#endif

#endif
