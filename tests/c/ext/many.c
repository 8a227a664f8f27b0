// SPDX-License-Identifier: MIT
/*
 * ext/many.c - gdr_copy_to_mapping_v and gdr_copy_from_mapping_v in a host.
 */
#include "guest/cuda.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/time.h>

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

/* The same with what shares and hands over long pieces. */
static void long_pieces(void)
{
	static unsigned char out[BUFFERS][BYTES], in[BUFFERS][BYTES];
	gdr_piece_t to[BUFFERS], from[BUFFERS];
	struct scene s;

	expect_is(setenv("GDRCOPY_READ_THREADS", "4", 1), 0);
	expect_is(setenv("GDRCOPY_WRITE_THREADS", "4", 1), 0);
	expect_is(setenv("GDRCOPY_DMA_READ", "200000", 1), 0);
	expect_is(setenv("GDRCOPY_DMA_WRITE", "200000", 1), 0);
	make_scene(&s);
	for (int i = 0; i < BUFFERS; i++) {
		size_t n = BYTES / (i + 1) - 3;

		fill_random(out[i], BYTES, i + 7);
		to[i] = (gdr_piece_t){ s.b[i].mh, s.b[i].va + 1, out[i], n };
		from[i] = (gdr_piece_t){ s.b[i].mh, s.b[i].va + 1, in[i], n };
	}
	for (int round = 0; round < 20; round++) {
		out[round % BUFFERS][round]++;
		expect_is(gdr_copy_to_mapping_v(to, BUFFERS), 0);
		expect_is(gdr_copy_from_mapping_v(from, BUFFERS), 0);
		for (int i = 0; i < BUFFERS; i++)
			expect(!memcmp(in[i], out[i], to[i].size));
	}
}

/* A wrong piece, at any place, and no byte moves. */
static void wrong_pieces(void)
{
	unsigned char bytes[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, want[8];
	struct scene s;

	make_scene(&s);
	const struct buffer *b = &s.b[0];
	const struct { gdr_piece_t p; const char *what; } bad[] = {
		{ { { 0 }, b->va, bytes, 8 }, "no handle" },
		{ { { 1 }, b->va, bytes, 8 }, "a number" },
		{ { { b->mh.h + (1ul << 20) }, b->va, bytes, 8 }, "a stale handle" },
		{ { b->mh, b->va - 1, bytes, 8 }, "before the mapping" },
		{ { b->mh, b->va + BYTES - 7, bytes, 8 }, "past the mapping" },
		{ { b->mh, b->va, bytes, BYTES + 1 }, "too long" },
		{ { b->mh, b->va, bytes, SIZE_MAX }, "far too long" },
		{ { b->mh, NULL, bytes, 8 }, "no address" },
		{ { b->mh, b->va, NULL, 8 }, "no host address" },
		{ { b->mh, s.b[1].va, bytes, 8 }, "another buffer's address" },
	};

	memcpy(want, bytes, 8);
	for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++)
		for (size_t at = 0; at < 4; at++) {
			gdr_piece_t pieces[4];

			for (size_t i = 0; i < 4; i++)
				pieces[i] = (gdr_piece_t){ b->mh, b->va + 64 * i, bytes, 8 };
			pieces[at] = bad[k].p;
			if (gdr_copy_to_mapping_v(pieces, 4) != EINVAL ||
			    gdr_copy_from_mapping_v(pieces, 4) != EINVAL) {
				note("%s, at %zu", bad[k].what, at);
				expect(false);
			}
		}
	expect(!memcmp(bytes, want, 8));
	check_models(&s);
}

