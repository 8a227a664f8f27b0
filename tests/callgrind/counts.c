// SPDX-License-Identifier: MIT
/*
 * counts.c - makes a copy of 64 bytes in each direction, for callgrind to count its
 * instructions. Before each it prints a name and calls mark(), at which callgrind writes
 * down what it has counted.
 */
#include <stdio.h>

#include "copies.h"
#include "front_double.h"

static struct gdr_slot slots[4];
static _Alignas(4096) unsigned char dev[4096], host[4096];

__attribute__((noinline)) void mark(void)
{
	__asm__ __volatile__("");
}

#define COUNT(name, call) do {		\
	puts(name);			\
	fflush(stdout);			\
	mark();				\
	if (call)			\
		return 1;		\
	mark();				\
} while (0)

int main(void)
{
	gdr_mh_t mh = { 1ul << GDR_HANDLE_EPOCH_SHIFT | 1ul << GDR_HANDLE_INDEX_BITS | 1 };

	gdr_front_use(copy_select("sse4.1"));
	slot_set(&slots[1], mh.h, dev, sizeof(dev), GDR_MAPPING_TYPE_WC);
	front_is_up(1, slots);
	COUNT("gdr_copy_to_mapping,64", gdr_copy_to_mapping(mh, dev, host, 64));
	COUNT("gdr_copy_from_mapping,64", gdr_copy_from_mapping(mh, host, dev, 64));
	return 0;
}
