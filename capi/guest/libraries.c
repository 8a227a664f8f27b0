// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "libraries.h"

#include <link.h>
#include <string.h>

/* What the loader's lock is held for. */
struct listing {
	struct gdr_library *list;
	size_t room, count;
};

struct part {
	uintptr_t addr;
	void *to;
	size_t bytes;
};

static int add_library(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct listing *all = arg;

	(void)size;
	if (all->count < all->room)
		all->list[all->count] = (struct gdr_library){
			info->dlpi_addr, (uintptr_t)info->dlpi_phdr, info->dlpi_phnum,
		};
	all->count++;
	return 0;
}

size_t gdr_list_libraries(struct gdr_library *list, size_t room)
{
	struct listing all = { list, room, 0 };

	dl_iterate_phdr(add_library, &all);
	return all.count;
}

static int copy_part(struct dl_phdr_info *info, size_t size, void *arg)
{
	const struct part *part = arg;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		size_t before = part->addr - info->dlpi_addr - p->p_vaddr;

		if (p->p_type != PT_LOAD || before >= p->p_memsz || part->bytes > p->p_memsz - before)
			continue;
		memcpy(part->to, (const void *)part->addr, part->bytes);
		return 1;
	}
	return 0;
}

bool gdr_read_library(uintptr_t addr, void *to, size_t bytes)
{
	return dl_iterate_phdr(copy_part, &(struct part){ addr, to, bytes });
}