static void nothing_to_do(void)
{
	gdr_piece_t piece = { { 0 }, NULL, NULL, 0 };
	struct scene s;

	expect_is(gdr_copy_to_mapping_v(NULL, 0), 0);
	expect_is(gdr_copy_from_mapping_v(NULL, 0), 0);
	expect_is(gdr_copy_to_mapping_v(NULL, 1), EINVAL);
	expect_is(gdr_copy_from_mapping_v(NULL, 1), EINVAL);
	expect_is(gdr_copy_to_mapping_v(&piece, 1), EINVAL);
	make_scene(&s);
	expect_is(gdr_copy_to_mapping_v(&piece, 1), EINVAL);
	expect_is(gdr_copy_from_mapping_v(&piece, 1), EINVAL);
	piece.handle = s.b[0].mh;
	expect_is(gdr_copy_to_mapping_v(&piece, 1), 0);
	expect_is(gdr_copy_from_mapping_v(&piece, 1), 0);
	drop_buffer(s.g, &s.b[0]);
	expect_is(gdr_copy_to_mapping_v(&piece, 1), EINVAL);
	expect_is(gdr_copy_from_mapping_v(&piece, 1), EINVAL);
}

/* Copies of many inside copies of many, and of one inside of those. */
static struct scene *at_signal;
static _Atomic long handled;
static _Atomic int wrong;

static void copy_in_handler(int sig)
{
	unsigned char out[3] = { 9, 8, 7 }, in[4][3];
	const struct buffer *b = &at_signal->b[2];
	gdr_piece_t to[2] = { { b->mh, b->va + 3, out, 3 }, { b->mh, b->va + 130, out, 3 } };
	gdr_piece_t from[2] = { { b->mh, b->va + 3, in[0], 3 }, { b->mh, b->va + 130, in[1], 3 } };

	if (gdr_copy_to_mapping_v(to, 2) || gdr_copy_from_mapping_v(from, 2) ||
	    memcmp(in[0], out, 3) || memcmp(in[1], out, 3) ||
	    gdr_copy_from_mapping(b->mh, in[2], b->va + 3, 3) || memcmp(in[2], out, 3))
		wrong++;
	handled++;
}

static void in_handlers(void)
{
	struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { { 0, 0 }, { 0, 0 } };
	struct sigaction act = { .sa_handler = copy_in_handler };
	uint64_t state = 5;
	struct scene s;

	make_scene(&s);
	at_signal = &s;
	expect_is(sigaction(SIGALRM, &act, NULL), 0);
	expect_is(setitimer(ITIMER_REAL, &often, NULL), 0);
	while (handled < scaled(2000)) {
		gdr_piece_t to[PIECES], from[PIECES];
		unsigned char in[PIECES][8], out[PIECES][8];

		for (int i = 0; i < PIECES; i++) {
			const struct buffer *b = &s.b[i % 2];

			fill_random(out[i], 8, next_random(&state));
			to[i] = (gdr_piece_t){ b->mh, b->va + 100 * i, out[i], 8 };
			from[i] = (gdr_piece_t){ b->mh, b->va + 100 * i, in[i], 8 };
		}
		expect_is(gdr_copy_to_mapping_v(to, PIECES), 0);
		expect_is(gdr_copy_from_mapping_v(from, PIECES), 0);
		expect(!memcmp(in, out, sizeof(in)));
	}
	expect_is(setitimer(ITIMER_REAL, &never, NULL), 0);
	expect_is(wrong, 0);
}

/* Threads copy without end while the buffers are unmapped and mapped again. */
static _Atomic bool stop;
static unsigned long handles[BUFFERS];
static _Atomic(unsigned char *) places[BUFFERS];
static _Atomic long done, refused;

static void *copy_many(void *arg)
{
	unsigned char data[PIECES][16];
	bool read = (uintptr_t)arg % 2;

	memset(data, (int)(uintptr_t)arg, sizeof(data));
	while (!stop) {
		gdr_piece_t pieces[PIECES];
		int rc;

		for (int i = 0; i < PIECES; i++)
			pieces[i] = (gdr_piece_t){ { handles[i % BUFFERS] },
						   places[i % BUFFERS] + 64 * i, data[i], 16 };
		rc = read ? gdr_copy_from_mapping_v(pieces, PIECES) :
			    gdr_copy_to_mapping_v(pieces, PIECES);
		if (rc && rc != EINVAL)
			wrong++;
		(rc ? &refused : &done)[0]++;
	}
	return NULL;
}

