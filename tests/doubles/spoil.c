// SPDX-License-Identifier: MIT
/*
 * spoil.c - a preload that spoils or refuses calls of libgdrapi, to see who notices.
 *
 * SPOIL=CALL:HOW:WHICH
 *	CALL	to, from, to_v, from_v, open, close, pin, unpin, map, unmap; of a cache: get,
 *		put, cache_open, cache_close; of CUDA's: HtoD
 *	HOW	flip (the copy's last byte has a wrong bit), nothing (0, and no byte is
 *		moved), late (200 ms), crash, or refuse (EIO)
 *	WHICH	a number: that call of the process alone, from 1; all; or others: those of
 *		threads that are not the main one
 *
 * What is no copy can only be refused. Late are to and HtoD alone, and to crashes. With SPOIL=open:tell:1 the environment that gdr_open
 * has of the library's is told on standard error.
 */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gdrapi.h"
#include "gdrapi_ext.h"

/* Makes next the next library's function of that name. ISO C has no cast from an object pointer. */
#define NEXT(name)						\
	static __typeof__(name) *next;				\
	do {							\
		if (!next) {					\
			void *f_ = dlsym(RTLD_NEXT, #name);	\
								\
			memcpy(&next, &f_, sizeof(next));	\
		}						\
	} while (0)

enum how { LEAVE, FLIP, NOTHING, LATE, CRASH, REFUSE, TELL };

static struct {
	char call[16];
	enum how how;
	unsigned long which;	/* 0: all */
	bool others;
	atomic_ulong calls;
} plan;

static void bad_plan(const char *text)
{
	fprintf(stderr, "SPOIL=%s: see tests/doubles/spoil.c\n", text);
	abort();
}

__attribute__((constructor)) static void read_plan(void)
{
	const char *text = getenv("SPOIL");
	char how[16], which[16], *end;

	if (!text)
		return;
	if (sscanf(text, "%15[^:]:%15[^:]:%15s", plan.call, how, which) != 3)
		bad_plan(text);
	plan.how = !strcmp(how, "flip") ? FLIP : !strcmp(how, "nothing") ? NOTHING :
		   !strcmp(how, "late") ? LATE : !strcmp(how, "crash") ? CRASH :
		   !strcmp(how, "refuse") ? REFUSE : !strcmp(how, "tell") ? TELL : LEAVE;
	plan.others = !strcmp(which, "others");
	if (plan.how == LEAVE)
		bad_plan(text);
	if (plan.others || !strcmp(which, "all"))
		return;
	plan.which = strtoul(which, &end, 10);
	if (*end || !plan.which)
		bad_plan(text);
}

/* What becomes of this call. */
static enum how fate(const char *call)
{
	unsigned long n;

	if (strcmp(call, plan.call))
		return LEAVE;
	n = atomic_fetch_add(&plan.calls, 1) + 1;
	if (plan.others ? gettid() == getpid() : plan.which && plan.which != n)
		return LEAVE;
	return plan.how;
}

/* A copy of the bytes, whose last one has a wrong bit. */
static void *flipped(const void *from, size_t size)
{
	uint8_t *bad = malloc(size);

	if (!bad)
		abort();
	memcpy(bad, from, size);
	bad[size - 1] ^= 0x10;
	return bad;
}

int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size)
{
	enum how how = fate("to");
	void *bad;
	int rc;

	NEXT(gdr_copy_to_mapping);
	if (how == REFUSE)
		return EIO;
	if (how == NOTHING)
		return 0;
	if (how == CRASH)
		abort();
	if (how == LATE)
		usleep(200000);
	if (how != FLIP || !size)
		return next(handle, map_d_ptr, h_ptr, size);
	bad = flipped(h_ptr, size);
	rc = next(handle, map_d_ptr, bad, size);
	free(bad);
	return rc;
}

