/* SPDX-License-Identifier: MIT */
/*
 * gdrconfig.h - the CPU that a program is compiled for: one of GDRAPI_X86,
 * GDRAPI_ARM64 and GDRAPI_POWER, defined and empty.
 *
 * Programs written for GDRCopy read these names. gdrapi.h does not need them.
 */
#ifndef __GDRCONFIG_H__
#define __GDRCONFIG_H__

#if defined(__powerpc__)
#define GDRAPI_POWER
#elif defined(__x86_64__)
#define GDRAPI_X86
#elif defined(__aarch64__)
#define GDRAPI_ARM64
#endif

#endif