static void unmap_under_copies(void)
{
	pthread_t threads[4];
	struct scene s;

	make_scene(&s);
	for (int i = 0; i < BUFFERS; i++) {
		handles[i] = s.b[i].mh.h;
		places[i] = s.b[i].va;
	}
	for (uintptr_t i = 0; i < 4; i++)
		start_thread(&threads[i], 0, copy_many, (void *)i);
	for (long i = 0; i < scaled(300); i++) {
		struct buffer *b = &s.b[i % BUFFERS];
		long before = done;
		void *va = NULL;

		for (int k = 0; k < 100 && done < before + 10; k++)
			sleep_us(50);
		expect_is(gdr_unmap(s.g, b->mh, b->va, b->size), 0);
		expect_is(gdr_map(s.g, b->mh, &va, b->size), 0);
		b->va = va;
		places[i % BUFFERS] = b->va;
	}
	stop = true;
	join_threads(threads, 4);
	note("%ld copies done, %ld refused", done, refused);
	expect(done > 0);
	expect_is(wrong, 0);
}

/* It has no CUDA, and so no buffer of its own. */
static void copy_in_child(void *arg)
{
	const struct scene *s = arg;
	unsigned char byte = 1;
	gdr_piece_t piece = { s->b[0].mh, s->b[0].va, &byte, 1 };
	gdr_t g;

	expect_is(gdr_copy_to_mapping_v(&piece, 1), EACCES);
	g = gdr_open();
	expect_is(gdr_copy_to_mapping_v(&piece, 1), EACCES);
	expect_is(gdr_copy_from_mapping_v(&piece, 1), EACCES);
	if (g)
		expect_is(gdr_close(g), 0);
}

static void forked(void)
{
	uint64_t state = 9;
	struct scene s;

	make_scene(&s);
	write_once(&s, &state);
	expect(in_child("a child's copies", copy_in_child, &s, 30));
	write_once(&s, &state);
	read_once(&s, &state);
}

/* A copy of many that a handler leaves holds no unmap up, here or elsewhere. */
static sigjmp_buf out_of_copy;

static void leave(int sig)
{
	siglongjmp(out_of_copy, 1);
}

static void *unmap_elsewhere(void *arg)
{
	struct scene *s = arg;

	drop_buffer(s->g, &s->b[1]);
	return NULL;
}

static void left(void)
{
	struct sigaction act = { .sa_handler = leave, .sa_flags = SA_NODEFER };
	unsigned char bytes[64];
	void *none = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct scene s;

	expect(none != MAP_FAILED);
	make_scene(&s);
	expect_is(sigaction(SIGSEGV, &act, NULL), 0);
	for (int read = 0; read < 2; read++) {
		gdr_piece_t pieces[2] = { { s.b[0].mh, s.b[0].va, bytes, 64 },
					  { s.b[1].mh, s.b[1].va, none, 64 } };

		if (sigsetjmp(out_of_copy, 1) == 0) {
			if (read)
				gdr_copy_from_mapping_v(pieces, 2);
			else
				gdr_copy_to_mapping_v(pieces, 2);
			expect(false);
		}
	}
	drop_buffer(s.g, &s.b[0]);
	run_thread(0, unmap_elsewhere, &s);
	expect_is(gdr_close(s.g), 0);
}

static const struct guest_case cases[] = {
	{ "pieces of any size at any place", any_pieces, 60, 300 },
	{ "long pieces, shared and by DMA", long_pieces, 60, 0 },
	{ "a wrong piece, and nothing moves", wrong_pieces, 30, 0 },
	{ "nothing to do", nothing_to_do, 30, 0 },
	{ "in signal handlers", in_handlers, 60, 300 },
	{ "gdr_unmap under copies", unmap_under_copies, 60, 300 },
	{ "a forked child", forked, 60, 0 },
	{ "copies that a handler leaves", left, 30, 0 },
	{ NULL, NULL, 0, 0 }
};

int main(int argc, char **argv)
{
	return guest_main(argc, argv, cases);
}
