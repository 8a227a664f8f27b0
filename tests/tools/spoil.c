// SPDX-License-Identifier: MIT
/*
 * spoil.c - a preload that spoils or refuses calls of libgdrapi, to see who notices.
 *
 * SPOIL=CALL:HOW:WHICH
 *	CALL	to, from, to_v, from_v, pin, map, unmap, get or put (of a cache)
 *	HOW	flip (the copy's last byte has a wrong bit), nothing (0, and no byte is
 *		moved), or refuse (EIO)
 *	WHICH	a number: that call of the process alone, from 1; all; or others: those of
 *		threads that are not the main one
 *
 * The last five can only be refused. With SPOIL=open:tell:1 the environment that gdr_open
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

enum how { LEAVE, FLIP, NOTHING, REFUSE, TELL };

static struct {
	char call[16];
	enum how how;
	unsigned long which;	/* 0: all */
	bool others;
	atomic_ulong calls;
} plan;

static void bad_plan(const char *text)
{
	fprintf(stderr, "SPOIL=%s: see tests/tools/spoil.c\n", text);
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

static void *real(const char *name)
{
	void *f = dlsym(RTLD_NEXT, name);

	if (!f) {
		fprintf(stderr, "spoil: %s\n", dlerror());
		abort();
	}
	return f;
}

/* The library's function of the same name. ISO C has no cast from an object pointer. */
#define REAL(name)						\
	static __typeof__(name) *next;				\
	do {							\
		if (!next) {					\
			void *f_ = real(#name);			\
								\
			memcpy(&next, &f_, sizeof(next));	\
		}						\
	} while (0)

int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size)
{
	enum how how = fate("to");
	uint8_t *bad;
	int rc;

	REAL(gdr_copy_to_mapping);
	if (how == REFUSE)
		return EIO;
	if (how == NOTHING)
		return 0;
	if (how == LEAVE || !size)
		return next(handle, map_d_ptr, h_ptr, size);
	bad = malloc(size);
	if (!bad)
		abort();
	memcpy(bad, h_ptr, size);
	bad[size - 1] ^= 0x10;
	rc = next(handle, map_d_ptr, bad, size);
	free(bad);
	return rc;
}

int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size)
{
	enum how how = fate("from");
	int rc;

	REAL(gdr_copy_from_mapping);
	if (how == REFUSE)
		return EIO;
	if (how == NOTHING)
		return 0;
	rc = next(handle, h_ptr, map_d_ptr, size);
	if (how == FLIP && size)
		((uint8_t *)h_ptr)[size - 1] ^= 0x10;
	return rc;
}

int gdr_copy_to_mapping_v(const gdr_piece_t *pieces, size_t count)
{
	enum how how = fate("to_v");

	REAL(gdr_copy_to_mapping_v);
	if (how == REFUSE)
		return EIO;
	if (how == FLIP && count)
		count--;	/* the last piece does not move */
	return how == NOTHING ? 0 : next(pieces, count);
}

int gdr_copy_from_mapping_v(const gdr_piece_t *pieces, size_t count)
{
	enum how how = fate("from_v");

	REAL(gdr_copy_from_mapping_v);
	if (how == REFUSE)
		return EIO;
	if (how == FLIP && count)
		count--;
	return how == NOTHING ? 0 : next(pieces, count);
}

gdr_t gdr_open(void)
{
	REAL(gdr_open);
	if (fate("open") == TELL)
		for (char **v = environ; *v; v++)
			if (!strncmp(*v, "GDRCOPY_", 8))
				fprintf(stderr, "%s\n", *v);
	return next();
}

int gdr_cache_get(gdr_cache_t c, unsigned long addr, size_t size, gdr_mh_t *mh, void **va)
{
	REAL(gdr_cache_get);
	return fate("get") == LEAVE ? next(c, addr, size, mh, va) : EIO;
}

int gdr_cache_put(gdr_cache_t c, gdr_mh_t mh)
{
	REAL(gdr_cache_put);
	return fate("put") == LEAVE ? next(c, mh) : EIO;
}

int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t *handle)
{
	REAL(gdr_pin_buffer_v2);
	return fate("pin") == LEAVE ? next(g, addr, size, flags, handle) : EIO;
}

int gdr_map_v2(gdr_t g, gdr_mh_t handle, void **va, size_t size, int flags)
{
	REAL(gdr_map_v2);
	return fate("map") == LEAVE ? next(g, handle, va, size, flags) : EIO;
}

int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size)
{
	REAL(gdr_unmap);
	return fate("unmap") == LEAVE ? next(g, handle, va, size) : EIO;
}
