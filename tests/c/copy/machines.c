// SPDX-License-Identifier: MIT
/*
 * copy/machines.c - which copy routines a CPU and its OS allow.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "cpu_double.h"
#include "copy/copy.h"
#include "copy/direct.h"
#include "tap.h"

static struct tap tap;

static void check(const char *what, const char *names)
{
	const struct copy_impl *const *impl = copy_impls;
	char got[64] = "";

	for (; *impl; impl++)
		if (copy_select((*impl)->name)) {
			strcat(got, *got ? " " : "");
			strcat(got, (*impl)->name);
		}
	if (!tap_ok(&tap, !strcmp(got, names), "%s: %s", what, names))
		printf("# got %s\n", got);
	tap_ok(&tap, !strncmp(copy_select(NULL)->name, names, strcspn(names, " ")), "%s: the first of them is taken", what);
}

#ifdef __x86_64__
/* The bits are of Intel's manual: volume 2A, CPUID; volume 1, 13.3. */
#define SSE41 (1u << 19)
#define AVX2 (1u << 5)
#define F (1u << 16)
#define BW (1u << 30)
#define MOVDIRI (1u << 27)

static struct machine {
	const char *what;
	uint32_t leaf1_ecx, leaf7_ebx, leaf7_ecx, xcr0;
	const char *names;
} machine;

struct cpu_regs cpu_leaf(uint32_t leaf)
{
	return leaf == 1 ? (struct cpu_regs){ .ecx = machine.leaf1_ecx } :
	       leaf == 7 ? (struct cpu_regs){ .ebx = machine.leaf7_ebx, .ecx = machine.leaf7_ecx } :
	       (struct cpu_regs){ 0 };
}

bool cpu_os_saves(uint32_t mask)
{
	return (machine.xcr0 & mask) == mask;
}

static void check_all(void)
{
	static const struct machine machines[] = {
		{ "all", SSE41, AVX2 | F | BW, MOVDIRI, 0xe7, "avx512 avx2 sse4.1 portable" },
		{ "all, and the OS saves more", ~0u, ~0u, ~0u, ~0u, "avx512 avx2 sse4.1 portable" },
		{ "no AVX512F", SSE41, AVX2 | BW, 0, 0xe7, "avx2 sse4.1 portable" },
		{ "no AVX512BW", SSE41, AVX2 | F, 0, 0xe7, "avx2 sse4.1 portable" },
		{ "no AVX2", SSE41, F | BW, 0, 0xe7, "avx512 sse4.1 portable" },
		{ "no SSE4.1", 0, AVX2 | F | BW, 0, 0xe7, "avx512 avx2 portable" },
		{ "all but AVX2, AVX512F", ~0u, ~(AVX2 | F), ~0u, ~0u, "sse4.1 portable" },
		{ "the OS saves no masks", SSE41, AVX2 | F | BW, 0, 0xc7, "avx2 sse4.1 portable" },
		{ "the OS saves no upper halves of ZMM", SSE41, AVX2 | F | BW, 0, 0xa7, "avx2 sse4.1 portable" },
		{ "the OS saves no upper ZMM", SSE41, AVX2 | F | BW, 0, 0x67, "avx2 sse4.1 portable" },
		{ "the OS saves YMM alone", SSE41, AVX2 | F | BW, 0, 0x07, "avx2 sse4.1 portable" },
		{ "the OS saves no YMM", SSE41, AVX2 | F | BW, 0, 0xe3, "sse4.1 portable" },
		{ "the OS saves no XMM", SSE41, AVX2 | F | BW, 0, 0xe5, "sse4.1 portable" },
		{ "nothing", 0, 0, 0, 0, "portable" },
		{ "all else", ~SSE41, ~(AVX2 | F | BW), ~MOVDIRI, ~0u, "portable" },
	};

	for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
		machine = machines[i];
		check(machine.what, machine.names);
		tap_ok(&tap, copy_has_direct() == ((machine.leaf7_ecx & MOVDIRI) != 0), "%s: direct stores", machine.what);
	}
}
#elif defined(__aarch64__)
static void check_all(void)
{
	check("each machine", "neon portable");
}
#else
static void check_all(void)
{
	check("each machine", "portable");
}
#endif

int main(void)
{
	check_all();
	return tap_done(&tap);
}
