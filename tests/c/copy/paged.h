/* SPDX-License-Identifier: MIT */
/*
 * paged.h - a table of a few mappings, which are pages of ordinary memory; and copies of
 * them, step by step.
 */
#ifndef COPY_PAGED_H
#define COPY_PAGED_H

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <x86intrin.h>

#include "copy/copy.h"
#include "front_double.h"
#include "gdrapi_ext.h"

/* Not each handler needs all that it is told. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define PAGE 4096
#define EFLAGS_TF (1ull << 8)

static struct gdr_slot slots[4];

/* Of slot i, which is not 0. */
static inline gdr_mh_t handle_of(int i)
{
	return (gdr_mh_t){ 1ul << GDR_HANDLE_EPOCH_SHIFT | 1ul << GDR_HANDLE_INDEX_BITS |
			   (unsigned long)i };
}

static inline void *new_page(int prot)
{
	void *p = mmap(NULL, PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		abort();
	return p;
}

/* A page that is mapped as slot i's. */
static inline unsigned char *new_mapping(int i, uint32_t type)
{
	unsigned char *page = new_page(PROT_READ | PROT_WRITE);

	slot_set(&slots[i], handle_of(i).h, page, PAGE, type);
	return page;
}

static inline void front_up(const struct copy_impl *impl)
{
	gdr_front_use(impl);
	front_is_up(1, slots);
}

static inline void catch_signal(int sig, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction sa = { .sa_sigaction = handler, .sa_flags = flags | SA_SIGINFO };

	if (sigaction(sig, &sa, NULL))
		abort();
}

/* A copy of slot i's page: of n bytes, or of two pieces. The second one is elsewhere. */
struct paged {
	int i;
	unsigned char *page, *host;
	size_t n;
	bool to, many;
};

#define SECOND_PAGE (PAGE / 2)
#define SECOND_HOST (PAGE / 4)

static inline int copy_paged(const struct paged *c)
{
	const gdr_mh_t mh = handle_of(c->i);
	const gdr_piece_t pieces[] = {
		{ mh, c->page, c->host, c->n }, { mh, c->page + SECOND_PAGE, c->host + SECOND_HOST, c->n },
	};

	if (c->many)
		return c->to ? gdr_copy_to_mapping_v(pieces, 2) : gdr_copy_from_mapping_v(pieces, 2);
	return c->to ? gdr_copy_to_mapping(mh, c->page, c->host, c->n) :
		       gdr_copy_from_mapping(mh, c->host, c->page, c->n);
}

/* The same, from one frame in any case; stepped: each instruction ends in a SIGTRAP. */
static __attribute__((noinline)) int call_paged(const struct paged *c, bool stepped)
{
	int rc;

	if (stepped)
		__writeeflags(__readeflags() | EFLAGS_TF);
	rc = copy_paged(c);
	if (stepped)
		__writeeflags(__readeflags() & ~EFLAGS_TF);
	return rc;
}

/* Whether both sides have the same bytes. */
static inline bool is_copied(const struct paged *c)
{
	return !memcmp(c->page, c->host, c->n) &&
	       (!c->many || !memcmp(c->page + SECOND_PAGE, c->host + SECOND_HOST, c->n));
}

#endif
