// SPDX-License-Identifier: MIT
/*
 * copy_many.c - gdr_copy_to_mapping_v and gdr_copy_from_mapping_v: copies of many pieces. All
 * pieces are checked first, then copied, with one fence.
 */
#define _GNU_SOURCE
#include "copies.h"

#include <errno.h>

#include "../include/gdrapi_ext.h"
#include "copy/direct.h"
#include "guest/log.h"

/* What is known of the pieces once all were checked. */
struct pieces {
	const gdr_piece_t *at;
	size_t count;
	bool plain;	/* all are of write-combined memory */
};

/* Moves one piece of any type and size, also 0. */
static void move_piece(const gdr_piece_t *piece, bool to)
{
	uint64_t key = piece->handle.h;

	if (piece->size)
		gdr_copy_move(gdr_slot_read(gdr_slot_of(&gdr_front.table, key), key).type, to,
			      piece->map_d_ptr, piece->h_ptr, piece->size);
}

static inline __attribute__((always_inline)) void put_all(const struct pieces *p, const bool direct)
{
	copy_span *to = gdr_front.impl->to;

	for (const gdr_piece_t *piece = p->at, *end = piece + p->count; piece < end; piece++)
		if (piece->size &&
		    !(direct && copy_put_direct(piece->map_d_ptr, piece->h_ptr, piece->size)))
			to(piece->map_d_ptr, piece->h_ptr, piece->size);
}

static void move_all_to(const struct pieces *p)
{
	if (!p->plain)
		for (size_t i = 0; i < p->count; i++)
			move_piece(&p->at[i], true);
	else if (gdr_front.direct)
		put_all(p, true);
	else
		put_all(p, false);
	gdr_copy_end_write();
}

/*
 * How many lines are read at once: as many as a core has in flight. What is asked for of
 * each line is copied out of them.
 */
#define GATHER 16u
struct gather {
	_Alignas(COPY_LINE) uint8_t lines[GATHER][COPY_LINE];
	const void *devs[GATHER];
	struct {
		void *host;
		size_t off, n;
	} parts[GATHER];
	size_t used;
};

static inline void keep_part(void *host, const uint8_t *line, size_t n)
{
	/* Known sizes need no call. */
	switch (n) {
	case 4: memcpy(host, line, 4); break;
	case 8: memcpy(host, line, 8); break;
	case COPY_LINE: memcpy(host, line, COPY_LINE); break;
	default: memcpy(host, line, n); break;
	}
}

static void gather_lines(struct gather *g)
{
	if (g->used)
		gdr_front.impl->gather(g->lines, g->devs, g->used);
	for (size_t i = 0; i < g->used; i++)
		keep_part(g->parts[i].host, g->lines[i] + g->parts[i].off, g->parts[i].n);
	g->used = 0;
}

static void add_lines(struct gather *g, const gdr_piece_t *piece)
{
	const uint8_t *dev = piece->map_d_ptr;
	uint8_t *host = piece->h_ptr;

	for (size_t left = piece->size, n; left; left -= n, dev += n, host += n) {
		size_t off = (uintptr_t)dev % COPY_LINE;

		n = left < COPY_LINE - off ? left : COPY_LINE - off;
		g->devs[g->used] = dev - off;
		g->parts[g->used].host = host;
		g->parts[g->used].off = off;
		g->parts[g->used].n = n;
		if (++g->used == GATHER)
			gather_lines(g);
	}
}

/*
 * A piece of at least this size is read by itself. It does not wait for other pieces'
 * lines.
 */
#define GATHER_MAX (4 * COPY_LINE)

static void move_all_from(const struct pieces *p)
{
	bool gathers = gdr_front.impl->gather && p->plain;
	struct gather g;

	g.used = 0;
	copy_fence_read_begin();
	for (size_t i = 0; i < p->count; i++)
		if (gathers && p->at[i].size < GATHER_MAX)
			add_lines(&g, &p->at[i]);
		else
			move_piece(&p->at[i], false);
	gather_lines(&g);
	copy_fence_read_end();
}

static inline bool lies_in(const gdr_piece_t *piece, struct gdr_view v)
{
	return !piece->size || (piece->h_ptr && gdr_view_has(v, piece->map_d_ptr, piece->size));
}

/* The index of the first piece that cannot be copied, or the count. */
static size_t find_bad(struct pieces *p)
{
	const gdr_piece_t *piece = p->at, *end = piece + p->count;
	struct gdr_view v = { 0 };
	uint64_t last = 0;

	p->plain = true;
	for (; piece < end; piece++) {
		if (piece->handle.h != last || !last) {
			last = piece->handle.h;
			v = gdr_slot_read(gdr_slot_of(&gdr_front.table, last), last);
			p->plain &= v.type == GDR_MAPPING_TYPE_WC;
		}
		if (!v.type || !lies_in(piece, v))
			break;
	}
	return (size_t)(piece - p->at);
}

static int refuse_piece(const char *call, const struct pieces *p, size_t i)
{
	const gdr_piece_t *piece = &p->at[i];
	uint64_t key = piece->handle.h;

	if (!gdr_slot_read(gdr_slot_of(&gdr_front.table, key), key).type)
		return gdr_copy_refuse(call, key);
	gdr_log(GDR_LOG_ERROR, "%s: piece %zu, %zu bytes at %#lx, does not lie in the mapping of handle %#lx, or has no host address (errno %d)",
		call, i, piece->size, (uintptr_t)piece->map_d_ptr, key, EINVAL);
	return EINVAL;
}

static int copy_many(const char *call, const gdr_piece_t *pieces, size_t count, bool to)
{
	struct pieces p = { .at = pieces, .count = count };
	size_t bad;

	if (!count)
		return 0;
	if (!pieces)
		return gdr_refuse(call, "pieces is NULL: pass an array, or a count of 0");
	if (!gdr_front_is_up())
		return gdr_copy_refuse(call, pieces[0].handle.h);
	bad = find_bad(&p);
	if (bad < count)
		return refuse_piece(call, &p, bad);
	if (to)
		move_all_to(&p);
	else
		move_all_from(&p);
	return 0;
}

int gdr_copy_to_mapping_v(const gdr_piece_t *pieces, size_t count)
{
	return copy_many(__func__, pieces, count, true);
}

int gdr_copy_from_mapping_v(const gdr_piece_t *pieces, size_t count)
{
	return copy_many(__func__, pieces, count, false);
}
