// SPDX-License-Identifier: MIT
/*
 * go_hooks.c - what the Go core's coverage calls, in the fuzzed library.
 *
 * Go code built for libFuzzer takes the addresses of the fuzzer's hooks as if
 * they lay in the same object. Here they lie in the program that has loaded
 * the library; so these, of the same names and hidden, pass the calls on. They
 * end in a jump, for the fuzzer tells comparisons apart by who called.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#pragma GCC visibility push(hidden)

typedef void (*range_fn)(const void *start, const void *end);
typedef void (*cmp_fn)(uint64_t a, uint64_t b);

/* The program's function of that name, which -rdynamic lets us find. */
static void *in_program(const char *name)
{
	return dlsym(RTLD_DEFAULT, name);
}

/*
 * Called by this object's constructors, each time for all of the C counters, and
 * for the Go ones when the runtime starts. Each counter needs an entry in a table
 * of addresses, by which the fuzzer counts what was reached; nobody looks at the
 * addresses.
 */
void __sanitizer_cov_8bit_counters_init(const uint8_t *start, const uint8_t *end);
void __sanitizer_cov_8bit_counters_init(const uint8_t *start, const uint8_t *end)
{
	range_fn counters = (range_fn)in_program("__sanitizer_cov_8bit_counters_init");
	range_fn pcs = (range_fn)in_program("__sanitizer_cov_pcs_init");
	static const uint8_t *last;
	const void *(*table)[2];

	if (start == last || !counters || !pcs)
		return;
	last = start;
	table = calloc(end - start, sizeof(*table));
	if (!table)
		abort();
	counters(start, end);
	pcs(table, table + (end - start));
}

/* The Go runtime's own table, with no addresses in it either. */
void __sanitizer_cov_pcs_init(const void *start, const void *end);
void __sanitizer_cov_pcs_init(const void *start, const void *end)
{
	(void)start;
	(void)end;
}

/* Comparisons of strings: the core's are of names out of its own tables. */
void __sanitizer_weak_hook_strcmp(void *pc, const char *a, const char *b, int result);
void __sanitizer_weak_hook_strcmp(void *pc, const char *a, const char *b, int result)
{
	(void)pc;
	(void)a;
	(void)b;
	(void)result;
}

#define CMP_HOOK(name)						\
static cmp_fn real_##name;					\
__attribute__((constructor)) static void find_##name(void)	\
{								\
	real_##name = (cmp_fn)in_program("__sanitizer_cov_trace_" #name);	\
}								\
void __sanitizer_cov_trace_##name(uint64_t a, uint64_t b);	\
void __sanitizer_cov_trace_##name(uint64_t a, uint64_t b)	\
{								\
	if (real_##name)					\
		real_##name(a, b);				\
}

CMP_HOOK(cmp1)
CMP_HOOK(cmp2)
CMP_HOOK(cmp4)
CMP_HOOK(cmp8)
CMP_HOOK(const_cmp1)
CMP_HOOK(const_cmp2)
CMP_HOOK(const_cmp4)
CMP_HOOK(const_cmp8)

#pragma GCC visibility pop
