/* SPDX-License-Identifier: MIT */
/*
 * driver.h - loading libcuda.so.1.
 *
 * The first open loads it, before the core asks for it. What else in C needs a
 * function of it finds it here.
 *
 * A fork waits until a load is over: a child would have a library that is half there.
 * A child may be without a loader: a thread of its parent that was loading a library
 * at the fork, or walking their list, has left it locked. So in a child another
 * thread loads, and the caller does not wait for ever.
 */
#ifndef GDR_DRIVER_H
#define GDR_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* One process's loading. All zero at first, in a child too. */
struct gdr_driver {
	pthread_mutex_t loading;	/* held while the library is, and by a fork */
	bool stuck;		/* the loader is, since the fork */
};

enum { GDR_DRIVER_LOADING, GDR_DRIVER_LOADED, GDR_DRIVER_NOT_FOUND, GDR_DRIVER_BROKEN };

/*
 * Loads it, or tries again what has failed. LOADING: it did not end in ten seconds,
 * and may yet. Callers take turns.
 */
uint32_t gdr_driver_load(struct gdr_driver *driver);

/* For pthread_atfork. A program that a load starts is not waited for. */
void gdr_driver_before_fork(struct gdr_driver *driver);
void gdr_driver_after_fork(struct gdr_driver *driver);

/*
 * Stores the address of a function in *place, which is a pointer to a function.
 * false: it has none of that name, or the process has not loaded it.
 */
bool gdr_driver_find(const char *name, void *place);

#pragma GCC visibility pop

#endif
