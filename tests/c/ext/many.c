// SPDX-License-Identifier: MIT
/*
 * ext/many.c - the bytes of gdr_copy_to_mapping_v and gdr_copy_from_mapping_v. What copies
 * refuse, and that they are interrupted, left and unmapped, is tested for these two where
 * it is for copies of one piece.
 */
#include "guest/cuda.h"

#define BUFFERS 3
#define BYTES (256 * KIB)
#define PIECES 64
#define ROOM 4096	/* for a piece, on either side: they do not overlap */
#define EDGE 128	/* around it */

static struct buffer b[BUFFERS];
static unsigned char model[BUFFERS][BYTES];	/* what each should hold */
static unsigned char host[PIECES * ROOM], want[PIECES * ROOM], back[BYTES];

/* Pieces of less than a line, of some lines, and of many; and where in the model each one is. */
static size_t some_pieces(gdr_piece_t *pieces, unsigned char **in_model, uint64_t *seed)
{
	static const size_t most[] = { 9, 65, 300, ROOM - 2 * EDGE - 64 };
	size_t count = 1 + next_random(seed) % PIECES;

	for (size_t i = 0; i < count; i++) {
		int k = next_random(seed) % BUFFERS;
		size_t at = i * ROOM + EDGE + next_random(seed) % 64;

		in_model[i] = model[k] + at;
		pieces[i] = (gdr_piece_t){
			.handle = b[k].mh, .map_d_ptr = b[k].va + at,
			.h_ptr = host + i * ROOM + EDGE + next_random(seed) % 64,
			.size = next_random(seed) % most[next_random(seed) % 4],
		};
	}
	return count;
}

static void any_pieces(void)
{
	gdr_piece_t pieces[PIECES];
	unsigned char *in_model[PIECES];
	uint64_t seed = 42;
	gdr_t g = open_with_context();
	size_t count;

	for (int k = 0; k < BUFFERS; k++) {
		make_buffer(g, &b[k], BYTES);
		fill_random(model[k], BYTES, k + 1);
		expect_is(gdr_copy_to_mapping(b[k].mh, b[k].va, model[k], BYTES), 0);
	}
	for (long round = 0; round < scaled(300); round++) {
		count = some_pieces(pieces, in_model, &seed);
		fill_random(host, sizeof(host), next_random(&seed));
		expect_is(gdr_copy_to_mapping_v(pieces, count), 0);
		for (size_t i = 0; i < count; i++)
			memcpy(in_model[i], pieces[i].h_ptr, pieces[i].size);
		for (int k = 0; k < BUFFERS; k++) {
			expect_is(gdr_copy_from_mapping(b[k].mh, back, b[k].va, BYTES), 0);
			expect(!memcmp(back, model[k], BYTES));
		}
		count = some_pieces(pieces, in_model, &seed);
		fill_random(host, sizeof(host), next_random(&seed));
		memcpy(want, host, sizeof(want));
		for (size_t i = 0; i < count; i++)
			memcpy(want + ((unsigned char *)pieces[i].h_ptr - host), in_model[i], pieces[i].size);
		expect_is(gdr_copy_from_mapping_v(pieces, count), 0);
		expect(!memcmp(want, host, sizeof(want)));
	}
}

/* The pieces of one thread are none of another's. */
static void *read_own(void *of)
{
	const struct buffer *own = of;
	unsigned char got[PIECES][8], value = (unsigned char)(own - b + 1);
	gdr_piece_t pieces[PIECES];

	for (int i = 0; i < PIECES; i++)
		pieces[i] = (gdr_piece_t){ own->mh, own->va + i * ROOM, got[i], sizeof(got[i]) };
	for (long round = 0; round < scaled(20000); round++) {
		memset(got, 0, sizeof(got));
		expect_is(gdr_copy_from_mapping_v(pieces, PIECES), 0);
		for (int i = 0; i < PIECES; i++)
			expect_is(got[i][round % 8], value);
	}
	return NULL;
}

static void threads(void)
{
	gdr_t g = open_with_context();
	pthread_t t[BUFFERS];

	for (int k = 0; k < BUFFERS; k++) {
		make_buffer(g, &b[k], BYTES);
		memset(back, k + 1, BYTES);
		expect_is(gdr_copy_to_mapping(b[k].mh, b[k].va, back, BYTES), 0);
		start_thread(&t[k], 0, read_own, &b[k]);
	}
	join_threads(t, BUFFERS);
}

const struct guest_case cases[] = {
	{ "pieces of any size at any place", any_pieces, 60, 300 },
	{ "in threads at once", threads, 60 },
	{ 0 }
};
