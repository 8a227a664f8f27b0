// SPDX-License-Identifier: MIT
/*
 * copy_table.c - the copy routines of this architecture and how one is chosen.
 *
 * The order on x86-64 is by measurement, on an H200's BAR1 through a Vulkan
 * mapping, one core, median of back-to-back calls, before this library was:
 *
 *	write		AVX-512	SSE	MOVDIR64B
 *	4 KiB, ns	290	330	472
 *	64 KiB, us	3.73	4.18	7.10
 *	1 MiB, us	62.2	69.1	109
 *	16 MiB, us	1171	1229	1732
 *
 * Reads were fastest with AVX-512 too: 4.1 us against 5.2 us at 4 KiB for
 * AVX2. MOVDIR64B lost at every size from 4 KiB up and won nothing below, so
 * it stands after all the others: GDRCOPY_COPY_IMPL=movdir64b picks it, for
 * the machine where it wins. LS64 stands there for the reason in its file.
 */
#include <string.h>

#include "copy_parts.h"

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
