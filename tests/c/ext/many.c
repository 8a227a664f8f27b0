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
#define ROOM 4096	/* for a piece, on either side */
#define EDGE 128	/* around it */

/* The library's buffers, and what each should hold. */
struct scene {
	gdr_t g;
	struct buffer b[BUFFERS];
	unsigned char *model[BUFFERS];
	unsigned char *host;	/* PIECES times ROOM */
};

static void read_back(const struct buffer *b, unsigned char *to)
{
	expect_is(gdr_copy_from_mapping(b->mh, to, b->va, BYTES), 0);
}

static void make_scene(struct scene *s)
{
	s->g = open_with_context();
	s->host = malloc(PIECES * ROOM);
	expect(s->host != NULL);
	for (int i = 0; i < BUFFERS; i++) {
		make_buffer(s->g, &s->b[i], BYTES);
		s->model[i] = malloc(BYTES);
		expect(s->model[i] != NULL);
		fill_random(s->model[i], BYTES, i + 1);
		expect_is(gdr_copy_to_mapping(s->b[i].mh, s->b[i].va, s->model[i], BYTES), 0);
	}
}

static size_t offset_of(const struct scene *s, const gdr_piece_t *p, int *which)
{
	for (int i = 0; i < BUFFERS; i++)
		if (p->handle.h == s->b[i].mh.h) {
			*which = i;
			return (unsigned char *)p->map_d_ptr - s->b[i].va;
		}
	expect(false);
	return 0;
}

/* Sizes of less than a line, of some lines, and of many. */
static size_t random_size(uint64_t *state)
{
	uint32_t r = next_random(state);

	switch (r % 4) {
	case 0: return r / 4 % 9;
	case 1: return r / 4 % 65;
	case 2: return r / 4 % 300;
	default: return r / 4 % (ROOM - 2 * EDGE);
	}
}

/* Pieces that do not overlap: each has a place of its own in its buffer. */
static size_t random_pieces(struct scene *s, gdr_piece_t *pieces, uint64_t *state)
{
	size_t count = 1 + next_random(state) % PIECES;

	for (size_t i = 0; i < count; i++) {
		const struct buffer *b = &s->b[next_random(state) % BUFFERS];
		size_t at = i * ROOM + EDGE + next_random(state) % 64;

		pieces[i] = (gdr_piece_t){
			.handle = b->mh, .map_d_ptr = b->va + at, .size = random_size(state),
			.h_ptr = s->host + i * ROOM + EDGE + next_random(state) % 64,
		};
		if (pieces[i].size > ROOM - 2 * EDGE - 64)
			pieces[i].size = ROOM - 2 * EDGE - 64;
	}
	return count;
}

static void check_models(const struct scene *s)
{
	unsigned char *got = malloc(BYTES);

	expect(got != NULL);
	for (int i = 0; i < BUFFERS; i++) {
		read_back(&s->b[i], got);
		expect(!memcmp(got, s->model[i], BYTES));
	}
	free(got);
}

static void write_once(struct scene *s, uint64_t *state)
{
	gdr_piece_t pieces[PIECES];
	size_t count = random_pieces(s, pieces, state);

	fill_random(s->host, PIECES * ROOM, next_random(state));
	expect_is(gdr_copy_to_mapping_v(pieces, count), 0);
	for (size_t i = 0; i < count; i++) {
		int which = 0;
		size_t at = offset_of(s, &pieces[i], &which);

		memcpy(s->model[which] + at, pieces[i].h_ptr, pieces[i].size);
	}
	check_models(s);
}

static void read_once(struct scene *s, uint64_t *state)
{
	gdr_piece_t pieces[PIECES];
	size_t count = random_pieces(s, pieces, state);
	unsigned char *want = malloc(PIECES * ROOM);

	expect(want != NULL);
	fill_random(s->host, PIECES * ROOM, next_random(state));
	memcpy(want, s->host, PIECES * ROOM);
	expect_is(gdr_copy_from_mapping_v(pieces, count), 0);
	for (size_t i = 0; i < count; i++) {
		int which = 0;
		size_t at = offset_of(s, &pieces[i], &which);

		memcpy(want + ((unsigned char *)pieces[i].h_ptr - s->host), s->model[which] + at,
		       pieces[i].size);
	}
	expect(!memcmp(want, s->host, PIECES * ROOM));
	free(want);
}

static void any_pieces(void)
{
	uint64_t state = 42;
	struct scene s;

	make_scene(&s);
	for (long i = 0; i < scaled(300); i++) {
		write_once(&s, &state);
		read_once(&s, &state);
	}
}

const struct guest_case cases[] = {
	{ "pieces of any size at any place", any_pieces, 60, 300 },
	{ 0 }
};
