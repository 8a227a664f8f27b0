/* SPDX-License-Identifier: MIT */
/*
 * driver.h - loading libcuda.so.1.
 *
 * The first open loads it, before the core asks for it. Other C files find its functions
 * here.
 *
 * A fork waits until a load is over. Otherwise the child would have a library that is
 * half loaded.
 *
 * A forked child may have a locked loader: another thread of the parent may have been
 * loading a library, or walking the list of libraries. So in a child another thread
 * loads, and the caller waits for ten seconds at most.
 */
#ifndef GDR_DRIVER_H
#define GDR_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* One process's loading. All zero at first, in a child too. */
struct gdr_driver {
	pthread_mutex_t loading;	/* held while the library is loading, and by a fork */
	bool stuck;		/* the loader has hung since the fork */
};

enum { GDR_DRIVER_LOADING, GDR_DRIVER_LOADED, GDR_DRIVER_NOT_FOUND, GDR_DRIVER_BROKEN };

/*
 * Loads the library, or tries again after a failure. LOADING: the load did not end in ten
 * seconds, and may still end. Callers take turns.
 */
uint32_t gdr_driver_load(struct gdr_driver *driver);

/* For pthread_atfork. It does not wait for a program that a load starts. */
void gdr_driver_before_fork(struct gdr_driver *driver);
void gdr_driver_after_fork(struct gdr_driver *driver);

/*
 * Stores the address of a function in *place, which is a pointer to a function. false:
 * the library has no function of that name, or is not loaded.
 */
bool gdr_driver_find(const char *name, void *place);

#pragma GCC visibility pop

#endif
