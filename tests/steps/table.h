/* SPDX-License-Identifier: MIT */
/*
 * table.h - what capi/data.c needs of the rest of the front: a table of a few mappings,
 * which are pages of ordinary memory.
 */
#ifndef STEPS_TABLE_H
#define STEPS_TABLE_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "copy/copy.h"
#include "data.h"
#include "front_double.h"
#include "gdrapi_ext.h"

#define PAGE 4096

static struct gdr_table table;
static struct gdr_slot slots[4];
static struct gdr_hazard hazards[GDR_HAZARD_COUNT];

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

	slots[i].va = (uintptr_t)page;
	slots[i].len = PAGE;
	slots[i].type = type;
	atomic_store(&slots[i].key, handle_of(i).h);
	return page;
}

static inline void front_up(const struct copy_impl *impl)
{
	front.impl = impl;
	front_is_up(&table, 1, slots, hazards);
}

#endif
