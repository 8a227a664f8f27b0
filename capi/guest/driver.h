/* SPDX-License-Identifier: MIT */
/*
 * driver.h - loading libcuda.so.1, and its functions.
 *
 * 1. Only these functions load libcuda. No lock of ours is held meanwhile: another thread
 *    may be inside the loader, in a constructor that calls gdr_open.
 * 2. It is loaded once. A forked child uses what its parent has loaded and looked up.
 * 3. A child whose parent had not loaded it calls dlopen. If another thread of the parent
 *    was inside the loader at the fork, the child may hang there, as in any dlopen.
 */
#ifndef GDR_DRIVER_H
#define GDR_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

enum gdr_driver_state {
	GDR_DRIVER_LOADED,
	GDR_DRIVER_NOT_FOUND,
	GDR_DRIVER_BROKEN,	/* it is there, and does not load */
};

/*
 * Loads the library, unless it is loaded. After a failure, why has the reason as text; it
 * may be tried again. The caller has called gdr_enter and holds no lock.
 */
enum gdr_driver_state gdr_driver_load(char *why, size_t size);

/* Whether this process or an ancestor has loaded the library, through us or otherwise. */
bool gdr_driver_is_loaded(void);

/* Looks up a function after a load that succeeded. 0: the library has none of that name. */
uintptr_t gdr_driver_find(const char *name);

/*
 * The functions that Go has looked up, in its order. They lie here for a forked child, whose Go
 * begins anew.
 */
extern struct gdr_driver_functions {
	uint32_t known;		/* stored last, by Go's atomics */
	uintptr_t at[64];
} gdr_driver_functions;

#pragma GCC visibility pop

#endif
