// SPDX-License-Identifier: MIT
/*
 * table.c - the copy routines of this architecture and how one is chosen.
 *
 * The order on x86-64 is by measurement on an H200's BAR1 (docs/dataplane.md). AVX-512
 * is first at all sizes: back to back no routine is more than 2 ns ahead, and a caller
 * that writes alone waits for AVX-512's stores least. MOVDIR64B stands after all the
 * others: GDRCOPY_COPY_IMPL=movdir64b picks it, for the machine where it wins. LS64
 * stands there for the reason in its file.
 */
#include <string.h>

#include "parts.h"

const struct copy_impl *const copy_impls[] = {
#if defined(__x86_64__)
	&copy_avx512,
	&copy_avx2,
	&copy_sse41,
	&copy_sse2,
	&copy_movdir64b,
#elif defined(__aarch64__)
	&copy_neon,
	&copy_ls64,
#endif
	&copy_portable,
	NULL,
};

const struct copy_impl *copy_select(const char *name)
{
	for (size_t i = 0; copy_impls[i]; i++) {
		const struct copy_impl *impl = copy_impls[i];

		if (name && strcmp(name, impl->name) != 0)
			continue;
		if (impl->usable())
			return impl;
	}
	return NULL;
}
