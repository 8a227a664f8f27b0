/* SPDX-License-Identifier: MIT */
/* libraries.h - the libraries that the loader has loaded. */
#ifndef GDR_LIBRARIES_H
#define GDR_LIBRARIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* A library that is loaded, or was. */
struct gdr_library {
	uintptr_t addr;		/* added to the addresses in its file */
	uintptr_t headers;	/* its program headers */
	uint64_t count;		/* of them */
};

/* Lists the libraries in the loader's order, up to room. Returns how many there are. */
size_t gdr_list_libraries(struct gdr_library *list, size_t room);

/* Copies what is at addr, if it lies in a library. Meanwhile none is unloaded. */
bool gdr_read_library(uintptr_t addr, void *to, size_t bytes);

#pragma GCC visibility pop

#endif
