/* SPDX-License-Identifier: MIT */
/*
 * gdrconfig.h - GDRAPI_ARCH, the CPU that a program is compiled for.
 *
 * Programs written for GDRCopy read these names.
 */
#ifndef __GDRCONFIG_H__
#define __GDRCONFIG_H__

#define GDRAPI_POWER 1
#define GDRAPI_X86 2
#define GDRAPI_ARM64 3

#if defined(__powerpc64__)
#define GDRAPI_ARCH GDRAPI_POWER
#elif defined(__x86_64__)
#define GDRAPI_ARCH GDRAPI_X86
#elif defined(__aarch64__)
#define GDRAPI_ARCH GDRAPI_ARM64
#else
#error "this CPU is not one that libgdrapi is for"
#endif

#endif
