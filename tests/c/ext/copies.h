/* SPDX-License-Identifier: MIT */
/*
 * ext/copies.h - copies whose bytes are checked, whoever makes them.
 */
#ifndef EXT_COPIES_H
#define EXT_COPIES_H

#include "guest/common.h"

/*
 * Writes n bytes and reads them back, twice: by one call, and by small ones, which no thread
 * and no engine helps with. All else must stay.
 */
static inline void check_copy(struct buffer *b, size_t n, size_t at, uint64_t seed)
{
	unsigned char *out = malloc(n), *in = malloc(n + 2), *slow = malloc(n + 2);

	expect(out && in && slow && at > 0 && at + n < b->size);
	fill_random(out, n, seed);
	memset(in, 0x5a, n + 2);
	for (size_t i = 0; i < n + 2; i += 1024)
		expect_is(gdr_copy_to_mapping(b->mh, b->va + at - 1 + i, in + i,
					      n + 2 - i < 1024 ? n + 2 - i : 1024), 0);
	expect_is(gdr_copy_to_mapping(b->mh, b->va + at, out, n), 0);
	expect_is(gdr_copy_from_mapping(b->mh, in + 1, b->va + at, n), 0);
	expect(!memcmp(in + 1, out, n) && in[0] == 0x5a && in[n + 1] == 0x5a);
	for (size_t i = 0; i < n + 2; i += 1024)
		expect_is(gdr_copy_from_mapping(b->mh, slow + i, b->va + at - 1 + i,
						n + 2 - i < 1024 ? n + 2 - i : 1024), 0);
	expect(!memcmp(slow, in, n + 2));
	free(out);
	free(in);
	free(slow);
}

/* Sizes that end with 0, at odd places. */
static inline void check_these(struct buffer *b, const size_t *sizes)
{
	for (; *sizes; sizes++)
		for (size_t at = 1; at < 130; at += 43)
			check_copy(b, *sizes, at, *sizes + at);
}

#endif
