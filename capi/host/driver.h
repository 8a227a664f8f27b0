/* SPDX-License-Identifier: MIT */
/*
 * driver.h - loading libcuda.so.1, and its functions.
 *
 * 1. Only these functions load libcuda, and no lock of ours is held meanwhile: another
 *    thread may be inside the loader and call gdr_open there, from a constructor.
 * 2. It is loaded once. A forked child uses what its parent has loaded and looked up.
 * 3. A child whose parent had not done both does it by itself. If the parent was inside
 *    the loader when it forked, the child's loader is unusable, and the child does not
 *    touch it.
 * 4. A fork waits for a load of ours, and a load of ours for a fork, up to a second.
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
	GDR_DRIVER_NO_LOADER,	/* see 3 */
};

/*
 * Loads the library, unless it is loaded. After a failure, why has the reason as text; it
 * may be tried again. The caller has called gdr_guest_enter and holds no lock.
 */
enum gdr_driver_state gdr_driver_load(char *why, size_t size);

/* Whether this process can load a library at all; see 3. */
bool gdr_driver_can_load(void);

/* Whether this process or an ancestor has loaded the library, through us or otherwise. */
bool gdr_driver_is_loaded(void);

/* Looks up a function after a load that succeeded. 0: the library has none of that name. */
uintptr_t gdr_driver_find(const char *name);

/*
 * The functions that Go has looked up, in its order (host.go). They lie here for a forked child,
 * whose Go begins anew.
 */
extern struct gdr_driver_functions {
	uint32_t known;		/* stored last, by Go's atomics */
	uintptr_t at[64];
} gdr_driver_functions;

#pragma GCC visibility pop

#endif