int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size)
{
	enum how how = fate("from");
	int rc;

	NEXT(gdr_copy_from_mapping);
	if (how == REFUSE)
		return EIO;
	if (how == NOTHING)
		return 0;
	rc = next(handle, h_ptr, map_d_ptr, size);
	if (how == FLIP && size)
		((uint8_t *)h_ptr)[size - 1] ^= 0x10;
	return rc;
}

/* The function that moves all pieces, or all but the last one. */
static int move_pieces(enum how how, int (*next)(const gdr_piece_t *, size_t), const gdr_piece_t *pieces, size_t count)
{
	if (how == REFUSE)
		return EIO;
	return how == NOTHING ? 0 : next(pieces, how == FLIP && count ? count - 1 : count);
}

int gdr_copy_to_mapping_v(const gdr_piece_t *pieces, size_t count)
{
	NEXT(gdr_copy_to_mapping_v);
	return move_pieces(fate("to_v"), next, pieces, count);
}

int gdr_copy_from_mapping_v(const gdr_piece_t *pieces, size_t count)
{
	NEXT(gdr_copy_from_mapping_v);
	return move_pieces(fate("from_v"), next, pieces, count);
}

/* CUDA's copy. */
int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size);

int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size)
{
	enum how how = fate("HtoD");
	void *bad;
	int rc;

	NEXT(cuMemcpyHtoD_v2);
	if (how == LATE)
		usleep(200000);
	if (how != FLIP || !size)
		return next(to, from, size);
	bad = flipped(from, size);
	rc = next(to, bad, size);
	free(bad);
	return rc;
}

gdr_t gdr_open(void)
{
	enum how how = fate("open");

	NEXT(gdr_open);
	if (how == REFUSE) {
		errno = EIO;
		return NULL;
	}
	if (how == TELL)
		for (char **v = environ; *v; v++)
			if (!strncmp(*v, "GDRCOPY_", 8))
				fprintf(stderr, "%s\n", *v);
	return next();
}

/* A call that can only be refused. */
#define REFUSABLE(function, call, parameters, arguments)	\
int function parameters					\
{							\
	NEXT(function);					\
	return fate(call) == LEAVE ? next arguments : EIO;	\
}

REFUSABLE(gdr_cache_open, "cache_open", (gdr_t g, size_t most, unsigned int flags, gdr_cache_t *c), (g, most, flags, c))
REFUSABLE(gdr_cache_get, "get", (gdr_cache_t c, unsigned long addr, size_t size, gdr_mh_t *mh, void **va),
	  (c, addr, size, mh, va))
REFUSABLE(gdr_cache_put, "put", (gdr_cache_t c, gdr_mh_t mh), (c, mh))
REFUSABLE(gdr_cache_close, "cache_close", (gdr_cache_t c), (c))
REFUSABLE(gdr_pin_buffer, "pin", (gdr_t g, unsigned long addr, size_t size, uint64_t token, uint32_t space, gdr_mh_t *mh),
	  (g, addr, size, token, space, mh))
REFUSABLE(gdr_pin_buffer_v2, "pin", (gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t *mh),
	  (g, addr, size, flags, mh))
REFUSABLE(gdr_pin_bytes, "pin", (gdr_t g, unsigned long addr, size_t size, unsigned int flags, gdr_mh_t *mh),
	  (g, addr, size, flags, mh))
REFUSABLE(gdr_map, "map", (gdr_t g, gdr_mh_t mh, void **va, size_t size), (g, mh, va, size))
REFUSABLE(gdr_map_v2, "map", (gdr_t g, gdr_mh_t mh, void **va, size_t size, int flags), (g, mh, va, size, flags))
REFUSABLE(gdr_unmap, "unmap", (gdr_t g, gdr_mh_t mh, void *va, size_t size), (g, mh, va, size))
REFUSABLE(gdr_unpin_buffer, "unpin", (gdr_t g, gdr_mh_t mh), (g, mh))
REFUSABLE(gdr_close, "close", (gdr_t g), (g))
