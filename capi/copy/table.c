// SPDX-License-Identifier: MIT
/*
 * table.c - the copy routines of this architecture and how one is chosen.
 *
 * The order on x86-64 was measured on an H200's BAR1 (docs/dataplane.md). AVX-512 is
 * first at all sizes: back to back no routine is more than 2 ns faster, and for a single
 * write the caller waits least for its stores.
 */
#include <string.h>

#include "parts.h"

const struct copy_impl *const copy_impls[] = {
#if defined(__x86_64__)
	&copy_avx512,
	&copy_avx2,
	&copy_sse41,
#elif defined(__aarch64__)
	&copy_neon,
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
